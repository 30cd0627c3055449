"""Every command's bytes: there and back, cut short, too long, and garbage."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pravega_wire.codec import HEADER_BYTES, Buffer, bytes_min, decode, decode_at, encode, slots_of
from pravega_wire.commands import (
    COMMAND_BYTES_MAX,
    COMMANDS,
    NO_VERSION,
    AppendBlock,
    AppendBlockEnd,
    AttributeUpdate,
    Command,
    ConditionalAppend,
    CreateTableSegment,
    DataAppended,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    MergeSegments,
    MergeSegmentsBatch,
    ReadTable,
    ReadTableKeys,
    SegmentRead,
    SegmentsBatchMerged,
    StorageChunksListed,
    TableEntriesUpdated,
    TableEntry,
    TableIteratorArgs,
    TableKey,
    TableRead,
)
from pravega_wire.errors import LocalProtocolError, RemoteProtocolError
from pravega_wire.fields import Rest

Values = Callable[[type[Command]], st.SearchStrategy[Command]]

WRITER = bytes(range(16))

# The commands share the codecs of some ten types, which all together have enough examples.
each_command = settings(
    max_examples=settings().max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def payload_of(command: Command) -> bytes:
    return encode(command)[HEADER_BYTES:]


def decode_or_refuse(code: int, payload: Buffer) -> Command | None:
    """Decode any bytes; the only error that may be raised is ``RemoteProtocolError``."""
    try:
        return decode(code, payload)
    except RemoteProtocolError:
        return None


@each_command
@given(data=st.data())
def test_commands_round_trip(
    command_class: type[Command], command_values: Values, data: st.DataObject
) -> None:
    command = data.draw(command_values(command_class))
    frame = encode(command)
    assert struct.unpack_from(">ii", frame) == (command_class.code, len(frame) - HEADER_BYTES)
    payload = frame[HEADER_BYTES:]
    assert decode(command_class.code, payload) == command
    assert decode(command_class.code, bytearray(payload)) == command
    assert decode(command_class.code, memoryview(payload)) == command
    surrounded = b"\xff" * 3 + payload + b"\xff" * 3
    assert decode_at(command_class.code, surrounded, 3, 3 + len(payload)) == command


@each_command
@given(data=st.data())
def test_bytes_behind_the_last_field_are_ignored(
    command_class: type[Command], command_values: Values, data: st.DataObject
) -> None:
    if any(slot.kind == Rest() for slot in slots_of(command_class)):
        return  # there is no behind
    command = data.draw(command_values(command_class))
    trailer = data.draw(st.binary(min_size=1, max_size=20))
    assert decode(command_class.code, payload_of(command) + trailer) == command


def without_tail(command: Command, present: int) -> tuple[Command, bytes]:
    """Return the command with defaults for all but the first fields, and its payload without
    those."""
    cls, slots = type(command), slots_of(type(command))
    shortened = cls(*[getattr(command, slot.name) for slot in slots[:present]])
    absent = [getattr(shortened, slot.name) for slot in slots[present:]]
    sizes = {"": 2, (): 4, TableIteratorArgs(): 16}
    absent_bytes = sum(
        struct.calcsize(">" + slot.kind.format) if isinstance(value, int) else sizes[value]
        for value, slot in zip(absent, slots[present:], strict=True)
    )
    payload = payload_of(shortened)
    return shortened, payload[: len(payload) - absent_bytes]


def required_count(cls: type[Command]) -> int:
    slots = slots_of(cls)
    count = sum(not slot.optional for slot in slots)
    assert not any(slot.optional for slot in slots[:count])
    return count


@each_command
@given(data=st.data())
def test_fields_left_out_at_the_end_take_their_defaults(
    command_class: type[Command], command_values: Values, data: st.DataObject
) -> None:
    command = data.draw(command_values(command_class))
    for present in range(required_count(command_class), len(slots_of(command_class))):
        shortened, payload = without_tail(command, present)
        assert decode(command_class.code, payload) == shortened


@each_command
@given(data=st.data())
def test_a_required_field_cut_short_is_refused(
    command_class: type[Command], command_values: Values, data: st.DataObject
) -> None:
    command = data.draw(command_values(command_class))
    _, payload = without_tail(command, required_count(command_class))
    slots = slots_of(command_class)
    if slots and slots[-1].kind == Rest():  # which cannot be cut short
        payload = payload[: sum(bytes_min(slot.kind) for slot in slots)]
    if payload:
        cut = data.draw(st.integers(0, len(payload) - 1))
        with pytest.raises(RemoteProtocolError):
            decode(command_class.code, payload[:cut])


@each_command
@given(payload=st.binary(max_size=200))
def test_garbage_is_a_command_or_a_remote_protocol_error(
    command_class: type[Command], payload: bytes
) -> None:
    decode_or_refuse(command_class.code, payload)


@each_command
@given(data=st.data())
def test_mutilated_commands_are_a_command_or_a_remote_protocol_error(
    command_class: type[Command], command_values: Values, data: st.DataObject
) -> None:
    payload = bytearray(payload_of(data.draw(command_values(command_class))))
    del payload[data.draw(st.integers(0, len(payload))) :]
    for _ in range(data.draw(st.integers(0, 4)) if payload else 0):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    command = decode_or_refuse(command_class.code, payload)
    if command is not None:
        assert decode(command.code, payload_of(command)) == command


@pytest.mark.parametrize("code", [6, 13, 99, 127, -128, -7, 2**31 - 1])
def test_an_unknown_type_is_refused(code: int) -> None:
    assert code not in COMMANDS
    with pytest.raises(RemoteProtocolError, match="unknown command type"):
        decode(code, b"")


INT32_MAX = 2**31 - 1


@pytest.mark.parametrize("length", [-1, -(2**31), INT32_MAX, 1])
@pytest.mark.parametrize(
    ("code", "head"),
    [
        (SegmentRead.code, b"\0\0" + bytes(10)),
        (AppendBlockEnd.code, bytes(20)),
        (ConditionalAppend.code, bytes(36)),
        (TableEntriesUpdated.code, bytes(8)),
        (StorageChunksListed.code, bytes(8)),
        (MergeSegmentsBatch.code, bytes(10)),
        (SegmentsBatchMerged.code, bytes(10)),
        (MergeSegments.code, bytes(14)),
        (TableRead.code, bytes(10)),
        (TableRead.code, bytes(10) + struct.pack(">ii", 1, INT32_MAX)),
        (TableRead.code, bytes(10) + struct.pack(">iiiqi", 1, 12, 0, 0, INT32_MAX)[:-8]),
        (ReadTable.code, bytes(12) + struct.pack(">ii", 1, INT32_MAX)),
    ],
)
def test_a_length_or_count_beyond_the_frame_is_refused(code: int, head: bytes, length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(code, head + struct.pack(">i", length))


def test_an_empty_table_key_travels_without_its_version() -> None:
    request = ReadTable(1, "s", "", (TableKey(b"", 7), TableKey(b"k", 7)))
    keys = struct.pack(">i", 2) + struct.pack(">ii", 12, 0) + struct.pack(">ii", 13, 1) + b"k"
    payload = payload_of(request)
    assert payload.endswith(keys + struct.pack(">q", 7))
    read_back = decode(ReadTable.code, payload)
    assert read_back == ReadTable(1, "s", "", (TableKey(b"", NO_VERSION), TableKey(b"k", 7)))


def test_a_table_value_carries_its_length_twice() -> None:
    reply = TableRead(
        1, "s", (TableEntry(TableKey(b"k", 3), b"vv"), TableEntry(TableKey(b""), b""))
    )
    value = struct.pack(">ii", 6, 2) + b"vv"
    assert value in payload_of(reply)
    assert payload_of(reply).endswith(struct.pack(">iiii", 12, 0, 4, 0))


def test_the_prefix_filter_goes_out_empty_and_is_read() -> None:
    args = TableIteratorArgs(b"token", b"prefix", b"from", b"to")
    request = ReadTableKeys(1, "s", "", 10, args)
    read_back = decode(ReadTableKeys.code, payload_of(request))
    assert read_back == ReadTableKeys(
        1, "s", "", 10, TableIteratorArgs(b"token", b"", b"from", b"to")
    )
    head = payload_of(ReadTableKeys(1, "s", "", 10))[:-16]
    parts = b"".join(struct.pack(">i", len(part)) + part for part in (b"token", b"prefix"))
    assert decode(ReadTableKeys.code, head + parts) == ReadTableKeys(
        1, "s", "", 10, TableIteratorArgs(b"token", b"prefix")
    )


def test_an_embedded_event_must_be_an_event() -> None:
    payload = bytearray(payload_of(ConditionalAppend(WRITER, 1, 2, b"data", 3)))
    assert payload[32:44] == struct.pack(">ii", 0, 4) + b"data"
    payload[35] = 1
    with pytest.raises(RemoteProtocolError):
        decode(ConditionalAppend.code, payload)


@pytest.mark.parametrize(
    "command",
    [
        GetStreamSegmentInfo(2**63, "s", ""),
        GetStreamSegmentInfo(1, None, ""),  # type: ignore[arg-type]
        GetStreamSegmentInfo("1", "s", ""),  # type: ignore[arg-type]
        GetStreamSegmentInfo(1, "x" * 65536, ""),
        DataAppended(b"short", 1),
        DataAppended(bytes(17), 1),
        MergeSegments(1, "t", "s", "", (AttributeUpdate(bytes(15), 1, 2, 3),)),
        MergeSegments(1, "t", "s", "", (AttributeUpdate(bytes(16), 128, 2, 3),)),
        TableEntriesUpdated(1, (2**63,)),
        TableEntriesUpdated(1, None),  # type: ignore[arg-type]
        AppendBlock(WRITER, bytes(COMMAND_BYTES_MAX - HEADER_BYTES - 15)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_the_format_cannot_carry_is_our_own_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        encode(command)


def test_the_longest_frame_can_be_sent() -> None:
    data = bytes(COMMAND_BYTES_MAX - HEADER_BYTES - 16)
    assert len(encode(AppendBlock(WRITER, data))) == COMMAND_BYTES_MAX


def test_any_nonzero_byte_is_true() -> None:
    payload = bytes(8) + b"\0\0" + b"\0\0" + b"\x02" + bytes(12)
    assert decode(CreateTableSegment.code, payload) == CreateTableSegment(0, "", "", True)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
@example(16, 5)
def test_hello_is_two_int32(high: int, low: int) -> None:
    assert encode(Hello(high, low)) == struct.pack(">iiii", -127, 8, high, low)


def test_keep_alive_is_a_bare_header() -> None:
    assert encode(KeepAlive()) == struct.pack(">ii", 100, 0)
