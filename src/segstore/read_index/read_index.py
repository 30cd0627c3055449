"""Serves reads of a container's segments from the cache, from tier 2, or when data arrives.

Owns: the read indexes of all segments of one container.

Invariants:
1. While an append is not durable, no read returns its bytes. Held by
   ``test_an_append_is_not_visible_before_it_completes``.
2. A read at the end of a segment waits without a task of its own, and is completed exactly once
   unless it is cancelled. Held by ``test_a_parked_read_costs_no_task_and_ends_once``.
3. When the container stops, each waiting read is completed with an empty result, and each later
   one is refused: none waits for ever, although a container that has failed is found for a moment
   longer. Held by ``test_every_waiting_read_is_answered_when_the_container_stops`` and
   ``test_a_reader_that_asks_again_while_a_container_fails_is_refused``.
4. When many reads wait for the same bytes, at most ``WOKEN_MAX`` are completed before other tasks
   run. Held by ``test_many_parked_reads_are_answered_in_several_turns``.
5. When the cache is full, bytes that tier 2 lacks are not evicted. Held by
   ``test_only_flushed_data_is_evicted``.

A segment has 2,500,000 bytes: tier 2 has the first 2,000,000, the cache the last 500,000.

    read 1,000 bytes at 2,400,000   the cache has them: completes at once
    read 4,000 bytes at 100         reads 100 to 1,048,576 from tier 2, keeps them in the cache
    read 4,000 bytes at 4,100       the cache has them; reads 1,048,576 to 2,000,000 ahead, because
                                    the reader continues where its last read ended
    read 1,000 bytes at 2,500,000   waits; an append of 10 bytes completes it with 10 bytes
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from _fast.log.logged_pieces import Piece
from segstore.api import HasRoom, OnRead, ReadHandle, ReadResult, ask_again
from segstore.cache.manager import CacheManager
from segstore.chunks.api import SegmentStorage
from segstore.errors import (
    BytesLostError,
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segstore.model.metadata import SegmentMetadata
from segstore.read_index.logged_bytes import LoggedBytes
from segstore.read_index.segment_index import Redirect, SegmentReadIndex, WaitingRead
from segstore.read_index.storage_reads import StorageReads
from segstore.runtime.clock import next_look
from segstore.tiers.api import Buffer

WOKEN_MAX: Final = 500
"""Maximum number of waiting tail reads that are answered in one step of the event loop."""


class ReadIndex:
    """The read indexes of one container. ``now`` returns the time of a monotonic clock, in
    seconds."""

    def __init__(
        self,
        cache_manager: CacheManager,
        storage: SegmentStorage,
        now: Callable[[], float],
        log: LoggedBytes | None = None,
    ) -> None:
        self._log = log
        self._cache_manager = cache_manager
        self._now = now
        self._indexes: dict[int, SegmentReadIndex] = {}
        # Segments with bytes that tier 2 lacks, or may lack.
        self._unstored: dict[int, SegmentReadIndex] = {}
        self._storage_reads = StorageReads(cache_manager, storage, self._read_again, log)
        self._closed = False
        self._nursery: trio.Nursery | None = None
        # Reads whose bytes have come, but which have not been completed yet.
        self._woken: deque[tuple[SegmentReadIndex, WaitingRead]] = deque()

    def start(self, nursery: trio.Nursery) -> None:
        """Run reads of tier 2, and the task that evicts from the cache, in ``nursery``."""
        self._nursery = nursery
        self._storage_reads.start(nursery)
        nursery.start_soon(self._keep_cache)

    def end_tasks(self) -> None:
        """Start no more tasks. Reads that need one complete with an empty result."""
        self._nursery = None
        self._storage_reads.close()

    def close(self) -> None:
        """Free the container's part of the cache, and complete each waiting read with an empty
        result. Later reads are refused. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.end_tasks()
        for _, read in self._woken:
            read.complete(None, ask_again(read.offset))
        self._woken.clear()
        for index in self._indexes.values():
            for read in index.drop(self._cache_manager.history_blocks):
                read.complete(None, ask_again(read.offset))
        self._indexes.clear()
        self._unstored.clear()

    async def _keep_cache(self) -> None:
        """Advance the generations of the cache, which all containers share, and evict entries above
        its target."""
        manager = self._cache_manager
        while True:
            manager.advance(self._now())
            if manager.is_above_target:
                self.record_flushed()
            while manager.evict_some():
                await trio.lowlevel.checkpoint()
            await trio.sleep_until(next_look(manager.policy.generation_seconds))

    def record_flush_begun(self, segment_id: int) -> None:
        """Record that all present bytes of a segment are being written to tier 2: later appends
        begin a new cache entry, so that the flushed entries can be evicted."""
        index = self._indexes.get(segment_id)
        if index is not None:
            index.entries.end_last()

    def record_flushed(self) -> None:
        """Record that tier 2 has more bytes of some segments: their entries may be evicted now."""
        for segment_id, index in list(self._unstored.items()):
            if index.set_stored_length(index.segment.storage_length):
                del self._unstored[segment_id]

    def record_segment_flushed(self, segment: SegmentMetadata) -> None:
        """Record that tier 2 has more bytes of one segment."""
        index = self._unstored.get(segment.segment_id)
        if index is not None and index.set_stored_length(segment.storage_length):
            del self._unstored[segment.segment_id]

    def index_of(self, segment: SegmentMetadata) -> SegmentReadIndex:
        """Return the segment's index; create it at the first call."""
        index = self._indexes.get(segment.segment_id)
        if index is None:
            index = SegmentReadIndex(segment, self._cache_manager.generations)
            self._indexes[segment.segment_id] = index
        return index

    def is_idle(self, segment: SegmentMetadata) -> bool:
        """Return whether no read waits for the segment's bytes, and tier 2 has all of them under
        the segment's own name."""
        index = self._indexes.get(segment.segment_id)
        return index is None or not (
            index.tail_reads
            or index.fetches
            or index.redirects
            or index.logged
            or segment.segment_id in self._unstored
        )

    def append(self, segment: SegmentMetadata, offset: int, data: Buffer) -> None:
        """Add committed bytes to the cache, and complete the reads that wait for them."""
        index = self._indexes.get(segment.segment_id) or self.index_of(segment)
        index.entries.append(offset, data)
        self._unstored[segment.segment_id] = index
        if index.tail_reads:
            self._wake(index)

    def append_logged(self, segment: SegmentMetadata, piece: Piece) -> None:
        """Record, during a recovery, the place in the log of committed bytes that are not put into
        the cache."""
        index = self.index_of(segment)
        index.add_logged(piece)
        self._unstored[segment.segment_id] = index

    def merge(self, target: SegmentMetadata, source: SegmentMetadata, offset: int) -> None:
        """Make the bytes of a merged segment readable in the target from ``offset`` on, while tier
        2 still has them under the source's name."""
        index = self.index_of(target)
        if source.length and target.storage_length < offset + source.length:
            index.redirects.append(Redirect(offset, source.length, source))
        self._wake(index)
        self._answer_tail_reads(source, NoSuchSegmentError(source.name))

    def merge_stored(self, target: SegmentMetadata, source: SegmentMetadata) -> None:
        """Move the cache entries of a merged segment to the target, because tier 2 has the bytes
        under the target's name now."""
        index = self.index_of(target)
        moved = [entry for entry in index.redirects if entry.source is source]
        source_index = self._indexes.get(source.segment_id)
        index.redirects = [entry for entry in index.redirects if entry.source is not source]
        if moved and source_index is not None:
            index.entries.set_stored_length(target.storage_length)
            index.entries.adopt_entries(source_index.entries, moved[0].offset)
            index.entries.drop_before(min(target.start_offset, target.storage_length))
        self.delete(source)

    def seal(self, segment: SegmentMetadata) -> None:
        """Complete the reads that wait for more data of a segment with ``SegmentSealedError``."""
        self._answer_tail_reads(segment, SegmentSealedError(segment.name))

    def truncate(self, segment: SegmentMetadata) -> None:
        """Free the cache entries before the start offset, as far as the storage writer does not
        need them any more."""
        index = self._indexes.get(segment.segment_id)
        if index is not None:
            index.entries.drop_before(min(segment.start_offset, segment.storage_length))

    def delete(self, segment: SegmentMetadata) -> None:
        """Free the segment's cache entries, and complete its waiting reads with
        ``NoSuchSegmentError``."""
        self._unstored.pop(segment.segment_id, None)
        index = self._indexes.pop(segment.segment_id, None)
        if index is not None:
            for read in index.drop(self._cache_manager.history_blocks):
                read.complete(NoSuchSegmentError(segment.name), None)

    def cached(self, segment: SegmentMetadata, *, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from the cache, for the storage writer; empty if the cache
        does not have the byte at ``offset``."""
        return self.index_of(segment).entries.gather(offset, length, False)

    async def unstored(self, segment: SegmentMetadata, *, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset`` on that tier 2 lacks, from the cache or the
        log; empty if neither has them.

        Raises ``ContainerOfflineError`` when the container has stopped.
        """
        if self._closed:
            raise ContainerOfflineError("the container has stopped")
        data = self.cached(segment, offset=offset, length=length)
        if data or self._log is None:
            return data
        index = self.index_of(segment)
        end = min(index.logged_end(offset), offset + length)
        return await self._log.read(index, offset, end) if end > offset else b""

    def read_nowait(
        self,
        segment: SegmentMetadata,
        *,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        """See ``SegmentContainer.read_nowait``."""
        if self._closed:
            on_complete(ContainerOfflineError("the container has stopped"), None)
            return None
        if offset < segment.start_offset:
            on_complete(
                SegmentTruncatedError(segment.name, start_offset=segment.start_offset), None
            )
            return None
        if offset >= segment.length:
            return self._read_tail(segment, offset, length_max, on_complete, has_room)
        return self._read(segment, offset, length_max, False, on_complete, has_room)

    def _read_tail(
        self,
        segment: SegmentMetadata,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None,
    ) -> ReadHandle | None:
        if not segment.sealed:
            tail_reads = self.index_of(segment).tail_reads
            read = WaitingRead(offset, length_max, on_complete, tail_reads, has_room)
            tail_reads[read] = None
            return read
        if offset > segment.length:
            message = f"{segment.name} is sealed at {segment.length}, before offset {offset}"
            on_complete(InvalidRequestError(segment.name, message), None)
        else:
            on_complete(None, ReadResult(offset, b"", False, True))
        return None

    def _read(
        self,
        segment: SegmentMetadata,
        offset: int,
        length_max: int,
        at_tail: bool,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        index = self._indexes.get(segment.segment_id) or self.index_of(segment)
        data = index.entries.gather(offset, length_max)
        if data:
            end = offset + len(data)
            if index.entries.read_history:
                self._storage_reads.read_ahead(index, end)
            is_last = end == segment.length
            ends = segment.sealed and is_last
            on_complete(None, ReadResult(offset, data, at_tail, ends, is_last))
            return None
        history = self._storage_reads.read_kept(index, offset, length_max)
        if history is not None:
            end = offset + len(history)
            is_last = end == segment.length
            ends = segment.sealed and is_last
            on_complete(None, ReadResult(offset, history, at_tail, ends, is_last))
            return None
        redirect = index.redirect_at(offset)
        if redirect is not None:
            return self._read_redirect(
                index, redirect, offset, length_max, at_tail, on_complete, has_room
            )
        if not self._storage_reads.is_running:
            on_complete(None, ask_again(offset))
            return None
        return self._storage_reads.read(index, offset, length_max, on_complete, has_room)

    def _read_redirect(
        self,
        index: SegmentReadIndex,
        redirect: Redirect,
        offset: int,
        length_max: int,
        at_tail: bool,
        on_complete: OnRead,
        has_room: HasRoom | None,
    ) -> ReadHandle | None:
        def translate(error: SegmentStoreError | None, result: ReadResult | None) -> None:
            if error is not None and redirect not in index.redirects:
                # The bytes moved to the target while they were read from the source.
                self._read(index.segment, offset, length_max, at_tail, on_complete, has_room)
                return
            if isinstance(error, BytesLostError):
                error = error.moved_to(index.segment.name, redirect.offset)
            if result is not None:
                # A result without data tells the reader to ask again.
                is_last = offset + len(result.data) == index.segment.length
                at_tail_now = at_tail or not result.data
                result = ReadResult(offset, result.data, at_tail_now, False, is_last)
            on_complete(error, result)

        return self._read(
            redirect.source, offset - redirect.offset, length_max, False, translate, has_room
        )

    def _read_again(
        self, index: SegmentReadIndex, read: WaitingRead, error: SegmentStoreError | None
    ) -> None:
        """Complete a read that tier 2 did not answer: with ``error``, with an error that follows
        from the segment's present state, or by another read."""
        segment = index.segment
        if index.is_dropped:
            read.complete(NoSuchSegmentError(segment.name), None)
        elif read.offset < segment.start_offset:
            start_offset = segment.start_offset
            read.complete(SegmentTruncatedError(segment.name, start_offset=start_offset), None)
        elif error is not None:
            read.complete(error, None)
        elif not read.postpone_without_room():
            self._read(segment, read.offset, read.length_max, False, read.complete, read.has_room)

    def _wake(self, index: SegmentReadIndex) -> None:
        segment = index.segment
        ready = [read for read in index.tail_reads if read.offset < segment.length]
        for read in ready:
            del index.tail_reads[read]
        if len(ready) > WOKEN_MAX and self._nursery is not None:
            if not self._woken:
                self._nursery.start_soon(self._answer_woken)
            self._woken.extend((index, read) for read in ready[WOKEN_MAX:])
            del ready[WOKEN_MAX:]
        for read in ready:
            if read.offset < segment.start_offset:
                start_offset = segment.start_offset
                read.complete(SegmentTruncatedError(segment.name, start_offset=start_offset), None)
            elif not read.postpone_without_room():
                # The reader still has the handle of this read: it can cancel while tier 2 is read.
                self._read(
                    segment, read.offset, read.length_max, True, read.complete, read.has_room
                )

    async def _answer_woken(self) -> None:
        """Complete the reads that were too many for one step of the event loop."""
        while self._woken:
            await trio.lowlevel.checkpoint()
            for _ in range(min(WOKEN_MAX, len(self._woken))):
                index, read = self._woken.popleft()
                self._read_again(index, read, None)

    def _answer_tail_reads(self, segment: SegmentMetadata, error: SegmentStoreError) -> None:
        index = self._indexes.get(segment.segment_id)
        if index is not None:
            for read in index.remove_tail_reads():
                read.complete(error, None)
