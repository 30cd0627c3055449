"""The server's replies to writers: setups, acknowledgements, refusals, and their order."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from pravega_wire import commands as wire
from pravega_wire.commands import NULL_ATTRIBUTE_VALUE
from pravega_wire.event_framing import frame_event
from segstore.model.attributes import ATTRIBUTE_SEGMENT_ROOT_POINTER, EVENT_COUNT
from segstore.process.config import ConnectionSettings
from segstore.testing.wire_client import WireClient
from support.models.memory_store import MemoryStore, memory_store

SEGMENT = "scope/stream/0.#epoch.0"
IN_CONTAINER_0 = "examples/test/0"
IN_CONTAINER_1 = "examples/test/1"
IN_SYSTEM = "_system/_RGx/0"
"""In container 0 of 4 too."""
WRITER = bytes(range(16))
OTHER = bytes(range(16, 32))
settle = trio.testing.wait_all_tasks_blocked


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        yield store


def hold(store: MemoryStore) -> None:
    """Hold appends from now on: only ``store.container.commit`` makes them durable."""
    store.container.auto_commit = False


async def stored(store: MemoryStore) -> bytes:
    length = store.container.segment_info(SEGMENT).length
    if not length:
        return b""
    return (await store.container.read(SEGMENT, offset=0, length_max=length)).data


async def attribute(store: MemoryStore, attribute_id: bytes) -> int | None:
    values = await store.container.get_attributes(SEGMENT, [attribute_id])
    return values.get(attribute_id)


async def writer(store: MemoryStore, writer_id: bytes = WRITER) -> WireClient:
    client = store.connect()
    await client.set_up(writer_id, SEGMENT)
    return client


def acked(
    number: int, previous: int, length: int, *, request_id: int = 0, writer_id: bytes = WRITER
) -> wire.DataAppended:
    return wire.DataAppended(writer_id, number, previous, request_id, length)


# ---- Setup ---------------------------------------------------------------------------------------


async def test_setting_up_a_new_writer_answers_the_least_number(store: MemoryStore) -> None:
    client = store.connect()
    reply = await client.call(wire.SetupAppend(77, WRITER, SEGMENT, ""))
    assert reply == wire.AppendSetup(77, SEGMENT, WRITER, NULL_ATTRIBUTE_VALUE)


async def test_setting_up_on_a_missing_segment(store: MemoryStore) -> None:
    client = store.connect()
    reply = await client.call(wire.SetupAppend(77, WRITER, "scope/stream/9", ""))
    assert reply == wire.NoSuchSegment(77, "scope/stream/9", "", -1)
    assert await client.set_up(WRITER, SEGMENT) == NULL_ATTRIBUTE_VALUE


async def test_setting_up_on_a_sealed_segment_succeeds(store: MemoryStore) -> None:
    client = await writer(store)
    await client.append(WRITER, b"x", number=4)
    await client.expect(wire.DataAppended)
    await store.container.seal_segment(SEGMENT)
    assert await store.connect().set_up(WRITER, SEGMENT) == 4


async def test_a_table_segment_takes_no_writers(store: MemoryStore) -> None:
    client = store.connect()
    await client.send(wire.CreateTableSegment(1, "scope/table/0", ""))
    await client.expect(wire.SegmentCreated)
    reply = await client.call(wire.SetupAppend(2, WRITER, "scope/table/0", ""))
    assert isinstance(reply, wire.ErrorMessage)
    assert (reply.request_id, reply.error_code) == (2, 0)


async def test_no_writer_has_the_id_of_an_attribute_of_the_store_itself(store: MemoryStore) -> None:
    client = store.connect()
    for writer_id in (EVENT_COUNT, ATTRIBUTE_SEGMENT_ROOT_POINTER):
        reply = await client.call(wire.SetupAppend(2, writer_id, SEGMENT, ""))
        assert isinstance(reply, wire.ErrorMessage)
    assert await client.set_up(WRITER, SEGMENT) == NULL_ATTRIBUTE_VALUE


async def test_a_setup_waits_for_what_an_earlier_connection_has_in_flight(
    store: MemoryStore,
) -> None:
    old = await writer(store)
    hold(store)
    await old.append(WRITER, b"late", number=7)
    await settle()
    new = store.connect()
    await new.send(wire.SetupAppend(1, WRITER, SEGMENT, ""))
    await new.expect_silence()
    store.container.commit()
    assert (await new.expect(wire.AppendSetup)).last_event_number == 7


async def test_a_setup_waits_for_appends_of_a_connection_that_is_gone(store: MemoryStore) -> None:
    old = await writer(store)
    hold(store)
    await old.append(WRITER, b"late", number=7)
    await settle()
    await old.stream.aclose()
    await settle()
    new = store.connect()
    await new.send(wire.SetupAppend(1, WRITER, SEGMENT, ""))
    await settle()
    store.container.commit()
    assert (await new.expect(wire.AppendSetup)).last_event_number == 7


async def test_a_writer_can_be_set_up_again_on_its_connection(store: MemoryStore) -> None:
    client = await writer(store)
    await client.append(WRITER, b"x", number=5)
    await client.expect(wire.DataAppended)
    assert await client.set_up(WRITER, SEGMENT) == 5
    await client.append(WRITER, b"y", number=6)
    assert await client.receive() == acked(6, 5, 2)


async def test_many_writers_share_a_connection(store: MemoryStore) -> None:
    client = store.connect()
    writers = [number.to_bytes(16, "big") for number in range(1, 200)]
    for writer_id in writers:
        await client.set_up(writer_id, SEGMENT)
    for writer_id in writers:
        await client.append(writer_id, b"x", number=0)
    for count, writer_id in enumerate(writers, 1):
        assert await client.receive() == acked(0, NULL_ATTRIBUTE_VALUE, count, writer_id=writer_id)


# ---- Acknowledgements ----------------------------------------------------------------------------


async def test_the_first_ack_names_the_number_of_the_setup(store: MemoryStore) -> None:
    client = await writer(store)
    await client.append(WRITER, b"abc", number=0, request_id=9)
    assert await client.receive() == acked(0, NULL_ATTRIBUTE_VALUE, 3, request_id=9)
    again = store.connect()
    assert await again.set_up(WRITER, SEGMENT) == 0
    await again.append(WRITER, b"d", number=1)
    assert await again.receive() == acked(1, 0, 4)


async def test_acks_chain_and_echo_the_request_id_of_their_append(store: MemoryStore) -> None:
    client = await writer(store)
    previous = NULL_ATTRIBUTE_VALUE
    for length, (number, request_id) in enumerate(((2, 100), (3, -5), (9, 2**62)), 1):
        await client.append(WRITER, b"x", number=number, request_id=request_id)
        assert await client.receive() == acked(number, previous, length, request_id=request_id)
        previous = number


async def test_one_ack_tells_of_all_appends_that_became_durable_before_it_left(
    store: MemoryStore,
) -> None:
    client = await writer(store)
    hold(store)
    for number, request_id in ((2, 100), (3, -5), (9, 7)):
        await client.append(WRITER, b"x", number=number, request_id=request_id)
    await settle()
    store.container.commit(2)
    assert await client.receive() == acked(3, NULL_ATTRIBUTE_VALUE, 2, request_id=-5)
    store.container.commit()
    assert await client.receive() == acked(9, 3, 3, request_id=7)
    await client.expect_silence()


async def test_a_conditional_append_has_an_ack_of_its_own(store: MemoryStore) -> None:
    client = await writer(store)
    hold(store)
    await client.append(WRITER, b"a", number=0, request_id=10)
    await client.append(WRITER, b"b", number=1, request_id=11)
    await client.send(wire.ConditionalAppend(WRITER, 2, 2, b"c", 12))
    await client.append(WRITER, b"d", number=3, request_id=13)
    await client.send(wire.ConditionalAppend(WRITER, 4, 2, b"e", 14))
    await client.append(WRITER, b"f", number=5, request_id=15)
    await client.append(WRITER, b"g", number=6, request_id=16)
    await settle()
    store.container.commit()
    assert await client.receive() == acked(1, NULL_ATTRIBUTE_VALUE, 2, request_id=11)
    after = store.container.segment_info(SEGMENT).length
    conditional = await client.expect(wire.DataAppended)
    assert (conditional.event_number, conditional.request_id) == (2, 12)
    assert (await client.expect(wire.DataAppended)).event_number == 3
    assert await client.receive() == wire.ConditionalCheckFailed(WRITER, 4, 14)
    assert await client.receive() == wire.InvalidEventNumber(WRITER, 15, "", 5)
    assert after > 3


async def test_nothing_is_acknowledged_before_it_is_durable(store: MemoryStore) -> None:
    client = await writer(store)
    hold(store)
    await client.append(WRITER, b"x", number=0)
    await client.append(WRITER, b"y", number=1)
    await client.expect_silence()
    store.container.commit(1)
    assert await client.receive() == acked(0, NULL_ATTRIBUTE_VALUE, 1)
    await client.expect_silence()
    store.container.commit(1)
    assert await client.receive() == acked(1, 0, 2)


async def test_appends_are_pipelined(store: MemoryStore) -> None:
    client = await writer(store)
    hold(store)
    for number in range(50):
        await client.append(WRITER, b"x", number=number)
    await settle()
    assert store.container.queued_count == 50
    store.container.commit()
    assert (await client.expect(wire.DataAppended)).event_number == 49


async def test_nothing_is_acknowledged_when_nothing_is_in_flight(store: MemoryStore) -> None:
    client = await writer(store)
    await client.expect_silence()
    await client.append(WRITER, b"x", number=0)
    await client.receive()
    await client.expect_silence()


async def test_an_empty_append_is_acknowledged_and_advances_the_writer(store: MemoryStore) -> None:
    client = await writer(store)
    await client.append(WRITER, b"", number=0)
    assert await client.receive() == acked(0, NULL_ATTRIBUTE_VALUE, 0)
    assert await attribute(store, WRITER) == 0
    assert await attribute(store, EVENT_COUNT) == 1


async def test_a_batch_of_events_counts_all_of_them(store: MemoryStore) -> None:
    client = await writer(store)
    await client.append(WRITER, b"three events", number=2, count=3)
    assert await client.receive() == acked(2, NULL_ATTRIBUTE_VALUE, 12)
    await client.append(WRITER, b"two", number=4, count=2)
    assert await client.receive() == acked(4, 2, 15)
    assert await attribute(store, EVENT_COUNT) == 5
    assert await stored(store) == b"three eventstwo"


async def test_the_same_event_number_again_is_stored_and_not_acknowledged_twice(
    store: MemoryStore,
) -> None:
    client = await writer(store)
    await client.append(WRITER, b"x", number=3)
    assert await client.receive() == acked(3, NULL_ATTRIBUTE_VALUE, 1)
    await client.append(WRITER, b"y", number=3)
    await client.append(WRITER, b"z", number=4)
    assert await client.receive() == acked(4, 3, 3)


async def test_writers_of_one_connection_are_acknowledged_separately(store: MemoryStore) -> None:
    client = await writer(store)
    await client.set_up(OTHER, SEGMENT)
    hold(store)
    await client.append(WRITER, b"x", number=0)
    await client.append(OTHER, b"y", number=10)
    await client.append(WRITER, b"z", number=1)
    await settle()
    store.container.commit()
    assert await client.receive() == acked(1, NULL_ATTRIBUTE_VALUE, 3)
    assert await client.receive() == acked(10, NULL_ATTRIBUTE_VALUE, 2, writer_id=OTHER)


async def test_acks_that_become_due_together_leave_in_one_piece(store: MemoryStore) -> None:
    client = store.connect()
    writers = [number.to_bytes(16, "big") for number in range(1, 21)]
    for writer_id in writers:
        await client.set_up(writer_id, SEGMENT)
    hold(store)
    for writer_id in writers * 3:
        await client.append(writer_id, b"x", number=0)
    await settle()
    store.container.commit()
    await settle()
    data = await client.stream.receive_some(1 << 20)
    assert len(data) == 20 * len(client._protocol.send(wire.KeepAlive())) + 20 * 48


# ---- Exactly once --------------------------------------------------------------------------------


async def test_a_late_append_of_a_dead_connection_fails_the_next_of_the_new_one(
    store: MemoryStore,
) -> None:
    old = await writer(store)
    new = await writer(store)
    await old.append(WRITER, b"late", number=5)
    await old.expect(wire.DataAppended)
    await new.append(WRITER, b"new", number=3, request_id=8)
    reply = await new.receive()
    assert reply == wire.InvalidEventNumber(WRITER, 8, "", 3)
    await new.expect_close()
    assert await store.connect().set_up(WRITER, SEGMENT) == 5
    assert await stored(store) == b"late"


async def test_an_append_of_a_superseded_connection_is_refused(store: MemoryStore) -> None:
    old = await writer(store)
    new = await writer(store)
    await new.append(WRITER, b"new", number=0)
    await new.expect(wire.DataAppended)
    await old.append(WRITER, b"old", number=1)
    await old.expect(wire.InvalidEventNumber)
    await old.expect_close()
    assert await stored(store) == b"new"


async def test_acks_before_an_invalid_event_number_are_sent_before_the_close(
    store: MemoryStore,
) -> None:
    client = await writer(store)
    hold(store)
    for number in range(3):
        await client.append(WRITER, b"x", number=number)
    await settle()
    store.container.commit(2)
    # Another connection takes the writer over in between.
    state = store.container.segments[SEGMENT]
    state.attributes[WRITER] = 99
    store.container.commit()
    assert await client.receive() == acked(1, NULL_ATTRIBUTE_VALUE, 2)
    assert await client.receive() == wire.InvalidEventNumber(WRITER, 0, "", 2)
    await client.expect_close()


async def test_after_a_crash_the_setup_tells_what_was_stored(store: MemoryStore) -> None:
    client = await writer(store)
    hold(store)
    for number in range(4):
        await client.append(WRITER, b"%d" % number, number=number, request_id=9)
    await settle()
    store.fail(durable_count=2)
    assert await client.receive() == wire.WrongHost(9, SEGMENT, "")
    # What the client had sent meanwhile.
    await client.append(WRITER, b"4", number=4)
    await store.wait_online(SEGMENT)
    store.container.auto_commit = True
    assert await client.set_up(WRITER, SEGMENT) == 1
    for number in (2, 3):
        await client.append(WRITER, b"%d" % number, number=number)
    assert await client.receive() == acked(2, 1, 3)
    assert await client.receive() == acked(3, 2, 4)
    assert await stored(store) == b"0123"


async def test_an_event_number_that_goes_back_closes_the_connection(store: MemoryStore) -> None:
    client = await writer(store)
    await client.append(WRITER, b"x", number=9)
    await client.expect(wire.DataAppended)
    again = store.connect()
    assert await again.set_up(WRITER, SEGMENT) == 9
    await again.append(WRITER, b"y", number=8)
    await again.expect_close()
    assert await stored(store) == b"x"


# ---- Refusals ------------------------------------------------------------------------------------


async def test_an_append_without_setup_closes_the_connection(store: MemoryStore) -> None:
    client = store.connect()
    await client.append(WRITER, b"x", number=0)
    await client.expect_close()


async def test_an_append_before_the_answer_to_its_setup_closes_the_connection(
    store: MemoryStore,
) -> None:
    hold(store)
    client = store.connect()
    await client.send(wire.SetupAppend(1, WRITER, SEGMENT, ""))
    await client.append(WRITER, b"x", number=0)
    await client.expect_close()


async def test_a_seal_is_told_with_the_event_number_after_all_earlier_acks(
    store: MemoryStore,
) -> None:
    client = await writer(store)
    hold(store)
    await client.append(WRITER, b"x", number=0, request_id=5)
    await settle()
    store.nursery.start_soon(store.container.seal_segment, SEGMENT)
    await settle()
    await client.append(WRITER, b"y", number=1, request_id=5)
    await client.append(WRITER, b"z", number=2, request_id=5)
    await settle()
    store.container.commit()
    assert await client.receive() == acked(0, NULL_ATTRIBUTE_VALUE, 1, request_id=5)
    assert await client.receive() == wire.SegmentIsSealed(5, SEGMENT, "", 1)
    assert await client.receive() == wire.SegmentIsSealed(5, SEGMENT, "", 2)
    assert await client.call(wire.KeepAlive()) == wire.KeepAlive()


async def test_a_writer_is_gone_after_a_refusal_until_it_is_set_up_again(
    store: MemoryStore,
) -> None:
    client = await writer(store)
    await store.container.seal_segment(SEGMENT)
    await client.append(WRITER, b"x", number=0)
    await client.expect(wire.SegmentIsSealed)
    assert await client.set_up(WRITER, SEGMENT) == NULL_ATTRIBUTE_VALUE
    await client.append(WRITER, b"x", number=0)
    await client.expect(wire.SegmentIsSealed)
    await client.append(WRITER, b"y", number=1)
    await client.expect_close()


async def test_an_append_to_a_deleted_segment(store: MemoryStore) -> None:
    client = await writer(store)
    await store.container.delete_segment(SEGMENT)
    await client.append(WRITER, b"x", number=0, request_id=6)
    assert await client.receive() == wire.NoSuchSegment(6, SEGMENT, "", -1)
    await client.append(WRITER, b"x", number=1)
    await client.expect_close()


async def test_one_writers_refusal_does_not_disturb_the_others(store: MemoryStore) -> None:
    other_segment = "scope/stream/1.#epoch.0"
    await store.container.create_segment(other_segment)
    client = await writer(store)
    await client.set_up(OTHER, other_segment)
    await store.container.seal_segment(SEGMENT)
    await client.append(WRITER, b"x", number=0)
    await client.append(OTHER, b"y", number=0)
    await client.expect(wire.SegmentIsSealed)
    assert await client.receive() == acked(0, NULL_ATTRIBUTE_VALUE, 1, writer_id=OTHER)


async def test_writers_of_a_container_that_stops_are_told_once_where_it_is_not() -> None:
    """Their connection was closed: official clients came back to the same address."""
    async with memory_store(container_count=4) as store:
        for segment in (IN_CONTAINER_0, IN_CONTAINER_1):
            await store.registry.container_for(segment).create_segment(segment)
        client = store.connect()
        await client.set_up(WRITER, IN_CONTAINER_0)
        await client.set_up(OTHER, IN_CONTAINER_1)
        store.containers[0].auto_commit = False
        for number in range(3):
            await client.append(WRITER, b"x", number=number, request_id=5)
        await settle()
        store.registry.release(0)
        assert await client.receive() == wire.WrongHost(5, IN_CONTAINER_0, "")
        await client.append(WRITER, b"x", number=3, request_id=5)
        await client.send(wire.ConditionalAppend(WRITER, 4, 0, b"c", 6))
        assert await client.receive() == wire.WrongHost(6, IN_CONTAINER_0, "")
        reply = await client.call(wire.SetupAppend(1, WRITER, IN_CONTAINER_0, ""))
        assert reply == wire.WrongHost(1, IN_CONTAINER_0, "")
        # Another container's writer on the same connection goes on.
        await client.append(OTHER, b"y", number=0)
        assert await client.receive() == acked(0, NULL_ATTRIBUTE_VALUE, 1, writer_id=OTHER)
        assert store.server.admission.outstanding.total == 0


async def test_idle_writers_are_told_at_the_end_which_containers_others_have() -> None:
    async with memory_store(container_count=4) as store:
        for segment in (IN_CONTAINER_0, IN_CONTAINER_1):
            await store.registry.container_for(segment).create_segment(segment)
        client = store.connect()
        await client.send(wire.SetupAppend(70, WRITER, IN_CONTAINER_0, ""))
        await client.expect(wire.AppendSetup)
        await client.set_up(OTHER, IN_CONTAINER_1)
        store.registry.release(0)
        await settle()
        await client.expect_silence()
        store.server.drain()
        assert await client.receive() == wire.WrongHost(70, IN_CONTAINER_0, "")
        await client.expect_close()


# ---- Conditional appends -------------------------------------------------------------------------


async def test_a_conditional_append_stores_the_framed_event(store: MemoryStore) -> None:
    client = await writer(store)
    reply = await client.call(wire.ConditionalAppend(WRITER, 1, 0, b"event", 3))
    assert reply == acked(1, NULL_ATTRIBUTE_VALUE, 13, request_id=3)
    assert await stored(store) == frame_event(b"event")


async def test_a_conditional_block_end_stores_its_bytes(store: MemoryStore) -> None:
    client = await writer(store)
    reply = await client.call(wire.ConditionalBlockEnd(WRITER, 0, 0, b"piece", 3))
    assert reply == acked(0, NULL_ATTRIBUTE_VALUE, 5, request_id=3)
    assert await stored(store) == b"piece"


async def test_a_failed_offset_check_leaves_writer_and_connection_alone(
    store: MemoryStore,
) -> None:
    client = await writer(store)
    await client.send(wire.ConditionalAppend(WRITER, 1, 5, b"event", 3))
    assert await client.receive() == wire.ConditionalCheckFailed(WRITER, 1, 3)
    assert await attribute(store, WRITER) is None
    assert await stored(store) == b""
    reply = await client.call(wire.ConditionalAppend(WRITER, 2, 0, b"event", 4))
    assert reply == acked(2, NULL_ATTRIBUTE_VALUE, 13, request_id=4)


async def test_a_failed_offset_check_behind_acks_goes_back_to_the_last_of_them(
    store: MemoryStore,
) -> None:
    client = await writer(store)
    await client.append(WRITER, b"abc", number=4)
    await client.expect(wire.DataAppended)
    await client.send(wire.ConditionalAppend(WRITER, 5, 99, b"event", 0))
    await client.expect(wire.ConditionalCheckFailed)
    await client.append(WRITER, b"d", number=6)
    assert await client.receive() == acked(6, 4, 4)


async def test_appends_queued_behind_a_failed_offset_check_are_refused(store: MemoryStore) -> None:
    client = await writer(store)
    hold(store)
    await client.send(wire.ConditionalAppend(WRITER, 1, 99, b"a", 0))
    await client.append(WRITER, b"b", number=2)
    await settle()
    store.container.commit()
    assert await client.receive() == wire.ConditionalCheckFailed(WRITER, 1, 0)
    assert await client.receive() == wire.InvalidEventNumber(WRITER, 0, "", 2)
    await client.expect_close()


async def test_a_conditional_append_to_a_sealed_segment(store: MemoryStore) -> None:
    client = await writer(store)
    await store.container.seal_segment(SEGMENT)
    reply = await client.call(wire.ConditionalAppend(WRITER, 3, 5, b"event", 4))
    assert reply == wire.SegmentIsSealed(4, SEGMENT, "", 3)


# ---- Large events --------------------------------------------------------------------------------


async def test_a_large_event_arrives_in_pieces_and_counts_as_one(store: MemoryStore) -> None:
    client = store.connect()
    await client.send(wire.CreateTransientSegment(1, WRITER, SEGMENT, ""))
    name = (await client.expect(wire.SegmentCreated)).segment
    assert name.startswith(f"{SEGMENT}#transient.{WRITER.hex()}.")
    assert await client.set_up(WRITER, name) == NULL_ATTRIBUTE_VALUE
    pieces = [b"first", b"second", b"third"]
    offset = 0
    for number, piece in enumerate(pieces):
        await client.send(wire.ConditionalBlockEnd(WRITER, number, offset, piece, number))
        offset += len(piece)
    for number in range(3):
        assert (await client.expect(wire.DataAppended)).event_number == number
    reply = await client.call(wire.MergeSegments(9, SEGMENT, name, ""))
    assert reply == wire.SegmentsMerged(9, SEGMENT, name, offset)
    assert await stored(store) == b"firstsecondthird"
    assert await attribute(store, EVENT_COUNT) == 1


async def test_transient_segments_go_with_their_connection(store: MemoryStore) -> None:
    client = store.connect()
    names = []
    for number in range(3):
        await client.send(wire.CreateTransientSegment(number, WRITER, SEGMENT, ""))
        names.append((await client.expect(wire.SegmentCreated)).segment)
    await client.send(wire.MergeSegments(9, SEGMENT, names[0], ""))
    await client.expect(wire.SegmentsMerged)
    other = store.connect()
    await client.stream.aclose()
    await settle()
    for name in names:
        reply = await other.call(wire.GetStreamSegmentInfo(1, name, ""))
        assert isinstance(reply, wire.NoSuchSegment)


async def test_a_transient_segment_has_at_most_16_writers(store: MemoryStore) -> None:
    client = store.connect()
    await client.send(wire.CreateTransientSegment(1, WRITER, SEGMENT, ""))
    name = (await client.expect(wire.SegmentCreated)).segment
    for number in range(17):
        writer_id = bytes([number]) * 16
        await client.set_up(writer_id, name)
        await client.append(writer_id, b"x", number=0)
        if number < 16:
            await client.expect(wire.DataAppended)
    assert (await client.expect(wire.ErrorMessage)).error_code == 0


# ---- Back-pressure -------------------------------------------------------------------------------


async def test_appends_beyond_the_bound_stay_in_the_socket() -> None:
    settings = ConnectionSettings(outstanding_bytes_free=1000, outstanding_bytes_max=1000)
    async with memory_store(settings) as store:
        await store.container.create_segment(SEGMENT)
        client = await writer(store)
        hold(store)
        for number in range(100):
            await client.append(WRITER, bytes(100), number=number)
        await settle()
        taken = store.container.queued_count
        assert 5 <= taken <= 20
        commits = 0
        while commits < 100:
            commits += store.container.queued_count
            store.container.commit()
            await settle()
            assert store.container.queued_count <= 20
        numbers = [-1]
        while numbers[-1] != 99:
            numbers.append((await client.expect(wire.DataAppended)).event_number)
        assert numbers == sorted(set(numbers))


async def test_a_stopped_container_stops_no_connection_of_another() -> None:
    settings = ConnectionSettings(
        outstanding_bytes_free=1000, outstanding_bytes_max=2000, outstanding_bytes_total_max=4000
    )
    async with memory_store(settings, container_count=4) as store:
        for segment in (IN_CONTAINER_0, IN_CONTAINER_1, IN_SYSTEM):
            await store.registry.container_for(segment).create_segment(segment)
        writers = [store.connect() for _ in range(20)]
        for number, client in enumerate(writers):
            await client.set_up(bytes([number]) * 16, IN_CONTAINER_0)
        controller = store.connect()
        await controller.set_up(WRITER, IN_SYSTEM)
        store.containers[0].auto_commit = False
        for number, client in enumerate(writers):
            for event_number in range(10):
                await client.append(bytes([number]) * 16, bytes(200), number=event_number)
        await settle()
        assert store.containers[0].queued_count * 200 <= 2000 + 200
        # Others go on, as long as they like, with as much as they like.
        other = store.connect()
        await other.set_up(WRITER, IN_CONTAINER_1)
        for number in range(100):
            await other.append(WRITER, bytes(3000), number=number)
            await other.expect(wire.DataAppended)
        # So do the system's segments in the container where users wait.
        taken = store.containers[0].queued_count
        await controller.append(WRITER, bytes(3000), number=0)
        await settle()
        assert store.containers[0].queued_count == taken + 1
        while store.containers[0].queued_count:
            store.containers[0].commit()
            await settle()
        for client in writers:
            while (await client.expect(wire.DataAppended)).event_number != 9:
                pass
        assert store.server.admission.outstanding.total == 0


async def test_a_stopped_container_stops_who_writes_to_it() -> None:
    settings = ConnectionSettings(
        outstanding_bytes_free=1000, outstanding_bytes_max=2000, outstanding_bytes_total_max=4000
    )
    async with memory_store(settings, container_count=4) as store:
        await store.registry.container_for(IN_CONTAINER_0).create_segment(IN_CONTAINER_0)
        await store.registry.container_for(IN_CONTAINER_1).create_segment(IN_CONTAINER_1)
        client = store.connect()
        await client.set_up(WRITER, IN_CONTAINER_0)
        await client.set_up(OTHER, IN_CONTAINER_1)
        blocked = store.connect()
        await blocked.set_up(bytes(16), IN_CONTAINER_0)
        store.containers[0].auto_commit = False
        await blocked.append(bytes(16), bytes(3000), number=0)
        for number in range(10):
            await client.append(OTHER, bytes(900), number=number)
            await client.expect(wire.DataAppended)
        await client.append(WRITER, bytes(900), number=0)
        await client.append(OTHER, bytes(900), number=10)
        await client.expect_silence()
        store.containers[0].commit()
        assert (await client.expect(wire.DataAppended)).writer_id == OTHER
        store.containers[0].commit()
        assert (await client.expect(wire.DataAppended)).writer_id == WRITER


async def test_an_append_that_waits_while_its_writer_moves_is_released_where_it_counts() -> None:
    async with memory_store(container_count=4) as store:
        for segment in (IN_CONTAINER_0, IN_CONTAINER_1):
            await store.registry.container_for(segment).create_segment(segment)
        client, total = store.connect(), store.server.admission.outstanding
        await client.set_up(WRITER, IN_CONTAINER_0)
        store.containers[0].auto_commit = False
        await client.send(wire.UpdateSegmentPolicy(1, IN_CONTAINER_0, 0, 0, ""))
        await client.append(WRITER, b"held up", number=0)
        await client.set_up(WRITER, IN_CONTAINER_1)
        assert total.share_of(IN_CONTAINER_0).count == len(b"held up")
        store.containers[0].commit()
        await client.expect(wire.SegmentPolicyUpdated)
        await client.expect_close()
        assert total.total == 0
        assert not any(total.share_of(each).count for each in (IN_CONTAINER_0, IN_CONTAINER_1))
