"""Answers requests about table segments.

Owns: the conversion of these requests to calls of ``TableSegments``, and of the results to replies.

Invariants:
1. When a request asks for several keys, the reply has the answers in the order of the keys. Held by
   ``test_a_table_answers_each_key_in_order``.
2. When several updates of one table come on a connection, none waits for the reply to another one:
   the table keeps their order and makes several of them durable with one append. Held by
   ``test_updates_of_a_table_share_appends``.
"""

from __future__ import annotations

from typing import Final

from pravega_security.resources import Level
from pravega_wire import commands as wire
from pravega_wire.commands import COMMAND_BYTES_MAX
from segstore.network.admission.buffer_bytes import COMMAND_BYTES_USUAL
from segstore.network.handler_table import HandlerTable, RequestContext, check_name
from segstore.tables.table_segments import TableSegments

TABLE_HANDLERS: Final = HandlerTable()
handles = TABLE_HANDLERS.handles

ENTRY_BYTES: Final = 64 * 1024
"""Expected length, in bytes, of a key with its value. Few are longer."""
REPLY_ITEMS_MAX: Final = 4096
"""Maximum number of items in a page of an iteration. One step of the event loop makes a page."""
PAGE_BYTES_MAX: Final = COMMAND_BYTES_USUAL
"""Maximum length, in bytes, of a page of an iteration. The last bucket of a page may exceed it."""


def _page_bytes_max(_: wire.Request) -> int:
    return PAGE_BYTES_MAX


def _tables(context: RequestContext, segment: str) -> TableSegments:
    return context.store.registry.tables_for(segment)


@handles(wire.CreateTableSegment, level=Level.READ_UPDATE, exclusive=True)
async def create_table_segment(
    context: RequestContext, request: wire.CreateTableSegment
) -> wire.Reply:
    check_name(request.segment)
    await _tables(context, request.segment).create(
        request.segment,
        key_length=max(0, request.key_length),
        rollover_bytes=request.rollover_size_bytes,
        created_ms=context.store.now_ms(),
    )
    return wire.SegmentCreated(request.request_id, request.segment)


@handles(wire.DeleteTableSegment, level=Level.READ_UPDATE, exclusive=True)
async def delete_table_segment(
    context: RequestContext, request: wire.DeleteTableSegment
) -> wire.Reply:
    tables = _tables(context, request.segment)
    await tables.delete(request.segment, must_be_empty=request.must_be_empty)
    return wire.SegmentDeleted(request.request_id, request.segment)


@handles(wire.GetTableSegmentInfo, level=Level.READ)
async def get_table_segment_info(
    context: RequestContext, request: wire.GetTableSegmentInfo
) -> wire.Reply:
    info = await _tables(context, request.segment).info(request.segment)
    return wire.TableSegmentInfo(
        request_id=request.request_id,
        segment=request.segment,
        start_offset=info.start_offset,
        length=info.length,
        entry_count=info.entry_count,
        key_length=info.key_length,
    )


@handles(
    wire.UpdateTableEntries,
    level=Level.READ_UPDATE,
    offset=lambda request: int(request.table_segment_offset),
)
async def update_table_entries(
    context: RequestContext, request: wire.UpdateTableEntries
) -> wire.Reply:
    versions = await _tables(context, request.segment).update(
        request.segment, request.table_entries, segment_offset=request.table_segment_offset
    )
    return wire.TableEntriesUpdated(request.request_id, tuple(versions))


@handles(
    wire.RemoveTableKeys,
    level=Level.READ_UPDATE,
    offset=lambda request: int(request.table_segment_offset),
)
async def remove_table_keys(context: RequestContext, request: wire.RemoveTableKeys) -> wire.Reply:
    await _tables(context, request.segment).remove(
        request.segment, request.keys, segment_offset=request.table_segment_offset
    )
    return wire.TableKeysRemoved(request.request_id, request.segment)


@handles(
    wire.ReadTable,
    level=Level.READ,
    reply_bytes_max=lambda request: min(COMMAND_BYTES_MAX, len(request.keys) * ENTRY_BYTES),
)
async def read_table(context: RequestContext, request: wire.ReadTable) -> wire.Reply:
    keys = [key.key for key in request.keys]
    entries = await _tables(context, request.segment).read(request.segment, keys)
    return wire.TableRead(request.request_id, request.segment, tuple(entries))


@handles(wire.ReadTableKeys, level=Level.READ, reply_bytes_max=_page_bytes_max)
async def read_table_keys(context: RequestContext, request: wire.ReadTableKeys) -> wire.Reply:
    page = await _tables(context, request.segment).iterate_keys(
        request.segment,
        count_max=min(request.suggested_key_count, REPLY_ITEMS_MAX),
        continuation_token=request.args.continuation_token,
        from_key=request.args.from_key,
        to_key=request.args.to_key,
    )
    return wire.TableKeysRead(
        request.request_id, request.segment, page.keys, page.continuation_token
    )


@handles(wire.ReadTableEntries, level=Level.READ, reply_bytes_max=_page_bytes_max)
async def read_table_entries(context: RequestContext, request: wire.ReadTableEntries) -> wire.Reply:
    page = await _tables(context, request.segment).iterate_entries(
        request.segment,
        count_max=min(request.suggested_entry_count, REPLY_ITEMS_MAX),
        continuation_token=request.args.continuation_token,
        from_key=request.args.from_key,
        to_key=request.args.to_key,
    )
    return wire.TableEntriesRead(
        request.request_id, request.segment, page.entries, page.continuation_token
    )


@handles(wire.ReadTableEntriesDelta, level=Level.READ, reply_bytes_max=_page_bytes_max)
async def read_table_entries_delta(
    context: RequestContext, request: wire.ReadTableEntriesDelta
) -> wire.Reply:
    page = await _tables(context, request.segment).read_delta(
        request.segment,
        from_position=request.from_position,
        count_max=min(request.suggested_entry_count, REPLY_ITEMS_MAX),
    )
    return wire.TableEntriesDeltaRead(
        request_id=request.request_id,
        segment=request.segment,
        entries=page.entries,
        should_clear=page.should_clear,
        reached_end=page.reached_end,
        last_position=page.last_position,
    )
