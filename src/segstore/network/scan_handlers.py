"""Answers requests of readers that read tier 2 themselves.

Owns: the conversion of scan plans and of leases on chunks to replies. docs/adr/0280 has the reasons
for such reads.
"""

from __future__ import annotations

from typing import Final

from pravega_security.resources import Level
from pravega_wire import commands as wire
from segstore.chunks.scan_plan import PLANNED_SUMS_BYTES_MAX, PlannedChunk
from segstore.errors import InvalidRequestError, UnsupportedRequestError
from segstore.network.handler_table import HandlerTable, RequestContext
from segstore.network.replies import operation_name
from segstore.ownership.leases import LEASE_SECONDS_MAX

SCAN_HANDLERS: Final = HandlerTable()
handles = SCAN_HANDLERS.handles

PLAN_BYTES_MAX: Final = 4 * PLANNED_SUMS_BYTES_MAX
"""Maximum length, in bytes, of a plan with the names and places of chunks. A chunk in S3 may have
many places."""


@handles(
    wire.PlanScan,
    level=Level.READ,
    offset=lambda request: int(request.start_offset),
    reply_bytes_max=lambda _: PLAN_BYTES_MAX,
)
async def plan_scan(context: RequestContext, request: wire.PlanScan) -> wire.Reply:
    if not 0 <= request.start_offset <= request.end_offset:
        raise InvalidRequestError(
            request.segment,
            f"no scan goes from {request.start_offset} to {request.end_offset}",
        )
    seconds = _lease_seconds(request.lease_ms)
    plan = await context.container_for(request.segment).plan_scan(
        request.segment,
        start=request.start_offset,
        end=request.end_offset,
        lease_id=request.lease_id,
        lease_seconds=seconds,
    )
    if plan is None:
        raise UnsupportedRequestError(request.segment, f"{operation_name(request)} is not served")
    address = plan.address
    return wire.ScanPlanned(
        request.request_id,
        request.segment,
        plan.planned_end,
        plan.stored_end,
        int(seconds * 1000),
        address.store_id,
        address.location,
        address.endpoint,
        address.region,
        tuple(map(_planned_chunk, plan.chunks)),
    )


@handles(wire.HoldChunks, level=Level.READ)
async def hold_chunks(context: RequestContext, request: wire.HoldChunks) -> wire.Reply:
    seconds = _lease_seconds(request.lease_ms)
    is_held = await context.container_for(request.segment).hold_chunks(
        request.segment,
        lease_id=request.lease_id,
        chunks=request.chunk_names,
        lease_seconds=seconds,
    )
    return wire.ChunksHeld(
        request.request_id, request.segment, int(seconds * 1000) if is_held else 0
    )


def _lease_seconds(asked_ms: int) -> float:
    return min(max(0, asked_ms) / 1000, LEASE_SECONDS_MAX)


def _planned_chunk(planned: PlannedChunk) -> wire.PlannedChunk:
    chunk = planned.chunk
    return wire.PlannedChunk(
        chunk.start,
        chunk.length,
        chunk.name,
        chunk.checksums.phase,
        chunk.checksums.length,
        chunk.checksums.sums,
        tuple(
            wire.PlannedObject(each.start, each.length, each.path, each.offset)
            for each in planned.ranges
        ),
    )
