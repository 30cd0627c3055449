"""Blocks of history in memory of tier 2, which are kept for later reads outside the cache.

Owns: the blocks of one process, and their bound. The bytes of a block do not change, and memory
that is being sent to a client stays valid after its block was dropped.

Invariants:
1. Kept blocks, and room that is promised to reads under way, together never exceed ``bytes_max``.
   Held by ``test_whatever_comes_the_bound_holds``.
2. A block holds at most twice as much memory as it has bytes; otherwise its bytes are copied. Held
   by ``test_a_block_holds_at_most_twice_its_bytes``.
3. To make room, blocks that were read to their end are dropped first, then the least recently used.
   Held by ``test_what_was_read_to_its_end_goes_first``.
4. The blocks of a segment are sorted by offset, and the one with a byte is found by a binary
   search. Held by ``test_blocks_are_found_as_by_a_look_at_all_of_them``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

HISTORY_SECONDS_MAX: Final = 60.0
"""Maximum time that a block is kept without being used."""

_offset_of = attrgetter("offset")


class HistoryBlock:
    """Bytes of one segment from ``offset`` on. ``place`` is the segment's list of blocks."""

    __slots__ = ("data", "end", "offset", "place", "used_at")

    def __init__(self, offset: int, data: memoryview, place: list[HistoryBlock]) -> None:
        self.offset = offset
        self.end = offset + len(data)
        self.data = data
        self.place = place
        self.used_at = 0.0

    def view(self, offset: int, length_max: int) -> memoryview:
        """Return a view of the block's bytes from ``offset`` on, at most ``length_max`` of them."""
        start = offset - self.offset
        return self.data[start : start + length_max]


def block_at(blocks: Sequence[HistoryBlock], offset: int) -> HistoryBlock | None:
    """Return the block of a segment that has the byte at ``offset``, or None."""
    index = bisect_right(blocks, offset, key=_offset_of) - 1
    return blocks[index] if index >= 0 and offset < blocks[index].end else None


def next_block_offset(blocks: Sequence[HistoryBlock], offset: int) -> int | None:
    """Return the offset of the first block of a segment that begins after ``offset``, or None."""
    index = bisect_right(blocks, offset, key=_offset_of)
    return blocks[index].offset if index < len(blocks) else None


class HistoryBlocks:
    """The blocks of one process. Times are those of a monotonic clock, in seconds."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.kept_bytes = 0
        self._promised_bytes = 0
        self._now = 0.0
        self._unread: OrderedDict[HistoryBlock, None] = OrderedDict()
        self._read: OrderedDict[HistoryBlock, None] = OrderedDict()

    def advance(self, now: float) -> None:
        """Set the time, and drop blocks that were not used for ``HISTORY_SECONDS_MAX``."""
        self._now = now
        for blocks in (self._read, self._unread):
            while blocks and (block := next(iter(blocks))).used_at < now - HISTORY_SECONDS_MAX:
                self.forget(block)

    def promise(self, length: int) -> bool:
        """Reserve room for a read ahead. Only blocks that were read to their end are dropped for
        it; return whether that gave enough room."""
        room = self.bytes_max - self._promised_bytes - length
        self._forget_beyond(self._read, room)
        if self.kept_bytes > room:
            return False
        self._promised_bytes += length
        return True

    def redeem(self, length: int) -> None:
        """Free room that was reserved for a read ahead, which has ended."""
        self._promised_bytes -= length

    def keep(self, offset: int, data: memoryview, place: list[HistoryBlock]) -> HistoryBlock | None:
        """Keep these bytes as a block in the list ``place``, and drop other blocks for it. Return
        the block, or None if it does not fit."""
        room = self.bytes_max - self._promised_bytes - len(data)
        self._forget_beyond(self._read, room)
        self._forget_beyond(self._unread, room)
        if self.kept_bytes > room:
            return None
        if 2 * len(data) < memoryview(data.obj).nbytes:
            data = memoryview(bytes(data))
        block = HistoryBlock(offset, data, place)
        block.used_at = self._now
        self._unread[block] = None
        insort(place, block, key=_offset_of)
        self.kept_bytes += len(data)
        return block

    def use(self, block: HistoryBlock, end: int) -> None:
        """Record that a block, which may have been dropped meanwhile, was read up to ``end``."""
        block.used_at = self._now
        if block in self._read:
            self._read.move_to_end(block)
        elif block in self._unread:
            if end == block.end:
                del self._unread[block]
                self._read[block] = None
            else:
                self._unread.move_to_end(block)

    def forget(self, block: HistoryBlock) -> None:
        """Drop a block that is kept."""
        del (self._unread if block in self._unread else self._read)[block]
        place = block.place
        del place[place.index(block, bisect_left(place, block.offset, key=_offset_of))]
        self.kept_bytes -= len(block.data)

    def _forget_beyond(self, blocks: OrderedDict[HistoryBlock, None], kept_bytes_max: int) -> None:
        while self.kept_bytes > kept_bytes_max and blocks:
            self.forget(next(iter(blocks)))
