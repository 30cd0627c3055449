"""Reads of a container's segments: from the cache, from tier 2 and at the tail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from _fast.cache.streaming_cache import StreamingCache
from _fast.wire.lent_memory import LentMemory
from segstore.api import ReadHandle, ReadResult
from segstore.cache.manager import CacheManager
from segstore.errors import (
    BytesLostError,
    NoSuchSegmentError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    StorageError,
)
from segstore.model.metadata import SegmentMetadata
from segstore.read_index.read_index import WOKEN_MAX, ReadIndex
from segstore.read_index.storage_reads import ALIGNMENT_BYTES, READ_AHEAD_BYTES, READS_MAX
from segstore.tiers.api import Buffer

MIB = 1024 * 1024
KIB = 1024


class HeldStorage:
    """Tier 2 in memory that notes what is read and, while ``gate`` is shut, does not answer."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.reads: list[tuple[int, int]] = []
        self.gate = trio.Event()
        self.gate.set()
        self.failure: StorageError | None = None
        self.lost: tuple[int, int] = (0, 0)
        self.chunk_bytes = 1 << 40
        self.running = self.running_max = 0
        self.memory: LentMemory | None = None

    async def read(self, segment: str, *, offset: int, length: int) -> Buffer:
        self.reads.append((offset, length))
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        if self.failure is not None:
            raise self.failure
        if self.lost[0] <= offset < self.lost[1]:
            raise BytesLostError(segment, *self.lost)
        end = min(offset + length, offset + self.chunk_bytes - offset % self.chunk_bytes)
        found = self.data[segment][offset:end]
        if self.memory is None:
            return found
        block = self.memory.lend()
        block[: len(found)] = found
        return block[: len(found)].toreadonly()

    async def stored_length(self, segment: str) -> int:
        return len(self.data[segment])

    async def write(
        self, segment: str, *, offset: int, data: Sequence[Buffer], rollover_bytes: int
    ) -> None:
        raise NotImplementedError

    async def truncate(self, segment: str, *, offset: int) -> None:
        raise NotImplementedError

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        raise NotImplementedError

    async def delete(self, segment: str) -> None:
        raise NotImplementedError


class Reading:
    """A read and its answer."""

    def __init__(self, index: ReadIndex, segment: SegmentMetadata, offset: int, length: int):
        self.answers: list[tuple[SegmentStoreError | None, ReadResult | None]] = []
        self.handle: ReadHandle | None = index.read_nowait(
            segment,
            offset=offset,
            length_max=length,
            on_complete=lambda error, result: self.answers.append((error, result)),
        )

    @property
    def data(self) -> bytes:
        [(error, result)] = self.answers
        assert error is None
        assert result is not None
        return bytes(result.data)

    @property
    def error(self) -> SegmentStoreError | None:
        [(error, _)] = self.answers
        return error


class Scene:
    """A read index with one segment whose bytes are all in tier 2."""

    def __init__(self, nursery: trio.Nursery, length: int, capacity_bytes: int) -> None:
        self.nursery = nursery
        self.storage = HeldStorage()
        self.manager = CacheManager(StreamingCache(capacity_bytes))
        self.index = ReadIndex(self.manager, self.storage, trio.current_time)
        self.index.start(nursery)
        self.segment = self.stored_segment(1, "s", length)
        self.content = self.storage.data[self.segment.storage_name]

    def stored_segment(self, number: int, name: str, length: int) -> SegmentMetadata:
        segment = SegmentMetadata(number, name)
        segment.length = segment.storage_length = length
        self.storage.data[segment.storage_name] = Random(number).randbytes(length)
        return segment

    def read(self, offset: int, length: int) -> Reading:
        return Reading(self.index, self.segment, offset, length)

    async def read_now(self, offset: int, length: int) -> bytes:
        reading = self.read(offset, length)
        await wait_all_tasks_blocked()
        return reading.data

    def append(self, data: bytes) -> None:
        offset = self.segment.length
        self.segment.length += len(data)
        self.index.append(self.segment, offset, data)


@asynccontextmanager
async def scene(length: int = 0, *, capacity_bytes: int = 64 * MIB) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        yield Scene(nursery, length, capacity_bytes)
        nursery.cancel_scope.cancel()


async def test_a_historical_read_fetches_up_to_the_alignment_and_the_next_one_is_a_hit() -> None:
    async with scene(8 * MIB) as it:
        assert await it.read_now(100, 1000) == it.content[100:1100]
        assert it.storage.reads == [(100, ALIGNMENT_BYTES - 100)]
        it.storage.reads.clear()
        reading = it.read(1100, 1000)
        assert reading.data == it.content[1100:2100], "answered at once"


async def test_readers_of_the_same_range_share_one_read_of_tier_2() -> None:
    async with scene(8 * MIB) as it:
        it.storage.gate = trio.Event()
        readings = [it.read(offset, 50_000) for offset in (0, 0, 1000, MIB - 10)]
        await wait_all_tasks_blocked()
        assert len(it.storage.reads) == 1
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        assert [reading.data for reading in readings[:3]] == [
            it.content[offset : offset + 50_000] for offset in (0, 0, 1000)
        ]
        assert readings[3].data == it.content[MIB - 10 : MIB]


async def test_reading_on_reads_ahead_and_reading_here_and_there_does_not() -> None:
    async with scene(64 * MIB, capacity_bytes=128 * MIB) as it:
        for offset in (40 * MIB, 10 * MIB, 30 * MIB):
            await it.read_now(offset, 1000)
        assert len(it.storage.reads) == 3
        it.storage.reads.clear()
        position = 0
        while position < 16 * MIB:
            data = await it.read_now(position, 64 * KIB)
            assert data == it.content[position : position + len(data)]
            position += len(data)
            ahead = max((offset + length for offset, length in it.storage.reads), default=0)
            assert ahead <= position + READ_AHEAD_BYTES + ALIGNMENT_BYTES
        # Nothing twice, and after the first none that a reader waited for.
        offsets = [offset for offset, _ in it.storage.reads]
        assert offsets == sorted(set(offsets))
        assert sum(length for _, length in it.storage.reads) <= 16 * MIB + READ_AHEAD_BYTES + MIB
        await it.read_now(position, 64 * KIB)


async def test_a_reader_behind_lost_bytes_that_are_read_ahead_gets_its_own() -> None:
    async with scene(8 * MIB) as it:
        it.storage.chunk_bytes = MIB
        it.storage.lost = (MIB, MIB + 1000)
        for _ in range(2):
            await it.read_now(0, 1000)
        it.storage.gate = trio.Event()
        lost = it.read(MIB, 1000)
        amid, behind = it.read(MIB + 10, 10), it.read(MIB + 1000, 5000)
        await wait_all_tasks_blocked()
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        assert isinstance(lost.error, BytesLostError)
        assert isinstance(amid.error, BytesLostError)
        assert behind.data == it.content[MIB + 1000 : MIB + 6000]


async def test_a_reader_that_goes_on_waits_for_nothing_but_its_first_read() -> None:
    async with scene(16 * MIB) as it:
        position = waited = 0
        while position < 12 * MIB:
            reading = it.read(position, 128 * KIB)
            waited += not reading.answers
            await wait_all_tasks_blocked()
            position += len(reading.data)
        assert waited == 1


async def test_reads_of_tier_2_are_bounded() -> None:
    async with scene(64 * MIB) as it:
        it.storage.gate = trio.Event()
        readings = [it.read(offset * MIB, 1000) for offset in range(40)]
        await wait_all_tasks_blocked()
        assert it.storage.running == READS_MAX
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        assert it.storage.running_max == READS_MAX
        assert all(len(reading.data) == 1000 for reading in readings)


async def test_history_does_not_push_the_tail_out_of_the_cache() -> None:
    async with scene(64 * MIB, capacity_bytes=16 * MIB) as it:
        tail = [Random(number).randbytes(MIB) for number in range(10)]
        for data in tail:
            it.append(data)
        it.segment.storage_length = it.segment.length
        it.storage.data[it.segment.storage_name] += b"".join(tail)
        it.index.record_flushed()
        position = 0
        while position < 64 * MIB:
            position += len(await it.read_now(position, 2 * MIB))
        reads = len(it.storage.reads)
        for number, data in enumerate(tail):
            assert it.read((64 + number) * MIB, MIB).data == data
        assert len(it.storage.reads) == reads


async def test_without_room_history_is_read_all_the_same_and_no_further_than_asked() -> None:
    async with scene(8 * MIB, capacity_bytes=8 * MIB) as it:
        it.append(bytes(7 * MIB + 300 * KIB))
        assert await it.read_now(1000, 3000) == it.content[1000:4000]
        assert await it.read_now(1000, 3000) == it.content[1000:4000]
        assert it.storage.reads == [(1000, 3000), (1000, 3000)]


async def test_a_read_that_ends_with_a_chunk_goes_on_in_the_next() -> None:
    async with scene(4 * MIB) as it:
        it.storage.chunk_bytes = 100_000
        it.storage.gate = trio.Event()
        readings = [it.read(offset, 1000) for offset in (99_500, 100_000, 500_000)]
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert readings[0].data == it.content[99_500:100_000]
        assert readings[1].data == it.content[100_000:101_000]
        assert readings[2].data == it.content[500_000:501_000]


async def test_a_failed_read_of_tier_2_is_told_and_tried_anew_by_the_next() -> None:
    async with scene(4 * MIB) as it:
        it.storage.failure = StorageError("tier 2 is away")
        reading = it.read(0, 100)
        await wait_all_tasks_blocked()
        assert reading.error is it.storage.failure
        it.storage.failure = None
        assert await it.read_now(0, 100) == it.content[:100]


async def test_a_read_ahead_that_fails_harms_nobody() -> None:
    async with scene(4 * MIB) as it:
        await it.read_now(0, 100)
        it.storage.failure = StorageError("tier 2 is away")
        assert it.read(100, 100).data == it.content[100:200]
        await wait_all_tasks_blocked()
        assert len(it.storage.reads) == 2
        it.storage.failure = None
        assert await it.read_now(MIB, 100) == it.content[MIB : MIB + 100]


async def test_a_cancelled_read_is_not_answered_and_its_bytes_stay() -> None:
    async with scene(4 * MIB) as it:
        it.storage.gate = trio.Event()
        reading = it.read(0, 100)
        assert reading.handle is not None
        await wait_all_tasks_blocked()
        reading.handle.cancel()
        reading.handle.cancel()
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        assert reading.answers == []
        assert it.read(0, 100).data == it.content[:100]


async def test_what_nobody_waits_for_any_more_is_not_read() -> None:
    async with scene(4 * MIB) as it:
        reading = it.read(0, 100)
        assert reading.handle is not None
        reading.handle.cancel()
        await wait_all_tasks_blocked()
        assert it.storage.reads == []
        assert await it.read_now(0, 100) == it.content[:100]


@pytest.mark.parametrize("change", ["truncate", "delete"])
async def test_a_read_whose_bytes_go_away_meanwhile_is_told_so(change: str) -> None:
    async with scene(4 * MIB) as it:
        it.storage.gate = trio.Event()
        readings = [it.read(0, 100), it.read(3000, 100)]
        await wait_all_tasks_blocked()
        if change == "truncate":
            it.segment.start_offset = 1000
            it.index.truncate(it.segment)
        else:
            it.index.delete(it.segment)
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        if change == "truncate":
            assert isinstance(readings[0].error, SegmentTruncatedError)
            assert readings[1].data == it.content[3000:3100]
        else:
            assert all(isinstance(one.error, NoSuchSegmentError) for one in readings)
            assert it.manager.cache.stored_bytes == 0


async def test_many_parked_reads_are_answered_in_several_turns() -> None:
    async with scene() as it:
        await wait_all_tasks_blocked()
        readings = [it.read(0, 100) for _ in range(3 * WOKEN_MAX + 1)]
        it.append(b"tail")
        assert sum(len(reading.answers) for reading in readings) == WOKEN_MAX
        # Those that are left are not parked: what ends parked reads does not end them.
        it.segment.sealed = True
        it.index.seal(it.segment)
        await wait_all_tasks_blocked()
        assert [reading.data for reading in readings] == [b"tail"] * len(readings)


async def test_a_stop_answers_the_parked_reads_that_are_left() -> None:
    async with scene() as it:
        await wait_all_tasks_blocked()
        readings = [it.read(0, 100) for _ in range(2 * WOKEN_MAX)]
        it.append(b"tail")
        it.index.close()
        assert {reading.data for reading in readings} == {b"tail", b""}
        await wait_all_tasks_blocked()
        assert [len(reading.answers) for reading in readings] == [1] * len(readings)


async def test_a_parked_read_costs_no_task_and_ends_once() -> None:
    async with scene() as it:
        await wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        readings = [it.read(0, 100) for _ in range(1000)]
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        for reading in readings[::2]:
            assert reading.handle is not None
            reading.handle.cancel()
        it.append(b"tail")
        it.append(b"more")
        assert [len(reading.answers) for reading in readings] == [0, 1] * 500
        assert readings[1].data == b"tail"
        later = it.read(8, 100)
        it.segment.sealed = True
        it.index.seal(it.segment)
        assert isinstance(later.error, SegmentSealedError)


async def test_every_waiting_read_is_answered_when_the_container_stops() -> None:
    async with scene(4 * MIB) as it:
        it.storage.gate = trio.Event()
        readings = [it.read(0, 100), it.read(4 * MIB, 100)]
        await wait_all_tasks_blocked()
        it.index.close()
        it.index.close()
        for reading in readings:
            [(_, result)] = reading.answers
            assert result is not None
            assert (result.data, result.at_tail, result.end_of_segment) == (b"", True, False)
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        assert it.manager.cache.stored_bytes == 0


async def test_a_redirect_shows_a_merged_segments_bytes_until_they_have_moved() -> None:
    async with scene() as it:
        source = SegmentMetadata(2, "source")
        it.append(b"before")
        source.length = 6
        it.index.append(source, 0, b"merged")
        waiting = it.read(6, 100)
        source.sealed = source.merged = True
        it.segment.length = 12
        it.index.merge(it.segment, source, 6)
        assert waiting.data == b"merged"
        it.append(b"after")
        assert it.read(6, 100).data == b"merged"
        assert it.read(0, 100).data == b"before"
        it.segment.storage_length = source.storage_length = 12
        it.index.merge_stored(it.segment, source)
        assert it.read(0, 100).data == b"beforemergedafter", "from the cache, in one piece"
        assert it.storage.reads == []


async def test_only_flushed_data_is_evicted() -> None:
    async with scene(capacity_bytes=8 * MIB) as it:
        for _ in range(6):
            it.append(bytes(MIB))
        assert it.manager.has_room(MIB)
        it.append(bytes(MIB))
        assert not it.manager.has_room(MIB)
        assert it.manager.generations.evicted_bytes == 0
        it.segment.storage_length = 4 * MIB
        assert not it.manager.has_room(MIB), "nobody said that tier 2 has more"
        it.index.record_segment_flushed(it.segment)
        assert it.manager.has_room(MIB)
        assert it.index.cached(it.segment, offset=4 * MIB, length=10) == bytes(10)
        views = it.index.index_of(it.segment).entries.views(5 * MIB, 2 * MIB)
        assert sum(map(len, views)) == 2 * MIB


async def test_generations_pass_and_what_is_not_used_goes(autojump_clock: MockClock) -> None:
    async with scene(4 * MIB) as it:
        await it.read_now(0, 100)
        it.append(b"kept for tier 2")
        await trio.sleep(1700)
        assert it.read(0, 100).data == it.content[:100]
        await trio.sleep(1700)
        assert it.manager.generations.history_bytes > 0
        await trio.sleep(200)
        assert it.manager.generations.history_bytes == 0
        assert it.manager.generations.entry_count == 1


# ---- Tier 2 lends memory -------------------------------------------------------------------------


@asynccontextmanager
async def lending_scene(length: int) -> AsyncIterator[tuple[Scene, LentMemory]]:
    memory = LentMemory(block_bytes=2 * MIB, free_max=4)
    async with scene(length) as it:
        it.storage.memory = memory
        yield it, memory
    assert memory.lent_count == 0, "nobody holds memory when the container is gone"


async def test_lent_history_is_sent_from_where_it_is_and_never_enters_the_cache() -> None:
    async with lending_scene(64 * MIB) as (it, _):
        blocks = it.manager.history_blocks
        position = 0
        while position < 64 * MIB:
            reading = it.read(position, MIB)
            await wait_all_tasks_blocked()
            assert reading.data == it.content[position : position + len(reading.data)]
            position += len(reading.data)
            assert blocks.kept_bytes <= blocks.bytes_max
        assert it.manager.cache.used_bytes == 0
        assert sum(length for _, length in it.storage.reads) == 64 * MIB, "nothing twice"
        del reading
        it.index.close()


async def test_lent_history_is_read_ahead_of_who_goes_on() -> None:
    async with lending_scene(32 * MIB) as (it, _):
        position = waited = 0
        while position < 24 * MIB:
            reading = it.read(position, MIB)
            waited += not reading.answers
            await wait_all_tasks_blocked()
            position += len(reading.data)
        # The first finds out that memory is lent, the second that somebody goes on.
        assert waited <= 2
        del reading
        it.index.close()


async def test_reading_here_and_there_reads_nothing_ahead_of_lent_history() -> None:
    async with lending_scene(64 * MIB) as (it, _):
        for offset in (40 * MIB, 10 * MIB, 30 * MIB, 20 * MIB):
            assert await it.read_now(offset, 1000) == it.content[offset : offset + 1000]
        assert [offset for offset, _ in it.storage.reads] == [n * MIB for n in (40, 10, 30, 20)]
        it.index.close()


async def test_a_deleted_segments_lent_history_goes_with_it() -> None:
    async with lending_scene(4 * MIB) as (it, memory):
        await it.read_now(0, 1000)
        assert memory.lent_count == 1
        it.index.delete(it.segment)
        assert memory.lent_count == 0
        assert it.manager.history_blocks.kept_bytes == 0


async def test_truncated_lent_history_is_not_served() -> None:
    async with lending_scene(4 * MIB) as (it, _):
        await it.read_now(0, 1000)
        it.segment.start_offset = 500
        it.index.truncate(it.segment)
        assert isinstance(it.read(100, 10).error, SegmentTruncatedError)
        assert it.read(500, 10).data == it.content[500:510]
        it.index.close()


async def test_a_block_that_goes_for_a_read_ahead_still_answers_who_waited_for_it() -> None:
    async with lending_scene(4 * MIB) as (it, _):
        it.storage.chunk_bytes = 300 * KIB
        it.manager.history_blocks.bytes_max = MIB  # what is read ahead needs all of it
        await it.read_now(3 * MIB, 300 * KIB)
        it.storage.gate = trio.Event()
        waiting = [it.read(0, 300 * KIB), it.read(300 * KIB, 10), it.read(100 * KIB, 10)]
        it.storage.gate.set()
        await wait_all_tasks_blocked()
        for reading, offset in zip(waiting, (0, 300 * KIB, 100 * KIB), strict=True):
            assert reading.data == it.content[offset : offset + len(reading.data)]
        del waiting, reading
        it.index.close()
