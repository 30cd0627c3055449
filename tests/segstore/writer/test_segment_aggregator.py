"""A segment's unflushed operations go to tier 2 in few writes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container, open_container
from segstore.errors import ContainerOfflineError, StorageError, StorageFullError
from segstore.model.attributes import ATTRIBUTE_SEGMENT_TYPE, ROLLOVER_SIZE, SegmentType
from segstore.tiers.api import Buffer
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY
from support.chunk_owners import next_owner
from support.faults.faulty_chunks import Fault, FaultyChunkStorage

MIB = 1024 * 1024


class CountedChunkStorage(MemoryChunkStorage):
    """Storage that notes how long each write to one of our segments was."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, int]] = []

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if name.startswith("scope/"):
            self.written.append((name, sum(map(len, data))))
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


async def test_appends_that_took_turns_with_those_of_other_segments_are_one_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = CountedChunkStorage()
    manager = CacheManager(StreamingCache(8 * MIB))
    names = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        for name in names:
            await container.create_segment(name)
        for _ in range(50):
            for name in names:
                await container.append(name, bytes(100))
        await trio.sleep(2 * POLICY.flush_seconds)
        assert sorted(length for _, length in chunks.written) == [5_000] * 3
        assert len({name for name, _ in chunks.written}) == 3
        for name in names:
            assert container.segment_info(name).storage_length == 5_000


class SlowChunkStorage(CountedChunkStorage):
    """Storage that takes a second for each write, and notes how many were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: set[str] = set()
        self.most_under_way = 0
        self.long_beside_others = False
        self.system_write_count = 0

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if not name.startswith("scope/"):
            self.system_write_count += 1
            await super().write(name, offset=offset, data=data, meanwhile=meanwhile)
            return
        self.under_way.add(name)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        if sum(map(len, data)) > POLICY.short_bytes_max:
            self.long_beside_others |= len(self.under_way) > 1
        await trio.sleep(1)
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)
        self.under_way.remove(name)


async def test_short_writes_of_many_segments_are_under_way_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = SlowChunkStorage()
    manager = CacheManager(StreamingCache(8 * MIB))
    names = [f"scope/stream/{number}.#epoch.0" for number in range(100)]
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        for name in names:
            await container.create_segment(name)
            await container.append(name, bytes(100))
        for name in names[:3]:
            await container.append(name, bytes(POLICY.short_bytes_max))
        begun = trio.current_time()
        await container.flush()
        assert trio.current_time() - begun < 3 + 100 / POLICY.short_flushes_max + 2
        assert chunks.most_under_way == POLICY.short_flushes_max
        assert not chunks.long_beside_others
        # The first goes alone; then as many become known with each write as are under way.
        assert chunks.system_write_count < 20
        for name in names:
            info = container.segment_info(name)
            assert info.storage_length == info.length


async def test_a_merge_beside_short_writes_finds_its_source_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = SlowChunkStorage()
    manager = CacheManager(StreamingCache(8 * MIB))
    names = [f"scope/stream/{number}.#epoch.0" for number in range(40)]
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        for name in names:
            await container.create_segment(name)
            await container.append(name, name.encode())
        for target, source in zip(names[:10], names[10:20], strict=True):
            await container.seal_segment(source)
            await container.merge_segment(target, source)
        await container.flush()
        for target, source in zip(names[:10], names[10:20], strict=True):
            info = container.segment_info(target)
            assert info.storage_length == info.length
            stored = await storage.read(
                container.parts.metadata.by_name[target].storage_name, offset=0, length=100
            )
            assert bytes(stored) in (target + source).encode()
        assert not container.parts.writer.unflushed_segments()


async def test_a_flush_whose_container_stops_tells_why_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    manager = CacheManager(StreamingCache(8 * MIB))
    names = [f"scope/stream/{number}.#epoch.0" for number in range(10)]
    async with open_container(
        0, MemoryDataLogFactory(), next_owner(SlowChunkStorage()), manager, drain_seconds=1
    ) as container:
        for name in names:
            await container.create_segment(name)
            await container.append(name, bytes(100))

        async def stop() -> None:
            await trio.sleep(0.5)
            container.parts.read_index.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            with pytest.raises(ContainerOfflineError):
                await container.flush()


TARGET = "scope/stream/0.#epoch.0"
SOURCES = [f"{TARGET}#transaction.{number:032x}" for number in range(20)]


async def merge_short_sources(container: Container) -> bytes:
    """Merge sources one after the other, each third one without a byte; returns all bytes."""
    await container.create_segment(TARGET)
    await container.append(TARGET, b"before")
    await container.flush()
    expected = b"before"
    for number, source in enumerate(SOURCES):
        await container.create_segment(source)
        if number % 3:
            await container.append(source, source.encode())
            expected += source.encode()
        await container.merge_segment(TARGET, source)
    return expected


async def test_long_data_go_in_writes_of_the_maximum_length() -> None:
    chunks = CountedChunkStorage()
    manager = CacheManager(StreamingCache(32 * MIB))
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    # Otherwise the first of the data may be flushed while the rest is appended.
    policy = replace(POLICY, flush_bytes=16 * MIB)
    async with open_container(0, logs, storage, manager, flush_policy=policy) as container:
        await container.create_segment(TARGET)
        for _ in range(10):
            container.append_nowait(TARGET, bytes(MIB), on_complete=lambda error, length: None)
        await container.wait_in_flight(TARGET)
        await container.flush()
        longest = POLICY.write_bytes_max
        assert [length for _, length in chunks.written] == [longest, longest, 2 * MIB]


async def test_a_segments_rollover_size_is_that_of_its_chunks() -> None:
    chunks = CountedChunkStorage()
    manager = CacheManager(StreamingCache(8 * MIB))
    storage = next_owner(chunks)
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        await container.create_segment(TARGET, attributes={ROLLOVER_SIZE: 10_000})
        await container.append(TARGET, bytes(100_000))
        await container.flush()
        stored_name = container.parts.metadata.by_name[TARGET].storage_name
        starts = [chunk.start for chunk in await storage.chunks_of(stored_name)]
        assert starts == list(range(0, 100_000, 10_000))
        await container.truncate_segment(TARGET, offset=54_321)
        await container.flush()
        starts = [chunk.start for chunk in await storage.chunks_of(stored_name)]
        assert starts == list(range(50_000, 100_000, 10_000))


async def test_short_segments_that_are_merged_soon_get_no_chunks_and_one_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = CountedChunkStorage()
    manager = CacheManager(StreamingCache(8 * MIB))
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        expected = await merge_short_sources(container)
        await trio.sleep(2)
        info = container.segment_info(TARGET)
        assert info.storage_length == info.length == len(expected)
        stored_name = container.parts.metadata.by_name[TARGET].storage_name
        assert await storage.read(stored_name, offset=0, length=10_000) == expected
        assert [length for _, length in chunks.written] == [6, len(expected) - 6]
        assert len({name for name, _ in chunks.written}) == 1
        assert not container.parts.writer.unflushed_segments()
        assert list(container.parts.metadata.segments.values()) == [
            container.parts.metadata.by_name[TARGET]
        ]


async def test_long_segments_that_are_merged_give_their_chunks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = CountedChunkStorage()
    manager = CacheManager(StreamingCache(16 * MIB))
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        await container.create_segment(TARGET)
        for source, length in zip(SOURCES, (100, 3 * MIB, 100), strict=False):
            await container.create_segment(source)
            await container.append(source, bytes(length))
            await container.merge_segment(TARGET, source)
        await trio.sleep(2)
        info = container.segment_info(TARGET)
        assert info.storage_length == info.length == 200 + 3 * MIB
        assert sorted(length for _, length in chunks.written) == [100, 100, 3 * MIB]
        assert not container.parts.writer.unflushed_segments()


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.PARTIAL, Fault.REPLY_LOST])
@pytest.mark.parametrize("crashes", [False, True])
async def test_a_write_of_merged_segments_that_fails_is_repeated(
    fault: Fault, crashes: bool, autojump_clock: trio.testing.MockClock
) -> None:
    faults: list[Fault] = []
    chunks = MemoryChunkStorage()
    faulty = FaultyChunkStorage(
        chunks, next_fault=lambda call: faults.pop() if call == "write" and faults else Fault.NONE
    )
    manager = CacheManager(StreamingCache(8 * MIB))
    logs = MemoryDataLogFactory()
    async with open_container(0, logs, next_owner(faulty), manager, drain_seconds=0) as container:
        expected = await merge_short_sources(container)
        faults.append(fault)
        with pytest.raises(StorageError):
            await container.flush()
        assert not faults
        result = await container.read(TARGET, offset=6, length_max=100)
        assert bytes(result.data) == expected[6 : 6 + len(result.data)]
        if crashes:
            faulty.abandon()
        else:
            await container.flush()
    storage = next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        await container.flush()
        info = container.segment_info(TARGET)
        assert info.storage_length == info.length == len(expected)
        stored_name = container.parts.metadata.by_name[TARGET].storage_name
        stored = b""
        while len(stored) < len(expected):
            stored += await storage.read(stored_name, offset=len(stored), length=10_000)
        assert stored == expected
        assert not container.parts.writer.unflushed_segments()


@pytest.mark.parametrize("source_count", [0, 5])
async def test_a_write_of_many_chunks_that_fails_often_ends_and_reads_none_of_them(
    source_count: int, autojump_clock: trio.testing.MockClock
) -> None:
    calls: list[str] = []

    def next_fault(call: str) -> Fault:
        calls.append(call)
        refused = call == "read" or calls.count("write") % 16 == 0
        return Fault.REFUSED if refused else Fault.NONE

    chunks = FaultyChunkStorage(MemoryChunkStorage())
    manager = CacheManager(StreamingCache(8 * MIB))
    storage = next_owner(chunks)
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        await container.create_segment(TARGET, attributes={ROLLOVER_SIZE: 100})
        await container.flush()
        data = random.Random(1).randbytes(2_000)
        for number, source in enumerate(SOURCES[:source_count]):
            await container.create_segment(source)
            await container.append(source, data[number * 400 : (number + 1) * 400])
            await container.merge_segment(TARGET, source)
        if not source_count:
            await container.append(TARGET, data)
        chunks.next_fault = next_fault
        seen = set[int]()
        with trio.fail_after(600):
            while (stored := container.segment_info(TARGET).storage_length) < len(data):
                seen.add(stored)
                result = await container.read(TARGET, offset=stored, length_max=100)
                assert result.data
                assert data[stored:].startswith(result.data)
                await trio.sleep(POLICY.poll_seconds)
        assert len(seen) > 1
        assert calls.count("read") == 0
        chunks.next_fault = lambda call: Fault.NONE
        await container.flush()
        assert not container.parts.writer.unflushed_segments()
        stored_name = container.parts.metadata.by_name[TARGET].storage_name
        for offset in range(0, len(data), 100):
            part = await storage.read(stored_name, offset=offset, length=100)
            assert part == data[offset : offset + 100]


TABLE = "scope/_tables/table"


class RecordedSegmentStorage(ChunkedSegmentStorage):
    """Records what is written of our table, and where it is truncated. ``meanwhile`` is done during
    each write of another segment."""

    def __init__(self, chunks: MemoryChunkStorage, *, epoch: int = 1) -> None:
        super().__init__(chunks, epoch=lambda: epoch, reserve_bytes=64 * 1024, boot_id="boot")
        self.calls: list[tuple[str, int, int]] = []
        self.meanwhile: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    async def write(
        self,
        segment: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        rollover_bytes: int,
        on_stored: Callable[[int], None] | None = None,
    ) -> None:
        await super().write(
            segment, offset=offset, data=data, rollover_bytes=rollover_bytes, on_stored=on_stored
        )
        if segment.startswith(TABLE):
            self.calls.append(("write", offset, offset + sum(map(len, data))))
        else:
            await self.meanwhile()

    async def truncate(self, segment: str, *, offset: int) -> None:
        await super().truncate(segment, offset=offset)
        if segment.startswith(TABLE):
            self.calls.append(("truncate", offset, offset))


async def compact_twice(container: Container) -> None:
    """Append and truncate as two steps of a compaction do."""
    await container.create_segment(TABLE, attributes={ATTRIBUTE_SEGMENT_TYPE: SegmentType.TABLE})
    await container.append(TABLE, b"a" * 300)
    await container.flush()
    await container.append(TABLE, b"copy of 0 to 100")
    await container.truncate_segment(TABLE, offset=100)
    await container.append(TABLE, b"copy of 100 to 310")
    await container.truncate_segment(TABLE, offset=310)


async def test_tier_2_has_the_copies_of_a_compaction_before_the_truncation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    storage = RecordedSegmentStorage(MemoryChunkStorage())
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        await compact_twice(container)
        await container.flush()
        assert storage.calls == [
            ("write", 0, 300),
            ("write", 300, 316),
            ("truncate", 100, 100),
            ("write", 316, 334),
            ("truncate", 310, 310),
        ]


async def test_tier_2_has_the_copies_before_a_truncation_that_comes_during_a_flush(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The truncation is done in the log, and not yet among the operations that are flushed."""
    storage = RecordedSegmentStorage(MemoryChunkStorage())
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:

        async def compact() -> None:
            await container.append(TABLE, b"copy of 0 to 310")
            await container.truncate_segment(TABLE, offset=310)

        await container.create_segment("scope/stream/0.#epoch.0")
        await container.create_segment(
            TABLE, attributes={ATTRIBUTE_SEGMENT_TYPE: SegmentType.TABLE}
        )
        await container.append(TABLE, b"a" * 300)
        await container.flush()
        await container.append("scope/stream/0.#epoch.0", b"event")
        await container.append(TABLE, b"b" * 10)
        storage.meanwhile = compact
        await container.flush()
        await container.flush()
        assert storage.calls == [
            ("write", 0, 300),
            ("write", 300, 310),
            ("write", 310, 326),
            ("truncate", 310, 310),
        ]


async def test_tier_2_has_the_copies_before_the_truncation_also_after_a_crash(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks, logs = MemoryChunkStorage(), MemoryDataLogFactory()
    manager = CacheManager(StreamingCache(8 * MIB))
    storage = RecordedSegmentStorage(chunks)
    async with open_container(0, logs, storage, manager, drain_seconds=0) as container:
        await compact_twice(container)
        assert storage.calls == [("write", 0, 300)]
    storage = RecordedSegmentStorage(chunks, epoch=2)
    async with open_container(0, logs, storage, manager) as container:
        await container.flush()
        assert storage.calls == [
            ("write", 300, 316),
            ("truncate", 100, 100),
            ("write", 316, 334),
            ("truncate", 310, 310),
        ]


async def test_a_compaction_frees_a_full_tier_2(autojump_clock: trio.testing.MockClock) -> None:
    chunks = MemoryChunkStorage()
    storage = RecordedSegmentStorage(chunks)
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        await compact_twice(container)
        chunks.capacity_bytes = chunks.used_bytes
        with pytest.raises(StorageFullError):
            await container.flush()
        assert storage.calls[:2] == [("write", 0, 300), ("truncate", 310, 310)]
        chunks.capacity_bytes = None
        await container.flush()
        assert storage.calls[2:] == [("write", 310, 316), ("write", 316, 334)]
        result = await container.read(TABLE, offset=310, length_max=100)
        assert bytes(result.data) == (b"a" * 300 + b"copy of 0 to 100copy of 100 to 310")[310:]
