"""The places of one segment's bytes, and the reads that wait for more of them.

Owns, for one segment: the cache entries; the *redirects*, which are ranges whose bytes tier 2 still
has under the name of a merged segment, sorted by offset; the places of bytes that only the log has;
the *fetches*, which are reads of tier 2 or the log under way; the *tail reads*, which wait for
appends; and the blocks of history outside the cache.

Invariants:
1. Each byte that tier 2 lacks is read from the cache or the log, also after restarts. Held by
   ``test_random_lives_lose_and_double_nothing``.
2. After a merge, the bytes of the source are read in the target, before and after tier 2 has moved
   them. Held by ``test_a_redirect_shows_a_merged_segments_bytes_until_they_have_moved``.
3. When a range is cached or being read, a new read of tier 2 ends before it, so that no range is
   read twice. Held by ``test_what_is_unknown_ends_at_what_is_cached_fetched_or_not_stored``.

A segment of 100 bytes gets the 40 bytes of another one by a merge; tier 2 has all 140, and the
cache has none of them.

    redirect        100 to 140, to the other segment
    read at 90      reads 90 to 100 of this segment in tier 2: it ends before the redirect
    read at 110     reads 10 to 40 of the other segment in tier 2
    tier 2 has moved the bytes: the redirect is dropped, and a read at 110 reads this segment; what
    the cache has of the other segment by then belongs to this one
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
"""Maximum number of remembered offsets at which reads of history ended."""

_offset_of = attrgetter("offset")


class Redirect:
    """A range whose bytes have to be read from the merged segment ``source``."""

    __slots__ = ("length", "offset", "source")

    def __init__(self, offset: int, length: int, source: SegmentMetadata) -> None:
        self.offset = offset
        self.length = length
        self.source = source


class WaitingRead:
    """A read that is completed later. ``on_complete`` is None once it is completed or cancelled."""

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
        """Cancel the read: ``on_complete`` is not called. Bytes that are being read from tier 2
        still go to the cache."""
        self.on_complete = None
        if self._parked is not None:
            self._parked.pop(self, None)

    def postpone_without_room(self) -> bool:
        """Complete the read with the request to ask again, if the reader's connection has no room
        for a result. Return whether that was done."""
        if self.has_room is None or self.on_complete is None or self.has_room():
            return False
        self.complete(None, ask_again(self.offset))
        return True

    def complete(self, error: SegmentStoreError | None, result: ReadResult | None) -> None:
        """Complete the read, unless it was cancelled."""
        on_complete, self.on_complete = self.on_complete, None
        if on_complete is not None:
            on_complete(error, result)


class Fetch:
    """A read of tier 2 or of the log that is under way, and the reads that wait for its bytes.
    ``promised`` is the room, in bytes, that is reserved among the blocks of history."""

    __slots__ = ("end", "offset", "promised", "waiters")

    def __init__(self, offset: int, end: int, promised: int = 0) -> None:
        assert end > offset, f"byte {offset} is neither cached nor stored"
        self.promised = promised
        self.offset = offset
        self.end = end
        self.waiters: list[WaitingRead] = []

    @property
    def is_unwanted(self) -> bool:
        """Return whether all reads that waited for the fetch are cancelled. A fetch that reads
        ahead has no waiting reads and counts as wanted."""
        return bool(self.waiters) and all(read.on_complete is None for read in self.waiters)


class SegmentReadIndex:
    """The places of one segment's bytes, its fetches and its waiting reads."""

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
        """Record the place in the log of bytes that neither the cache nor tier 2 has."""
        if self.logged is None:
            self.logged = LoggedPieces()
        self.logged.add(*piece)

    def logged_end(self, offset: int) -> int:
        """Return the offset up to which the log has all bytes from ``offset`` on."""
        return offset if self.logged is None else self.logged.contiguous_end(offset)

    @property
    def fetched_end(self) -> int:
        """Return the offset up to which bytes can be read from tier 2 or the log."""
        stored = self.segment.storage_length
        return stored if self.logged is None else max(stored, self.logged.end)

    def set_stored_length(self, stored_length: int) -> bool:
        """Record that tier 2 has all bytes up to ``stored_length``. Return whether cache and log
        have no bytes that tier 2 lacks."""
        all_stored = self.entries.set_stored_length(stored_length)
        if self.logged is None:
            return all_stored
        self.logged.drop_before(stored_length)
        if self.logged:
            return False
        self.logged = None
        return all_stored

    def redirect_at(self, offset: int) -> Redirect | None:
        """Return the redirect that covers ``offset``, or None."""
        position = bisect_right(self.redirects, offset, key=_offset_of) - 1
        if position < 0:
            return None
        redirect = self.redirects[position]
        return redirect if offset < redirect.offset + redirect.length else None

    def fetch_at(self, offset: int) -> Fetch | None:
        """Return the fetch that covers ``offset``, or None."""
        for fetch in self.fetches:
            if fetch.offset <= offset < fetch.end:
                return fetch
        return None

    def block_at(self, offset: int) -> HistoryBlock | None:
        """Return the block of history that has the byte at ``offset``, or None."""
        return block_at(self.blocks, offset)

    def add_read_end(self, end: int) -> None:
        """Record that a reader has read history up to ``end``."""
        self._passed[end] = None
        if len(self._passed) > READ_ENDS_MAX:
            del self._passed[next(iter(self._passed))]

    def remove_read_end(self, offset: int) -> bool:
        """Return whether an earlier read of history ended at ``offset``, and forget that it did."""
        if offset in self._passed:
            del self._passed[offset]
            return True
        return False

    def unknown_end(self, offset: int) -> int:
        """Return the end of the range from ``offset`` on in which no byte is cached, in a block of
        history or being fetched. The range is all in tier 2, or all in the log.
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
        """Return the end of the range from ``offset`` on in which each byte is cached, in a block
        of history or being fetched. The search stops at ``limit``."""
        position = self.entries.cached_end(offset, limit)
        while position < limit:
            known = self.fetch_at(position) or self.block_at(position)
            if known is None:
                break
            position = self.entries.cached_end(known.end, limit)
        return position

    def remove_tail_reads(self) -> list[WaitingRead]:
        """Remove and return the waiting tail reads; the caller completes each."""
        parked = list(self.tail_reads)
        self.tail_reads.clear()
        return parked

    def drop(self, history: HistoryBlocks) -> list[WaitingRead]:
        """Free all entries and blocks. Return the waiting reads; the caller completes each."""
        self.is_dropped = True
        self.entries.clear()
        for block in list(self.blocks):
            history.forget(block)
        waiting = self.remove_tail_reads()
        for fetch in self.fetches:
            waiting += fetch.waiters
            fetch.waiters = []
        return waiting
