"""The segment store article: the figures of its data flow, step by step, on both real tiers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from pravega_wire import commands as wire
from pravega_wire.connection import append_block
from pravega_wire.names import container_of
from segstore.container import Container
from segstore.errors import NoSuchSegmentError
from segstore.model.operations import AppendOperation, CheckpointOperation, MapOperation, Operation
from segstore.testing.local_store import LocalStore, local_store
from segstore.testing.local_tiers import LocalTiers, read_all, until
from segstore.testing.wire_client import WireClient

HERE, THERE = "examples/test/0.#epoch.0", "examples/test/1.#epoch.0"
"""In containers 0 and 1 of four."""
WRITER = bytes(range(16))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    """A store that hosts container 0 alone."""
    assert (container_of(HERE, 4), container_of(THERE, 4)) == (0, 1)
    async with local_store(tmp_path, container_ids=(0,)) as store:
        yield store


async def create(client: WireClient, name: str) -> wire.Command:
    return await client.call(wire.CreateSegment(client.next_request_id(), name, 0, 0, ""))


async def read(client: WireClient, name: str, offset: int, length: int = 1000) -> wire.Command:
    return await client.call(wire.ReadSegment(name, offset, length, "", client.next_request_id()))


def appends(operations: list[Operation]) -> list[bytes]:
    """Return the data of the appends among the operations."""
    return [bytes(each.data) for each in operations if isinstance(each, AppendOperation)]


# ---- Segment store appends -----------------------------------------------------------------------


async def test_segment_store_appends_2_a_container_that_is_not_here_is_told(
    store: LocalStore,
) -> None:
    client = store.connect()
    await client.send(wire.SetupAppend(client.next_request_id(), WRITER, THERE, ""))
    await client.expect(wire.WrongHost)


async def test_segment_store_appends_3_1_a_segment_that_does_not_exist_is_told(
    store: LocalStore,
) -> None:
    client = store.connect()
    await client.send(wire.SetupAppend(client.next_request_id(), WRITER, HERE, ""))
    await client.expect(wire.NoSuchSegment)
    assert appends(store.logs.log.operations) == []


async def test_segment_store_appends_from_the_request_to_the_acknowledgement(
    store: LocalStore,
) -> None:
    client, reader, log = store.connect(), store.connect(), store.logs.log
    assert isinstance(await create(client, HERE), wire.SegmentCreated)
    # 3.1: the segment has got its id.
    [mapped] = [each for each in log.operations if isinstance(each, MapOperation)]
    assert mapped.name == HERE
    assert await client.set_up(WRITER, HERE) == wire.NULL_ATTRIBUTE_VALUE
    await reader.send(wire.ReadSegment(HERE, 0, 1000, "", 1))
    await reader.expect_silence()
    # 1: the request, with its attribute update (the writer's event number).
    log.holding = True
    count = len(log.entries)
    for number in range(3):
        await client.append(WRITER, b"event %d " % number, number=number, request_id=number)
    # 3.2, 4.1 to 4.4: operations in data frames are on their way to the durable data log.
    with trio.fail_after(60):
        while len(log.entries) == count:  # noqa: ASYNC110
            await trio.sleep(0.01)
    [frame, *_] = log.entries[count:]
    [operation, *_] = [each for each in frame.operations if isinstance(each, AppendOperation)]
    assert operation.segment_id == mapped.segment_id
    assert operation.attribute_values[WRITER] == 0
    # Not durable: no metadata has changed, no reader sees it, no caller was told.
    await client.expect_silence()
    await reader.expect_silence()
    container = store.registry.container_for(HERE)
    assert container.segment_info(HERE).length == 0
    # 4.5: metadata, read index, acknowledgement.
    log.release()
    acknowledged = -1
    while acknowledged < 2:
        reply = await client.expect(wire.DataAppended)
        assert reply.previous_event_number < reply.event_number
        acknowledged = reply.event_number
    assert container.segment_info(HERE).length == 24
    assert await container.get_attributes(HERE, [WRITER]) == {WRITER: 2}
    found = await reader.expect(wire.SegmentRead)
    assert b"event 0 event 1 event 2 ".startswith(found.data)
    assert found.data
    # Tier 1 alone was needed.
    assert store.chunks.calls_for("write", "") == []


async def test_segment_store_appends_4_6_more_data_frames_are_sent_before_the_first_is_durable(
    store: LocalStore,
) -> None:
    client, log = store.connect(), store.logs.log
    await create(client, HERE)
    await client.set_up(WRITER, HERE)
    log.holding = True
    count = len(log.entries)
    for number in range(4):
        block = append_block(
            WRITER, [bytes(900_000)], last_event_number=number, request_id=number, framed=False
        )
        await client.stream.send_all(block)
    with trio.fail_after(60):
        while len(log.entries) < count + 3:  # noqa: ASYNC110
            await trio.sleep(0.01)
    await client.expect_silence()
    log.release()
    log.holding = False
    acknowledged = -1
    while acknowledged < 3:
        acknowledged = (await client.expect(wire.DataAppended)).event_number


async def test_segment_store_appends_all_other_changes_go_the_same_way(store: LocalStore) -> None:
    client, log = store.connect(), store.logs.log
    await create(client, HERE)
    requests = [
        wire.UpdateSegmentAttribute(1, HERE, WRITER, 5, wire.NULL_ATTRIBUTE_VALUE, ""),
        wire.SealSegment(2, HERE, ""),
        wire.TruncateSegment(3, HERE, 0, ""),
        wire.DeleteSegment(4, HERE, ""),
    ]
    for request in requests:
        log.holding = True
        count = len(log.operations)
        await client.send(request)
        await client.expect_silence()
        assert len(log.operations) == count + 1, request
        log.release()
        log.holding = False
        reply = await client.receive()
        assert not isinstance(reply, wire.ErrorMessage), reply


# ---- Segment store reads -------------------------------------------------------------------------


async def test_segment_store_reads_1_and_2_what_is_not_here_is_told(store: LocalStore) -> None:
    client = store.connect()
    assert isinstance(await read(client, THERE, 0), wire.WrongHost)
    assert isinstance(await read(client, HERE, 0), wire.NoSuchSegment)


async def test_segment_store_reads_3_from_the_cache_from_tier_2_and_at_the_tail(
    tmp_path: Path,
) -> None:
    async with local_store(tmp_path, container_ids=(0,)) as store:
        client = store.connect()
        await create(client, HERE)
        await client.set_up(WRITER, HERE)
        await client.append(WRITER, b"history of it", number=0)
        await client.expect(wire.DataAppended)
        reply = await read(client, HERE, 4)
        assert isinstance(reply, wire.SegmentRead)
        assert (reply.offset, reply.data, reply.at_tail) == (4, b"ory of it", False)
        assert store.chunks.calls_for("read", "") == [], "the cache has it"
    async with local_store(tmp_path, container_ids=(0,)) as store:
        client, writer = store.connect(), store.connect()
        reply = await read(client, HERE, 0, 8)
        assert isinstance(reply, wire.SegmentRead)
        assert reply.data == b"history "
        [from_tier_2] = store.chunks.calls_for("read", HERE)
        assert from_tier_2.length == 13, "more than was asked for, for whoever comes next"
        reply = await read(client, HERE, 8, 8)
        assert isinstance(reply, wire.SegmentRead)
        assert reply.data == b"of it"
        assert len(store.chunks.calls_for("read", HERE)) == 1
        await client.send(wire.ReadSegment(HERE, 13, 100, "", 9))
        await client.expect_silence()
        assert await writer.set_up(WRITER, HERE) == 0
        await writer.append(WRITER, b", news", number=1)
        tail = await client.expect(wire.SegmentRead)
        assert (tail.data, tail.at_tail, tail.offset) == (b", news", True, 13)


# ---- Synchronization with tier 2 -----------------------------------------------------------------


async def until_stored(container: Container, name: str, length: int) -> None:
    await until(lambda: container.segment_info(name).storage_length == length)


async def test_synchronization_with_tier_2_step_by_step(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"], held_bytes_max=1) as container:
        for name in ("a", "b", "transaction"):
            await container.create_segment(name)
        # 1 and 2: operations of several segments lie in the log in their order.
        for number in range(500):
            await container.append("ab"[number % 2], b"%03d" % number)
        await container.append("transaction", b"committed")
        await container.merge_segment("b", "transaction")
        await trio.sleep(30)
        assert container.segment_info("a").storage_length == 0
        assert tiers.log.entries[0].address < max(entry.address for entry in tiers.log.entries)
        appended = [each for each in tiers.log.entries if appends(each.operations)]
        assert not any(address > appended[0].address for address in tiers.log.truncations)
        # 3 to 5: the writes of the aggregators, with bytes out of the cache, and the metadata.
        tiers.chunks.refused.clear()
        for name, length in (("a", 750), ("b", 759)):
            await until_stored(container, name, length)
        expected = [b"".join(b"%03d" % n for n in range(first, 500, 2)) for first in (0, 1)]
        assert await tiers.stored("a") == expected[0]
        assert await tiers.stored("b") == expected[1] + b"committed"
        assert len(tiers.chunks.calls_for("write", "a")) == 1, "250 appends, one write"
        # 6: the log has let go of all that.
        await until(
            lambda: max(tiers.log.truncations, default=appended[0].address) > appended[-1].address
        )
    async with tiers.container() as container:
        assert appends(tiers.log.read_operations) == []
        assert await read_all(container, "b") == expected[1] + b"committed"


async def test_synchronization_with_tier_2_and_writers_do_not_wait_for_each_other(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        for number in range(30):
            tiers.chunks.refused = {"write"} if number % 3 else set()
            await container.append("s", bytes([number]) * 1000)
            await trio.sleep(3)
        tiers.chunks.refused = set()
        await container.drain()
        assert await tiers.stored("s") == b"".join(bytes([n]) * 1000 for n in range(30))


# ---- Container startup ---------------------------------------------------------------------------


async def fill(container: Container, tiers: LocalTiers) -> None:
    await container.create_segment("s", attributes={WRITER: 1})
    await container.append("s", b"in tier 2, ")
    await until_stored(container, "s", 11)
    tiers.chunks.refused.add("write")
    await container.append("s", b"in tier 1")
    await container.seal_segment("s")
    await container.create_segment("t")
    for name in ("transaction", "gone"):
        await container.create_segment(name)
        await container.append(name, name.encode())
    await container.merge_segment("t", "transaction")
    await container.delete_segment("gone")


async def test_container_startup_recovery_step_by_step(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(crashes=True) as container:
        await fill(container, tiers)
        written, epoch = tiers.log.operations, tiers.log.epoch
    async with tiers.container() as container:
        # 1 to 4: the log is the new owner's, and was read from its beginning to its end.
        assert tiers.log.epoch > epoch
        found = tiers.log.read_operations
        assert isinstance(found[0], CheckpointOperation)
        assert [each.sequence_number for each in found] == [
            each.sequence_number for each in written
        ]
        # 5 and 6: metadata as every operation has left them.
        info = container.segment_info("s")
        assert (info.length, info.sealed, info.storage_length) == (20, True, 11)
        assert await container.get_attributes("s", [WRITER]) == {WRITER: 1}
        for name in ("transaction", "gone"):
            with pytest.raises(NoSuchSegmentError):
                container.segment_info(name)
        # 7: the read index has what tier 2 has not.
        assert (await container.read("s", offset=11, length_max=99)).data == b"in tier 1"
        assert await read_all(container, "t") == b"transaction"
        assert tiers.chunks.calls_for("read", "") == []
        assert await read_all(container, "s") == b"in tier 2, in tier 1"
        # 8: the storage writer finds what tier 2 has, and adds the rest once.
        for name, length in (("s", 20), ("t", 11)):
            await until_stored(container, name, length)
        assert await tiers.stored("s") == b"in tier 2, in tier 1"
        assert await tiers.stored("t") == b"transaction"
        assert {call.name.partition(".")[0] for call in tiers.chunks.calls_for("write", "")} <= {
            "s",
            "t",
            "transaction",
        }
        # 9: it serves.
        assert await container.append("t", b"!") == 12


async def test_container_startup_after_a_clean_stop_replays_next_to_nothing(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await fill(container, tiers)
        tiers.chunks.refused.clear()
    async with tiers.container() as container:
        kinds = [type(each) for each in tiers.log.read_operations]
        assert kinds[0] is CheckpointOperation
        assert AppendOperation not in kinds
        assert await read_all(container, "s") == b"in tier 2, in tier 1"
        assert await read_all(container, "t") == b"transaction"


async def test_container_startup_serves_nobody_before_everything_is_recovered(
    tmp_path: Path,
) -> None:
    async with local_store(tmp_path, container_ids=(0,)) as store:
        client = store.connect()
        await create(client, HERE)
        await client.set_up(WRITER, HERE)
        await client.append(WRITER, b"before", number=0)
        await client.expect(wire.DataAppended)
        hosted = store.registry.hosted(0)
        store.logs.log.failing = True
        await client.append(WRITER, b"fails", number=1)
        await client.expect(wire.WrongHost)
        other = store.connect()
        if not hosted.is_online:
            assert isinstance(await read(other, HERE, 0), wire.WrongHost)
        with trio.fail_after(30):
            await hosted.wait_online()
        reply = await read(store.connect(), HERE, 0)
        assert isinstance(reply, wire.SegmentRead)
        assert reply.data == b"before"
        assert len(store.logs.opened[0]) == 2
