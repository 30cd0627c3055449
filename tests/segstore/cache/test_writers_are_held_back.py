"""Writers wait while tier 2 falls behind: the bound holds, and they go on when it is back."""

from __future__ import annotations

from random import Random

import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from support.chunk_owners import next_owner
from support.faults.faulty_chunks import Fault, FaultyChunkStorage

MIB = 1024 * 1024
NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(3)]


async def test_held_back_writers_go_on_when_tier_2_is_back() -> None:
    cache = StreamingCache(8 * MIB)
    manager = CacheManager(cache)
    fault = Fault.REFUSED
    chunks = FaultyChunkStorage(MemoryChunkStorage(), next_fault=lambda _: fault)
    storage = next_owner(chunks)
    random = Random(7)
    blocks = {name: [random.randbytes(100_000) for _ in range(100)] for name in NAMES}
    done = dict.fromkeys(NAMES, 0)
    used_max = 0

    async def write(name: str) -> None:
        nonlocal used_max
        for block in blocks[name]:
            await container.append(name, block)
            done[name] += 1
            used_max = max(used_max, cache.used_bytes)

    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        for name in NAMES:
            await container.create_segment(name)
        async with trio.open_nursery() as nursery:
            for name in NAMES:
                nursery.start_soon(write, name)
            stuck: dict[str, int] = {}
            while stuck != done or manager.has_room(MIB):
                stuck = dict(done)
                await trio.sleep(0.3)
            assert container.throttle_snapshot().seconds > 0
            assert 5 * MIB < sum(stuck.values()) * 100_000 < 8 * MIB
            # What was acknowledged can be read, held back or not.
            for name in NAMES:
                result = await container.read(name, offset=0, length_max=100_000)
                assert result.data == blocks[name][0]
            fault = Fault.NONE
        assert used_max <= manager.writer_limit_bytes + len(NAMES) * 100_000
        for name in NAMES:
            expected = b"".join(blocks[name])
            position = 0
            while position < len(expected):
                result = await container.read(name, offset=position, length_max=MIB)
                end = position + len(result.data)
                assert result.data == expected[position:end]
                position = end
        assert cache.used_bytes <= manager.writer_limit_bytes
        cache.check()
    assert cache.stored_bytes == 0


async def test_a_writer_slows_down_before_it_has_to_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cache = StreamingCache(16 * MIB)
    manager = CacheManager(cache)
    chunks = FaultyChunkStorage(MemoryChunkStorage(), next_fault=lambda _: Fault.REFUSED)
    gaps: list[tuple[float, float]] = []
    async with open_container(
        0, MemoryDataLogFactory(), next_owner(chunks), manager, drain_seconds=0.1
    ) as container:
        await container.create_segment(NAMES[0])
        with trio.move_on_after(60):
            while True:
                began = trio.current_time()
                utilization = cache.used_bytes / cache.capacity_bytes
                await container.append(NAMES[0], bytes(100_000))
                gaps.append((utilization, trio.current_time() - began))
    before = [gap for utilization, gap in gaps if utilization < 0.79]
    slowed = [gap for utilization, gap in gaps if utilization > 0.82]
    assert len(before) > 100
    assert max(before) == 0
    assert len(slowed) > 5
    assert min(slowed) > 0
    assert slowed[-1] > slowed[0]
