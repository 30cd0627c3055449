"""Our bytes against those of the official encoders, which compat-tests/golden wrote down."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pravega_wire import commands
from pravega_wire.codec import HEADER_BYTES, decode, encode, slots_of
from pravega_wire.commands import (
    COMMANDS,
    Command,
    Hello,
    KeepAlive,
    SetupAppend,
    TableIteratorArgs,
    TableKey,
)
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.fields import Fixed, Prefixed

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "compat-tests" / "golden" / "frames.json").read_text("ascii")
)
NEWER_THAN_THE_ENCODERS = {"LocateOffset", "OffsetLocated"}
OUR_OWN = {
    *("PlanScan", "ScanPlanned", "HoldChunks", "ChunksHeld"),
    *("AskDelays", "DelaysTold", "AskMetrics", "MetricsTold"),
}
"""Codes that the original does not have: their bytes are in ``test_scan_commands``."""


def value_of(kind: Any, written: Any) -> Any:
    """Return a field's value from the way it is written in the file, by the field's type."""
    match kind, written:
        case _, {"repeat": piece, "times": times}:
            return value_of(kind, piece) * times
        case [item], list(items):
            parts = (
                items if isinstance(item, type) else [next(iter(part.values())) for part in items]
            )
            return tuple(value_of(item, part) for part in parts)
        case type(), dict(fields):
            return kind(*[value_of(slot.kind, fields[slot.name]) for slot in slots_of(kind)])
        case (Fixed("16s"), str(digits)) | (Prefixed(_, text=False), str(digits)):
            return bytes.fromhex(digits)
        case (Fixed() | Prefixed(), _):
            return written
        case _, int(length):  # padding is given by its length
            return bytes(length)
    return bytes.fromhex(written)


def as_sent(value: Any) -> Any:
    """Return what the wire keeps of a value: no version of an empty key, and no prefix filter."""
    match value:
        case TableKey(b"", _):
            return TableKey(b"")
        case TableIteratorArgs(continuation_token, _, from_key, to_key):
            return TableIteratorArgs(continuation_token, b"", from_key, to_key)
        case tuple():
            return tuple(map(as_sent, value))
        case Command() | commands.TableEntry():
            slots = slots_of(type(value))
            return type(value)(*[as_sent(getattr(value, slot.name)) for slot in slots])
    return value


def test_every_command_has_golden_frames() -> None:
    names = {cls.__name__ for cls in COMMANDS.values()} - NEWER_THAN_THE_ENCODERS - OUR_OWN
    assert {case["command"] for case in GOLDEN["commands"]} == names


@pytest.mark.parametrize("case", GOLDEN["commands"], ids=lambda case: case["command"])
def test_our_frames_are_those_of_the_official_encoder(case: dict[str, Any]) -> None:
    cls = getattr(commands, case["command"])
    command = value_of(cls, case["fields"])
    frame = encode(command)
    if "frame" in case:
        assert frame.hex() == case["frame"]
    else:
        assert len(frame) == case["length"]
        assert hashlib.sha256(frame).hexdigest() == case["sha256"]
    assert decode(cls.code, frame[HEADER_BYTES:]) == as_sent(command)


@pytest.mark.parametrize("chunk", [1, 7, 100, 10**6])
@pytest.mark.parametrize("case", GOLDEN["append_streams"], ids=lambda case: case["block_size"])
def test_streams_of_the_official_client_hold_their_events(case: dict[str, Any], chunk: int) -> None:
    stream = bytes.fromhex(case["stream"])
    connection = Connection(Role.SERVER)
    received: list[Command | Append] = []
    for start in range(0, len(stream), chunk):
        received += connection.receive_data(stream[start : start + chunk])
    assert connection.pending_bytes == 0
    others = [command for command in received if not isinstance(command, Append)]
    assert [type(command) for command in others] == [Hello, SetupAppend, SetupAppend] + 4 * [
        KeepAlive
    ]
    for writer, segment in enumerate(["first", "second"]):
        appends = [a for a in received if isinstance(a, Append) and a.segment == segment]
        events = [bytes.fromhex(event) for number, event in case["events"] if number == writer]
        assert b"".join(append.data for append in appends) == b"".join(events)
        assert sum(append.event_count for append in appends) == len(events)
        assert appends[-1].last_event_number == len(events)
        assert {append.request_id for append in appends} == {writer + 1}


def test_the_streams_hold_padding_and_partial_events() -> None:
    """This makes sure that the test above tests its subject."""
    for code in (b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe"):
        assert any(code in bytes.fromhex(case["stream"]) for case in GOLDEN["append_streams"])
