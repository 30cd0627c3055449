"""Bytes of history that tier 2 lent memory for: they lie beside the cache, and push nothing out.

Owns: the blocks of one process that are kept for who reads on, and their bound.

Invariants:
1. Kept blocks, and room that was promised for reads under way, never exceed ``bytes_max``. A block
   holds at most twice as much memory: one that is short beside what it was read into is copied.
2. For new ones the blocks that were read to their end go first, then those used least recently.
3. A block's bytes do not change. Memory that is being sent outlives the block.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

HISTORY_SECONDS_MAX: Final = 60.0
"""What nobody has used for so long goes."""


class HistoryBlock:
    """Bytes of one segment from ``offset`` on. ``place`` is where its segment keeps it."""

    __slots__ = ("data", "end", "offset", "place", "used_at")

    def __init__(self, offset: int, data: memoryview, place: list[HistoryBlock]) -> None:
        self.offset = offset
        self.end = offset + len(data)
        self.data = data
        self.place = place
        self.used_at = 0.0

    def view(self, offset: int, length_max: int) -> memoryview:
        """Its bytes from ``offset`` on."""
        start = offset - self.offset
        return self.data[start : start + length_max]


class HistoryBlocks:
    """One per process. Times are of any steady clock, in seconds."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.kept_bytes = 0
        self._promised_bytes = 0
        self._now = 0.0
        self._unread: OrderedDict[HistoryBlock, None] = OrderedDict()
        self._read: OrderedDict[HistoryBlock, None] = OrderedDict()

    def advance(self, now: float) -> None:
        """It is ``now``: let go of what nobody uses any more."""
        self._now = now
        for blocks in (self._read, self._unread):
            while blocks and (block := next(iter(blocks))).used_at < now - HISTORY_SECONDS_MAX:
                self.forget(block)

    def promise(self, length: int) -> bool:
        """Set room apart for a read ahead of time; only what was read to its end goes for it."""
        room = self.bytes_max - self._promised_bytes - length
        self._let_go(self._read, room)
        if self.kept_bytes > room:
            return False
        self._promised_bytes += length
        return True

    def redeem(self, length: int) -> None:
        """The read that the room was for is done."""
        self._promised_bytes -= length

    def keep(self, offset: int, data: memoryview, place: list[HistoryBlock]) -> HistoryBlock | None:
        """Keep a block, if there may be room."""
        room = self.bytes_max - self._promised_bytes - len(data)
        self._let_go(self._read, room)
        self._let_go(self._unread, room)
        if self.kept_bytes > room:
            return None
        if 2 * len(data) < memoryview(data.obj).nbytes:
            data = memoryview(bytes(data))
        block = HistoryBlock(offset, data, place)
        block.used_at = self._now
        self._unread[block] = None
        place.append(block)
        self.kept_bytes += len(data)
        return block

    def use(self, block: HistoryBlock, end: int) -> None:
        """Somebody has read the block up to ``end``; it may be one that is not kept any more."""
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
        """Let go of a block that is kept."""
        del (self._unread if block in self._unread else self._read)[block]
        block.place.remove(block)
        self.kept_bytes -= len(block.data)

    def _let_go(self, blocks: OrderedDict[HistoryBlock, None], kept_bytes_max: int) -> None:
        while self.kept_bytes > kept_bytes_max and blocks:
            self.forget(next(iter(blocks)))
