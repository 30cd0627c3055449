"""Reads, the order of requests, and what ends a connection."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from _fast.wire.lent_memory import LentMemory
from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.connection import append_block
from pravega_wire.names import container_of
from segstore.api import HasRoom, OnRead, ReadHandle, ReadResult
from segstore.network.connection import ANSWER_SECONDS
from segstore.process.config import ConnectionSettings
from segstore.testing.wire_client import WireClient
from support.models.memory_store import MemoryStore, memory_store

SEGMENT = "scope/stream/0.#epoch.0"
MISSING = "scope/stream/7.#epoch.0"
WRITER = bytes(range(16))
settle = trio.testing.wait_all_tasks_blocked


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        yield store


@pytest.fixture
async def client(store: MemoryStore) -> WireClient:
    return store.connect()


def read(offset: int, length: int = 1000, *, request_id: int = 7) -> wire.ReadSegment:
    return wire.ReadSegment(SEGMENT, offset, length, "", request_id)


def parked_count(store: MemoryStore) -> int:
    return len(store.container.segments[SEGMENT].parked)


# ---- Greeting ------------------------------------------------------------------------------------


async def test_hello_is_answered_with_our_versions(client: WireClient) -> None:
    assert await client.call(wire.Hello(15, 5)) == wire.Hello(16, 5)
    assert await client.call(wire.Hello(16, 5)) == wire.Hello(16, 5)


@pytest.mark.parametrize("hello", [wire.Hello(99, 17), wire.Hello(4, 1)])
async def test_versions_without_overlap_are_answered_and_closed(
    client: WireClient, hello: wire.Hello
) -> None:
    assert await client.call(hello) == wire.Hello(16, 5)
    await client.expect_close()


async def test_commands_sent_before_hello_is_answered_are_served(
    store: MemoryStore, client: WireClient
) -> None:
    await client.send(
        wire.HELLO,
        wire.SetupAppend(1, WRITER, SEGMENT, ""),
        wire.GetStreamSegmentInfo(2, SEGMENT, ""),
    )
    replies = {type(await client.receive()) for _ in range(3)}
    assert replies == {wire.Hello, wire.AppendSetup, wire.StreamSegmentInfo}


async def test_every_keep_alive_is_echoed_even_while_reads_are_parked(
    store: MemoryStore, client: WireClient
) -> None:
    await client.send(read(0))
    for _ in range(3):
        assert await client.call(wire.KeepAlive()) == wire.KeepAlive()


async def test_a_connection_that_never_says_anything_is_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with memory_store(ConnectionSettings(first_command_seconds_max=0.05)) as store:
        silent, slow, fine = store.connect(), store.connect(), store.connect()
        await slow.stream.send_all(encode(wire.HELLO)[:-1])
        await fine.call(wire.HELLO)
        await silent.expect_close()
        await slow.expect_close()
        assert await fine.call(wire.KeepAlive()) == wire.KeepAlive()


# ---- Reads ---------------------------------------------------------------------------------------


async def test_a_read_returns_what_is_there(store: MemoryStore, client: WireClient) -> None:
    await store.container.append(SEGMENT, b"0123456789")
    reply = await client.call(read(2, 8, request_id=-9))
    assert reply == wire.SegmentRead(SEGMENT, 2, False, False, b"23456789", -9)


async def test_a_read_is_at_least_8_bytes_and_at_most_2_mib(
    store: MemoryStore, client: WireClient
) -> None:
    await store.container.append(SEGMENT, bytes(3 << 20))
    for suggested, length in ((0, 8), (-5, 8), (9, 9), (2**31 - 1, 2 << 20)):
        await client.send(read(0, suggested))
        assert len((await client.expect(wire.SegmentRead)).data) == length


async def test_a_read_at_the_tail_waits_for_data(store: MemoryStore, client: WireClient) -> None:
    await store.container.append(SEGMENT, b"01")
    await client.send(read(2))
    await client.expect_silence()
    await store.container.append(SEGMENT, b"23")
    assert await client.receive() == wire.SegmentRead(SEGMENT, 2, True, False, b"23", 7)


async def test_a_read_beyond_the_tail_waits_too(store: MemoryStore, client: WireClient) -> None:
    await client.send(read(3))
    await store.container.append(SEGMENT, b"01")
    await client.expect_silence()
    await store.container.append(SEGMENT, b"234")
    assert (await client.expect(wire.SegmentRead)).data == b"34"


async def test_a_seal_answers_a_parked_read_with_its_offset(
    store: MemoryStore, client: WireClient
) -> None:
    await store.container.append(SEGMENT, b"01")
    await client.send(read(2), read(5))
    await settle()
    await store.container.seal_segment(SEGMENT)
    assert await client.receive() == wire.SegmentIsSealed(7, SEGMENT, "", 2)
    assert await client.receive() == wire.SegmentIsSealed(7, SEGMENT, "", 5)


async def test_reads_at_and_beyond_the_end_of_a_sealed_segment(
    store: MemoryStore, client: WireClient
) -> None:
    await store.container.append(SEGMENT, b"01")
    await store.container.seal_segment(SEGMENT)
    assert await client.call(read(1)) == wire.SegmentRead(SEGMENT, 1, False, True, b"1", 7)
    assert await client.call(read(2)) == wire.SegmentRead(SEGMENT, 2, False, True, b"", 7)
    beyond = await client.call(read(3))
    assert isinstance(beyond, wire.ErrorMessage)
    assert (beyond.request_id, beyond.segment, beyond.error_code) == (7, SEGMENT, 0)


async def test_read_refusals_carry_the_offset_that_was_asked_for(
    store: MemoryStore, client: WireClient
) -> None:
    await store.container.append(SEGMENT, b"0123")
    await store.container.truncate_segment(SEGMENT, offset=2)
    assert await client.call(read(1)) == wire.SegmentIsTruncated(7, SEGMENT, 2, "", 1)
    reply = await client.call(wire.ReadSegment(MISSING, 31, 100, "", 8))
    assert reply == wire.NoSuchSegment(8, MISSING, "", 31)


async def test_a_deletion_answers_a_parked_read(store: MemoryStore, client: WireClient) -> None:
    await client.send(read(0))
    await settle()
    await store.container.delete_segment(SEGMENT)
    assert await client.receive() == wire.NoSuchSegment(7, SEGMENT, "", 0)


async def test_a_container_that_stops_answers_parked_reads_with_nothing(
    store: MemoryStore, client: WireClient
) -> None:
    await client.send(read(0))
    await settle()
    store.fail()
    assert await client.receive() == wire.SegmentRead(SEGMENT, 0, True, False, b"", 7)


async def test_parked_reads_block_nothing(store: MemoryStore, client: WireClient) -> None:
    await client.send(*(read(0, request_id=number) for number in range(100)))
    assert await client.set_up(WRITER, SEGMENT) == -(2**63)
    await client.append(WRITER, b"data", number=0)
    kinds = [type(await client.receive()) for _ in range(101)]
    assert kinds.count(wire.SegmentRead) == 100
    assert kinds.count(wire.DataAppended) == 1


async def test_parked_reads_go_with_their_connection(
    store: MemoryStore, client: WireClient
) -> None:
    await client.send(*(read(0) for _ in range(10)))
    await settle()
    assert parked_count(store) == 10
    await client.stream.aclose()
    await settle()
    assert parked_count(store) == 0
    assert store.server.connection_count == 0


async def test_an_obsolete_read_stays_and_is_answered_in_its_time(
    store: MemoryStore, client: WireClient
) -> None:
    await store.container.append(SEGMENT, b"0123")
    await client.send(read(4))
    assert (await client.call(read(0, 2))) == wire.SegmentRead(SEGMENT, 0, True, False, b"0123", 7)
    await store.container.append(SEGMENT, b"45")
    assert (await client.expect(wire.SegmentRead)).offset == 4


# ---- Order ---------------------------------------------------------------------------------------


async def test_create_and_set_up_in_one_packet(client: WireClient) -> None:
    segment = "scope/stream/1.#epoch.0"
    await client.send(
        wire.CreateSegment(1, segment, 0, 0, ""), wire.SetupAppend(2, WRITER, segment, "")
    )
    assert await client.receive() == wire.SegmentCreated(1, segment)
    assert await client.receive() == wire.AppendSetup(2, segment, WRITER, -(2**63))


async def test_append_seal_and_info_in_one_packet(store: MemoryStore, client: WireClient) -> None:
    await client.set_up(WRITER, SEGMENT)
    append = append_block(WRITER, [b"data"], last_event_number=0, request_id=1, framed=False)
    seal = encode(wire.SealSegment(2, SEGMENT, ""))
    info = encode(wire.GetStreamSegmentInfo(3, SEGMENT, ""))
    late = append_block(WRITER, [b"late"], last_event_number=1, request_id=4, framed=False)
    await client.stream.send_all(append + seal + info + late)
    assert isinstance(await client.receive(), wire.DataAppended)
    assert await client.receive() == wire.SegmentSealed(2, SEGMENT)
    replies = [await client.receive(), await client.receive()]
    [state] = [reply for reply in replies if isinstance(reply, wire.StreamSegmentInfo)]
    assert (state.is_sealed, state.write_offset) == (True, 4)
    assert wire.SegmentIsSealed(4, SEGMENT, "", 1) in replies


async def test_a_whole_life_in_one_packet(client: WireClient) -> None:
    segment = "scope/stream/2.#epoch.0"
    await client.send(
        wire.CreateSegment(1, segment, 0, 0, ""),
        wire.UpdateSegmentPolicy(2, segment, 5, 1, ""),
        wire.SealSegment(3, segment, ""),
        wire.TruncateSegment(4, segment, 0, ""),
        wire.ReadSegment(segment, 0, 10, "", 5),
        wire.DeleteSegment(6, segment, ""),
        wire.GetStreamSegmentInfo(7, segment, ""),
        wire.CreateSegment(8, segment, 0, 0, ""),
    )
    assert [await client.receive() for _ in range(8)] == [
        wire.SegmentCreated(1, segment),
        wire.SegmentPolicyUpdated(2, segment),
        wire.SegmentSealed(3, segment),
        wire.SegmentTruncated(4, segment),
        wire.SegmentRead(segment, 0, False, True, b"", 5),
        wire.SegmentDeleted(6, segment),
        wire.NoSuchSegment(7, segment, "", -1),
        wire.SegmentCreated(8, segment),
    ]


async def test_a_merge_comes_after_requests_about_its_source(
    store: MemoryStore, client: WireClient
) -> None:
    source = f"{SEGMENT}#transaction.{'0' * 32}"
    await client.send(
        wire.CreateSegment(1, source, 0, 0, ""),
        wire.SealSegment(2, source, ""),
        wire.MergeSegments(3, SEGMENT, source, ""),
        wire.GetStreamSegmentInfo(4, source, ""),
    )
    assert [type(await client.receive()) for _ in range(4)] == [
        wire.SegmentCreated,
        wire.SegmentSealed,
        wire.SegmentsMerged,
        wire.NoSuchSegment,
    ]


async def test_requests_about_different_segments_do_not_wait_for_each_other(
    store: MemoryStore, client: WireClient
) -> None:
    store.container.auto_commit = False
    await client.send(wire.SealSegment(1, SEGMENT, ""))
    other = "scope/stream/1.#epoch.0"
    reply = await client.call(wire.GetStreamSegmentInfo(2, other, ""))
    assert reply == wire.NoSuchSegment(2, other, "", -1)
    await settle()
    store.container.commit()
    assert await client.receive() == wire.SegmentSealed(1, SEGMENT)


async def test_updates_of_a_table_share_appends(store: MemoryStore, client: WireClient) -> None:
    table = "scope/table/0"
    await client.call(wire.CreateTableSegment(1, table, ""))
    await client.call(wire.GetTableSegmentInfo(2, table, ""))
    store.container.auto_commit = False
    for number in range(20):
        entry = wire.TableEntry(wire.TableKey(b"%d" % number), b"")
        await client.send(wire.UpdateTableEntries(number, table, "", (entry,)))
    await settle()
    assert store.container.queued_count == 1
    store.container.commit()
    await settle()
    assert store.container.queued_count == 1
    store.container.commit()
    answered = set()
    for _ in range(20):
        answered.add((await client.expect(wire.TableEntriesUpdated)).request_id)
    assert answered == set(range(20))


async def test_table_reads_that_wait_for_their_container_keep_no_others_waiting() -> None:
    async with memory_store(container_count=2) as store:
        stuck, other = (
            next(name for name in TABLES if container_of(name, 2) == number) for number in range(2)
        )
        clients = [store.connect() for _ in range(8)]
        for table in (stuck, other):
            await clients[0].call(wire.CreateTableSegment(1, table, ""))

        async def stand_still(name: str) -> None:
            await trio.sleep_forever()

        store.containers[0].activate = stand_still  # type: ignore[method-assign]
        keys = (wire.TableKey(b"key"),) * 256
        for client in clients:
            for number in range(10):
                await client.send(wire.ReadTable(number, stuck, "", keys))
        await settle()
        for client in [*clients, store.connect()]:
            with trio.fail_after(60):
                reply = await client.call(wire.ReadTable(100, other, "", keys))
            assert isinstance(reply, wire.TableRead)
            assert reply.request_id == 100


TABLES = [f"scope/table/{number}" for number in range(20)]


# ---- Bounds --------------------------------------------------------------------------------------


async def test_a_client_that_never_reads_is_bounded() -> None:
    async with memory_store(ConnectionSettings(send_bytes_pause=1 << 20)) as store:
        await store.container.create_segment(SEGMENT)
        await store.container.append(SEGMENT, bytes(100_000))
        reading, writing = trio.testing.lockstep_stream_pair()
        store.nursery.start_soon(store.server.serve, writing)
        client = WireClient(reading)
        store.nursery.start_soon(lambda: client.send(*(read(0, 100_000) for _ in range(1000))))
        await settle()
        [connection] = store.server.connections
        assert 1 << 20 <= connection.replies.size < 1_300_000
        for _ in range(1000):
            assert len((await client.expect(wire.SegmentRead)).data) == 100_000


async def test_little_replies_of_a_client_that_does_not_read_hold_no_lent_memory() -> None:
    memory = LentMemory(block_bytes=1 << 20, free_max=2)

    def read_nowait(
        name: str, *, offset: int, length_max: int, on_complete: OnRead, has_room: HasRoom
    ) -> ReadHandle | None:
        data = memory.lend()[:length_max].toreadonly()
        on_complete(None, ReadResult(offset, data, False, False))
        return None

    async with memory_store(ConnectionSettings(send_bytes_pause=1 << 20)) as store:
        await store.container.create_segment(SEGMENT)
        store.container.read_nowait = read_nowait  # type: ignore[method-assign]
        reading, writing = trio.testing.lockstep_stream_pair()
        store.nursery.start_soon(store.server.serve, writing)
        client = WireClient(reading)
        requests = [read(0, 8) for _ in range(500)] + [read(0, 1 << 20) for _ in range(3)]
        await client.send(*requests)
        await settle()
        assert memory.lent_count <= 3
        for _ in range(500):
            assert len((await client.expect(wire.SegmentRead)).data) == 8
        for _ in range(3):
            assert len((await client.expect(wire.SegmentRead)).data) == 1 << 20
    assert memory.lent_count == 0


async def test_replies_to_parked_reads_are_made_when_the_peer_takes_them() -> None:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        reading, writing = trio.testing.lockstep_stream_pair()
        store.nursery.start_soon(store.server.serve, writing)
        client = WireClient(reading)
        await client.send(*(read(0, 100_000) for _ in range(10)))
        await settle()
        await store.container.append(SEGMENT, bytes(100_000))
        await settle()
        [connection] = store.server.connections
        assert 100_000 <= connection.replies.size < 100_100
        assert store.server.admission.buffers.replies.count == connection.replies.size
        lengths = [len((await client.expect(wire.SegmentRead)).data) for _ in range(10)]
        assert lengths == [100_000] * 10
        await settle()
        assert store.server.admission.buffers.replies.count == 0


async def test_requests_in_progress_are_bounded() -> None:
    async with memory_store(ConnectionSettings(requests_max=10)) as store:
        client = store.connect()
        store.container.auto_commit = False
        await client.send(
            *(wire.CreateSegment(number, f"scope/s{number}/0", 0, 0, "") for number in range(50))
        )
        for done in range(0, 50, 10):
            await settle()
            assert store.container.queued_count == 10, done
            store.container.commit()
        for _ in range(50):
            await client.expect(wire.SegmentCreated)


async def test_too_many_parked_reads_close_the_connection() -> None:
    async with memory_store(ConnectionSettings(parked_reads_max=10)) as store:
        await store.container.create_segment(SEGMENT)
        client = store.connect()
        await client.send(*(read(0) for _ in range(10)))
        assert await client.call(wire.KeepAlive()) == wire.KeepAlive()
        with capture_logs() as logs:
            await client.send(read(0))
            await client.expect_close()
        assert "10 reads are parked" in logs[0]["reason"]
        await settle()
        assert parked_count(store) == 0


async def test_a_closed_connection_finishes_what_it_had_queued(store: MemoryStore) -> None:
    client = store.connect()
    await client.set_up(WRITER, SEGMENT)
    store.container.auto_commit = False
    await client.append(WRITER, b"data", number=0)
    await settle()
    await client.stream.aclose()
    await settle()
    store.container.commit()
    assert store.container.segment_info(SEGMENT).length == 4


async def test_a_peer_that_has_shut_down_its_sending_gets_the_replies(store: MemoryStore) -> None:
    client = store.connect()
    await client.set_up(WRITER, SEGMENT)
    store.container.auto_commit = False
    await client.append(WRITER, b"x", number=7)
    await client.send(wire.GetStreamSegmentInfo(2, SEGMENT, ""), read(0))
    stream = client.stream
    assert isinstance(stream, trio.StapledStream)
    await stream.send_eof()
    await settle()
    store.container.commit()
    replies = {type(await client.receive()) for _ in range(2)}
    assert replies == {wire.DataAppended, wire.StreamSegmentInfo}
    # The parked read will not be answered: nothing comes any more that it could wait for.
    await client.expect_close()
    await settle()
    assert store.server.connection_count == 0


async def test_a_peer_that_has_ended_is_not_answered_for_ever(
    store: MemoryStore, autojump_clock: trio.testing.MockClock
) -> None:
    client = store.connect()
    await client.set_up(WRITER, SEGMENT)
    store.container.auto_commit = False
    await client.append(WRITER, b"x", number=7)
    stream = client.stream
    assert isinstance(stream, trio.StapledStream)
    await stream.send_eof()
    began = trio.current_time()
    await client.expect_close()
    assert trio.current_time() - began == ANSWER_SECONDS


async def test_nothing_stays_counted_for_a_connection_that_is_gone(store: MemoryStore) -> None:
    client = store.connect()
    table = "scope/table/0"
    await client.call(wire.CreateTableSegment(1, table, ""))
    await client.set_up(WRITER, SEGMENT)
    store.container.auto_commit = False
    entry = wire.TableEntry(wire.TableKey(b"key"), b"value")
    await client.send(wire.UpdateTableEntries(2, table, "", (entry,)))
    await client.send(wire.DeleteTableSegment(3, table, False, ""))
    await client.send(wire.UpdateTableEntries(4, table, "", (entry,)))
    await client.append(WRITER, b"append", number=0)
    await client.send(wire.UpdateSegmentPolicy(5, SEGMENT, 0, 0, ""))
    await client.append(WRITER, b"held up", number=1)
    await settle()
    assert store.server.admission.outstanding.total == 2 * 8 + 6 + 7
    await client.stream.aclose()
    await settle()
    for _ in range(3):
        store.container.commit()
        await settle()
    assert store.server.admission.outstanding.total == 0


async def test_a_flood_on_one_connection_lets_the_others_have_their_turn() -> None:
    async with memory_store(ConnectionSettings(commands_per_turn=10)) as store:
        await store.container.create_segment(SEGMENT)
        flood, other = store.connect(), store.connect()
        await flood.set_up(WRITER, SEGMENT)
        await other.call(wire.HELLO)
        store.container.auto_commit = False
        block = b"".join(
            append_block(WRITER, [b"x"], last_event_number=number, request_id=0)
            for number in range(1000)
        )
        await flood.stream.send_all(block)
        await other.send(wire.KeepAlive())
        await other.expect(wire.KeepAlive)
        assert store.container.queued_count < 500


# ---- Bad peers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ii", 1234, 0),
        struct.pack(">ii", 11, -1),
        struct.pack(">ii", 11, 0xFFFFFF),
        struct.pack(">ii", 11, 3) + b"abc",
        struct.pack(">ii", 2, 0),
        encode(wire.SegmentSealed(1, "x")),
        struct.pack(">ii", 11, 12) + bytes(8) + b"\0\2\xff\xfe",
        struct.pack(">ii", 4, 44) + bytes(44),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=[
        "unknown type",
        "negative length",
        "frame too long",
        "fields missing",
        "a reply",
        "another reply",
        "bad text",
        "unknown writer",
        "another protocol",
    ],
)
async def test_a_broken_frame_closes_its_connection_with_a_logged_reason(
    store: MemoryStore, frame: bytes
) -> None:
    other, broken = store.connect(), store.connect()
    await other.send(read(0))
    await broken.call(wire.HELLO)
    with capture_logs() as logs:
        await broken.stream.send_all(frame)
        await broken.expect_close()
    [line] = logs
    assert line["event"] == "connection closed"
    assert line["reason"]
    assert line["peer"] == "memory"
    assert line["received_bytes"] == 16 + len(frame)
    await store.container.append(SEGMENT, b"data")
    assert (await other.expect(wire.SegmentRead)).data == b"data"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5), st.booleans())
def test_no_bytes_disturb_another_connection(garbage: list[bytes], framed: bool) -> None:
    async def attack() -> None:
        async with memory_store() as store:
            await store.container.create_segment(SEGMENT)
            other, evil = store.connect(), store.connect()
            await other.call(wire.HELLO)
            for number, data in enumerate(garbage):
                head = struct.pack(">ii", number * 7 - 3, len(data)) if framed else b""
                try:
                    await evil.stream.send_all(head + data)
                except trio.BrokenResourceError:
                    break
            await evil.stream.aclose()
            await settle()
            assert await other.call(wire.KeepAlive()) == wire.KeepAlive()
            assert store.server.connection_count == 1

    trio.run(attack)


async def test_a_defect_in_a_handler_costs_only_its_connection(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ZeroDivisionError

    other, client = store.connect(), store.connect()
    await other.call(wire.HELLO)
    monkeypatch.setattr(store.container, "segment_info", fail)
    with capture_logs() as logs:
        await client.send(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
        await client.expect_close()
    assert logs[0]["event"] == "request failed"
    assert await other.call(wire.KeepAlive()) == wire.KeepAlive()


async def test_a_defect_in_taking_up_an_append_costs_only_its_connection(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError

    other, client = store.connect(), store.connect()
    await other.call(wire.HELLO)
    assert await client.set_up(WRITER, SEGMENT) == -(2**63)
    monkeypatch.setattr(store.container, "append_nowait", fail)
    with capture_logs() as logs:
        await client.append(WRITER, b"data", number=0)
        await client.expect_close()
        await settle()
    assert [log["event"] for log in logs] == ["connection failed"]
    assert await other.call(wire.KeepAlive()) == wire.KeepAlive()


# ---- Draining ------------------------------------------------------------------------------------


async def test_draining_answers_what_was_taken_up_and_then_closes(store: MemoryStore) -> None:
    idle, busy = store.connect(), store.connect()
    await idle.call(wire.HELLO)
    await idle.send(read(0))
    await busy.set_up(WRITER, SEGMENT)
    store.container.auto_commit = False
    await busy.append(WRITER, b"data", number=0)
    await busy.send(wire.CreateSegment(1, "scope/new/0", 0, 0, ""))
    await settle()
    store.server.drain()
    await idle.expect_close()
    store.container.commit()
    replies = {type(await busy.receive()) for _ in range(2)}
    assert replies == {wire.DataAppended, wire.SegmentCreated}
    await busy.expect_close()
    late = store.connect()
    await late.expect_close()


async def test_connections_are_bounded() -> None:
    async with memory_store(ConnectionSettings(connections_max=2)) as store:
        first, second = store.connect(), store.connect()
        await first.call(wire.HELLO)
        await second.call(wire.HELLO)
        with capture_logs() as logs:
            for _ in range(10):
                await store.connect().expect_close()
        assert [line["event"] for line in logs] == ["connection refused"]
        assert "connections_max" in logs[0]["reason"]
        assert await second.call(wire.KeepAlive()) == wire.KeepAlive()
        await first.stream.aclose()
        await settle()
        assert await store.connect().call(wire.HELLO) == wire.HELLO
