"""What can be configured of S3.

Owns: ``S3Settings``.
"""

from __future__ import annotations

import msgspec


class S3Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How S3 is reached. boto3 finds the credentials; they are never configured here."""

    endpoint_url: str | None = None
    """The URL of the S3 server; None is Amazon's, unless ``AWS_ENDPOINT_URL`` is set."""
    region: str | None = None
    """The bucket's region; boto3's configuration decides when None."""
