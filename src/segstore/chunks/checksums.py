"""Checksums of a chunk's bytes, by block.

Owns: ``Checksums``, where blocks begin, and the check of bytes that were read.

Invariants:
1. The checksums cover a chunk's first ``length`` bytes: each of them is in exactly one block.
2. Blocks end at multiples of ``BLOCK_BYTES`` in the segment in which the chunk was begun, not in
   the chunk: reads of a segment end at multiples of a larger number, so at the end of a block.
3. A value never changes. Bytes behind ``length`` may come; those before it stay as they are.
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
    """Return the count of blocks in ``length`` bytes whose first byte is at ``phase`` of a
    block."""
    return -(-(phase + length) // BLOCK_BYTES) if length else 0


def whole_blocks(phase: int, length: int) -> int:
    """Return the count of these blocks that end within the bytes."""
    return (phase + length) // BLOCK_BYTES if length else 0


@dataclass(frozen=True, slots=True)
class Checksums:
    """The CRC32C of each block of a chunk's first ``length`` bytes.

    The chunk's first byte is at ``phase`` of the first block. ``sums`` has four bytes for each
    block; the last block may be incomplete.
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
        """Return where the blocks that have bytes from ``start`` to ``end`` begin and end.

        Equal numbers when none has.
        """
        if start >= min(end, self.length):
            return start, start
        first = (start + self.phase) // BLOCK_BYTES * BLOCK_BYTES - self.phase
        last = -(-(end + self.phase) // BLOCK_BYTES) * BLOCK_BYTES - self.phase
        return max(0, first), min(last, self.length)

    def find_damage(self, data: Buffer, start: int, end: int) -> int | None:
        """Return where the first damaged block begins, in bytes whose first ``end - start`` are
        blocks.

        Both numbers are of ``blocks_around``. None when all blocks are what was summed.
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
        """Return the checksums of the blocks that have a byte at or behind ``length``."""
        return self.sums[whole_blocks(self.phase, length) * SUM_BYTES :]

    def with_sums_from(self, known: int, length: int, sums: bytes) -> Checksums:
        """Return the checksums with those that ``sums_from(known)`` gave when there were ``length``
        bytes."""
        before = self.sums[: whole_blocks(self.phase, known) * SUM_BYTES]
        return Checksums(self.phase, length, before + sums)
