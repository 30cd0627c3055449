"""Checks a whole store's tier 2 from outside, whether the store runs or not.

Owns: ``StoreScrub``, and its report.

Invariants:
1. Nothing is changed or claimed. The metadata are those that the present owners have made durable;
   what they have not recorded yet counts as unchecked.
2. Another store's tier 2 is refused: in an empty place nothing would be damaged.
3. Damage is reported only if the segment still has the chunk at the end: a running store deletes
   chunks.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio

from segstore.chunks.checked_reads import CheckedReads, missing, too_short
from segstore.chunks.records import Chunk
from segstore.chunks.scrub import ChunkCheck, Spend, counted_chunks, still_counts
from segstore.chunks.system_journal import SystemJournal
from segstore.errors import ChunkDamagedError, DamageKind, StorageConfigurationError, StorageError
from segstore.process.data_directory import DataDirectory, StoreState
from segstore.process.identity import identity_name
from segstore.process.tier_two import last_location, name_start
from segstore.process.tier_two_vendors import NEVER, VendorSettings, is_location, vendor_of
from segstore.runtime.boot import boot_id
from segstore.tiers.api import ChunkStorage
from segstore.tiers.files.filesystem import FilesystemChunkStorage

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DamageRow:
    """One damaged thing. Damaged metadata have no segment."""

    container: int
    segment: str
    segment_offset: int
    chunk: str
    chunk_offset: int
    kind: str
    reason: str


@dataclass(slots=True)
class ScrubReport:
    """The result of one scrub."""

    containers: int = 0
    segments: int = 0
    chunks: int = 0
    bytes: int = 0
    unchecked_bytes: int = 0
    """Count of the bytes that were read and have no checksums."""
    damages: list[DamageRow] = field(default_factory=list)


@asynccontextmanager
async def open_to_look(
    directory: DataDirectory, settings: VendorSettings
) -> AsyncIterator[ChunkStorage]:
    """Yield the store's tier 2, for reading only, until the block ends.

    Raises ``StorageConfigurationError`` when it is not there, or not the store's.
    """
    where = last_location(directory) or str(directory.storage_path)
    if is_location(where):
        with vendor_of(where).look(where, settings) as chunks:
            await _refuse_foreign(directory, where, chunks)
            yield chunks
        return
    if not await trio.to_thread.run_sync(os.path.isdir, where):
        raise StorageConfigurationError(f"tier 2 in {where} is not there: is a disk not mounted?")
    with closing(FilesystemChunkStorage(Path(where))) as files:
        await _refuse_foreign(directory, where, files)
        yield files


async def _refuse_foreign(directory: DataDirectory, where: str, chunks: ChunkStorage) -> None:
    if directory.state is not StoreState.COMPLETE:
        return
    if await chunks.lengths([identity_name(directory.store_id)]) == [None]:
        raise StorageConfigurationError(
            f"tier 2 in {where} does not belong to the store in {directory.path}: it has no"
            f" identity of {directory.store_id}"
        )


def start_of(directory: DataDirectory) -> str | None:
    """Return the name of the start during which the store's tier 2 can be trusted, if it has
    one."""
    where = last_location(directory)
    return name_start(where if is_location(where) else None, boot_id)


class StoreScrub:
    """One check of everything. ``prepare`` tells how much there is, ``run`` reads it. ``start`` is
    what ``start_of`` tells."""

    def __init__(
        self, chunks: ChunkStorage, *, container_count: int, start: str | None = None
    ) -> None:
        self._chunks = chunks
        self._reads = CheckedReads(chunks)
        self._container_count = container_count
        self._boot = start
        self._journals: dict[int, SystemJournal] = {}
        self._work: list[tuple[int, str, Chunk, int]] = []
        self._found: list[tuple[int, str, Chunk, ChunkDamagedError]] = []
        self.report = ScrubReport(containers=container_count)

    async def prepare(self) -> int:
        """Read the metadata of all containers; how many bytes are to be read."""
        for container_id in range(self._container_count):
            journal = self._journal(container_id)
            try:
                await journal.look()
            except StorageError as error:
                self.report.damages.append(
                    DamageRow(container_id, "", 0, "", 0, "metadata", str(error))
                )
                continue
            self._journals[container_id] = journal
            await self._plan(container_id, journal)
        return self.report.bytes

    def _journal(self, container_id: int) -> SystemJournal:
        return SystemJournal(
            self._chunks,
            container_id=container_id,
            epoch=lambda: NEVER,
            boot_id=self._boot,
        )

    async def _plan(self, container_id: int, journal: SystemJournal) -> None:
        segments = journal.metadata.segment_names()
        self.report.segments += len(segments)
        async with aclosing(counted_chunks(journal.metadata, segments, pause=0)) as counted:
            known = [each async for each in counted]
        lengths = await self._chunks.lengths([chunk.name for _, chunk in known])
        for (segment, chunk), found in zip(known, lengths, strict=True):
            if found is None and chunk.length:
                self._found.append((container_id, segment, chunk, missing(chunk)))
            elif found is not None and found < chunk.length:
                self._found.append((container_id, segment, chunk, too_short(chunk, found)))
            elif found:
                # The metadata may know less of an open chunk than there is.
                length = max(found, chunk.length) if chunk.is_open else chunk.length
                self._work.append((container_id, segment, chunk, length))
                self.report.bytes += length
                self.report.unchecked_bytes += max(0, length - chunk.checksums.length)
        self.report.chunks += len(known)

    async def run(self, spend: Spend) -> ScrubReport:
        """Read and check everything that ``prepare`` found."""
        for container_id, segment, chunk, length in self._work:
            check = ChunkCheck(self._reads, segment, chunk)
            try:
                damages = await check.run(length, spend)
            except StorageError as error:
                reason = f"chunk {chunk.name} cannot be read: {error}"
                damages = [ChunkDamagedError(reason, kind=DamageKind.UNREADABLE, offset=0)]
            self._found += [(container_id, segment, chunk, damage) for damage in damages]
        for container_id in {each[0] for each in self._found}:
            await self._look_again(container_id)
        for container_id, segment, chunk, damage in self._found:
            if still_counts(self._journals[container_id].metadata, segment, chunk):
                self.report.damages.append(_row(container_id, segment, chunk, damage))
        return self.report

    async def _look_again(self, container_id: int) -> None:
        journal = self._journal(container_id)
        try:
            await journal.look()
        except StorageError as error:
            logger.warning("the metadata cannot be read again", error=str(error))
        else:
            self._journals[container_id] = journal


def _row(container_id: int, segment: str, chunk: Chunk, damage: ChunkDamagedError) -> DamageRow:
    return DamageRow(
        container_id,
        segment,
        chunk.start + damage.offset,
        chunk.name,
        damage.offset,
        damage.kind.value,
        str(damage),
    )


def spending(pace: Spend | None, advance: Callable[[int], None]) -> Spend:
    """Report progress, and keep to a pace if there is one."""

    async def spend(count: int) -> None:
        advance(count)
        if pace is not None:
            await pace(count)

    return spend
