"""docs/formats/wire-protocol.md describes parts of commands as they are declared."""

from __future__ import annotations

import re
from pathlib import Path

from wire_tables import fields_of

from pravega_wire.codec import encode
from pravega_wire.commands import (
    AttributeUpdate,
    ChunkInfo,
    MergedSource,
    PlannedChunk,
    PlannedObject,
    SetupAppend,
)
from pravega_wire.connection import Append, Connection, Role

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "wire-protocol.md"


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
