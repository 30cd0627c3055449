"""The page of a key-value table's entries: those of one partition, in the order of their keys, from
a key on.

Invariants:
1. When somebody may not read a table, neither keys nor values of it are shown. Held by
   ``test_a_guest_of_one_scope_sees_nothing_else_and_changes_nothing``.
2. When entries are read page by page, each is shown once. Held by
   ``test_pages_show_each_entry_once``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from pravega_controller.console.events.avro_records import SCHEMA_LENGTH_MAX
from pravega_controller.console.events.decoders import FORMS, Shown, View, decode, read_view
from pravega_controller.console.events.event_walks import SHOWN_BYTES_MAX
from pravega_controller.console.pages.table_pages import TABLE, read_configuration, table_info
from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.errors import InvalidRequestError, NotFoundError
from pravega_controller.store_client.segment_client import NO_TOKEN, expect_one
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.hashing import table_key_hash
from pravega_wire.key_text import decode_key_text, encode_key_text, key_after

ENTRIES_SHOWN: Final = 50
"""Maximum number of entries on a page."""
READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Number of bytes of keys and values after which a page ends."""
PADDING: Final = b"\0"


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry as it is shown: its keys as the command line writes them."""

    primary: str
    secondary: str
    version: int
    length: int
    is_whole: bool
    shown: Shown


@dataclass(frozen=True, slots=True)
class _Place:
    """A place among the entries: a partition, its number among them, and a key."""

    partition: pb.SegmentRange
    index: int
    key: bytes


@page("GET", f"{TABLE}/entries")
async def show_entries(request: PageRequest) -> PageAnswer:
    """Show entries of a key-value table."""
    configuration = await read_configuration(request)
    ranges = await request.calls.call("getCurrentSegmentsKeyValueTable", table_info(request))
    place = _find_place(request, configuration, list(ranges.segmentRanges))
    entries, later = await _read(request, configuration, place)
    view = read_view(request.query)
    rows = await trio.to_thread.run_sync(_rows, entries, configuration.primaryKeyLength, view)
    return HtmlPage(
        "entries.html",
        {
            **request.path,
            "configuration": configuration,
            "partition": place.index,
            "key": request.query.get("key", ""),
            "forms": FORMS,
            "schema_length_max": SCHEMA_LENGTH_MAX,
            "view": view,
            "rows": rows,
            "later": later.hex(),
        },
    )


def _find_place(
    request: PageRequest, configuration: pb.KeyValueTableConfig, ranges: list[pb.SegmentRange]
) -> _Place:
    """Return the place that is asked for. Raises ``InvalidRequestError``."""
    key_bytes = configuration.primaryKeyLength + configuration.secondaryKeyLength
    text = request.query.get("key", "")
    if text:
        primary = _primary_key(text, configuration.primaryKeyLength)
        position = table_key_hash(primary)
        index = next(at for at, each in enumerate(ranges) if position < each.maxKey)
        return _Place(ranges[index], index, primary.ljust(key_bytes, PADDING))
    number = request.query.get("partition", "") or "0"
    if not (number.isascii() and number.isdecimal() and int(number[:9]) < len(ranges)):
        raise InvalidRequestError(f"partition has to be a number from 0 to {len(ranges) - 1}")
    try:
        key = bytes.fromhex(request.query.get("from", ""))
    except ValueError:
        raise InvalidRequestError("from has to be a key in hexadecimal") from None
    if len(key) > key_bytes:
        raise InvalidRequestError(f"keys of this table have {key_bytes} bytes")
    index = int(number)
    return _Place(ranges[index], index, key.ljust(key_bytes, PADDING))


def _primary_key(text: str, length: int) -> bytes:
    try:
        key = decode_key_text(text)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
    if len(key) > length:
        raise InvalidRequestError(f"primary keys have {length} bytes, and this one has {len(key)}")
    return key.ljust(length, PADDING)


async def _read(
    request: PageRequest, configuration: pb.KeyValueTableConfig, place: _Place
) -> tuple[list[wire.TableEntry], bytes]:
    """Return the entries of a page, and the key from which the next one begins; nothing if they are
    the last ones of the partition."""
    key_bytes = len(place.key)
    last = b"\xff" * key_bytes
    stream = names.key_value_table_stream(request.path["table"])
    segment_id = place.partition.segmentId.segmentId
    segment = names.segment_name(request.path["scope"], stream, segment_id)
    found: list[wire.TableEntry] = []
    begin, length = place.key, 0
    while begin and len(found) < ENTRIES_SHOWN and length < READ_BYTES_MAX:
        ask = partial(
            wire.ReadTableEntries,
            segment=segment,
            delegation_token=NO_TOKEN,
            suggested_entry_count=ENTRIES_SHOWN - len(found),
            args=wire.TableIteratorArgs(from_key=begin, to_key=last),
        )
        reply = await request.calls.controller.segments.request(segment, ask)
        if isinstance(reply, wire.NoSuchSegment):
            raise NotFoundError(f"there is no key-value table {configuration.kvtName} any more")
        entries = expect_one(reply, wire.TableEntriesRead).entries
        found += entries
        length += sum(len(each.key.key) + len(each.value) for each in entries)
        begin = key_after(bytes(entries[-1].key.key)) if entries else b""
    return found, begin


def _rows(entries: list[wire.TableEntry], primary_length: int, view: View) -> list[EntryRow]:
    return [_row(each, primary_length, view) for each in entries]


def _row(entry: wire.TableEntry, primary_length: int, view: View) -> EntryRow:
    key, value = bytes(entry.key.key), bytes(entry.value)
    is_whole = len(value) <= SHOWN_BYTES_MAX
    return EntryRow(
        _key_text(key[:primary_length]),
        _key_text(key[primary_length:]),
        entry.key.version,
        len(value),
        is_whole,
        decode(value[:SHOWN_BYTES_MAX], view, is_whole=is_whole),
    )


def _key_text(key: bytes) -> str:
    return encode_key_text(key.rstrip(PADDING))
