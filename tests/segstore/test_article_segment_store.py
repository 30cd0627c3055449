"""The segment store article's data flows, each on a real container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from _fast.cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import NoSuchSegmentError, SegmentTruncatedError
from segstore.testing.chunk_owners import next_owner
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory

MIB = 1024 * 1024


class Tiers:
    """Both tiers, and the cache of the container's present life."""

    def __init__(self) -> None:
        self.logs = MemoryDataLogFactory()
        self.writes_fail = False
        self.read_count = 0
        self.chunks = FaultyChunkStorage(MemoryChunkStorage(), next_fault=self._fault)
        self.cache = StreamingCache(32 * MIB)

    def _fault(self, call: str) -> Fault:
        self.read_count += call == "read"
        return Fault.REFUSED if self.writes_fail and call == "write" else Fault.NONE

    @asynccontextmanager
    async def container(self, *, drain_seconds: float = 5) -> AsyncIterator[Container]:
        self.cache = StreamingCache(32 * MIB)
        async with open_container(
            0,
            self.logs,
            next_owner(self.chunks),
            CacheManager(self.cache),
            drain_seconds=drain_seconds,
        ) as container:
            yield container


async def read_all(container: Container, name: str) -> bytes:
    info = container.segment_info(name)
    parts: list[bytes] = []
    offset = info.start_offset
    while offset < info.length:
        parts.append((await container.read(name, offset=offset, length_max=MIB)).data)
        offset += len(parts[-1])
    return b"".join(parts)


async def test_segment_store_appends_are_durable_and_readable_once_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = Tiers()
    async with tiers.container() as container:
        with pytest.raises(NoSuchSegmentError):
            await container.append("s", b"there is no such segment")
        await container.create_segment("s")
        tiers.writes_fail = True
        assert await container.append("s", b"one") == 3
        assert await container.append("s", b"two") == 6
        assert container.segment_info("s").storage_length == 0, "tier 1 alone has it"
        assert await read_all(container, "s") == b"onetwo"
        tiers.writes_fail = False


async def test_segment_store_reads_come_from_the_cache_from_tier_2_or_wait_at_the_tail(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = Tiers()
    async with tiers.container() as container:
        await container.create_segment("s")
        await container.append("s", b"history")
        before = tiers.read_count
        assert await read_all(container, "s") == b"history"
        assert tiers.read_count == before, "the cache has it"
    async with tiers.container() as container:
        before = tiers.read_count
        assert await read_all(container, "s") == b"history"
        assert tiers.read_count > before, "only tier 2 has it"
        tail: list[bytes] = []

        async def read_tail() -> None:
            tail.append((await container.read("s", offset=7, length_max=100)).data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_tail)
            await trio.sleep(60)
            assert tail == []
            await container.append("s", b"news")
        assert tail == [b"news"]


async def test_synchronization_with_tier_2_gathers_small_appends_and_lets_the_log_go(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = Tiers()
    async with tiers.container() as container:
        await container.create_segment("s")
        await trio.sleep(30)
        calls = tiers.chunks.call_count
        for number in range(1000):
            await container.append("s", b"%04d" % number)
        await trio.sleep(30)
        info = container.segment_info("s")
        assert info.storage_length == info.length == 4000
        assert tiers.chunks.call_count - calls < 50, "a thousand appends, a few writes"
    async with tiers.container() as container:
        assert await read_all(container, "s") == b"".join(b"%04d" % n for n in range(1000))


async def test_container_startup_replays_what_tier_2_does_not_have(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = Tiers()
    async with tiers.container(drain_seconds=0) as container:
        await container.create_segment("s")
        await container.append("s", b"in tier 2, ")
        await trio.sleep(30)
        tiers.writes_fail = True
        await container.append("s", b"in tier 1")
        await container.seal_segment("s")
        await container.create_segment("t")
    tiers.writes_fail = False
    async with tiers.container() as container:
        info = container.segment_info("s")
        assert (info.length, info.sealed) == (20, True)
        assert await read_all(container, "s") == b"in tier 2, in tier 1"
        assert container.segment_info("t").length == 0


async def test_truncation_and_transactions_keep_offsets_and_are_atomic(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = Tiers()
    async with tiers.container() as container:
        for name in ("parent", "transaction"):
            await container.create_segment(name)
            await container.append(name, name.encode())
        assert await container.merge_segment("parent", "transaction") == 17
        with pytest.raises(NoSuchSegmentError):
            container.segment_info("transaction")
        assert await read_all(container, "parent") == b"parenttransaction"
        await container.truncate_segment("parent", offset=6)
        with pytest.raises(SegmentTruncatedError):
            await container.read("parent", offset=0, length_max=6)
    async with tiers.container() as container:
        assert container.segment_info("parent").start_offset == 6
        assert await read_all(container, "parent") == b"transaction"
