"""Compares all bytes of a store in tier 2 with their checksums, whether the store runs or not.

Owns: ``StoreScrub``, and its report. It uses the metadata that the present owners of the containers
have made durable.

Invariants:
1. A scrub changes nothing in tier 2. Held by ``test_a_scrub_changes_nothing``.
2. While the store runs, bytes whose checksums it has not recorded yet are no damage; they count as
   unchecked. Held by ``test_a_running_store_is_checked_and_not_disturbed``.
3. When tier 2 is missing, or is that of another store, the scrub is refused: in an empty place it
   would find no damage. Held by ``test_what_is_no_store_or_not_its_tier_2_is_refused``.
4. When a segment drops a chunk during the scrub, as a running store does, the missing chunk is not
   reported. Held by ``test_a_chunk_that_the_store_drops_meanwhile_is_not_damaged``.
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
from segstore.ownership.data_directory import DataDirectory, StoreState
from segstore.ownership.tier_two_identity import identity_name
from segstore.process.tier_two import name_start
from segstore.process.tier_two_vendors import VendorSettings, is_location, look_at_location
from segstore.runtime.boot import boot_id
from segstore.tiers.api import ChunkStorage
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.vendor import NEVER

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DamageRow:
    """One damage of a chunk or of metadata. Damaged metadata have no segment."""

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
    """Number of bytes that were read and have no checksums."""
    damages: list[DamageRow] = field(default_factory=list)


@asynccontextmanager
async def open_to_look(
    directory: DataDirectory, settings: VendorSettings
) -> AsyncIterator[ChunkStorage]:
    """Yield the store's tier 2, for reading only, until the block ends.

    Raises ``StorageConfigurationError`` when tier 2 is missing, or is that of another store.
    """
    where = directory.tier_2 or str(directory.storage_path)
    if is_location(where):
        with look_at_location(where, settings) as chunks:
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
    """Return the name of the start, of the machine or of this process, during which unfinished
    writes in the store's tier 2 can be trusted; None if they always can. See ``name_start``."""
    where = directory.tier_2
    return name_start(where if is_location(where) else None, boot_id)


class StoreScrub:
    """One scrub of a store. Call ``prepare``, which returns the number of bytes, and then ``run``,
    which reads them. ``start`` is the result of ``start_of``."""

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
        """Read the metadata of all containers; return how many bytes ``run`` will read."""
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
                # An open chunk may be longer than its record says.
                length = max(found, chunk.length) if chunk.is_open else chunk.length
                self._work.append((container_id, segment, chunk, length))
                self.report.bytes += length
                self.report.unchecked_bytes += max(0, length - chunk.checksums.length)
        self.report.chunks += len(known)

    async def run(self, spend: Spend) -> ScrubReport:
        """Read and check all chunks that ``prepare`` found."""
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
    """Return a function that waits for ``pace``, if there is one, and then reports progress."""

    async def spend(count: int) -> None:
        advance(count)
        if pace is not None:
            await pace(count)

    return spend
