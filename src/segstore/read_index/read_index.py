"""Serves reads of a container's segments from the cache, from tier 2, or when data arrives.

Owns: the read indexes of all segments of one container.

Invariants:
1. Only committed bytes are served.
2. A parked read costs no task; it ends by data, seal, deletion or the container's stop.
3. Each read is completed exactly once, unless it is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio

from segstore.api import OnRead, ReadHandle, ReadResult
from segstore.cache.manager import CacheManager, Evictable, block_bytes
from segstore.errors import (
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segstore.metadata import SegmentMetadata
from segstore.read_index.segment_index import Redirect, SegmentReadIndex, TailRead
from segstore.storage.api import SegmentStorage
from segstore.tiers.api import Buffer

STORAGE_READ_BYTES: Final = 1024 * 1024
"""Reads of tier 2 are extended to this many bytes (the original's alignment)."""


class StorageRead:
    """A read that waits for tier 2."""

    __slots__ = ("on_complete",)

    def __init__(self, on_complete: OnRead) -> None:
        self.on_complete: OnRead | None = on_complete

    def cancel(self) -> None:
        """Forget the read; what storage returns still goes to the cache."""
        self.on_complete = None

    def complete(self, error: SegmentStoreError | None, result: ReadResult | None) -> None:
        """Answer, unless cancelled."""
        on_complete, self.on_complete = self.on_complete, None
        if on_complete is not None:
            on_complete(error, result)


class ReadIndex:
    """The read indexes of one container."""

    def __init__(
        self, cache_manager: CacheManager, storage: SegmentStorage, now: Callable[[], float]
    ) -> None:
        self._cache_manager = cache_manager
        self._storage = storage
        self._now = now
        self._indexes: dict[int, SegmentReadIndex] = {}
        self._nursery: trio.Nursery | None = None
        self._closed = False
        cache_manager.register(self)

    def start(self, nursery: trio.Nursery) -> None:
        """Let reads of tier 2 run in ``nursery``."""
        self._nursery = nursery

    def close(self) -> None:
        """Free the cache and answer every parked read with an empty result. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._nursery = None
        for index in self._indexes.values():
            index.clear()
            for read in take_tail_reads(index):
                complete(read, None, ReadResult(read.offset, b"", True, False))
        self._indexes.clear()
        self._cache_manager.unregister(self)

    def note_stored(self) -> None:
        """More bytes are in tier 2: what was kept for its sake may be evicted."""
        self._cache_manager.note_stored()

    def evictable_entries(self) -> Iterator[tuple[Evictable, Callable[[], None]]]:
        """Entries of all segments that are wholly in tier 2."""
        for index in self._indexes.values():
            yield from index.evictable_entries()

    def index_of(self, segment: SegmentMetadata) -> SegmentReadIndex:
        """The segment's index, made when it is first needed."""
        index = self._indexes.get(segment.segment_id)
        if index is None:
            index = SegmentReadIndex(segment, self._cache_manager.cache, self._now)
            self._indexes[segment.segment_id] = index
        return index

    def append(self, segment: SegmentMetadata, offset: int, data: Buffer) -> None:
        """Take in committed bytes and wake who waits for them."""
        index = self.index_of(segment)
        index.append(offset, data)
        if index.tail_reads:
            self._wake(index)

    def merge(self, target: SegmentMetadata, source: SegmentMetadata, offset: int) -> None:
        """Make the source's bytes readable in the target before they have moved there."""
        index = self.index_of(target)
        if source.length and target.storage_length < offset + source.length:
            index.redirects.append(Redirect(offset, source.length, source))
        self._wake(index)
        self._end_reads(source, NoSuchSegmentError(source.name))

    def merge_stored(self, target: SegmentMetadata, source: SegmentMetadata) -> None:
        """The merged bytes are in the target's place in tier 2: forget the source."""
        index = self.index_of(target)
        index.redirects = [entry for entry in index.redirects if entry.source is not source]
        self.delete(source)

    def seal(self, segment: SegmentMetadata) -> None:
        """No more data will come: answer who waits for it."""
        self._end_reads(segment, SegmentSealedError(segment.name))

    def truncate(self, segment: SegmentMetadata) -> None:
        """Free what lies before the start offset and is in no one's way."""
        index = self._indexes.get(segment.segment_id)
        if index is not None:
            index.drop_before(min(segment.start_offset, segment.storage_length))

    def delete(self, segment: SegmentMetadata) -> None:
        """Free the segment's cache and answer who waits for its data."""
        index = self._indexes.pop(segment.segment_id, None)
        if index is not None:
            index.clear()
            self._answer_all(index, NoSuchSegmentError(segment.name))

    def cached(self, segment: SegmentMetadata, *, offset: int, length: int) -> bytes:
        """Bytes that are not in tier 2 yet, for the storage writer."""
        return self.index_of(segment).gather(offset, length)

    def read_nowait(
        self, segment: SegmentMetadata, *, offset: int, length_max: int, on_complete: OnRead
    ) -> ReadHandle | None:
        """See ``SegmentContainer.read_nowait``."""
        if offset < segment.start_offset:
            error: SegmentStoreError = SegmentTruncatedError(
                segment.name, start_offset=segment.start_offset
            )
            on_complete(error, None)
            return None
        if offset >= segment.length:
            return self._read_tail(segment, offset, length_max, on_complete)
        return self._read(segment, offset, length_max, False, on_complete)

    def _read_tail(
        self, segment: SegmentMetadata, offset: int, length_max: int, on_complete: OnRead
    ) -> ReadHandle | None:
        if not segment.sealed:
            tail_reads = self.index_of(segment).tail_reads
            read = TailRead(tail_reads, offset, length_max, on_complete)
            tail_reads.append(read)
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
    ) -> ReadHandle | None:
        index = self.index_of(segment)
        data = index.gather(offset, length_max)
        if data:
            ends = segment.sealed and offset + len(data) == segment.length
            on_complete(None, ReadResult(offset, data, at_tail, ends))
            return None
        redirect = index.redirect_at(offset)
        if redirect is not None:
            return self._read_redirect(index, redirect, offset, length_max, at_tail, on_complete)
        if self._nursery is None:
            on_complete(None, ReadResult(offset, b"", True, False))
            return None
        read = StorageRead(on_complete)
        self._nursery.start_soon(self._read_storage, segment, offset, length_max, read)
        return read

    def _read_redirect(
        self,
        index: SegmentReadIndex,
        redirect: Redirect,
        offset: int,
        length_max: int,
        at_tail: bool,
        on_complete: OnRead,
    ) -> ReadHandle | None:
        def translate(error: SegmentStoreError | None, result: ReadResult | None) -> None:
            if error is not None and redirect not in index.redirects:
                # The bytes moved to the target while the source was asked for them.
                self._read(index.segment, offset, length_max, at_tail, on_complete)
                return
            if result is not None:
                result = ReadResult(offset, result.data, at_tail, False)
            on_complete(error, result)

        return self._read(redirect.source, offset - redirect.offset, length_max, False, translate)

    async def _read_storage(
        self, segment: SegmentMetadata, offset: int, length_max: int, read: StorageRead
    ) -> None:
        index = self._indexes.get(segment.segment_id)
        if index is None:
            self._read_again(segment, offset, length_max, None, read)
            return
        end = segment.storage_length
        cached_from = index.next_cached_offset(offset)
        if cached_from is not None:
            end = min(end, cached_from)
        length = min(max(length_max, STORAGE_READ_BYTES), end - offset)
        assert length > 0, f"{segment.name}: byte {offset} is neither cached nor stored"
        try:
            data = await self._storage.read(segment.storage_name, offset=offset, length=length)
        except SegmentStoreError as error:
            # The bytes may have been truncated, merged or deleted away meanwhile: look again.
            self._read_again(segment, offset, length_max, error, read)
            return
        if offset < segment.start_offset or self._indexes.get(segment.segment_id) is not index:
            self._read_again(segment, offset, length_max, None, read)
            return
        if self._cache_manager.has_room(block_bytes(len(data))):
            index.insert_from_storage(offset, data)
        wanted = data if len(data) <= length_max else data[:length_max]
        ends = segment.sealed and offset + len(wanted) == segment.length
        read.complete(None, ReadResult(offset, wanted, False, ends))

    def _read_again(
        self,
        segment: SegmentMetadata,
        offset: int,
        length_max: int,
        error: SegmentStoreError | None,
        read: StorageRead,
    ) -> None:
        if self._indexes.get(segment.segment_id) is None:
            read.complete(NoSuchSegmentError(segment.name), None)
        elif offset < segment.start_offset:
            truncated = SegmentTruncatedError(segment.name, start_offset=segment.start_offset)
            read.complete(truncated, None)
        elif error is not None:
            read.complete(error, None)
        else:
            self._read(segment, offset, length_max, False, read.complete)

    def _wake(self, index: SegmentReadIndex) -> None:
        segment = index.segment
        ready = [read for read in index.tail_reads if read.offset < segment.length]
        if not ready:
            return
        index.tail_reads[:] = [read for read in index.tail_reads if read.offset >= segment.length]
        for read in ready:
            if read.offset < segment.start_offset:
                start_offset = segment.start_offset
                complete(read, SegmentTruncatedError(segment.name, start_offset=start_offset), None)
            else:
                # The handle stays the reader's: a cancel still works while tier 2 is asked.
                answer = partial(complete, read)
                self._read(segment, read.offset, read.length_max, True, answer)

    def _end_reads(self, segment: SegmentMetadata, error: SegmentStoreError) -> None:
        index = self._indexes.get(segment.segment_id)
        if index is not None:
            self._answer_all(index, error)

    def _answer_all(self, index: SegmentReadIndex, error: SegmentStoreError) -> None:
        for read in take_tail_reads(index):
            complete(read, error, None)


def take_tail_reads(index: SegmentReadIndex) -> list[TailRead]:
    """Empty the list of parked reads and return what was in it."""
    reads = list(index.tail_reads)
    index.tail_reads.clear()
    return reads


def complete(read: TailRead, error: SegmentStoreError | None, result: ReadResult | None) -> None:
    """Answer a parked read, unless it is cancelled."""
    on_complete, read.on_complete = read.on_complete, None
    if on_complete is not None:
        on_complete(error, result)
