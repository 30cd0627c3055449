"""Opens the storage that a process uses as tier 2.

Owns: the choice of tier 2 by the configuration, and tier 2 in a directory. ``tier_two_vendors`` has
the other kinds.

Invariants:
1. When the chunks of a store are at a location, such as S3, a start with another location or with a
   directory is refused. Held by ``test_a_store_at_a_vendor_is_not_started_elsewhere``.
2. When the chunks of a store are in a directory, a start with a location is refused. Held by
   ``test_chunks_in_a_directory_are_not_left_behind``.
3. When tier 2 belongs to another store, it is not changed. Held by
   ``test_another_store_s_tier_2_is_refused``.
4. When another directory gets the name of tier 2 while the store runs, as by a mount, the store
   keeps using the directory that it checked at its start. Held by
   ``test_a_tier_2_that_goes_away_meanwhile_is_not_replaced``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from segstore.errors import StorageConfigurationError
from segstore.ownership.data_directory import DataDirectory
from segstore.ownership.epoch_claims import LastEpoch
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two_vendors import (
    is_location,
    known_forms,
    open_location,
    vendor_of,
)
from segstore.runtime.descriptors import descriptor_limit, share_out
from segstore.runtime.durable_files import make_directory
from segstore.runtime.refused_files import reason_of
from segstore.tiers.api import ChunkStorage, DurableDataLog, DurableDataLogFactory
from segstore.tiers.files.doubtful_files import DoubtNotes
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.vendor import (
    ReadableTier,
    StorageOfOwner,
    TierAddress,
    TierTwo,
    do_nothing,
    for_each_journal,
)

DOUBTS_FILE = "tier-2-doubts.txt"


@dataclass(slots=True)
class EpochRecordingLogs:
    """Opens logs with another factory, and records the epoch of each.

    ``check_log`` is called before a log is opened, with a function that returns the epoch under
    which the log was opened last.
    """

    logs: DurableDataLogFactory
    epoch: int = 0
    check_log: Callable[[LastEpoch], Awaitable[None]] | None = None

    async def last_epoch(self, container_id: int) -> int:
        """See ``DurableDataLogFactory``."""
        return await self.logs.last_epoch(container_id)

    async def open_log(self, container_id: int) -> DurableDataLog:
        """Open the log; see ``DurableDataLogFactory``."""
        if self.check_log is not None:
            await self.check_log(partial(self.last_epoch, container_id))
        log = await self.logs.open_log(container_id)
        self.epoch = log.epoch
        return log

    def epoch_now(self) -> int:
        """Return the epoch of the log that was opened last."""
        return self.epoch


@asynccontextmanager
async def open_storage(
    config: SegmentStoreConfig, directory: DataDirectory, *, given: ChunkStorage | None = None
) -> AsyncIterator[TierTwo]:
    """Open the tier 2 of the configuration for the block, or use the storage that is ``given``.

    Raises ``StorageConfigurationError`` or ``StorageUnreachableError`` with a sentence for users.
    """
    if given is not None:
        yield _given_tier(given)
        return
    noted = directory.tier_2
    if config.tier2 is None:
        if is_location(noted):
            raise StorageConfigurationError(
                f"data directory {directory.path} has its tier 2 in {noted}: start with"
                f" --tier2 {noted}"
            )
        path = config.storage_dir or directory.storage_path
        with closing(_Directory(path, partial(doubts_of, directory))) as files:
            yield files.tier()
        return
    location = vendor_of(config.tier2).parse(config.tier2)
    _refuse_other_place(config, directory, noted, location)
    async with open_location(location, config) as tier:
        yield tier


@asynccontextmanager
async def open_shared_storage(
    config: SegmentStoreConfig, *, given: ChunkStorage | None = None
) -> AsyncIterator[TierTwo]:
    """Open the tier 2 of a cluster for the block, or use the storage that is ``given``.

    No machine keeps notes about writes that are in doubt, because another machine may own the
    container next. Raises the errors of ``open_storage``.
    """
    if given is not None:
        yield _given_tier(given)
        return
    if config.tier2 is not None:
        location = vendor_of(config.tier2).parse(config.tier2)
        async with open_location(location, config) as tier:
            yield tier
        return
    if config.storage_dir is None:
        raise StorageConfigurationError(
            "the stores of a cluster share tier 2: name it by --tier2 DIRECTORY or LOCATION,"
            f" {known_forms()}"
        )
    with closing(_Directory(config.storage_dir, _no_doubts)) as files:
        yield files.tier()


def _given_tier(given: ChunkStorage) -> TierTwo:
    async def open_given() -> StorageOfOwner:
        return lambda _: given

    return TierTwo(
        where=f"{type(given).__name__} of this process",
        chunks_under=lambda _: given,
        open=for_each_journal(open_given),
        make=do_nothing,
    )


def name_start(
    location: str | None,
    boot_id: Callable[[], str] | None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> str | None:
    """Return the name of the start to which unfinished writes of an owner belong: the next owner
    trusts them if its start has the same name.

    In a directory that only this machine uses, that is the name of the machine's start, which
    ``boot_id`` returns. In a directory of several machines, for which ``boot_id`` is None, and at a
    location whose chunks may grow late, each start of a process has a name of its own. Returns None
    for a location where no write is ever in doubt.
    """
    if location is None and boot_id is not None:
        return boot_id()
    if location is None or vendor_of(location).leaves_doubt:
        return random_bytes(16).hex()
    return None


def doubts_of(directory: DataDirectory, journal: int) -> DoubtNotes:
    """Return the notes about chunks in doubt of the containers whose logs are in a journal. Only
    the process that has the journal uses them."""
    first = directory.path / DOUBTS_FILE
    return DoubtNotes(first.with_stem(f"{first.stem}-{journal}") if journal else first)


def _no_doubts(journal: int) -> None:
    return None


class _Directory:
    """Tier 2 in a directory. It holds the directory of the start open, and keeps using it when
    another directory gets its name, as by a mount."""

    def __init__(self, path: Path, doubts_of: Callable[[int], DoubtNotes | None]) -> None:
        self.path = path
        self._doubts_of = doubts_of
        self._descriptor: int | None = None
        self._opened: list[FilesystemChunkStorage] = []

    def tier(self) -> TierTwo:
        return TierTwo(
            where=str(self.path.absolute()),
            chunks_under=lambda _: self.unclaimed(),
            open=self.open,
            make=self.make,
            readable=self.readable,
        )

    async def make(self) -> None:
        try:
            make_directory(self.path)
        except OSError as error:
            raise StorageConfigurationError(
                f"tier 2 in {self.path} cannot be made: {reason_of(error, self.path)}"
            ) from error

    def unclaimed(self) -> FilesystemChunkStorage:
        """Return the chunks before they are claimed. Bytes that an earlier process left in doubt
        are not removed."""
        return self._keep_open(FilesystemChunkStorage(self._held(), title=str(self.path)))

    async def open(self, journals: Collection[int]) -> Mapping[int, StorageOfOwner]:
        kept_files = share_out(descriptor_limit()).kept_files // max(1, len(journals))
        return {journal: self._open_for(journal, kept_files) for journal in journals}

    def _open_for(self, journal: int, kept_files_max: int) -> StorageOfOwner:
        storage = self._keep_open(
            FilesystemChunkStorage(
                self._held(),
                doubts=self._doubts_of(journal),
                kept_files_max=kept_files_max,
                title=str(self.path),
            )
        )
        return lambda _: storage

    def readable(self, chunks: ChunkStorage, store_id: str) -> ReadableTier:
        assert isinstance(chunks, FilesystemChunkStorage), "one that was opened here"
        return ReadableTier(TierAddress(self.path.absolute().as_uri(), store_id), chunks.locate)

    def _held(self) -> Path:
        """Return a path that leads to this directory even when another one is mounted over it."""
        if self._descriptor is None:
            with suppress(OSError):
                flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags)
        return self.path if self._descriptor is None else Path(f"/proc/self/fd/{self._descriptor}")

    def _keep_open(self, storage: FilesystemChunkStorage) -> FilesystemChunkStorage:
        self._opened.append(storage)
        return storage

    def close(self) -> None:
        for storage in self._opened:
            storage.close()
        if self._descriptor is not None:
            os.close(self._descriptor)


def _refuse_other_place(
    config: SegmentStoreConfig, directory: DataDirectory, noted: str, location: str
) -> None:
    """Raise ``StorageConfigurationError`` for a location if the store's tier 2 is elsewhere."""
    if is_location(noted):
        vendor = vendor_of(noted)
        if noted != location and not (vendor.can_move and vendor is vendor_of(location)):
            raise StorageConfigurationError(
                f"data directory {directory.path} has its tier 2 in {noted}, not in {location}"
            )
        return
    path = Path(noted) if noted else config.storage_dir or directory.storage_path
    with suppress(FileNotFoundError):
        if noted or any(path.iterdir()):
            raise StorageConfigurationError(
                f"data directory {directory.path} has its tier 2 in {path}: it cannot be moved"
                f" to {location}; start without --tier2 or with another --data-dir"
            )
