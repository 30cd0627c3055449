"""Framing, roles and errors of a connection; the rules of appends are in test_append_assembly."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pravega_wire.codec import HEADER_BYTES, encode
from pravega_wire.commands import (
    COMMAND_BYTES_MAX,
    COMMANDS,
    HELLO,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    Event,
    GetStreamSegmentInfo,
    KeepAlive,
    Padding,
    PartialEvent,
    ReadSegment,
    Reply,
    Request,
    SetupAppend,
)
from pravega_wire.connection import Append, Connection, Role, append_block
from pravega_wire.errors import LocalProtocolError, RemoteProtocolError

Values = Callable[[type[Command]], st.SearchStrategy[Command]]
Feed = Callable[[Callable[[], Connection], bytes], list[Any]]

WRITER = bytes(range(16))
SETUP = SetupAppend(1, WRITER, "scope/stream/0.#epoch.0", "")
PARTS_OF_APPENDS = (AppendBlock, AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd)

with_fixtures = settings(
    max_examples=settings().max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def server() -> Connection:
    return Connection(Role.SERVER)


def client() -> Connection:
    return Connection(Role.CLIENT)


def test_a_frame_is_needed_as_soon_as_its_header_is_there() -> None:
    frame = encode(SETUP)
    connection = server()
    connection.receive_data(frame[: HEADER_BYTES - 1])
    assert connection.needed_bytes == HEADER_BYTES - 1
    connection.receive_data(frame[HEADER_BYTES - 1 : HEADER_BYTES])
    assert connection.needed_bytes == len(frame)
    assert connection.receive_data(frame[HEADER_BYTES:]) == [SETUP]
    assert connection.needed_bytes == 0


@with_fixtures
@given(data=st.data())
def test_commands_come_out_alike_however_their_bytes_arrive(
    command_class: type[Command], command_values: Values, feed_each_way: Feed, data: st.DataObject
) -> None:
    command = data.draw(command_values(command_class))
    if issubclass(command_class, Reply):
        assert feed_each_way(client, encode(command) * 2) == [command, command]
    if issubclass(command_class, Request) and command_class not in PARTS_OF_APPENDS:
        assert feed_each_way(server, encode(command) * 2) == [command, command]


@pytest.mark.parametrize("role", Role)
@settings(max_examples=300)
@given(data=st.binary(max_size=200))
def test_any_bytes_parse_or_are_the_peers_error(role: Role, data: bytes) -> None:
    connection = Connection(role)
    try:
        connection.receive_data(data)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError, match="dead"):
            connection.receive_data(encode(KeepAlive()))


@with_fixtures
@given(data=st.data())
def test_mutilated_streams_parse_or_are_the_peers_error(
    command_values: Values, data: st.DataObject
) -> None:
    classes = st.sampled_from([cls for cls in COMMANDS.values() if issubclass(cls, Request)])
    stream = bytearray(
        encode(SETUP) + append_block(WRITER, [b"x"], last_event_number=1, request_id=2)
    )
    for cls in data.draw(st.lists(classes, min_size=1, max_size=5)):
        stream += encode(data.draw(command_values(cls)))
    for _ in range(data.draw(st.integers(0, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    connection = server()
    try:
        for cut in range(0, len(stream), 13):
            connection.receive_data(bytes(stream[cut : cut + 13]))
    except RemoteProtocolError:
        return
    assert connection.pending_bytes <= len(stream)


def test_an_unknown_type_is_refused_before_its_length_is_there() -> None:
    with pytest.raises(RemoteProtocolError, match="unexpected command type 6"):
        server().receive_data(struct.pack(">i", 6))
    with pytest.raises(RemoteProtocolError, match="unexpected command type"):
        client().receive_data(b"\x7f\xff\xff\xff")


@pytest.mark.parametrize("length", [-1, -(2**31), COMMAND_BYTES_MAX - 7, 2**31 - 1])
def test_a_servers_frame_over_16_mebibytes_is_refused_by_its_header(length: int) -> None:
    connection = server()
    with pytest.raises(RemoteProtocolError, match="at most"):
        connection.receive_data(struct.pack(">ii", AppendBlock.code, length))
    assert connection.pending_bytes == 0


def test_a_servers_longest_frame_is_taken() -> None:
    connection = server()
    connection.receive_data(encode(SETUP))
    data = bytes(COMMAND_BYTES_MAX - HEADER_BYTES - 16)
    frames = encode(AppendBlock(WRITER, data)) + encode(
        AppendBlockEnd(WRITER, len(data), b"", 1, 1, 1)
    )
    [append] = connection.receive_data(frames)
    assert isinstance(append, Append)
    assert append.data == data


def test_a_client_takes_a_payload_of_16_mebibytes_and_refuses_one_byte_more() -> None:
    connection = client()
    assert connection.receive_data(struct.pack(">ii", 10, COMMAND_BYTES_MAX)) == []
    with pytest.raises(RemoteProtocolError, match="at most"):
        client().receive_data(struct.pack(">ii", 10, COMMAND_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "command",
    [AppendSetup(1, "s", WRITER, 0), PartialEvent(b"x"), Event(b"x"), DataAppended(WRITER, 1)],
)
def test_a_server_takes_requests_only(command: Command) -> None:
    with pytest.raises(RemoteProtocolError, match="unexpected command type"):
        server().receive_data(encode(command))


@pytest.mark.parametrize("command", [SETUP, Padding(b"x"), AppendBlock(WRITER, b"")])
def test_a_client_takes_replies_only(command: Command) -> None:
    with pytest.raises(RemoteProtocolError, match="unexpected command type"):
        client().receive_data(encode(command))


def test_each_side_sends_its_own_commands_only() -> None:
    assert server().send(HELLO) == client().send(HELLO) == encode(HELLO)
    with pytest.raises(LocalProtocolError):
        server().send(SETUP)
    with pytest.raises(LocalProtocolError):
        client().send(DataAppended(WRITER, 1))


def test_a_dead_connection_stays_dead() -> None:
    connection = server()
    with pytest.raises(RemoteProtocolError):
        connection.receive_data(b"\xff" * 8)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="dead"):
            connection.receive_data(encode(KeepAlive()))


def test_many_commands_of_one_buffer_come_out_in_order() -> None:
    reads = [ReadSegment("s", offset, 10, "", offset) for offset in range(100)]
    data = encode(HELLO) + b"".join(map(encode, reads)) + encode(KeepAlive())
    assert server().receive_data(data) == [HELLO, *reads, KeepAlive()]


def test_an_empty_buffer_yields_nothing() -> None:
    connection = server()
    assert connection.receive_data(b"") == []
    connection.receive_data(b"\xff")
    assert connection.receive_data(b"") == []
    assert connection.pending_bytes == 1


def test_what_came_out_does_not_change_with_the_buffer() -> None:
    buffer = bytearray(
        encode(SETUP) + append_block(WRITER, [b"event"], last_event_number=1, request_id=2)
    )
    connection = server()
    setup, append = connection.receive_data(buffer)
    buffer[:] = bytes(len(buffer))
    assert setup == SETUP
    assert isinstance(append, Append)
    assert append.data.endswith(b"event")


def test_an_appends_data_is_copied_once_out_of_the_receive_buffer() -> None:
    connection = server()
    connection.receive_data(encode(SETUP))
    size = 4 * 1024 * 1024
    received = append_block(WRITER, [bytes(size)], last_event_number=1, request_id=2)
    tracemalloc.start()
    try:
        [append] = connection.receive_data(received)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(append, Append)
    assert len(append.data) == size + HEADER_BYTES
    assert peak < 1.1 * size


def test_nothing_is_kept_once_a_long_command_is_out() -> None:
    connection = server()
    connection.receive_data(encode(SETUP))
    frames = append_block(WRITER, [bytes(10**6)], last_event_number=1, request_id=2)
    appends: list[Any] = []
    for cut in range(0, len(frames), 65_536):
        appends += connection.receive_data(frames[cut : cut + 65_536])
    assert len(appends) == 1
    assert connection.pending_bytes == 0


def test_append_block_frames_events_or_leaves_them_bare() -> None:
    connection = server()
    connection.receive_data(encode(SETUP))
    framed = append_block(WRITER, [b"a", b"bc"], last_event_number=2, request_id=5)
    bare = append_block(WRITER, [b"a", b"bc"], last_event_number=3, request_id=5, framed=False)
    first, second = connection.receive_data(framed + bare)
    segment = SETUP.segment
    data = struct.pack(">ii", 0, 1) + b"a" + struct.pack(">ii", 0, 2) + b"bc"
    assert first == Append(segment, WRITER, data, 2, 2, 5, None)
    assert second == Append(segment, WRITER, b"abc", 2, 3, 5, None)


def test_a_command_that_ends_early_kills_the_connection() -> None:
    payload = encode(GetStreamSegmentInfo(1, "segment", ""))[HEADER_BYTES:-5]
    with pytest.raises(RemoteProtocolError, match="ends early"):
        server().receive_data(struct.pack(">ii", 11, len(payload)) + payload)
