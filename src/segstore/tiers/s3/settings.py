"""What can be configured of S3.

Owns: ``S3Settings``.
"""

from __future__ import annotations

import msgspec


class S3Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How S3 is reached. Credentials are found as boto3 finds them, never configured here."""

    endpoint_url: str | None = None
    """Where the S3 server is; Amazon's when None, unless ``AWS_ENDPOINT_URL`` is set."""
    region: str | None = None
    """The bucket's region; boto3's configuration decides when None."""
