"""The kinds of tier 2 that have a location with a scheme, such as ``s3://bucket/prefix``.

Owns: ``VENDORS``, and ``TierTwo``, which a vendor opens. A new kind of tier 2 is one entry of
``VENDORS``; beside it, settings and their documentation name vendors. Directories have no scheme,
and no entry: they are what a store uses without a location.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import trio

from segstore.chunks.scan_plan import ReadableTier, TierAddress
from segstore.errors import StorageConfigurationError
from segstore.tiers.api import ChunkStorage
from segstore.tiers.hdfs import HdfsLocation, HdfsLocationError
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.s3 import S3Location, S3LocationError
from segstore.tiers.s3.settings import S3Settings

NEVER: Final = 2**32 - 1
"""Epoch that no owner has: for readers, which own nothing."""

StorageOfOwner = Callable[[Callable[[], int]], ChunkStorage]
"""Returns the chunks for an owner, which knows its epoch by then."""


OpenForJournals = Callable[[Collection[int]], Awaitable[Mapping[int, StorageOfOwner]]]
"""Returns, for the containers of each journal, a function that gives their owners the chunks."""


@dataclass(slots=True)
class TierTwo:
    """The configured tier 2, before it is known to be the store's."""

    where: str
    """Path of a directory, or a location: for users, and for the next start."""
    chunks_under: Callable[[int], ChunkStorage]
    """Returns the chunks for the owner of the claim with that number."""
    open: OpenForJournals
    """Begins to use it for the containers of these journals: only once it is known to be the
    store's. May change what is in it."""
    marked_by: Callable[[], Awaitable[str | None]]
    """Returns the store that an older version has marked it with, or None."""
    make: Callable[[], Awaitable[None]]
    """Makes it, and checks that a new store can use it."""
    readable: Callable[[ChunkStorage, str], ReadableTier] | None = None
    """Returns what tells others where chunks and the store with that id are; None when only this
    process can read them."""

    def readable_of(self, store_id: str) -> Callable[[ChunkStorage], ReadableTier] | None:
        """Return what tells others where chunks of the store with that id are, or None."""
        readable = self.readable
        if readable is None:
            return None
        return lambda chunks: readable(chunks, store_id)


def for_each_journal(open: Callable[[], Awaitable[StorageOfOwner]]) -> OpenForJournals:
    """Open a tier 2 that has nothing to do for the containers of one journal or another."""

    async def open_once(journals: Collection[int]) -> Mapping[int, StorageOfOwner]:
        return dict.fromkeys(journals, await open())

    return open_once


async def do_nothing() -> None:
    """Do nothing: for the steps that a kind of tier 2 does not need."""
    await trio.lowlevel.checkpoint()


class VendorSettings(msgspec.Struct, frozen=True):
    """Settings of users beside the location; each vendor uses its own part."""

    s3: S3Settings = S3Settings()
    hdfs: HdfsSettings = HdfsSettings()


@dataclass(frozen=True, slots=True)
class Vendor:
    """One kind of tier 2."""

    form: str
    """Form of its locations, for users."""
    parse: Callable[[str], str]
    """Returns the canonical text of a location; raises ``StorageConfigurationError``."""
    open: Callable[[str, VendorSettings], AbstractAsyncContextManager[TierTwo]]
    """Opens the location for the block, before it is known to be the store's. Raises
    ``StorageConfigurationError`` or ``StorageUnreachableError`` with a sentence for users."""
    look: Callable[[str, VendorSettings], AbstractContextManager[ChunkStorage]]
    """Opens the location for reading only, for the block."""
    leaves_doubt: bool = False
    """True if a chunk may grow after its owner has ended, by a request that comes late: no length
    is trusted then that neither the log nor metadata know."""
    can_move: bool = False
    """True if the same chunks can be reached by another location, as after a server has moved. What
    they are is known by their identity."""


def is_location(text: str) -> bool:
    """Return whether the text is a location of a vendor, and not a directory."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in VENDORS


def known_forms() -> str:
    """Return the forms of all locations, for users."""
    return " or ".join(dict.fromkeys(each.form for each in VENDORS.values()))


def vendor_of(location: str) -> Vendor:
    """Return the vendor of a location; raises ``StorageConfigurationError`` for another scheme."""
    if not is_location(location):
        raise StorageConfigurationError(f"--tier2 {location!r} is not {known_forms()}")
    return VENDORS[location.partition("://")[0]]


def _parse(location: type[S3Location] | type[HdfsLocation], text: str) -> str:
    try:
        return str(location.parse(text))
    except (S3LocationError, HdfsLocationError) as error:
        raise StorageConfigurationError(f"--tier2 {error}") from error


# boto3 takes a tenth of a second to import: only stores in S3 import it.


@asynccontextmanager
async def _open_s3(location: str, settings: VendorSettings) -> AsyncIterator[TierTwo]:
    from segstore.tiers.s3.opening import open_s3

    opened = await open_s3(S3Location.parse(location), settings.s3)
    with closing(opened.tier):
        yield TierTwo(
            where=location,
            chunks_under=lambda number: opened.tier.owned_by(lambda: number),
            open=for_each_journal(opened.open),
            marked_by=opened.marked_by,
            make=opened.try_everything,
            readable=partial(_readable_objects, location, settings.s3),
        )


@contextmanager
def _look_at_s3(location: str, settings: VendorSettings) -> Iterator[ChunkStorage]:
    from segstore.tiers.s3.objects import ObjectStore
    from segstore.tiers.s3.opening import boto3_client
    from segstore.tiers.s3.storage import S3Tier

    place = S3Location.parse(location)
    objects = ObjectStore(
        boto3_client(settings.s3), bucket=place.bucket, prefix=place.prefix, random=random.random
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


@asynccontextmanager
async def _open_hdfs(location: str, settings: VendorSettings) -> AsyncIterator[TierTwo]:
    from segstore.tiers.hdfs.opening import open_hdfs

    opened = await open_hdfs(HdfsLocation.parse(location), settings.hdfs)
    with closing(opened):
        yield TierTwo(
            where=location,
            chunks_under=lambda _: opened.storage,
            open=for_each_journal(opened.open),
            marked_by=do_nothing,
            make=opened.try_everything,
        )


@contextmanager
def _look_at_hdfs(location: str, settings: VendorSettings) -> Iterator[ChunkStorage]:
    from segstore.tiers.hdfs.opening import connect
    from segstore.tiers.hdfs.storage import HdfsChunkStorage

    hdfs = connect(HdfsLocation.parse(location), settings.hdfs)
    with closing(HdfsChunkStorage(hdfs, random_bytes=os.urandom)) as chunks:
        yield chunks


_HDFS: Final = Vendor(
    "webhdfs://HOST:PORT/PATH",
    parse=partial(_parse, HdfsLocation),
    open=_open_hdfs,
    look=_look_at_hdfs,
    leaves_doubt=True,
    can_move=True,
)
VENDORS: dict[str, Vendor] = {
    "s3": Vendor(
        "s3://BUCKET/PREFIX", parse=partial(_parse, S3Location), open=_open_s3, look=_look_at_s3
    ),
    "webhdfs": _HDFS,
    "swebhdfs": _HDFS,
}
"""The vendors by the scheme of their locations."""
