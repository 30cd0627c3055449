"""Tier 2 in an S3 bucket: see ``storage`` for how chunks become objects."""

from segstore.tiers.s3.location import S3Location as S3Location
from segstore.tiers.s3.location import S3LocationError as S3LocationError
