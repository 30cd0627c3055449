"""The numbers of segments that earlier streams of a name have used.

Owns: ``NUMBERS``, and reading it.

    _system/_tables/controller/numbers          scope/stream                -> NumberRecord

A deletion records the number after the stream's last segment, and the next stream of the name
begins with it, also when the scope was deleted, too. So numbers rise from stream to stream, and the
number of a segment tells whether an earlier stream of the name had it: the number is less than the
recorded one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pravega_controller.metadata.records import NumberRecord, decode
from pravega_controller.metadata.scope_records import table_of_controller
from pravega_controller.store_client.table_client import TableClient

NUMBERS = table_of_controller("numbers")


async def read_used_numbers(tables: TableClient, streams: Sequence[str]) -> list[int]:
    """Return, for streams named scope/stream, the first number that no earlier one has used."""
    found = await tables.get_all(NUMBERS, [stream.encode() for stream in streams])
    return [
        0 if entry is None else decode(entry.value, NumberRecord).next_number for entry in found
    ]
