"""The segment store article: read index, cache and cache manager, on both real tiers."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from segstore.api import ReadResult
from segstore.chunks.checksums import BLOCK_BYTES
from segstore.container import Container
from segstore.errors import NoSuchSegmentError, SegmentSealedError, StorageError
from segstore.testing.local_tiers import MIB, LocalTiers, read_all, until


async def read(container: Container, offset: int, length_max: int = MIB) -> bytes:
    return bytes((await container.read("s", offset=offset, length_max=length_max)).data)


async def test_read_index_reads_at_arbitrary_offsets_wherever_the_bytes_are(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    random = Random(3)
    expected = bytearray()
    async with tiers.container() as container:
        await container.create_segment("s")
        for _ in range(20):
            expected += (data := random.randbytes(random.randrange(60_000)))
            await container.append("s", data)
    # Now: some in tier 2 alone, some in the cache, some of a transaction, some in tier 1 alone.
    async with tiers.container() as container:
        await read(container, 1000, 5000)
        tiers.chunks.refused.add("write")
        for number in range(3):
            await container.create_segment(f"t{number}")
            expected += (data := random.randbytes(random.randrange(30_000)))
            await container.append(f"t{number}", data)
            await container.merge_segment("s", f"t{number}")
            expected += (data := random.randbytes(random.randrange(30_000)))
            await container.append("s", data)
        assert await read_all(container, "s") == expected
        for _ in range(300):
            offset = random.randrange(len(expected))
            found = await read(container, offset, random.choice([1, 100, 10_000, MIB]))
            assert found
            assert found == expected[offset : offset + len(found)]
        tiers.chunks.refused.clear()


async def test_read_index_is_made_of_one_index_for_each_live_segment(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        for name in ("a", "b"):
            await container.create_segment(name)
        for number in range(100):
            await container.append("ab"[number % 2], b"%d " % number)
        # In the log they alternate, for readers each is one.
        assert await read_all(container, "a") == b"".join(b"%d " % n for n in range(0, 100, 2))
        assert await read_all(container, "b") == b"".join(b"%d " % n for n in range(1, 100, 2))
        kept = tiers.cache.stored_bytes
        await container.delete_segment("a")
        assert tiers.cache.stored_bytes < kept, "what a segment had goes with it"
        tiers.chunks.refused.clear()


async def test_read_index_serves_from_memory_what_was_just_appended(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["read"]) as container:
        await container.create_segment("s")
        await container.append("s", b"new")
        await container.drain()
        assert container.segment_info("s").storage_length == 3
        assert await read(container, 0) == b"new", "tier 2 could not have answered"
        tiers.chunks.refused.clear()


async def test_read_index_pulls_history_from_tier_2_once_for_all_its_readers(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await container.append("s", bytes(400_000))
    async with tiers.container() as container:
        assert tiers.cache.stored_bytes == 0, "the cache has no expectation of durability"
        found: list[int] = []

        async def read_some(offset: int) -> None:
            found.append(len(await read(container, offset, 10_000)))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(read_some, 1000 * number)
        assert len(found) == 20
        assert all(found)
        pulled = tiers.chunks.calls_for("read", "s")
        # Blocks come whole, to be checked: where two reads meet, one block comes with both.
        shared = (len(pulled) - 1) * BLOCK_BYTES
        assert sum(call.length for call in pulled) <= 400_000 + shared, "no byte came twice"
        assert len(pulled) < 20, "readers share what is read"
        assert tiers.cache.stored_bytes > 0, "what was pulled is in the cache"
        await read(container, 100_000)
        assert tiers.chunks.calls_for("read", "s") == pulled


async def test_read_index_tells_a_reader_that_tier_2_failed_and_answers_the_next_time(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await container.append("s", b"history")
    async with tiers.container() as container:
        tiers.chunks.refused.add("read")
        with pytest.raises(StorageError):
            await read(container, 0)
        tiers.chunks.refused.clear()
        assert await read(container, 0) == b"history"


async def test_read_index_completes_future_reads_when_data_is_added(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        results: dict[int, ReadResult | type[BaseException]] = {}

        async def read_tail(offset: int) -> None:
            try:
                results[offset] = await container.read("s", offset=offset, length_max=3)
            except (SegmentSealedError, NoSuchSegmentError) as error:
                results[offset] = type(error)

        async with trio.open_nursery() as nursery:
            for offset in (0, 4, 8):
                nursery.start_soon(read_tail, offset)
            await trio.sleep(100)
            assert results == {}
            await container.append("s", b"123456")
            await until(lambda: len(results) >= 2)
            assert results.keys() == {0, 4}, "8 is beyond the end still"
            await container.seal_segment("s")
        first, second = results[0], results[4]
        assert isinstance(first, ReadResult)
        assert isinstance(second, ReadResult)
        assert (first.data, first.at_tail) == (b"123", True)
        assert second.data == b"56"
        assert results[8] is SegmentSealedError
        ended = await container.read("s", offset=6, length_max=10)
        assert (ended.data, ended.end_of_segment) == (b"", True)


async def test_read_index_entries_point_to_the_cache_and_move_with_a_merge(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        await container.create_segment("t")
        await container.append("s", b"parent, ")
        await container.append("t", bytes(200_000))
        before = tiers.cache.stored_bytes
        await container.merge_segment("s", "t")
        assert tiers.cache.stored_bytes == before, "no byte was copied"
        assert await read_all(container, "s") == b"parent, " + bytes(200_000)
        tiers.chunks.refused.clear()
        await container.drain()
        assert container.segment_info("s").storage_length == 200_008
        tiers.chunks.refused.add("read")
        assert await read_all(container, "s") == b"parent, " + bytes(200_000)
        tiers.chunks.refused.clear()


# ---- Cache ---------------------------------------------------------------------------------------


async def test_cache_has_all_data_of_appends_until_tier_2_has_it(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"], cache_bytes=4 * MIB) as container:
        for name in ("s", "t"):
            await container.create_segment(name)
        for _ in range(20):
            await container.append("s", bytes(100_000))
        await trio.sleep(100)
        assert tiers.cache.stored_bytes == 2_000_000, "nothing may go, however old it is"
        tiers.chunks.refused.clear()
        await container.drain()
        for _ in range(20):
            await container.append("t", bytes(100_000))
        assert tiers.cache.stored_bytes < 4_000_000, "what is in tier 2 may or may not be kept"
        before = len(tiers.chunks.calls_for("read", "s"))
        assert await read_all(container, "s") == bytes(2_000_000)
        assert len(tiers.chunks.calls_for("read", "s")) > before


async def test_cache_manager_makes_room_of_what_tier_2_has_and_else_lets_writers_wait(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    written = 0

    async def write(container: Container) -> None:
        nonlocal written
        for number in range(100):
            await container.append("s", bytes([number]) * 100_000)
            written += 1

    async with tiers.container(refused=["write"], cache_bytes=4 * MIB) as container:
        await container.create_segment("s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, container)
            await until(lambda: written > 10)
            stuck = 0
            while stuck < written:
                stuck = written
                await trio.sleep(60)
            assert written < 42, "no more than the cache takes"
            assert tiers.cache.used_bytes <= tiers.cache.capacity_bytes
            tiers.chunks.refused.clear()
        assert written == 100
        assert tiers.cache.used_bytes <= tiers.cache.capacity_bytes
        expected = b"".join(bytes([number]) * 100_000 for number in range(100))
        assert await read_all(container, "s") == expected


async def test_cache_evicts_what_was_used_longest_ago(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(cache_bytes=8 * MIB) as container:
        for name in ("used", "unused"):
            await container.create_segment(name)
            await container.append(name, bytes(MIB))
        await container.drain()
        await container.create_segment("new")
        for _ in range(8):
            await read_all(container, "used")
            await trio.sleep(3)
            await container.append("new", bytes(900_000))
            await container.drain()
        before = len(tiers.chunks.calls_for("read", "used"))
        await read_all(container, "used")
        assert len(tiers.chunks.calls_for("read", "used")) == before == 0
        await read_all(container, "unused")
        assert len(tiers.chunks.calls_for("read", "unused")) > 0
