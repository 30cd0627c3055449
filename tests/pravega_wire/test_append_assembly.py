"""The rules by which append commands become appends, each by its name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_wire.codec import encode
from pravega_wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    KeepAlive,
    Padding,
    SetupAppend,
)
from pravega_wire.connection import Append, Connection, Role, append_block
from pravega_wire.errors import RemoteProtocolError

Feed = Callable[[Callable[[], Connection], bytes], list[Any]]

WRITER = bytes(range(16))
OTHER = bytes(range(16, 32))
SEGMENT = "scope/stream/0.#epoch.0"
REQUEST_ID = 7


def connected() -> Connection:
    """Return a server's connection on which both writers are set up."""
    connection = Connection(Role.SERVER)
    for writer, segment in ((WRITER, SEGMENT), (OTHER, "other")):
        connection.receive_data(encode(SetupAppend(1, writer, segment, "")))
    return connection


def frames(*commands: Command) -> bytes:
    return b"".join(map(encode, commands))


def end(
    whole: int,
    data: bytes = b"",
    *,
    writer: bytes = WRITER,
    event_count: int = 1,
    last_event_number: int = 1,
) -> AppendBlockEnd:
    return AppendBlockEnd(writer, whole, data, event_count, last_event_number, REQUEST_ID)


def tail(code: int, data: bytes) -> bytes:
    """Return the bytes behind the whole events of a block."""
    return struct.pack(">ii", code, len(data)) + data


def appended(data: bytes, *, event_count: int = 1, last_event_number: int = 1) -> Append:
    return Append(SEGMENT, WRITER, data, event_count, last_event_number, REQUEST_ID, None)


def assert_refused(connection: Connection, data: bytes, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        connection.receive_data(data)


def test_a_block_and_its_end_are_one_append(feed_each_way: Feed) -> None:
    data = frames(AppendBlock(WRITER, b"events"), end(6, event_count=3, last_event_number=9))
    assert feed_each_way(connected, data) == [
        appended(b"events", event_count=3, last_event_number=9)
    ]


def test_padding_at_the_end_of_a_block_is_cut_off(feed_each_way: Feed) -> None:
    block = AppendBlock(WRITER, b"events" + tail(-1, bytes(50)))
    assert feed_each_way(connected, frames(block, end(6))) == [appended(b"events")]


def test_empty_padding_at_the_end_of_a_block_is_cut_off(feed_each_way: Feed) -> None:
    block = AppendBlock(WRITER, b"events" + tail(-1, b""))
    assert feed_each_way(connected, frames(block, end(6))) == [appended(b"events")]


def test_a_block_of_padding_alone_is_an_empty_append(feed_each_way: Feed) -> None:
    block = AppendBlock(WRITER, tail(-1, bytes(9)))
    assert feed_each_way(connected, frames(block, end(0))) == [appended(b"")]


def test_a_partial_event_goes_on_in_the_blocks_end(feed_each_way: Feed) -> None:
    block = AppendBlock(WRITER, b"whole" + tail(-2, b"par"))
    assert feed_each_way(connected, frames(block, end(5, b"tial"))) == [appended(b"wholepartial")]


def test_a_block_may_be_one_partial_event(feed_each_way: Feed) -> None:
    block = AppendBlock(WRITER, tail(-2, b"par"))
    assert feed_each_way(connected, frames(block, end(0, b"tial"))) == [appended(b"partial")]


def test_data_of_the_end_is_ignored_when_the_block_has_no_tail(feed_each_way: Feed) -> None:
    data = frames(AppendBlock(WRITER, b"events"), end(6, b"ignored"))
    assert feed_each_way(connected, data) == [appended(b"events")]


def test_an_end_without_a_block_brings_its_own_data(feed_each_way: Feed) -> None:
    data = frames(end(12345, b"events", event_count=2))
    assert feed_each_way(connected, data) == [appended(b"events", event_count=2)]


def test_an_append_may_be_empty(feed_each_way: Feed) -> None:
    data = frames(AppendBlock(WRITER, b""), end(0))
    assert feed_each_way(connected, data) == [appended(b"")]


def test_an_end_without_a_request_id_is_of_request_minus_one(feed_each_way: Feed) -> None:
    frame = bytearray(encode(end(0, b"events")))[:-8]
    frame[4:8] = struct.pack(">i", len(frame) - 8)
    [append] = feed_each_way(connected, bytes(frame))
    assert append == Append(SEGMENT, WRITER, b"events", 1, 1, -1, None)


def test_a_conditional_append_keeps_its_events_header(feed_each_way: Feed) -> None:
    data = frames(ConditionalAppend(WRITER, 5, 100, b"event", REQUEST_ID))
    stored = struct.pack(">ii", 0, 5) + b"event"
    assert feed_each_way(connected, data) == [
        Append(SEGMENT, WRITER, stored, 1, 5, REQUEST_ID, 100)
    ]


def test_a_conditional_block_end_is_stored_as_it_is(feed_each_way: Feed) -> None:
    data = frames(ConditionalBlockEnd(WRITER, 5, 100, b"events", REQUEST_ID))
    assert feed_each_way(connected, data) == [
        Append(SEGMENT, WRITER, b"events", 1, 5, REQUEST_ID, 100)
    ]


def test_writers_of_one_connection_do_not_mix(feed_each_way: Feed) -> None:
    data = frames(AppendBlock(OTHER, b"o"), end(1, writer=OTHER), AppendBlock(WRITER, b"w"), end(1))
    first, second = feed_each_way(connected, data)
    assert (first.segment, first.data) == ("other", b"o")
    assert (second.segment, second.data) == (SEGMENT, b"w")


def test_other_commands_may_stand_inside_a_block(feed_each_way: Feed) -> None:
    block = AppendBlock(WRITER, b"whole" + tail(-2, b"par"))
    data = frames(block, KeepAlive(), KeepAlive(), end(5, b"tial"))
    assert feed_each_way(connected, data) == [
        KeepAlive(),
        KeepAlive(),
        appended(b"wholepartial"),
    ]


def test_commands_inside_a_block_do_not_make_the_buffer_grow() -> None:
    connection = connected()
    connection.receive_data(frames(AppendBlock(WRITER, b"events")))
    for _ in range(100):
        connection.receive_data(frames(KeepAlive()))
        assert connection.pending_bytes == 0
    assert connection.receive_data(frames(end(6))) == [appended(b"events")]


def test_padding_outside_of_a_block_is_ignored(feed_each_way: Feed) -> None:
    data = frames(Padding(bytes(20)), KeepAlive(), Padding(b""))
    assert feed_each_way(connected, data) == [KeepAlive()]


def test_setting_a_writer_up_again_replaces_its_segment_and_starts_its_numbers_afresh() -> None:
    connection = connected()
    connection.receive_data(frames(end(0, b"a", last_event_number=10)))
    connection.receive_data(frames(SetupAppend(2, WRITER, "moved", "")))
    [append] = connection.receive_data(frames(end(0, b"b", last_event_number=1)))
    assert isinstance(append, Append)
    assert (append.segment, append.last_event_number) == ("moved", 1)


def test_an_event_number_may_repeat_but_not_go_back() -> None:
    connection = connected()
    connection.receive_data(frames(end(0, last_event_number=5), end(0, last_event_number=5)))
    assert_refused(connection, frames(end(0, last_event_number=4)), "went backwards")


@pytest.mark.parametrize(
    "command",
    [
        end(0, last_event_number=-1),
        ConditionalAppend(WRITER, -1, 0, b"", 1),
        ConditionalBlockEnd(WRITER, -1, 0, b"", 1),
    ],
)
def test_a_new_writers_event_number_is_not_negative(command: Command) -> None:
    assert_refused(connected(), frames(command), "went backwards")


@pytest.mark.parametrize(
    "command",
    [
        AppendBlock(bytes(16), b"x"),
        end(0, writer=bytes(16)),
        ConditionalAppend(bytes(16), 1, 0, b"x", 1),
        ConditionalBlockEnd(bytes(16), 1, 0, b"x", 1),
    ],
)
def test_a_writer_that_was_not_set_up_is_refused(command: Command) -> None:
    assert_refused(connected(), frames(command), "was not set up")


@pytest.mark.parametrize(
    "command",
    [
        AppendBlock(WRITER, b"x"),
        SetupAppend(1, WRITER, "s", ""),
        Padding(b""),
        ConditionalAppend(WRITER, 1, 0, b"x", 1),
        ConditionalBlockEnd(WRITER, 1, 0, b"x", 1),
    ],
    ids=lambda command: type(command).__name__,
)
def test_no_other_append_command_may_stand_inside_a_block(command: Command) -> None:
    data = frames(AppendBlock(WRITER, b"x"), command)
    assert_refused(connected(), data, "inside an append block")
    connection = connected()
    connection.receive_data(frames(AppendBlock(WRITER, b"x")))
    assert_refused(connection, frames(command), "inside an append block")


def test_a_block_is_ended_by_its_own_writer() -> None:
    data = frames(AppendBlock(WRITER, b"x"), end(1, writer=OTHER))
    assert_refused(connected(), data, "another writer")


@pytest.mark.parametrize("whole", [-1, 7, 2**31 - 1, -(2**31)])
def test_whole_events_lie_within_the_block(whole: int) -> None:
    data = frames(AppendBlock(WRITER, b"events"), end(whole))
    assert_refused(connected(), data, "bytes of whole events")


@pytest.mark.parametrize("event_count", [0, -1])
def test_an_append_holds_at_least_one_event(event_count: int) -> None:
    assert_refused(connected(), frames(end(0, b"x", event_count=event_count)), "events")


@pytest.mark.parametrize(
    ("behind", "match"),
    [
        (b"x", "neither padding nor"),
        (bytes(7), "neither padding nor"),
        (tail(0, b"event"), "command type 0 at the end"),
        (tail(77, b""), "command type 77 at the end"),
        (struct.pack(">ii", -2, 1), "does not fit"),
        (struct.pack(">ii", -1, -1), "does not fit"),
        (struct.pack(">ii", -2, -(2**31)), "does not fit"),
    ],
)
def test_only_padding_or_a_partial_event_ends_a_block(behind: bytes, match: str) -> None:
    data = frames(AppendBlock(WRITER, b"events" + behind), end(6))
    assert_refused(connected(), data, match)


def test_padding_and_data_in_the_end_exclude_each_other() -> None:
    data = frames(AppendBlock(WRITER, b"events" + tail(-1, b"")), end(6, b"x"))
    assert_refused(connected(), data, "behind a padded block")


@pytest.mark.parametrize("cut", range(1, 40, 7))
@pytest.mark.parametrize(
    "command",
    [
        AppendBlock(WRITER, b""),
        ConditionalAppend(WRITER, 1, 2, b"event", 3),
        ConditionalBlockEnd(WRITER, 1, 2, b"event", 3),
        end(0, b"event"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_append_command_cut_short_is_refused(command: Command, cut: int) -> None:
    frame = encode(command)
    kept = frame[: max(8, len(frame) - cut)]
    if type(command) in (AppendBlockEnd, ConditionalAppend) and cut == 8:
        kept = kept[:-1]  # the request id may be missing, but not in part
    data = kept[:4] + struct.pack(">i", len(kept) - 8) + kept[8:]
    with pytest.raises(RemoteProtocolError):
        connected().receive_data(data)


@pytest.mark.parametrize("length", [-1, 6, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize(
    ("command", "position"),
    [
        (end(0, b"event"), 28),
        (ConditionalAppend(WRITER, 1, 2, b"event"), 44),
        (ConditionalBlockEnd(WRITER, 1, 2, b"event", 3), 40),
    ],
    ids=["AppendBlockEnd", "ConditionalAppend", "ConditionalBlockEnd"],
)
def test_an_append_commands_data_lies_within_it(
    command: Command, position: int, length: int
) -> None:
    frame = bytearray(encode(command))
    assert frame[position : position + 4] == struct.pack(">i", 5)
    frame[position : position + 4] = struct.pack(">i", length)
    if length == 6:  # would reach into the fields behind
        del frame[-8:]
        frame[4:8] = struct.pack(">i", len(frame) - 8)
    with pytest.raises(RemoteProtocolError):
        connected().receive_data(bytes(frame))


def test_a_conditional_appends_event_must_be_an_event() -> None:
    frame = bytearray(encode(ConditionalAppend(WRITER, 1, 2, b"event", 3)))
    frame[43] = 1
    assert_refused(connected(), bytes(frame), "without a whole event")


def test_the_writers_of_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pravega_wire.connection.WRITERS_MAX", 2)
    connection = connected()
    connection.receive_data(frames(SetupAppend(1, WRITER, "again", "")))
    assert_refused(connection, frames(SetupAppend(1, bytes(16), "s", "")), "more than 2 writers")


@settings(max_examples=200)
@given(
    events=st.lists(st.binary(max_size=30), min_size=1, max_size=6),
    spare=st.integers(0, 40),
    cut=st.integers(0, 1000),
    chunk=st.integers(1, 60),
    form=st.sampled_from(["exact", "padded", "partial", "end only"]),
)
def test_every_way_to_cut_events_up_brings_the_same_append(
    events: list[bytes], spare: int, cut: int, chunk: int, form: str
) -> None:
    data = b"".join(tail(0, event) for event in events)
    count = len(events)
    match form:
        case "exact":
            stream = append_block(WRITER, events, last_event_number=count, request_id=REQUEST_ID)
        case "padded":
            block = AppendBlock(WRITER, data + tail(-1, bytes(spare)))
            whole = end(len(data), event_count=count, last_event_number=count)
            stream = frames(block, whole)
        case "partial":
            whole_bytes = len(data) - len(tail(0, events[-1]))
            split = whole_bytes + cut % (len(data) - whole_bytes + 1)
            block = AppendBlock(WRITER, data[:whole_bytes] + tail(-2, data[whole_bytes:split]))
            rest = end(whole_bytes, data[split:], event_count=count, last_event_number=count)
            stream = frames(block, rest)
        case _:
            stream = frames(end(len(data), data, event_count=count, last_event_number=count))
    connection = connected()
    appends: list[Any] = []
    for start in range(0, len(stream), chunk):
        appends += connection.receive_data(stream[start : start + chunk])
    assert appends == [appended(data, event_count=count, last_event_number=count)]
    assert connection.pending_bytes == 0
