"""The settings of S3.

Owns: ``S3Settings``.
"""

from __future__ import annotations

import msgspec


class S3Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for reaching S3. boto3 finds the credentials; they are never configured here."""

    endpoint_url: str | None = None
    """URL of the S3 server; None is Amazon's, unless ``AWS_ENDPOINT_URL`` is set."""
    region: str | None = None
    """Name of the bucket's region; boto3's configuration decides when None."""
