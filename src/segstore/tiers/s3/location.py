"""The location of a store's chunks in S3, as users write it.

Owns: ``S3Location``. Imports nothing of boto3, so that a wrong URL is reported at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from segstore.tiers.vendor import LocationError

PREFIX_BYTES_MAX = 200
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_PREFIX = re.compile(r"([A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]*/)*")


class S3LocationError(LocationError):
    """The text is not a location in S3; the message says why."""


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket, and the prefix of all objects' keys: empty, or names that each end with ``/``."""

    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> S3Location:
        """Read ``s3://bucket/prefix``; ``S3LocationError`` when it is not that."""
        scheme, separator, rest = text.partition("://")
        if scheme != "s3" or not separator:
            raise S3LocationError(f"{text!r} is not s3://BUCKET/PREFIX")
        bucket, _, prefix = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise S3LocationError(f"{text!r}: {bucket!r} is no bucket's name")
        prefix = prefix.strip("/")
        prefix = f"{prefix}/" if prefix else ""
        if not _PREFIX.fullmatch(prefix):
            raise S3LocationError(
                f"{text!r}: a prefix is made of letters, digits and . _ - = + @, with single /"
                " between"
            )
        if len(prefix) > PREFIX_BYTES_MAX:
            raise S3LocationError(f"{text!r}: the prefix is longer than {PREFIX_BYTES_MAX} bytes")
        return cls(bucket, prefix)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"
