from __future__ import annotations

import pytest
import trio
import trio.testing

from pravega_wire import commands as wire
from pravega_wire.commands import COMMAND_BYTES_MAX
from pravega_wire.connection import Append
from segstore.network.admission.policy import Admission, ConnectionAdmission, payload_bytes
from segstore.process.config import ConnectionSettings

SEGMENT = "examples/test/0"
WRITER = bytes(16)
SETTINGS = ConnectionSettings(
    requests_max=2,
    outstanding_bytes_free=10,
    outstanding_bytes_max=100,
    outstanding_bytes_total_max=2 * COMMAND_BYTES_MAX + 5,
    send_bytes_pause=50,
)


def append(length: int) -> Append:
    return Append(SEGMENT, WRITER, bytes(length), 1, 0, 0)


def of_connection(admission: Admission) -> ConnectionAdmission:
    return ConnectionAdmission(admission, None, lambda now: None)


@pytest.fixture
async def admission() -> Admission:
    return Admission(SETTINGS, 1)


async def test_a_command_passes_where_there_is_room(admission: Admission) -> None:
    one = of_connection(admission)
    assert not one.is_full
    assert not one.must_wait(append(5))
    assert not one.must_wait(wire.KeepAlive())


async def test_what_is_full_makes_every_command_wait(admission: Admission) -> None:
    one, request = of_connection(admission), wire.SealSegment(1, SEGMENT, "")
    one.hold(request)
    assert not one.must_wait(append(5))
    one.hold(request)
    assert one.is_full
    assert one.must_wait(wire.KeepAlive())
    one.release(request)
    one.replies.put(bytes(50))
    assert one.must_wait(wire.KeepAlive())
    one.replies.discard()
    assert not one.is_full


async def test_a_payload_waits_for_its_container_and_others_do_not(admission: Admission) -> None:
    one, other = of_connection(admission), of_connection(admission)
    share = other.share_of(append(0))
    other.outstanding.add(COMMAND_BYTES_MAX, share)
    assert one.must_wait(append(6))
    assert not one.must_wait(append(5))
    assert not one.must_wait(wire.SealSegment(1, SEGMENT, ""))


async def test_who_waits_goes_on_when_both_have_room(admission: Admission) -> None:
    one, other = of_connection(admission), of_connection(admission)
    share = other.share_of(append(0))
    other.outstanding.add(COMMAND_BYTES_MAX, share)
    requests = [wire.SealSegment(number, SEGMENT, "") for number in range(2)]
    for request in requests:
        one.hold(request)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.wait_for, append(6))
        await trio.testing.wait_all_tasks_blocked()
        one.release(requests[0])
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        other.outstanding.release(1, share)
    assert not one.must_wait(append(6))


async def test_long_replies_take_places_and_bytes(admission: Admission) -> None:
    one, request = of_connection(admission), wire.GetTableSegmentInfo(1, SEGMENT, "")
    replies = admission.buffers.large_replies
    async with one.long_reply(request, 1000):
        assert replies.count == 1000
    assert replies.count == 0


async def test_what_goes_with_a_connection_is_given_back(admission: Admission) -> None:
    one = of_connection(admission)
    one.replies.put(bytes(20))
    assert one.reserved.try_grow(100_000)
    assert admission.buffers.count == 100_020
    one.drop()
    assert admission.buffers.count == 0


async def test_a_complete_command_gives_up_its_place(admission: Admission) -> None:
    one = of_connection(admission)
    assert one.reserved.try_grow(100_000)
    one.renew_reserved(40_000)
    assert one.reserved.count == 40_000
    one.renew_reserved(100)
    assert one.reserved.count == 0


def test_payloads_are_those_of_appends_and_of_changes_to_tables() -> None:
    key = wire.TableKey(b"key", 0)
    entry = wire.TableEntry(key, b"value")
    assert payload_bytes(append(7)) == 7
    assert payload_bytes(wire.KeepAlive()) == 0
    assert payload_bytes(wire.RemoveTableKeys(1, SEGMENT, "", (key,), 0)) == 3
    assert payload_bytes(wire.UpdateTableEntries(1, SEGMENT, "", (entry, entry), 0)) == 16
