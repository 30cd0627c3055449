"""The interface of a vendor: a kind of tier 2 that has a location with a scheme.

Owns: ``Vendor``, which each folder of a vendor declares once, and ``TierTwo``, which a vendor
opens.

A declaration imports nothing slow, so that a command line can parse locations and name vendors:
the function that opens a location imports the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from segstore.errors import SegmentStoreError, StorageConfigurationError
from segstore.tiers.api import ChunkStorage, StoredRange

Locate = Callable[[str], Awaitable[list[StoredRange]]]
"""Returns where a chunk's bytes are, by its name."""


@dataclass(frozen=True, slots=True)
class TierAddress:
    """The place of tier 2, for readers other than the store."""

    location: str
    """Location of tier 2: ``file:///directory`` or ``s3://bucket/prefix/``."""
    store_id: str
    endpoint: str = ""
    """URL of the S3 endpoint; empty for Amazon's."""
    region: str = ""


@dataclass(frozen=True, slots=True)
class ReadableTier:
    """A tier 2 that others may read, and where in it a chunk's bytes are."""

    address: TierAddress
    locate: Locate


NEVER: Final = 2**32 - 1
"""Epoch that no owner has: for readers, which own nothing."""

StorageOfOwner = Callable[[Callable[[], int]], ChunkStorage]
"""Returns the chunks for an owner, which knows its epoch by then."""


OpenForJournals = Callable[[Collection[int]], Awaitable[Mapping[int, StorageOfOwner]]]
"""Returns, by journal, the function with which owners of the journal's containers get their chunks.
"""


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
    # A command line that only names vendors does not pay for this import.
    import trio

    await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True)
class Vendor:
    """One kind of tier 2. ``open`` and ``look`` get a location and the vendor's settings."""

    title: str
    """Its name for users."""
    form: str
    """Form of its locations, for users."""
    schemes: tuple[str, ...]
    parse: Callable[[str], str]
    """Returns the canonical text of a location; raises ``StorageConfigurationError``."""
    open: Callable[[str, Any], AbstractAsyncContextManager[TierTwo]]
    """Opens the location for the block, before it is known to be the store's. Raises
    ``StorageConfigurationError`` or ``StorageUnreachableError`` with a sentence for users."""
    look: Callable[[str, Any], AbstractContextManager[ChunkStorage]]
    """Opens the location for reading only, for the block."""
    leaves_doubt: bool = False
    """True if a chunk may grow after its owner has ended, by a request that comes late: no length
    is trusted then that neither the log nor metadata know."""
    can_move: bool = False
    """True if the same chunks can be reached by another location, as after a server has moved. What
    they are is known by their identity."""


class LocationError(SegmentStoreError):
    """The text is not a location of a vendor; the message says why."""


class Location(Protocol):
    """A location, whose text is its canonical form."""

    @classmethod
    def parse(cls, text: str) -> Location:
        """Read a location. Raises ``LocationError`` when the text is no location."""
        ...


def parse_by(location: type[Location]) -> Callable[[str], str]:
    """Return a function that parses locations for a vendor."""

    def parse(text: str) -> str:
        try:
            return str(location.parse(text))
        except LocationError as error:
            raise StorageConfigurationError(f"--tier2 {error}") from error

    return parse
