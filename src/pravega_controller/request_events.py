"""Reads the internal stream in which segment stores request scaling.

Owns: the stream ``_system/_requeststream``, the position up to which it was read, and the dispatch
of its events.

The stream's own head is the position up to which everything was handled: it is durable, and what
lies before it is deleted. Handling an event a second time has no effect, so a controller that dies
between the two, or works beside another one, costs only the repeated work.

Invariants:
1. The head moves behind an event only after the event was handled or could not be decoded.
2. A sealed segment is left for its successors once all predecessors of these were read.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import structlog

from pravega_controller.autoscaling import AutoScaling
from pravega_controller.background import RETRIED_ERRORS
from pravega_controller.errors import InvalidStreamCutError
from pravega_controller.segment_client import SegmentClient, for_each
from pravega_controller.store import MetadataStore, Stream
from pravega_controller.stream_cuts import cut_at
from pravega_controller.stream_operations import StreamOperations
from pravega_controller.streams import fixed_configuration
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
    """See the module."""

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

    async def open(self) -> None:
        """Make the stream and the table that handling needs; fine if they exist."""
        await self._scaling.open()
        configuration = fixed_configuration(SEGMENT_COUNT)
        await self._streams.create(names.INTERNAL_SCOPE, REQUEST_STREAM, configuration)
        self._is_open = True

    async def poll(self) -> None:
        """Handle all events since the last time."""
        if not self._is_open:
            await self.open()
        stream = await self._store.stream(names.INTERNAL_SCOPE, REQUEST_STREAM)
        head = stream.head or cut_at((await stream.history.epoch(0)).created)
        cut = dict(head)
        finished: set[int] = set()
        events: list[AutoScaleEvent] = []
        for segment_id, offset in head.items():
            end, is_finished = await self._read(stream.segment_name(segment_id), offset, events)
            cut[segment_id] = end
            if is_finished:
                finished.add(segment_id)
        await self._handle_all(events)
        cut = await advance_cut(stream, cut, finished)
        if cut != head:
            try:
                await self._streams.truncate(names.INTERNAL_SCOPE, REQUEST_STREAM, cut)
            except InvalidStreamCutError:
                log.debug("another controller has read further", cut=cut)

    async def _handle_all(self, events: Sequence[AutoScaleEvent]) -> None:
        """Handle events: those of one stream in order, several streams at a time."""
        ordered = sorted(events, key=_stream_of)
        by_stream = [list(group) for _, group in itertools.groupby(ordered, key=_stream_of)]

        async def handle(share: Sequence[AutoScaleEvent]) -> None:
            for event in share:
                try:
                    await self._scaling.handle(event)
                except RETRIED_ERRORS:
                    raise
                # One stream's damage must not delay the others.
                except Exception:
                    log.exception("request for scaling failed", request=event)

        await for_each(by_stream, handle, limit=STREAMS_AT_A_TIME)

    async def _read(
        self, segment: str, offset: int, events: list[AutoScaleEvent]
    ) -> tuple[int, bool]:
        """Add the events behind an offset; return their end, and whether the segment ends."""
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
    """Add the events that data begin with; return how many bytes need not be read again."""
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
        # There is no way to tell where the next event begins.
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
    """Return the segments that were replaced together with one, and their successors."""
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
