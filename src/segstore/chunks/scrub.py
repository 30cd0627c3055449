"""Looks for damage in chunks, even in those that no client reads.

Owns: the comparison of chunks' lengths with the metadata, the check of a chunk's bytes, and
``BackgroundScrub``, which does both in a container that serves; docs/adr/0210 explains why. It
scans the metadata a few segments at a time, so that it does not hold up the event loop.

Invariants:
1. While a pass checks chunks, it reads no more bytes per second than its ``Pace`` allows. Held by
   ``test_a_pass_keeps_to_its_rate``.
2. When a segment was truncated, merged or deleted while its chunk was checked, no damage of the
   chunk is reported. Held by
   ``test_segments_that_change_while_they_are_scrubbed_are_not_damaged``.
3. When bytes of a closed chunk have no checksums, they get checksums when they are read here for
   the first time. Held by ``test_what_has_no_checksums_gets_them``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from segstore.chunks.checked_reads import CheckedReads, missing, too_short
from segstore.chunks.checksums import BLOCK_BYTES, Checksums
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.records import NO_CHECKSUMS, Chunk
from segstore.chunks.system_journal import SystemJournal
from segstore.errors import ChunkDamagedError, DamageKind, FencedOutError, StorageError
from segstore.tiers.api import Buffer, ChunkStorage

PIECE_BYTES: Final = 16 * BLOCK_BYTES
SEGMENTS_AT_ONCE: Final = 50
"""Number of records that are examined in one step of the event loop."""
PAUSE_SECONDS: Final = 0.02
START_SECONDS: Final = 2.0
"""Maximum time, in seconds, to wait until the container opens the metadata. Then they are opened
here."""
FIRST_PASS_SECONDS: Final = 60.0
"""Time, in seconds, before the first pass, so that the work of a start is done first."""
ADOPTED_TOGETHER_MAX: Final = 128
FAILURES_MAX: Final = 8
"""Number of failed reads after which a pass ends, because tier 2 itself seems to be away."""
RETRY_SECONDS: Final = 600.0

logger = structlog.get_logger(__name__)

Spend = Callable[[int], Awaitable[None]]


class Pace:
    """A limit for the bytes per second that all users of one object read together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    @property
    def is_stopped(self) -> bool:
        """Return whether the limit is 0, so that nothing may be read."""
        return self._bytes_per_second <= 0

    async def spend(self, count: int) -> None:
        """Wait until ``count`` bytes may be read. Fewer bytes than a block count as a block."""
        seconds = max(count, BLOCK_BYTES) / self._bytes_per_second
        self._free_at = max(self._free_at, trio.current_time()) + seconds
        await trio.sleep_until(self._free_at)


@dataclass(frozen=True, slots=True)
class ScrubPolicy:
    """The settings of a running container's search for damage. ``random`` returns numbers from 0 to
    1."""

    pace: Pace
    pass_seconds_min: float
    random: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged chunk of a segment."""

    segment: str
    chunk: Chunk
    error: ChunkDamagedError


async def counted_chunks(
    metadata: ChunkMetadata, segments: Sequence[str], *, pause: float = PAUSE_SECONDS
) -> AsyncGenerator[tuple[str, Chunk], None]:
    """Yield the chunks of these segments that may have bytes. Skip lost ranges, and segments whose
    chunks were moved to another segment."""
    for index, segment in enumerate(segments, start=1):
        record = metadata.peek(segment)
        for chunk in record.chunks if record is not None and not record.is_moved else ():
            if (chunk.length or chunk.is_open) and not chunk.is_lost:
                yield segment, chunk
        if index % SEGMENTS_AT_ONCE == 0:
            await trio.sleep(pause)


async def compare_lengths(chunks: ChunkStorage, metadata: ChunkMetadata) -> list[Damage]:
    """Return the chunks that are missing, or shorter than in the metadata."""
    async with aclosing(counted_chunks(metadata, metadata.segment_names())) as found:
        known = [each async for each in found]
    lengths = await chunks.lengths([chunk.name for _, chunk in known])
    damages = []
    for (segment, chunk), length in zip(known, lengths, strict=True):
        if (length or 0) < chunk.length and still_counts(metadata, segment, chunk):
            error = missing(chunk) if length is None else too_short(chunk, length)
            damages.append(Damage(segment, chunk, error))
    return damages


def still_counts(metadata: ChunkMetadata, segment: str, chunk: Chunk) -> bool:
    """Return whether the segment still has the chunk."""
    record = metadata.peek(segment)
    return record is not None and any(each.name == chunk.name for each in record.chunks)


@dataclass(slots=True)
class ChunkCheck:
    """Reads and checks one chunk. After ``run``, ``checksums`` are those of all bytes that were
    read, if no damage was found."""

    reads: CheckedReads
    segment: str
    chunk: Chunk
    checksums: Checksums = NO_CHECKSUMS

    async def run(self, length: int, spend: Spend) -> list[ChunkDamagedError]:
        """Read the first ``length`` bytes of the chunk, and return the damage in them. Raises
        ``StorageError`` when they cannot be read."""
        known = self.chunk.checksums
        self.checksums = known if known.length else Checksums.at(self.chunk.start)
        damages: list[ChunkDamagedError] = []
        position = 0
        while position < length:
            end = min(length, _block_end(self.checksums.phase, position + PIECE_BYTES - 1))
            try:
                data = await self.reads.read_all(self.segment, self.chunk, position, end)
                if not damages:
                    self._extend(data, position)
            except ChunkDamagedError as error:
                damages.append(error)
                if error.kind is not DamageKind.CHECKSUM:
                    break
                end = min(length, _block_end(self.checksums.phase, error.offset))
            await spend(end - position)
            position = end
        return damages

    def _extend(self, data: Buffer, position: int) -> None:
        new = position + len(data) - self.checksums.length
        if new > 0:
            self.checksums = self.checksums.extended([memoryview(data)[len(data) - new :]])


def _block_end(phase: int, position: int) -> int:
    """Return the position after the block that has the byte at a position."""
    return ((phase + position) // BLOCK_BYTES + 1) * BLOCK_BYTES - phase


class BackgroundScrub:
    """Looks for damage in one container's chunks while it serves."""

    def __init__(
        self,
        chunks: ChunkStorage,
        journal: SystemJournal,
        reads: CheckedReads,
        policy: ScrubPolicy | None,
    ) -> None:
        self._chunks = chunks
        self._journal = journal
        self._reads = reads
        self._policy = policy
        self._adopted: list[tuple[str, Chunk, Checksums]] = []
        self._failure_count = 0

    async def run(self) -> None:
        """Compare the lengths of all chunks once, then check their bytes again and again, until
        cancelled."""
        with trio.move_on_after(START_SECONDS):
            await self._journal.opened.wait()
        try:
            await self._compare_lengths()
        except StorageError as error:
            logger.warning("the lengths of chunks cannot be compared", error=str(error))
        if self._policy is None or self._policy.pace.is_stopped:
            return
        await trio.sleep(FIRST_PASS_SECONDS)
        while True:
            began = trio.current_time()
            try:
                await self._pass(self._policy)
            except FencedOutError:
                return
            except StorageError as error:
                logger.warning("tier 2 cannot be scrubbed now", error=str(error))
                await trio.sleep(RETRY_SECONDS)
                continue
            await trio.sleep_until(began + self._policy.pass_seconds_min)

    async def _compare_lengths(self) -> None:
        await self._journal.ready()
        damages = await compare_lengths(self._chunks, self._journal.metadata)
        for damage in damages:
            self._reads.record_damage(damage.segment, damage.chunk, damage.error)

    async def _pass(self, policy: ScrubPolicy) -> None:
        """Check every chunk once. Begin with a random segment, so that a store that is restarted
        often does not always check the same chunks."""
        metadata = self._journal.metadata
        segments = metadata.segment_names()
        first = int(policy.random() * len(segments))
        checked_bytes = chunk_count = damage_count = 0
        self._adopted.clear()
        self._failure_count = 0
        known = counted_chunks(metadata, segments[first:] + segments[:first])
        async with aclosing(known):
            async for segment, chunk in known:
                if not still_counts(metadata, segment, chunk):
                    continue
                damage_count += await self._check(segment, chunk, policy.pace)
                checked_bytes += chunk.length
                chunk_count += 1
                if len(self._adopted) >= ADOPTED_TOGETHER_MAX:
                    await self._record_adopted()
        await self._record_adopted()
        logger.info(
            "tier 2 is scrubbed",
            container=self._journal.container_id,
            segments=len(segments),
            chunks=chunk_count,
            bytes=checked_bytes,
            damages=damage_count,
        )

    async def _check(self, segment: str, chunk: Chunk, pace: Pace) -> int:
        """Check a chunk, and return the number of damaged places in it."""
        check = ChunkCheck(self._reads, segment, chunk)
        try:
            damages = await check.run(chunk.length, pace.spend)
        except StorageError as error:
            self._failure_count += 1
            if self._failure_count == FAILURES_MAX:
                raise
            logger.warning("a chunk cannot be scrubbed now", segment=segment, error=str(error))
            return 0
        if not still_counts(self._journal.metadata, segment, chunk):
            return 0
        for damage in damages:
            self._reads.record_damage(segment, chunk, damage)
        if not damages and not chunk.is_open and chunk.checksums.length < chunk.length:
            self._adopted.append((segment, chunk, check.checksums))
        return len(damages)

    async def _record_adopted(self) -> None:
        adopted, self._adopted = self._adopted, []
        if adopted:
            await self._journal.adopt_checksums(adopted)
