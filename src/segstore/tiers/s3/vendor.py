"""S3 as a vendor of tier 2.

Owns: ``S3``, its declaration. boto3 takes a tenth of a second to import: only stores in S3 do.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Final

from segstore.tiers.api import ChunkStorage
from segstore.tiers.s3.location import S3Location
from segstore.tiers.s3.settings import S3Settings
from segstore.tiers.vendor import (
    NEVER,
    ReadableTier,
    TierAddress,
    TierTwo,
    Vendor,
    for_each_journal,
    parse_by,
)


@asynccontextmanager
async def _open_s3(location: str, settings: S3Settings) -> AsyncIterator[TierTwo]:
    from segstore.tiers.s3.opening import open_s3

    opened = await open_s3(S3Location.parse(location), settings)
    with closing(opened.tier):
        yield TierTwo(
            where=location,
            chunks_under=lambda number: opened.tier.owned_by(lambda: number),
            open=for_each_journal(opened.open),
            make=opened.try_everything,
            readable=partial(_readable_objects, location, settings),
        )


@contextmanager
def _look_at_s3(location: str, settings: S3Settings) -> Iterator[ChunkStorage]:
    from segstore.tiers.s3.objects import ObjectStore
    from segstore.tiers.s3.opening import boto3_client
    from segstore.tiers.s3.storage import S3Tier

    place = S3Location.parse(location)
    objects = ObjectStore(
        boto3_client(settings), bucket=place.bucket, prefix=place.prefix, random=random.random
    )
    with closing(S3Tier(objects)) as tier:
        yield tier.owned_by(lambda: NEVER)


def _readable_objects(
    location: str, settings: S3Settings, chunks: ChunkStorage, store_id: str
) -> ReadableTier:
    from segstore.tiers.s3.storage import S3ChunkStorage

    assert isinstance(chunks, S3ChunkStorage), "one that was opened here"
    address = TierAddress(location, store_id, settings.endpoint_url or "", settings.region or "")
    return ReadableTier(address, chunks.locate)


S3: Final = Vendor(
    "S3",
    "s3://BUCKET/PREFIX",
    ("s3",),
    parse=parse_by(S3Location),
    open=_open_s3,
    look=_look_at_s3,
)
