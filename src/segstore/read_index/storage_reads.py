"""Reads bytes that are not in the cache, from tier 2, or after a recovery from the log.

Owns: the reads of tier 2 and of the log that are under way for one container, and which bytes are
read ahead. *History* is what readers get from tier 2, as opposed to recently appended bytes.

Invariants:
1. When several readers want a range at the same time, tier 2 is read once. Held by
   ``test_readers_of_the_same_range_share_one_read_of_tier_2``.
2. At most ``READS_MAX`` reads of tier 2 are under way in a container. Held by
   ``test_reads_of_tier_2_are_bounded``.
3. When a reader reads more history than the cache can hold, appended bytes stay in the cache. Held
   by ``test_history_does_not_push_the_tail_out_of_the_cache``.
4. When the cache has no room for history, a read of tier 2 fetches only what the reader asked for,
   and nothing is kept. Held by
   ``test_without_room_history_is_read_all_the_same_and_no_further_than_asked``.
5. When tier 2 returns a view of memory of its own, the bytes are sent from there and are not copied
   to the cache. Held by
   ``test_lent_history_is_sent_from_where_it_is_and_never_enters_the_cache``.
6. When a reader continues where an earlier read ended, the next bytes are read ahead; a reader that
   jumps causes none of that. Held by
   ``test_reading_on_reads_ahead_and_reading_here_and_there_does_not``.
7. When bytes were lost, readers behind them get theirs, also while the lost ones are being read.
   Held by ``test_a_reader_behind_lost_bytes_that_are_read_ahead_gets_its_own``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from segstore.api import HasRoom, OnRead, ReadResult
from segstore.cache.manager import CacheManager, block_bytes
from segstore.chunks.api import SegmentStorage
from segstore.errors import ChunkDamagedError, SegmentStoreError
from segstore.read_index.logged_bytes import LoggedBytes
from segstore.read_index.segment_index import Fetch, SegmentReadIndex, WaitingRead
from segstore.tiers.api import Buffer

ALIGNMENT_BYTES: Final = 1024 * 1024
"""Alignment, in bytes: reads of tier 2 end at multiples of it, so that readers of the same history
share them. The original has the same."""
READ_AHEAD_BYTES: Final = 4 * ALIGNMENT_BYTES
"""Maximum number of bytes that are read ahead of a reader."""
READS_MAX: Final = 16
"""Maximum number of reads of tier 2 at a time. Reads ahead start only while half of them are
free."""

ReadAgain = Callable[[SegmentReadIndex, WaitingRead, SegmentStoreError | None], None]


class StorageReads:
    """The reads of tier 2 of one container. ``read_again`` is called for each read that a fetch did
    not answer, with the error of the fetch, if it had one."""

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
        # True once a read has returned a view of tier 2's own memory.
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
        """Read from tier 2 or from the log; one of them has the byte at ``offset``. Return the
        handle of the read, which is completed later."""
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
        """Return up to ``length_max`` bytes from a block of history, and read ahead of the reader;
        None if no block has the byte at ``offset``."""
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
        """Fetch bytes after ``offset``, so that the next read of a reader that ended there need not
        wait."""
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
            # When a read ahead fails, no reader waits for it; the next request reads again.
            failure = error
        finally:
            self._blocks.redeem(fetch.promised)
        # When the container stops, this task is cancelled before this line; closing the index
        # completes the waiting reads.
        index.fetches.remove(fetch)
        if data and offset >= segment.start_offset and not index.is_dropped:
            self._keep(index, offset, data)
            self._answer(index, fetch, data)
            return
        if fetch.is_unwanted:
            return
        is_elsewhere = isinstance(failure, ChunkDamagedError)
        for read in fetch.waiters:
            # The bytes may have been truncated, merged or deleted meanwhile. What was lost at the
            # beginning of the fetch says nothing about those behind it.
            self._read_again(
                index, read, None if is_elsewhere and read.offset > offset else failure
            )

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
            # The range was flushed meanwhile, and the log was truncated: read it from tier 2.
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
                # The fetch returned fewer bytes: a chunk ended, or tier 2 had no more.
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
