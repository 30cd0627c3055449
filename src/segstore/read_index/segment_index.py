"""The places of one segment's bytes, and the reads that wait for more of them.

Owns: a segment's cached entries, its redirects to merged segments, the places of bytes that only
the log has, its parked reads, the reads of tier 2 or of the log that are under way for it, and what
they brought that lies beside the cache.

Invariants:
1. Every byte from the storage length up to the length lies in an entry, in the log, or behind a
   redirect to a merged segment. Only a recovery leaves bytes in the log alone.
2. Redirects do not overlap and are sorted by offset.
3. Reads of tier 2 or of the log that are under way, and blocks of history, do not overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Final

from _fast.cache.read_index import Generations, SegmentEntries
from _fast.log.logged_pieces import LoggedPieces, Piece
from segstore.api import HasRoom, OnRead, ReadResult, ask_again
from segstore.cache.history import (
    HistoryBlock,
    HistoryBlocks,
    block_at,
    next_block_offset,
)
from segstore.errors import SegmentStoreError
from segstore.model.metadata import SegmentMetadata

READ_ENDS_MAX: Final = 64
"""Maximum number of offsets that are remembered up to which a reader has read."""

_offset_of = attrgetter("offset")


class Redirect:
    """A range whose bytes still belong to the segment that was merged here."""

    __slots__ = ("length", "offset", "source")

    def __init__(self, offset: int, length: int, source: SegmentMetadata) -> None:
        self.offset = offset
        self.length = length
        self.source = source


class WaitingRead:
    """A read that is answered later. ``on_complete`` is None once it is answered or cancelled."""

    __slots__ = ("_parked", "has_room", "length_max", "offset", "on_complete")

    def __init__(
        self,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        parked: dict[WaitingRead, None] | None = None,
        has_room: HasRoom | None = None,
    ) -> None:
        self.has_room = has_room
        self.offset = offset
        self.length_max = length_max
        self.on_complete: OnRead | None = on_complete
        self._parked = parked

    def cancel(self) -> None:
        """Forget the read; what tier 2 returns for it still goes to the cache."""
        self.on_complete = None
        if self._parked is not None:
            self._parked.pop(self, None)

    def postpone_without_room(self) -> bool:
        """Tell the reader to ask again if it has no room now; return whether it was told."""
        if self.has_room is None or self.on_complete is None or self.has_room():
            return False
        self.complete(None, ask_again(self.offset))
        return True

    def complete(self, error: SegmentStoreError | None, result: ReadResult | None) -> None:
        """Answer the read, unless it was cancelled."""
        on_complete, self.on_complete = self.on_complete, None
        if on_complete is not None:
            on_complete(error, result)


class Fetch:
    """A read of tier 2 or of the log that is under way, and who waits for what it brings."""

    __slots__ = ("end", "offset", "promised", "waiters")

    def __init__(self, offset: int, end: int, promised: int = 0) -> None:
        assert end > offset, f"byte {offset} is neither cached nor stored"
        self.promised = promised
        self.offset = offset
        self.end = end
        self.waiters: list[WaitingRead] = []

    @property
    def is_unwanted(self) -> bool:
        """Return whether all reads that waited are cancelled; a fetch in advance never had any."""
        return bool(self.waiters) and all(read.on_complete is None for read in self.waiters)


class SegmentReadIndex:
    """One segment's entries, redirects, parked reads and fetches."""

    __slots__ = (
        "_passed",
        "blocks",
        "entries",
        "fetches",
        "is_dropped",
        "logged",
        "redirects",
        "segment",
        "tail_reads",
    )

    def __init__(self, segment: SegmentMetadata, generations: Generations) -> None:
        self.segment = segment
        self.entries = SegmentEntries(generations)
        self.tail_reads: dict[WaitingRead, None] = {}
        self.redirects: list[Redirect] = []
        self.fetches: list[Fetch] = []
        self.blocks: list[HistoryBlock] = []
        self._passed: dict[int, None] = {}
        self.logged: LoggedPieces | None = None
        self.is_dropped = False

    def add_logged(self, piece: Piece) -> None:
        """Record where in the log bytes are that neither cache nor tier 2 has."""
        if self.logged is None:
            self.logged = LoggedPieces()
        self.logged.add(*piece)

    def logged_end(self, offset: int) -> int:
        """Return where the contiguous bytes from ``offset`` on end that the log has."""
        return offset if self.logged is None else self.logged.contiguous_end(offset)

    @property
    def fetched_end(self) -> int:
        """Return the end of what tier 2 or the log can be asked for."""
        stored = self.segment.storage_length
        return stored if self.logged is None else max(stored, self.logged.end)

    def set_stored_length(self, stored_length: int) -> bool:
        """Record that tier 2 has all bytes up to an offset; return whether nothing waits for
        more.
        """
        all_stored = self.entries.set_stored_length(stored_length)
        if self.logged is None:
            return all_stored
        self.logged.drop_before(stored_length)
        if self.logged:
            return False
        self.logged = None
        return all_stored

    def redirect_at(self, offset: int) -> Redirect | None:
        """Return the merged range that covers ``offset``, if its bytes have not moved yet."""
        position = bisect_right(self.redirects, offset, key=_offset_of) - 1
        if position < 0:
            return None
        redirect = self.redirects[position]
        return redirect if offset < redirect.offset + redirect.length else None

    def fetch_at(self, offset: int) -> Fetch | None:
        """Return the read of tier 2 that will bring the byte at ``offset``, or None."""
        for fetch in self.fetches:
            if fetch.offset <= offset < fetch.end:
                return fetch
        return None

    def block_at(self, offset: int) -> HistoryBlock | None:
        """Return the block of history that has the byte at ``offset``."""
        return block_at(self.blocks, offset)

    def add_read_end(self, end: int) -> None:
        """Record that a reader has read history up to ``end``."""
        self._passed[end] = None
        if len(self._passed) > READ_ENDS_MAX:
            del self._passed[next(iter(self._passed))]

    def remove_read_end(self, offset: int) -> bool:
        """Return whether a read from ``offset`` on continues an earlier one, and forget the earlier
        one.
        """
        if offset in self._passed:
            del self._passed[offset]
            return True
        return False

    def unknown_end(self, offset: int) -> int:
        """Return where the bytes from ``offset`` on end that are neither cached nor being fetched.

        All of them are in tier 2, or all are in the log.
        """
        end = self.segment.storage_length
        if offset >= end:
            end = self.logged_end(offset)
        cached_from = self.entries.next_cached_offset(offset)
        if cached_from is not None:
            end = min(end, cached_from)
        for fetch in self.fetches:
            if fetch.offset > offset:
                end = min(end, fetch.offset)
        kept_from = next_block_offset(self.blocks, offset)
        return end if kept_from is None else min(end, kept_from)

    def known_end(self, offset: int, limit: int) -> int:
        """Return where the bytes from ``offset`` on end that are cached, kept or being fetched.

        The search stops at ``limit``.
        """
        position = self.entries.cached_end(offset, limit)
        while position < limit:
            known = self.fetch_at(position) or self.block_at(position)
            if known is None:
                break
            position = self.entries.cached_end(known.end, limit)
        return position

    def remove_tail_reads(self) -> list[WaitingRead]:
        """Remove and return the waiting tail reads; the caller answers each."""
        parked = list(self.tail_reads)
        self.tail_reads.clear()
        return parked

    def drop(self, history: HistoryBlocks) -> list[WaitingRead]:
        """Free everything; return the reads that wait, for the caller to answer."""
        self.is_dropped = True
        self.entries.clear()
        for block in list(self.blocks):
            history.forget(block)
        waiting = self.remove_tail_reads()
        for fetch in self.fetches:
            waiting += fetch.waiters
            fetch.waiters = []
        return waiting
