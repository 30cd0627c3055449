"""Reads of what is not in the cache: it comes from tier 2, in large pieces and ahead of time, or
after a recovery from the log.

Owns: the reads of tier 2 and of the log that are under way for one container.

Invariants:
1. A byte is read from there by one read at a time; who wants it meanwhile waits for the same.
2. At most READS_MAX reads are under way; those ahead of time only start while half of them are
   free, and only when the cache has room for history.
3. What is read never pushes appended data out of the cache: without room for history it goes to
   who waits, and nowhere else. What tier 2 lends memory for never goes to the cache: it is kept as
   it is, and a reply is sent from there.
4. Where a read goes on from the end of an earlier one, what follows is read ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from segstore.api import HasRoom, OnRead, ReadResult
from segstore.cache.manager import CacheManager, block_bytes
from segstore.chunks.api import SegmentStorage
from segstore.errors import SegmentStoreError
from segstore.read_index.logged_bytes import LoggedBytes
from segstore.read_index.segment_index import Fetch, SegmentReadIndex, WaitingRead
from segstore.tiers.api import Buffer

ALIGNMENT_BYTES: Final = 1024 * 1024
"""Number of bytes at whose multiples reads end (the original's alignment), so that readers share
them."""
READ_AHEAD_BYTES: Final = 4 * ALIGNMENT_BYTES
"""Number of bytes behind a read of history that are fetched in advance."""
READS_MAX: Final = 16

ReadAgain = Callable[[SegmentReadIndex, WaitingRead, SegmentStoreError | None], None]


class StorageReads:
    """One per container. ``read_again`` gets the reads that tier 2 has not answered."""

    def __init__(
        self,
        cache_manager: CacheManager,
        storage: SegmentStorage,
        read_again: ReadAgain,
        log: LoggedBytes | None,
    ) -> None:
        self._log = log
        self._cache_manager = cache_manager
        self._storage = storage
        self._read_again = read_again
        self._slots = trio.Semaphore(READS_MAX)
        self._blocks = cache_manager.history_blocks
        # Found out by the first long read.
        self._lends = False
        self._nursery: trio.Nursery | None = None

    @property
    def is_running(self) -> bool:
        """Return whether reads can be started."""
        return self._nursery is not None

    def start(self, nursery: trio.Nursery) -> None:
        """Run reads in ``nursery`` from now on."""
        self._nursery = nursery

    def close(self) -> None:
        """Start no more reads."""
        self._nursery = None

    def read(
        self,
        index: SegmentReadIndex,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> WaitingRead:
        """Read from tier 2 or from the log, one of which has the byte at ``offset``."""
        read = WaitingRead(offset, length_max, on_complete, has_room=has_room)
        fetch = index.fetch_at(offset)
        if fetch is None:
            end = offset + length_max
            if self._lends:
                end = min(end, offset + ALIGNMENT_BYTES)
            if self._lends or self._cache_manager.has_history_room(2 * ALIGNMENT_BYTES):
                end = max(end, offset + ALIGNMENT_BYTES // 2)
                end += -end % ALIGNMENT_BYTES
            fetch = self._begin(index, offset, end)
        fetch.waiters.append(read)
        if index.remove_read_end(offset):
            self.read_ahead(index, fetch.end)
        return read

    def read_kept(self, index: SegmentReadIndex, offset: int, length_max: int) -> memoryview | None:
        """Return what is kept beside the cache from ``offset`` on, and read ahead what follows."""
        block = index.block_at(offset) if index.blocks else None
        if block is None:
            return None
        data = block.view(offset, length_max)
        end = offset + len(data)
        self._blocks.use(block, end)
        index.remove_read_end(offset)
        index.add_read_end(end)
        self.read_ahead(index, end)
        return data

    def read_ahead(self, index: SegmentReadIndex, offset: int) -> None:
        """Fetch what follows ``offset``, so that a reader of history finds it at its next
        request.
        """
        limit = min(offset + READ_AHEAD_BYTES, index.fetched_end)
        position = index.known_end(offset, limit)
        if (
            position >= limit
            or position >= index.unknown_end(position)
            or self._slots.value <= READS_MAX // 2
            or self._nursery is None
        ):
            return
        end = position + 1
        end += -end % ALIGNMENT_BYTES
        if not self._lends and self._cache_manager.has_history_room(ALIGNMENT_BYTES):
            self._begin(index, position, end)
        elif self._lends and self._blocks.promise(end - position):
            self._begin(index, position, end, promised=end - position)

    def _begin(self, index: SegmentReadIndex, offset: int, end: int, *, promised: int = 0) -> Fetch:
        assert self._nursery is not None, "the container is not running"
        fetch = Fetch(offset, min(end, index.unknown_end(offset)), promised)
        index.fetches.append(fetch)
        self._nursery.start_soon(self._run, index, fetch)
        return fetch

    async def _run(self, index: SegmentReadIndex, fetch: Fetch) -> None:
        segment, offset = index.segment, fetch.offset
        data: Buffer = b""
        failure = None
        try:
            async with self._slots:
                if not fetch.is_unwanted:
                    data = await self._read(index, offset, fetch.end)
        except SegmentStoreError as error:
            # No reader waits for a read in advance that fails: the next request meets the error.
            failure = error
        finally:
            self._blocks.redeem(fetch.promised)
        # This is not reached when the container stops: closing answers the reads that wait.
        index.fetches.remove(fetch)
        if data and offset >= segment.start_offset and not index.is_dropped:
            self._keep(index, offset, data)
            self._answer(index, fetch, data)
            return
        if fetch.is_unwanted:
            return
        for read in fetch.waiters:
            # The bytes may have been truncated, merged or deleted away meanwhile: look again.
            self._read_again(index, read, failure)

    def _keep(self, index: SegmentReadIndex, offset: int, data: Buffer) -> None:
        if isinstance(data, memoryview):
            self._lends = True
            self._blocks.keep(offset, data, index.blocks)
        elif self._cache_manager.has_history_room(block_bytes(len(data))):
            index.entries.insert(offset, data)

    async def _read(self, index: SegmentReadIndex, offset: int, end: int) -> Buffer:
        segment = index.segment
        if offset >= segment.storage_length:
            assert self._log is not None, "nothing is left in the log without one"
            try:
                return await self._log.read(index, offset, end)
            except SegmentStoreError:
                if offset >= segment.storage_length:
                    raise
            # Meanwhile it was flushed to tier 2, and the log was truncated.
        length = min(end, segment.storage_length) - offset
        return await self._storage.read(segment.storage_name, offset=offset, length=length)

    def _answer(self, index: SegmentReadIndex, fetch: Fetch, data: Buffer) -> None:
        segment = index.segment
        block = index.block_at(fetch.offset)
        for read in fetch.waiters:
            if read.on_complete is None or read.postpone_without_room():
                continue
            start = read.offset - fetch.offset
            if start >= len(data):
                # It was cut short: at the end of a chunk, or of what tier 2 had by then.
                self._read_again(index, read, None)
                continue
            wanted = data[start : start + read.length_max]
            end = read.offset + len(wanted)
            index.add_read_end(end)
            if block is not None:
                self._blocks.use(block, end)
            is_last = end == segment.length
            ends = segment.sealed and is_last
            read.complete(None, ReadResult(read.offset, wanted, False, ends, is_last))
