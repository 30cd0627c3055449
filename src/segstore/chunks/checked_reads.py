"""Reads chunks, and returns only bytes that match their checksums.

Owns: ``CheckedReads``, which checks every read of tier 2 and logs damage. A read covers whole
blocks, because each block has one checksum.

Invariants:
1. When a block does not match its checksum, a read of its bytes is refused, and other blocks are
   read. Held by ``test_a_damaged_block_is_refused_and_named_and_others_are_read``.
2. When a block has no checksum, its bytes are returned without a check. Held by
   ``test_after_a_crash_bytes_without_checksums_are_read_as_they_are``.
3. When bytes are damaged on their way from tier 2, the second read of the block succeeds. Held by
   ``test_bytes_that_were_damaged_on_their_way_are_read_again``.
4. When a damaged block is read many times, the damage is logged once. Held by
   ``test_a_damaged_block_is_refused_and_named_and_others_are_read``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import structlog

from segstore.chunks.records import Chunk
from segstore.errors import (
    ChunkDamagedError,
    ChunkNotFoundError,
    DamageKind,
    InvalidChunkOffsetError,
)
from segstore.tiers.api import Buffer, ChunkStorage

LOOKS_MAX: Final = 2
LOGGED_MAX: Final = 4096
"""Maximum number of damaged blocks that are remembered so that they are logged only once."""

logger = structlog.get_logger(__name__)


class CheckedReads:
    """Reads the chunks of one owner."""

    def __init__(self, chunks: ChunkStorage) -> None:
        self._chunks = chunks
        self._logged: OrderedDict[tuple[str, int], None] = OrderedDict()

    async def read(self, segment: str, chunk: Chunk, start: int, end: int) -> Buffer:
        """Read the bytes of a chunk from ``start`` to ``end``, or up to a damaged block.

        Raises ``ChunkDamagedError`` when the damaged block has the first of these bytes.
        """
        try:
            return await self.read_all(segment, chunk, start, end)
        except ChunkDamagedError as error:
            if error.kind is not DamageKind.CHECKSUM or error.offset <= start:
                raise
            return await self.read_all(segment, chunk, start, error.offset)

    async def read_all(self, segment: str, chunk: Chunk, start: int, end: int) -> Buffer:
        """Read the bytes of a chunk from ``start`` to ``end``, counted from its first byte.

        Raises ``ChunkDamagedError`` when bytes are missing or differ from what was written.
        """
        first, last = chunk.checksums.blocks_around(start, end)
        for look in range(1, LOOKS_MAX + 1):
            try:
                data = await self._read(chunk, first, last, max(end, last))
                break
            except ChunkDamagedError as error:
                if look == LOOKS_MAX:
                    raise
                logger.warning("a block is read again", segment=segment, error=str(error))
        return data if (first, last) == (start, end) else data[start - first : end - first]

    async def _read(self, chunk: Chunk, first: int, last: int, end: int) -> Buffer:
        def check(data: Buffer) -> None:
            found = chunk.checksums.find_damage(data, first, last)
            if found is not None:
                raise ChunkDamagedError(
                    f"chunk {chunk.name} is damaged: the block at byte {found} does not match its"
                    " checksum",
                    kind=DamageKind.CHECKSUM,
                    offset=found,
                )

        checks = check if last > first else None
        try:
            return await self._chunks.read(
                chunk.name, offset=first, length=end - first, check=checks
            )
        except ChunkNotFoundError as error:
            raise missing(chunk) from error
        except InvalidChunkOffsetError as error:
            raise ChunkDamagedError(
                f"chunk {chunk.name} is shorter than {end} bytes: {error}",
                kind=DamageKind.SHORT,
                offset=first,
            ) from error

    def record_damage(self, segment: str, chunk: Chunk, damage: ChunkDamagedError) -> None:
        """Log damage, unless it was logged before."""
        place = chunk.name, damage.offset
        if place in self._logged:
            self._logged.move_to_end(place)
            return
        self._logged[place] = None
        if len(self._logged) > LOGGED_MAX:
            self._logged.popitem(last=False)
        logger.error(
            "tier 2 is damaged: reads of these bytes are refused until the chunk is restored from a"
            " copy",
            segment=segment,
            segment_offset=chunk.start + damage.offset,
            chunk=chunk.name,
            chunk_offset=damage.offset,
            reason=str(damage),
        )


def missing(chunk: Chunk) -> ChunkDamagedError:
    """Return the error for a chunk that does not exist."""
    return ChunkDamagedError(
        f"chunk {chunk.name} is missing: it had {chunk.length} bytes",
        kind=DamageKind.MISSING,
        offset=0,
    )


def too_short(chunk: Chunk, length: int) -> ChunkDamagedError:
    """Return the error for a chunk that has only ``length`` bytes."""
    return ChunkDamagedError(
        f"chunk {chunk.name} has {length} bytes, it had {chunk.length}",
        kind=DamageKind.SHORT,
        offset=length,
    )
