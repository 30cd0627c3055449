"""The segment store article: guarantees, terms, components, abstractions, the controller's part.

``docs/articles/segment-store.md`` tells which test stands for which section of the article; the
other files of that name have the container, the durable log, the read index, the storage writer,
and the figures of the data flow.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from pravega_wire import commands as wire
from pravega_wire.names import container_of, transaction_segment_name
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container, open_container
from segstore.errors import NoSuchSegmentError
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.model.operations import AppendOperation
from segstore.process.tier_two import EpochRecordingLogs
from segstore.testing.local_store import local_store
from segstore.testing.local_tiers import MIB, LocalTiers, read_all
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.journal import open_journal
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory

MAP = Path(__file__).parents[2] / "docs" / "articles" / "segment-store.md"
HERE, THERE = "examples/test/0.#epoch.0", "examples/test/1.#epoch.0"
WRITER = bytes(range(16))


def test_every_section_of_the_article_has_the_tests_that_the_map_names() -> None:
    named = re.findall(r"\| `(test_\w+)`", MAP.read_text())
    assert len(named) > 70
    files = Path(__file__).parent.glob("test_article_segment_store*.py")
    defined = {
        name
        for file in files
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert set(named) == defined


# ---- Guarantees ----------------------------------------------------------------------------------


async def test_guarantee_segments_have_any_length_and_are_read_at_any_offset(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    random = Random(1)
    data = random.randbytes(12 * MIB)
    async with tiers.container(cache_bytes=4 * MIB, held_bytes_max=4 * MIB) as container:
        await container.create_segment("s")
        for offset in range(0, len(data), MIB // 2):
            await container.append("s", data[offset : offset + MIB // 2])
        assert container.segment_info("s").length == len(data), "three times the cache"
        for _ in range(30):
            offset = random.randrange(len(data))
            found = (await container.read("s", offset=offset, length_max=5000)).data
            assert found
            assert found == data[offset : offset + len(found)]


async def test_guarantee_small_appends_are_as_fast_whatever_tier_2_does(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        tiers.chunks.refused = {"write", "read", "list_chunks", "info", "delete"}
        calls = len(tiers.chunks.calls)
        for number in range(1000):
            assert await container.append("s", b"%04d" % number) == 4 * (number + 1)
        assert len(tiers.chunks.calls) == calls, "tier 2 had no part in it"
        assert container.segment_info("s").storage_length == 0
        assert container.throttle_snapshot().seconds == 0
        tiers.chunks.refused.clear()


async def test_guarantee_several_writers_of_one_segment_at_the_same_time(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await write_together(container, "s")
        parts = (await read_all(container, "s")).split(b";")[:-1]
        assert len(parts) == 200, "nobody's appends are lost"


async def write_together(container: Container, name: str) -> None:
    """Append with five writers, 40 appends each, of different lengths."""

    async def write(writer: int) -> None:
        for number in range(40):
            await container.append(name, b"%d:%d:%s;" % (writer, number, b"x" * 100 * writer))

    async with trio.open_nursery() as nursery:
        for writer in range(5):
            nursery.start_soon(write, writer)


async def test_guarantee_order_within_a_writer_and_appends_are_never_interleaved(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await write_together(container, "s")
        next_numbers = [0] * 5
        for part in (await read_all(container, "s")).split(b";")[:-1]:
            writer, number, filler = part.split(b":")
            assert filler == b"x" * 100 * int(writer), "an append is in one piece"
            assert int(number) == next_numbers[int(writer)]
            next_numbers[int(writer)] += 1
        assert next_numbers == [40] * 5


async def test_guarantee_what_is_written_is_read_at_once_by_who_reads_along(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        behind: list[int] = []

        async def follow() -> None:
            offset = 0
            while offset < 3000:
                result = await container.read("s", offset=offset, length_max=MIB)
                offset += len(result.data)
                behind.append(container.segment_info("s").length - offset)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for _ in range(300):
                await container.append("s", bytes(10))
        assert max(behind) < 3000, "it did not get everything at the end"
        assert tiers.chunks.calls_for("read", "") == []
        tiers.chunks.refused.clear()


# ---- Terms and components ------------------------------------------------------------------------


async def test_transactions_are_a_contiguous_range_of_the_segment_or_nothing(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    names = [transaction_segment_name(HERE, bytes([number]) * 16) for number in range(2)]
    assert {container_of(name, 4) for name in names} == {container_of(HERE, 4)}
    async with tiers.container() as container:
        for name in (HERE, *names):
            await container.create_segment(name)
        for number in range(20):
            for name in (HERE, *names):
                await container.append(name, b"%02d" % number)
        assert await container.merge_segment(HERE, names[0]) == 80
        await container.delete_segment(names[1])
        await container.append(HERE, b"end")
        once = b"".join(b"%02d" % number for number in range(20))
        assert await read_all(container, HERE) == once + once + b"end"
        for name in names:
            with pytest.raises(NoSuchSegmentError):
                await container.append(name, b"more")


def test_components_segments_are_mapped_to_containers_by_their_names_alone() -> None:
    names = [f"scope/stream/{number}.#epoch.{number % 3}" for number in range(400)]
    once = [container_of(name, 4) for name in names]
    assert once == [container_of(name, 4) for name in names]
    assert all(once.count(container) > 50 for container in range(4))
    # As every other process of the cluster, and the original, maps them.
    assert [container_of(f"examples/test/{number}", 16) for number in (0, 1)] == [9, 1]


async def test_components_an_acknowledged_append_is_in_tier_1_and_in_the_cache(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        await container.append("s", b"acknowledged")
        last = tiers.log.entries[-1]
        assert last.durable
        [operation] = last.operations
        assert isinstance(operation, AppendOperation)
        assert bytes(operation.data) == b"acknowledged"
        assert tiers.cache.stored_bytes == 12
        tiers.chunks.refused.clear()


async def test_components_a_segment_container_keeps_its_segments_and_no_others(
    tmp_path: Path,
) -> None:
    async with local_store(tmp_path) as store:
        client = store.connect()
        for name in (HERE, THERE):
            await client.send(wire.CreateSegment(1, name, 0, 0, ""))
            await client.expect(wire.SegmentCreated)
        for name, other in ((HERE, THERE), (THERE, HERE)):
            container = store.registry.container_for(name)
            assert container.container_id == container_of(name, 4)
            assert container.segment_info(name).length == 0
            with pytest.raises(NoSuchSegmentError):
                container.segment_info(other)


# ---- System diagram ------------------------------------------------------------------------------


async def test_system_diagram_an_event_goes_through_all_components(tmp_path: Path) -> None:
    async with local_store(tmp_path, container_ids=(0,)) as store:
        client = store.connect()
        await client.send(wire.CreateSegment(1, HERE, 0, 0, ""))
        await client.expect(wire.SegmentCreated)
        await client.set_up(WRITER, HERE)
        await client.append(WRITER, b"an event", number=0)
        await client.expect(wire.DataAppended)
        logged = [each for each in store.logs.log.operations if isinstance(each, AppendOperation)]
        assert [bytes(each.data) for each in logged] == [b"an event"]
        await client.send(wire.ReadSegment(HERE, 0, 100, "", 2))
        assert (await client.expect(wire.SegmentRead)).data == b"an event"
        assert store.chunks.calls_for("write", "") == []
    [written] = store.chunks.calls_for("write", HERE)
    assert written.length == 8
    async with local_store(tmp_path, container_ids=(0,)) as store:
        client = store.connect()
        await client.send(wire.ReadSegment(HERE, 0, 100, "", 3))
        assert (await client.expect(wire.SegmentRead)).data == b"an event"
        assert len(store.chunks.calls_for("read", HERE)) == 1


# ---- Integration with controller: segment container manager --------------------------------------


async def test_container_manager_starts_and_stops_the_containers_of_this_host(
    tmp_path: Path,
) -> None:
    for hosted, served in (((0,), HERE), ((1,), THERE), ((0, 1), HERE)):
        async with local_store(tmp_path, container_ids=hosted) as store:
            assert store.registry.online_count == len(hosted), "told when they have started"
            client = store.connect()
            for name in (HERE, THERE):
                await client.send(wire.ReadSegment(name, 0, 10, "", 1))
                kind = wire.NoSuchSegment if container_of(name, 4) in hosted else wire.WrongHost
                await client.expect(kind)
            container = store.registry.container_for(served)
            await container.create_segment(served)
            await container.delete_segment(served)
        assert store.registry.online_count == 0, "and when they have stopped"


async def test_container_manager_a_container_that_fails_goes_alone_and_is_started_again(
    tmp_path: Path,
) -> None:
    async with local_store(tmp_path, container_ids=(0, 1)) as store:
        client = store.connect()
        for name in (HERE, THERE):
            await client.send(wire.CreateSegment(1, name, 0, 0, ""))
            await client.expect(wire.SegmentCreated)
        other = store.registry.container_for(THERE)
        [log] = store.logs.opened[0]
        log.failing = True
        await client.set_up(WRITER, HERE)
        await client.append(WRITER, b"lost", number=0)
        await client.expect(wire.WrongHost)
        assert store.registry.container_for(THERE) is other
        assert await other.append(THERE, b"goes on") == 7
        with trio.fail_after(30):
            await store.registry.hosted(0).wait_online()
        assert "injected" in store.registry.hosted(0).status.failure
        again = store.connect()
        assert await again.set_up(WRITER, HERE) == wire.NULL_ATTRIBUTE_VALUE
        await again.append(WRITER, b"not lost", number=0)
        await again.expect(wire.DataAppended)


# ---- Storage abstractions ------------------------------------------------------------------------


@pytest.mark.parametrize("tier_1", ["memory", "journal"])
@pytest.mark.parametrize("tier_2", ["memory", "filesystem"])
async def test_storage_abstractions_any_tier_1_goes_with_any_tier_2(
    tmp_path: Path, still_clock: trio.testing.MockClock, tier_1: str, tier_2: str
) -> None:
    for name in ("journal", "chunks"):
        (tmp_path / name).mkdir()
    files = FilesystemChunkStorage(tmp_path / "chunks")
    chunks: ChunkStorage = files if tier_2 == "filesystem" else MemoryChunkStorage()
    memory = MemoryDataLogFactory()
    for life in range(3):
        if tier_1 == "memory":
            await live(memory, chunks, life)
        else:
            async with open_journal(tmp_path / "journal") as journal:
                await live(journal, chunks, life)
    files.close()


async def live(factory: DurableDataLogFactory, chunks: ChunkStorage, life: int) -> None:
    """Run a container once on these tiers; check that it finds what the earlier runs left."""
    logs = EpochRecordingLogs(factory)
    storage = ChunkedSegmentStorage(chunks, epoch=logs.epoch_now)
    manager = CacheManager(StreamingCache(8 * MIB))
    updates = [AttributeUpdate(WRITER, AttributeUpdateType.ACCUMULATE, 1)]
    async with open_container(
        0, logs, storage, manager, drain_seconds=600 if life else 0
    ) as container:
        if life == 0:
            await container.create_segment("s", attributes={WRITER: 0})
        assert await read_all(container, "s") == b"012"[:life]
        await container.append("s", b"%d" % life, attribute_updates=updates)
        assert await container.get_attributes("s", [WRITER]) == {WRITER: life + 1}
