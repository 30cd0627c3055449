"""Answers requests about segments.

Owns: the calls of the container for each kind of request, and the replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pravega_metrics.readings import encode_readings
from pravega_security.resources import Level
from pravega_wire import commands as wire
from pravega_wire.names import transient_segment_name
from segstore.api import SegmentContainer, SegmentInfo, Waiter
from segstore.errors import (
    BadAttributeUpdateError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentTruncatedError,
    UnsupportedRequestError,
)
from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    ATTRIBUTE_SEGMENT_TYPE,
    CREATION_TIME,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from segstore.network.handler_table import HandlerTable, RequestContext, check_name
from segstore.network.replies import operation_name

SEGMENT_HANDLERS: Final = HandlerTable()
handles = SEGMENT_HANDLERS.handles

REASONS_MAX: Final = 16
REASON_CHARACTERS_MAX: Final = 1_000

_UNMODIFIABLE: Final = frozenset(
    (
        ATTRIBUTE_ID_LENGTH,
        ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
        ATTRIBUTE_SEGMENT_ROOT_POINTER,
        ATTRIBUTE_SEGMENT_TYPE,
    )
)


# ---- Life of a segment ---------------------------------------------------------------------------


@handles(wire.CreateSegment, level=Level.READ_UPDATE, exclusive=True)
async def create_segment(context: RequestContext, request: wire.CreateSegment) -> wire.Reply:
    check_name(request.segment)
    attributes = {
        SCALE_POLICY_TYPE: request.scale_type,
        SCALE_POLICY_RATE: request.target_rate,
        ROLLOVER_SIZE: max(0, request.rollover_size_bytes),
        CREATION_TIME: context.store.now_ms(),
    }
    container = context.container_for(request.segment)
    await container.create_segment(request.segment, attributes=attributes)
    return wire.SegmentCreated(request.request_id, request.segment)


@handles(
    wire.CreateTransientSegment,
    level=Level.READ_UPDATE,
    segments=lambda request: (request.parent_segment,),
    exclusive=False,
)
async def create_transient_segment(
    context: RequestContext, request: wire.CreateTransientSegment
) -> wire.Reply:
    check_name(request.parent_segment)
    random = context.store.random_bytes(16)
    name = transient_segment_name(request.parent_segment, request.writer_id, random)
    attributes = {
        CREATION_TIME: context.store.now_ms(),
        ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.TRANSIENT),
        # A transient segment counts as one event when it is merged, whatever the number of its
        # pieces.
        EVENT_COUNT: 1,
    }
    container = context.container_for(name)
    # Record the name before the segment exists: if the connection ends meanwhile, the segment must
    # be deleted.
    context.transient_segments.add(name)
    await container.create_segment(name, attributes=attributes)
    return wire.SegmentCreated(request.request_id, name)


@handles(wire.SealSegment, level=Level.READ_UPDATE, exclusive=True)
async def seal_segment(context: RequestContext, request: wire.SealSegment) -> wire.Reply:
    await context.container_for(request.segment).seal_segment(request.segment)
    return wire.SegmentSealed(request.request_id, request.segment)


@handles(wire.DeleteSegment, level=Level.READ_UPDATE, exclusive=True)
async def delete_segment(context: RequestContext, request: wire.DeleteSegment) -> wire.Reply:
    hosted = context.store.registry.find(request.segment)
    await hosted.container.delete_segment(request.segment)
    hosted.tables.forget(request.segment)
    return wire.SegmentDeleted(request.request_id, request.segment)


@handles(
    wire.TruncateSegment,
    level=Level.READ_UPDATE,
    exclusive=True,
    offset=lambda request: int(request.truncation_offset),
)
async def truncate_segment(context: RequestContext, request: wire.TruncateSegment) -> wire.Reply:
    container = context.container_for(request.segment)
    await _plain_segment(container, request.segment)
    await container.truncate_segment(request.segment, offset=request.truncation_offset)
    return wire.SegmentTruncated(request.request_id, request.segment)


@handles(wire.SetupAppend, level=Level.READ_UPDATE)
async def set_up_append(context: RequestContext, request: wire.SetupAppend) -> wire.Reply:
    assert context.set_up_append is not None
    return await context.set_up_append(request)


# ---- Merges --------------------------------------------------------------------------------------


@handles(
    wire.MergeSegments,
    level=Level.READ_UPDATE,
    exclusive=True,
    segments=lambda request: (request.source, request.target),
)
async def merge_segments(context: RequestContext, request: wire.MergeSegments) -> wire.Reply:
    container = _common_container(context, request.target, (request.source,))
    updates = [_attribute_update(request.source, update) for update in request.attribute_updates]
    try:
        length = await _merge(context, container, request.target, request.source, updates)
    except BadAttributeUpdateError:
        return wire.SegmentAttributeUpdated(request.request_id, False)
    except NoSuchSegmentError:
        if context.store.merges.get(request.source) != request.target:
            raise
        length = (await _info(container, request.target)).length
    return wire.SegmentsMerged(request.request_id, request.target, request.source, length)


@handles(
    wire.MergeSegmentsBatch,
    level=Level.READ_UPDATE,
    exclusive=True,
    segments=lambda request: (request.target, *request.sources),
)
async def merge_segments_batch(
    context: RequestContext, request: wire.MergeSegmentsBatch
) -> wire.Reply:
    container = _common_container(context, request.target, request.sources)
    await _plain_segment(container, request.target)
    source_lengths: dict[str, int] = {}
    for source in request.sources:
        # A missing source was merged by an earlier attempt, or nothing was written to it.
        with suppress(NoSuchSegmentError):
            source_lengths[source] = await _mergeable_source(container, source, request.target)
    waiters: list[Waiter] = []
    # All merges are queued in one step, so they reach tier 1 together and in order. What could fail
    # for one source alone was refused above, so no source is merged after one that failed.
    for source in request.sources:
        waiters.append(waiter := Waiter())
        container.merge_nowait(request.target, source, on_complete=waiter.complete)
    merged: list[int | None] = []
    for source, waiter in zip(request.sources, waiters, strict=True):
        try:
            merged.append(await waiter.wait())
        except NoSuchSegmentError as error:
            if error.segment != source:
                raise
            merged.append(None)
        else:
            context.store.remember_merge(source, request.target)
            context.transient_segments.discard(source)
    length = (await _info(container, request.target)).length if None in merged else 0
    return _batch_merged(request, merged, source_lengths, length)


def _batch_merged(
    request: wire.MergeSegmentsBatch,
    merged: Sequence[int | None],
    source_lengths: Mapping[str, int],
    length: int,
) -> wire.Reply:
    """Return the reply to a merge of several sources. For a missing source, it has the length that
    the target had at that place in the order.

    ``length`` is the present length of the target.
    """
    for source, after in zip(request.sources, merged, strict=True):
        if after is not None:
            length = after - source_lengths.get(source, 0)
            break
    results = []
    for source, after in zip(request.sources, merged, strict=True):
        length = length if after is None else after
        results.append(wire.MergedSource(source, length))
    return wire.SegmentsBatchMerged(request.request_id, request.target, tuple(results))


async def _plain_segment(container: SegmentContainer, name: str) -> SegmentInfo:
    """Return the state of a segment. Raises ``InvalidRequestError`` for a table segment: if its
    bytes were truncated or merged with others, the table could not be opened any more."""
    info = await _info(container, name)
    if info.segment_type & SegmentType.TABLE:
        raise InvalidRequestError(name, f"{name} is a table segment")
    return info


async def _mergeable_source(container: SegmentContainer, name: str, target: str) -> int:
    """Return the length of a segment that can be merged into ``target``."""
    info = await _plain_segment(container, name)
    if name == target:
        raise InvalidRequestError(name, f"{name} merged into itself")
    if info.start_offset:
        raise SegmentTruncatedError(name, start_offset=info.start_offset)
    return info.length


async def _merge(
    context: RequestContext,
    container: SegmentContainer,
    target: str,
    source: str,
    updates: list[AttributeUpdate],
) -> int:
    for name in (source, target):
        await _plain_segment(container, name)
    length = await container.merge_segment(target, source, attribute_updates=updates)
    context.store.remember_merge(source, target)
    context.transient_segments.discard(source)
    return length


def _common_container(
    context: RequestContext, target: str, sources: tuple[str, ...]
) -> SegmentContainer:
    hosted = context.store.registry.find(target)
    for source in sources:
        if context.store.registry.find(source) is not hosted:
            raise InvalidRequestError(source, f"{source} and {target} are not of one container")
    return hosted.container


async def _info(container: SegmentContainer, name: str) -> SegmentInfo:
    """Return the metadata of a segment. Loads them if they have left memory since the dispatch."""
    await container.activate(name)
    return container.segment_info(name)


def _attribute_update(segment: str, update: wire.AttributeUpdate) -> AttributeUpdate:
    _check_modifiable(segment, update.attribute_id)
    try:
        update_type = AttributeUpdateType(update.update_type)
    except ValueError as error:
        raise InvalidRequestError(segment, f"attribute update: {error}") from error
    return AttributeUpdate(update.attribute_id, update_type, update.value, update.expected)


def _check_modifiable(segment: str, attribute_id: bytes) -> None:
    if attribute_id in _UNMODIFIABLE:
        raise InvalidRequestError(segment, f"attribute {attribute_id.hex()} cannot be modified")


# ---- Attributes and information ------------------------------------------------------------------


@handles(wire.GetSegmentAttribute, level=Level.READ)
async def get_segment_attribute(
    context: RequestContext, request: wire.GetSegmentAttribute
) -> wire.Reply:
    container = context.container_for(request.segment)
    values = await container.get_attributes(request.segment, [request.attribute_id])
    value = values.get(request.attribute_id, NULL_ATTRIBUTE_VALUE)
    return wire.SegmentAttribute(request.request_id, value)


@handles(wire.UpdateSegmentAttribute, level=Level.READ_UPDATE, exclusive=True)
async def update_segment_attribute(
    context: RequestContext, request: wire.UpdateSegmentAttribute
) -> wire.Reply:
    _check_modifiable(request.segment, request.attribute_id)
    update = AttributeUpdate(
        request.attribute_id,
        AttributeUpdateType.REPLACE_IF_EQUALS,
        request.new_value,
        request.expected_value,
    )
    try:
        await context.container_for(request.segment).update_attributes(request.segment, [update])
    except BadAttributeUpdateError:
        return wire.SegmentAttributeUpdated(request.request_id, False)
    return wire.SegmentAttributeUpdated(request.request_id, True)


@handles(wire.UpdateSegmentPolicy, level=Level.READ_UPDATE, exclusive=True)
async def update_segment_policy(
    context: RequestContext, request: wire.UpdateSegmentPolicy
) -> wire.Reply:
    replace = AttributeUpdateType.REPLACE
    updates = [
        AttributeUpdate(SCALE_POLICY_TYPE, replace, request.scale_type),
        AttributeUpdate(SCALE_POLICY_RATE, replace, request.target_rate),
    ]
    await context.container_for(request.segment).update_attributes(request.segment, updates)
    return wire.SegmentPolicyUpdated(request.request_id, request.segment)


@handles(wire.GetStreamSegmentInfo, level=Level.READ, activates=False)
async def get_stream_segment_info(
    context: RequestContext, request: wire.GetStreamSegmentInfo
) -> wire.Reply:
    info = await context.container_for(request.segment).find_info(request.segment)
    return wire.StreamSegmentInfo(
        request_id=request.request_id,
        segment=request.segment,
        exists=True,
        is_sealed=info.sealed,
        is_deleted=False,
        last_modified=info.last_modified_ms,
        write_offset=info.length,
        start_offset=info.start_offset,
    )


@handles(wire.AskDelays, level=Level.NONE, segments=lambda request: ("",))
async def ask_delays(context: RequestContext, request: wire.AskDelays) -> wire.Reply:
    reasons = context.store.registry.delay_reasons()
    return wire.DelaysTold(
        request.request_id,
        tuple(reason[:REASON_CHARACTERS_MAX] for reason in reasons[:REASONS_MAX]),
    )


@handles(wire.AskMetrics, level=Level.READ, segments=lambda request: ("",))
async def ask_metrics(context: RequestContext, request: wire.AskMetrics) -> wire.Reply:
    families = await context.store.read_metrics()
    return wire.MetricsTold(request.request_id, encode_readings(families))


# ---- Requests that are not served ----------------------------------------------------------------


@handles(wire.LocateOffset, level=Level.READ)
@handles(wire.ListStorageChunks, level=Level.READ)
@handles(wire.FlushToStorage, level=Level.READ_UPDATE, segments=lambda request: ("",))
async def refuse_unsupported(context: RequestContext, request: Any) -> wire.Reply:
    raise UnsupportedRequestError("", f"{operation_name(request)} is not served here")
