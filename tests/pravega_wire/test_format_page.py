"""docs/formats/wire-protocol.md lists the commands as the command table declares them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from pravega_wire.codec import encode, slots_of
from pravega_wire.commands import (
    COMMANDS,
    AttributeUpdate,
    ChunkInfo,
    Command,
    MergedSource,
    PlannedChunk,
    PlannedObject,
    Reply,
    Request,
    SetupAppend,
)
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.fields import Fixed, Framed, Prefixed, Rest

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "wire-protocol.md"

_FIXED = {"b": "int8", "i": "int32", "q": "int64", "?": "bool", "16s": "uuid"}


def type_name(kind: Any) -> str:
    match kind:
        case Fixed(format):
            return _FIXED[format]
        case Prefixed(_, text):
            return "text" if text else "bytes"
        case Rest():
            return "rest"
        case Framed():
            return "Event"
        case [item]:
            return f"{type_name(item)}[]"
    return str(kind.__name__)


def fields_of(cls: type[msgspec.Struct]) -> str:
    described = []
    defaults = {field.name: field.default for field in msgspec.structs.fields(cls)}
    for slot in slots_of(cls):
        default = ""
        if slot.optional and not isinstance(slot.kind, type):
            value = defaults[slot.name]
            default = f" = {'false' if value is False else '[]' if value == () else value}"
            default = ' = ""' if value == "" else default
        described.append(f"{slot.name}: {type_name(slot.kind)}{default}")
    return ", ".join(described)


def direction_of(cls: type[Command]) -> str:
    marks = "Q" * issubclass(cls, Request) + "R" * issubclass(cls, Reply)
    return marks or "-"


def table_of_commands() -> list[str]:
    return [
        f"| {code} | {cls.__name__} | {direction_of(cls)} | {fields_of(cls)} |"
        for code, cls in sorted(COMMANDS.items())
    ]


def test_the_page_lists_every_command_as_it_is_declared() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    commands = [row for row in rows if row.split("|")[1].strip().lstrip("-").isdecimal()]
    assert commands == table_of_commands()


def test_the_page_describes_the_plain_parts_as_they_are_declared() -> None:
    page = PAGE.read_text()
    for part in (AttributeUpdate, ChunkInfo, MergedSource, PlannedChunk, PlannedObject):
        assert f"| `{part.__name__}` | {fields_of(part)} |" in page


def test_the_pages_example_is_what_it_says() -> None:
    [example] = re.findall(r"```\n(0000.*?)```", PAGE.read_text(), re.DOTALL)
    digits = [re.match(r" *((?:[0-9a-f]+ ?)+)(?: |$)", line) for line in example.splitlines()]
    stream = b"".join(bytes.fromhex(match[1]) for match in digits if match)
    connection = Connection(Role.SERVER)
    writer_id = bytes(15) + b"\1"
    connection.receive_data(encode(SetupAppend(7, writer_id, "segment", "")))
    event = bytes.fromhex("00000000 00000002") + b"hi"
    assert connection.receive_data(stream) == [Append("segment", writer_id, event, 1, 1, 7, None)]
