"""Reads the internal stream in which segment stores request scaling.

Owns: the stream ``_system/_requeststream``, the position up to which it was read, and the dispatch
of its events.

The position is the stream's own head: after events were handled, the stream is truncated at the end
of the last one. A controller that dies before the truncation has handled events that another one
handles again. This is harmless, because an event has an effect only once.

Invariants:
1. When a controller dies while it handles an event, the next one handles the event, once.
   Held by ``test_a_request_survives_the_controller_that_handles_it``.
2. When events were handled, they are deleted, and never read again.
   Held by ``test_what_was_handled_is_gone_and_never_read_again``.
3. When the stream of events is scaled itself, all of its events are still read.
   Held by ``test_the_stream_of_requests_is_read_across_its_own_scaling``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import structlog
import trio

from pravega_controller.background.background import RETRIED_ERRORS
from pravega_controller.errors import InvalidStreamCutError
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.stream_cuts import cut_at
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.scaling.autoscaling import AutoScaling
from pravega_controller.store_client.segment_client import SegmentClient, for_each
from pravega_controller.streams.operations import StreamOperations
from pravega_wire import names
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.scale_events import REQUEST_STREAM, AutoScaleEvent, decode_auto_scale

SEGMENT_COUNT = 2
READ_BYTES = 1024 * 1024
"""Maximum length of one read, in bytes; no event that can be decoded here is longer."""
STREAMS_AT_A_TIME = 8

log = structlog.get_logger(__name__)


class RequestEvents:
    """Reads the stream of events. One task must call ``poll`` again and again."""

    def __init__(
        self,
        store: MetadataStore,
        streams: StreamOperations,
        segments: SegmentClient,
        scaling: AutoScaling,
    ) -> None:
        self._store = store
        self._streams = streams
        self._segments = segments
        self._scaling = scaling
        self._is_open = False
        self._read_at = -math.inf
        """Time, by trio's clock, at which all stored events had been read."""

    async def open(self) -> None:
        """Create the stream, and the table that the handling needs, unless they exist."""
        await self._scaling.open()
        configuration = fixed_configuration(SEGMENT_COUNT)
        await self._streams.create(names.INTERNAL_SCOPE, REQUEST_STREAM, configuration)
        self._is_open = True

    async def poll(self) -> None:
        """Handle all events that were stored since the last call."""
        if not self._is_open:
            await self.open()
        began = trio.current_time()
        stream = await self._store.streams.read(names.INTERNAL_SCOPE, REQUEST_STREAM)
        head = stream.head or cut_at((await stream.history.epoch(0)).created)
        cut = dict(head)
        finished: set[int] = set()
        events: list[AutoScaleEvent] = []
        for segment_id, offset in head.items():
            end, is_finished = await self._read(stream.segment_name(segment_id), offset, events)
            cut[segment_id] = end
            if is_finished:
                finished.add(segment_id)
        await self._handle_all(events, age_seconds_max=trio.current_time() - self._read_at)
        self._read_at = began
        cut = await advance_cut(stream, cut, finished)
        if cut != head:
            try:
                await self._streams.truncate(names.INTERNAL_SCOPE, REQUEST_STREAM, cut)
            except InvalidStreamCutError:
                log.debug("another controller has read further", cut=cut)

    async def _handle_all(
        self, events: Sequence[AutoScaleEvent], *, age_seconds_max: float
    ) -> None:
        """Handle events: in order for each stream, and for several streams at the same time."""
        ordered = sorted(events, key=_stream_of)
        by_stream = [list(group) for _, group in itertools.groupby(ordered, key=_stream_of)]

        async def handle(share: Sequence[AutoScaleEvent]) -> None:
            for event in share:
                try:
                    await self._scaling.handle(event, age_seconds_max=age_seconds_max)
                except RETRIED_ERRORS:
                    raise
                # An error about one stream must not delay the events of the others.
                except Exception:
                    log.exception("request for scaling failed", request=event)

        await for_each(by_stream, handle, limit=STREAMS_AT_A_TIME)

    async def _read(
        self, segment: str, offset: int, events: list[AutoScaleEvent]
    ) -> tuple[int, bool]:
        """Add the events from an offset on to ``events``.

        Returns the offset after them, and whether the segment is sealed and read to its end.
        """
        info = await self._segments.segment_info(segment)
        if info is None:
            return offset, True
        offset = max(offset, info.start_offset)
        while offset < info.length:
            length = min(info.length - offset, READ_BYTES)
            data = await self._segments.read_segment(segment, offset=offset, length=length)
            taken = _decode(data, events, f"{segment} at {offset}")
            if not taken and offset + len(data) < info.length:
                taken = len(data)
                log.error("bytes without events skipped", segment=segment, at=offset, bytes=taken)
            if not taken:
                break
            offset += taken
        return offset, info.is_sealed and offset >= info.length


def _decode(data: bytes, events: list[AutoScaleEvent], where: str) -> int:
    """Add the complete events of ``data`` to ``events``; return the number of their bytes."""
    position = 0
    try:
        for start, end in iterate_event_spans(data):
            position = end
            try:
                event = decode_auto_scale(data[start:end])
            except RemoteProtocolError as error:
                log.error("event is skipped", segment=where, start=start, reason=str(error))
                continue
            if event is not None:
                events.append(event)
    except RemoteProtocolError as error:
        # The bytes are no event, so the start of the next event is unknown.
        log.error("bytes without events skipped", segment=where, reason=str(error))
        return len(data)
    return position


async def advance_cut(stream: Stream, cut: dict[int, int], finished: set[int]) -> dict[int, int]:
    """Return the cut with the successors of each group of segments that was read to its end.

    A successor enters the cut only when all its predecessors were read to their end.
    """
    cut, finished = dict(cut), set(finished)
    for segment_id in sorted(finished):
        before, after = await _replacement(stream, segment_id)
        if after and before <= finished and before <= cut.keys():
            for each in before:
                del cut[each]
            cut.update(dict.fromkeys(after, 0))
    return cut


async def _replacement(stream: Stream, segment_id: int) -> tuple[set[int], set[int]]:
    """Return the segments that were replaced together with a segment, and their successors."""
    before, after = {segment_id}, set[int]()
    while True:
        following = [each for old in before for each in await stream.history.successors(old)]
        after = {successor.segment.segment_id for successor in following}
        grown = before.union(*(successor.predecessors for successor in following))
        if grown == before:
            return before, after
        before = grown


def _stream_of(event: AutoScaleEvent) -> tuple[str, str]:
    return event.scope, event.stream
