"""The settings of S3.

Owns: ``S3Settings``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class S3Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for reaching S3. boto3 finds the credentials; they are never configured here."""

    endpoint_url: Annotated[str | None, Meta(extra={"option": "--s3-endpoint"})] = None
    """URL of the S3 server; None is Amazon's, unless ``AWS_ENDPOINT_URL`` is set."""
    region: Annotated[str | None, Meta(extra={"option": "--s3-region"})] = None
    """Name of the bucket's region; boto3's configuration decides when None."""
    ca_file: str | None = None
    """Path of the certificates, in PEM, with which an ``https`` server is checked;
    ``AWS_CA_BUNDLE`` when None, else those that boto3 has."""
