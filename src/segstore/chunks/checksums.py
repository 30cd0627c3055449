"""The checksums of a chunk's bytes, one for each block.

Owns: ``Checksums``, the offsets at which blocks begin, and the check of bytes that were read. An
object of ``Checksums`` never changes: more bytes make another object.

Invariants:
1. When a read needs some bytes of a chunk, it reads the whole blocks around them: each of the first
   ``length`` bytes is in exactly one block. Held by ``test_a_read_takes_in_whole_blocks``.
2. When a read ends at a multiple of ``BLOCK_BYTES`` in the segment, it ends at the end of a block,
   and no more bytes are read. So blocks are counted from the segment's offset 0, not from the
   chunk's first byte. Held by ``test_reads_that_end_at_blocks_of_the_segment_read_no_more``.
3. When bytes are appended to a chunk, the checksums of earlier whole blocks stay the same. Held by
   ``test_what_is_noted_later_is_put_behind``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from _fast.log.block_sums import extend_sums, find_damage
from segstore.tiers.api import Buffer

BLOCK_BYTES: Final = 64 * 1024
SUM_BYTES: Final = 4


def sum_count(phase: int, length: int) -> int:
    """Return the number of blocks that contain ``length`` bytes, if the first of these is at offset
    ``phase`` of a block."""
    return -(-(phase + length) // BLOCK_BYTES) if length else 0


def whole_blocks(phase: int, length: int) -> int:
    """Return the number of these blocks that end within the bytes; see ``sum_count``."""
    return (phase + length) // BLOCK_BYTES if length else 0


@dataclass(frozen=True, slots=True)
class Checksums:
    """The CRC32C of each block of a chunk's first ``length`` bytes.

    The chunk's first byte is at offset ``phase`` of the first block. ``sums`` has four bytes for
    each block; the last block may be incomplete.
    """

    phase: int = 0
    length: int = 0
    sums: bytes = b""

    @classmethod
    def at(cls, start: int) -> Checksums:
        """Return the checksums of an empty chunk that begins at an offset of its segment."""
        return cls(phase=start % BLOCK_BYTES)

    def extended(self, data: Sequence[Buffer]) -> Checksums:
        """Return the checksums after ``data`` was appended."""
        return Checksums(
            self.phase,
            self.length + sum(map(len, data)),
            extend_sums(self.sums, self.phase, self.length, data, BLOCK_BYTES),
        )

    def blocks_around(self, start: int, end: int) -> tuple[int, int]:
        """Return the offsets at which the blocks around the bytes from ``start`` to ``end`` begin
        and end.

        The two are equal if none of these bytes has a checksum.
        """
        if start >= min(end, self.length):
            return start, start
        first = (start + self.phase) // BLOCK_BYTES * BLOCK_BYTES - self.phase
        last = -(-(end + self.phase) // BLOCK_BYTES) * BLOCK_BYTES - self.phase
        return max(0, first), min(last, self.length)

    def find_damage(self, data: Buffer, start: int, end: int) -> int | None:
        """Return the offset of the first damaged block in ``data``, or None if no block is damaged.

        ``data`` begins at ``start``, and its blocks end at ``end``, both as ``blocks_around``
        returned them.
        """
        found = find_damage(self.sums, self.phase, start, data, end - start, BLOCK_BYTES)
        return None if found < 0 else found

    def cut(self, length: int) -> Checksums:
        """Return the checksums of the blocks that end within the first ``length`` bytes."""
        if length >= self.length:
            return self
        count = whole_blocks(self.phase, length)
        covered = max(0, count * BLOCK_BYTES - self.phase)
        return Checksums(self.phase, covered, self.sums[: count * SUM_BYTES])

    def sums_from(self, length: int) -> bytes:
        """Return the checksums of the blocks that have a byte at or after ``length``."""
        return self.sums[whole_blocks(self.phase, length) * SUM_BYTES :]

    def with_sums_from(self, known: int, length: int, sums: bytes) -> Checksums:
        """Return the checksums of ``length`` bytes: ``sums`` for the blocks that have a byte at or
        after ``known``, joined to those of this object for earlier blocks."""
        before = self.sums[: whole_blocks(self.phase, known) * SUM_BYTES]
        return Checksums(self.phase, length, before + sums)
