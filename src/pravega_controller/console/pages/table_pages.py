"""The page of a key-value table: how it was made, and its partitions with their entries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.errors import NotFoundError
from pravega_controller.store_client.segment_client import NO_TOKEN
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire import names

TABLE: Final = "/tables/{scope}/{table}"
PARTITIONS_MAX: Final = 200
"""Maximum number of partitions on the page."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition: its keys' hashes, from 0 to 1, and what it has; None if that is not known."""

    number: int
    low: float
    high: float
    entries: int | None
    kept: int | None


def table_info(request: PageRequest) -> pb.KeyValueTableInfo:
    """Return the key-value table that a page is about."""
    return pb.KeyValueTableInfo(scope=request.path["scope"], kvtName=request.path["table"])


async def read_configuration(request: PageRequest) -> pb.KeyValueTableConfig:
    """Return how the table was made. Raises ``NotFoundError``, and a refusal without the right."""
    info = table_info(request)
    answer = await request.calls.call("getKeyValueTableConfiguration", info)
    if answer.status != pb.KeyValueTableConfigResponse.SUCCESS:
        raise NotFoundError(f"there is no key-value table {info.scope}/{info.kvtName}")
    found: pb.KeyValueTableConfig = answer.config
    return found


@page("GET", TABLE)
async def show_table(request: PageRequest) -> PageAnswer:
    """Show a key-value table."""
    configuration = await read_configuration(request)
    rows = await _partitions(request, table_info(request))
    known = [row.entries for row in rows if row.entries is not None]
    return HtmlPage(
        "table.html",
        {
            **request.path,
            "configuration": configuration,
            "rows": rows,
            "entries": sum(known) if len(known) == configuration.partitionCount else None,
        },
    )


async def _partitions(request: PageRequest, info: pb.KeyValueTableInfo) -> list[PartitionRow]:
    ranges = await request.calls.call("getCurrentSegmentsKeyValueTable", info)
    shown = ranges.segmentRanges[:PARTITIONS_MAX]
    stream = names.key_value_table_stream(info.kvtName)

    def ask(segment: str, request_id: int) -> wire.Request:
        return wire.GetTableSegmentInfo(request_id, segment, NO_TOKEN)

    segments = [names.segment_name(info.scope, stream, each.segmentId.segmentId) for each in shown]
    replies = await request.calls.controller.segments.request_all(
        [(segment, partial(ask, segment)) for segment in segments]
    )
    rows = []
    for each, reply in zip(shown, replies, strict=True):
        entries = kept = None
        if isinstance(reply, wire.TableSegmentInfo):
            entries, kept = reply.entry_count, reply.length - reply.start_offset
        number = names.segment_number(each.segmentId.segmentId)
        rows.append(PartitionRow(number, each.minKey, each.maxKey, entries, kept))
    return rows
