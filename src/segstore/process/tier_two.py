"""Opens the storage that a process uses as tier 2.

Owns: the choice by configuration, and tier 2 in a directory. ``tier_two_vendors`` has the others.

Invariants:
1. A store whose chunks are at a location, such as S3, is not started on anything else, and a store
   with chunks in a directory is not started on a location.
2. Nothing in tier 2 is changed before ``process.identity`` has found that it is the store's, and
   what was found then is what is used until the end.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from segstore.chunks.scan_plan import ReadableTier, TierAddress
from segstore.chunks.system_journal import LastEpoch
from segstore.errors import StorageConfigurationError
from segstore.process.config import SegmentStoreConfig
from segstore.process.data_directory import DataDirectory, StoreState
from segstore.process.tier_two_vendors import (
    StorageOfOwner,
    TierTwo,
    VendorSettings,
    do_nothing,
    for_each_journal,
    is_location,
    known_forms,
    vendor_of,
)
from segstore.runtime.descriptors import descriptor_limit, share_out
from segstore.runtime.durable_files import make_directory
from segstore.runtime.refused_files import reason_of
from segstore.tiers.api import ChunkStorage, DurableDataLog, DurableDataLogFactory
from segstore.tiers.files.doubtful_files import DoubtNotes
from segstore.tiers.files.filesystem import FilesystemChunkStorage

NOTE_FILE = "tier-2.toml"
"""Name of the file in which older versions kept the location of tier 2."""
DOUBTS_FILE = "tier-2-doubts.txt"


@dataclass(slots=True)
class EpochRecordingLogs:
    """Opens logs with another factory, and notes under which epoch.

    ``check_log`` can ask under which epoch a log was opened last, before it is opened again.
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
    """Find tier 2 as configured, for the block, unless it is ``given``.

    Raises ``StorageConfigurationError`` or ``StorageUnreachableError`` with a sentence for users.
    """
    if given is not None:
        yield _given_tier(given)
        return
    noted = last_location(directory)
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
    vendor = vendor_of(config.tier2)
    location = vendor.parse(config.tier2)
    _refuse_other_place(config, directory, noted, location)
    async with vendor.open(location, _vendor_settings(config)) as tier:
        yield tier


@asynccontextmanager
async def open_shared_storage(
    config: SegmentStoreConfig, *, given: ChunkStorage | None = None
) -> AsyncIterator[TierTwo]:
    """Find the tier 2 of a cluster, for the block, unless it is ``given``.

    No machine notes anything about it: what one has in doubt, another may have to decide. Raises
    like ``open_storage``.
    """
    if given is not None:
        yield _given_tier(given)
        return
    if config.tier2 is not None:
        vendor = vendor_of(config.tier2)
        async with vendor.open(vendor.parse(config.tier2), _vendor_settings(config)) as tier:
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
        marked_by=do_nothing,
        make=do_nothing,
    )


def _vendor_settings(config: SegmentStoreConfig) -> VendorSettings:
    return VendorSettings(config.s3, config.hdfs)


def name_start(
    location: str | None,
    boot_id: Callable[[], str] | None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> str | None:
    """Return the name of the start during which what an owner has left unfinished can be trusted.

    In a directory that is the machine's, by ``boot_id``. Where no other process can know what an
    owner left, each start has a name of its own: at a location whose chunks may grow late, or in a
    directory of several machines, where ``boot_id`` is None. None where there is never a doubt.
    """
    if location is None and boot_id is not None:
        return boot_id()
    if location is None or vendor_of(location).leaves_doubt:
        return random_bytes(16).hex()
    return None


def doubts_of(directory: DataDirectory, journal: int) -> DoubtNotes:
    """Return the notes about chunks of the containers whose logs are in a journal: the process that
    has the journal has them, and no other."""
    first = directory.path / DOUBTS_FILE
    return DoubtNotes(first.with_stem(f"{first.stem}-{journal}") if journal else first)


def _no_doubts(journal: int) -> None:
    return None


class _Directory:
    """Tier 2 in a directory. The directory that was there at the start is held open, and stays in
    use when another one gets its name, as at a mount or an unmount."""

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
            marked_by=do_nothing,
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
        """Return the chunks before they are claimed; writes that an earlier process left in doubt
        stay."""
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
        """Return a path that stays this directory, even if another one is mounted over it."""
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
    """Refuse to start a store on a location if its tier 2 is elsewhere."""
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


def last_location(directory: DataDirectory) -> str:
    """Return where tier 2 was at the last start, or an empty string if that is unknown. Blocks."""
    if directory.tier_2 or directory.state is not StoreState.OLDER:
        return directory.tier_2
    note = read_older_location(directory)
    return note[0] if note is not None else ""


def read_older_location(directory: DataDirectory) -> tuple[str, str] | None:
    """Return the location in S3 of an older version's tier 2, and its store's id; None without one.
    Blocks."""
    path = directory.path / NOTE_FILE
    try:
        fields = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StorageConfigurationError(f"{path} cannot be read: {error}") from error
    match fields:
        case {"format_version": 1, "location": str(location), "store_id": str(store_id)}:
            return location, store_id
        case _:
            raise StorageConfigurationError(f"{path} is damaged or of another version: {fields}")
