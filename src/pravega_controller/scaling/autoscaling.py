"""Splits busy segments and merges idle ones, as segment stores ask and scaling policies allow.

Owns: the handling of an ``AutoScaleEvent``, and the marks of segments that were reported idle.

    _system/_tables/controller/idle-segments    scope/stream/<segment id> -> IdleSegmentRecord

An event may come twice, to several controllers, or late. It names its segment by id, and has no
effect once that segment is not active. Its time is that of the segment store's clock, which may
be wrong: it is used only if nothing else tells the event's age. A segment that was reported idle
has a mark for some minutes. A mark that would last longer comes from a clock that was ahead, and
does not count. The mark of a silent segment lasts until the segment is written again, because no
later event reports the segment.

An event that can never be carried out is dropped, and logged. If a segment store is away, or
another controller has changed the stream, an error is raised, and the event must be handled again.

Invariants:
1. When segments merge, the stream keeps the minimum number of segments of its policy.
   Held by ``test_a_stream_keeps_its_minimum``.
2. When an event comes twice, its segment is scaled once.
   Held by ``test_an_event_counts_once_however_often_it_comes``.
3. When an event is malformed, or its stream does not exist, later events are handled.
   Held by ``test_what_cannot_be_understood_is_passed_over``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

import msgspec
import structlog

from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    NotFoundError,
    ScalePreconditionError,
    StreamSealedError,
)
from pravega_controller.metadata.records import Create, IntentRecord, decode, encode
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.scaling import choose_to_merge, count_splits, split_range
from pravega_controller.rules.streams import ScaleType, Segment
from pravega_controller.store_client.segment_client import SegmentClient
from pravega_controller.streams.operations import StreamOperations
from pravega_wire import names
from pravega_wire.scale_events import AutoScaleEvent, ScaleDirection

IDLE_SEGMENTS = names.table_name(names.INTERNAL_SCOPE, "controller", "idle-segments")

log = structlog.get_logger(__name__)


class IdleSegmentRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The mark of a segment that was reported idle."""

    until_ms: int | None
    """Time at which the mark ends; None for a silent segment."""
    length: int = 0
    """Length of a silent segment, in bytes. If the segment is longer now, it is not silent."""


class AutoScaling:
    """Handles the events by which segment stores ask for scaling."""

    def __init__(
        self,
        store: MetadataStore,
        streams: StreamOperations,
        segments: SegmentClient,
        *,
        now_ms: Callable[[], int],
        finish_later: Callable[[IntentRecord], None],
        event_seconds_max: float,
        idle_seconds: float,
    ) -> None:
        self._store = store
        self._streams = streams
        self._segments = segments
        self._tables = store.tables
        self._now_ms = now_ms
        self._finish_later = finish_later
        self._event_seconds_max = event_seconds_max
        self._idle_seconds = idle_seconds

    async def open(self) -> None:
        """Make the table of marks."""
        await self._tables.create(IDLE_SEGMENTS)

    async def handle(self, event: AutoScaleEvent, *, age_seconds_max: float) -> None:
        """Scale the stream as an event requests, unless the event is too old or no longer applies.

        ``age_seconds_max`` is the event's maximum age, whatever the event's own time says.
        """
        bound = log.bind(scope=event.scope, stream=event.stream, segment=event.segment_id)
        age_seconds = min((self._now_ms() - event.time_ms) / 1000, age_seconds_max)
        if age_seconds > self._event_seconds_max:
            bound.info("request for scaling is too old", time_ms=event.time_ms)
            return
        try:
            stream = await self._store.streams.read(event.scope, event.stream)
            if reason := _why_not(stream, event.segment_id):
                bound.info("request for scaling is pointless", reason=reason)
            elif event.direction is ScaleDirection.UP:
                await self._split(stream, event)
            else:
                await self._record_idle(stream, event)
        except (
            NotFoundError,
            InvalidRequestError,
            ScalePreconditionError,
            StreamSealedError,
        ) as error:
            bound.info("request for scaling is pointless", reason=str(error))

    async def forget_old_marks(self) -> None:
        """Remove the marks that have ended, and those of segments that are not active any more."""
        async with aclosing(self._tables.pages(IDLE_SEGMENTS)) as pages:
            async for entries in pages:
                for entry in entries:
                    name, _, segment_id = entry.key.decode().rpartition("/")
                    mark = decode(entry.value, IdleSegmentRecord)
                    is_over = mark.until_ms is not None and not self._lasts(mark.until_ms)
                    if is_over or not await self._is_active(name, int(segment_id)):
                        await self._tables.remove(IDLE_SEGMENTS, entry.key, version=entry.version)

    async def _is_active(self, stream_name: str, segment_id: int) -> bool:
        scope, _, name = stream_name.partition("/")
        try:
            return _why_not(await self._store.streams.read(scope, name), segment_id) is None
        except NotFoundError:
            return False
        except CorruptMetadataError:
            # A damaged mark must not keep the marks of other streams.
            return True

    async def _split(self, stream: Stream, event: AutoScaleEvent) -> None:
        segment = next(each for each in stream.active if each.segment_id == event.segment_id)
        count = count_splits(stream.configuration.scaling, event.splits)
        ranges = split_range(segment.low, segment.high, count)
        if len(ranges) < 2:
            raise InvalidRequestError(f"the range of segment {event.segment_id} cannot be split")
        await self._scale(stream, [segment], ranges)

    async def _record_idle(self, stream: Stream, event: AutoScaleEvent) -> None:
        await self._write_mark(stream, event)
        minimum = stream.configuration.scaling.segment_count_min
        idle = {segment.segment_id for segment in stream.active}
        nearby = choose_to_merge(stream.active, event.segment_id, idle, 1)
        if not nearby or len(stream.active) <= minimum:
            return
        idle = await self._idle_of(stream, [each.segment_id for each in nearby])
        merged = choose_to_merge(stream.active, event.segment_id, idle, minimum)
        if merged:
            await self._scale(stream, merged, [(merged[0].low, merged[-1].high)])

    async def _scale(
        self, stream: Stream, sealed: Sequence[Segment], ranges: list[tuple[float, float]]
    ) -> None:
        scope, name = stream.scope.name, stream.name
        identifiers = [segment.segment_id for segment in sealed]
        await self._streams.scale(scope, name, identifiers, ranges, now_ms=self._now_ms())
        log.info("scaling by load", scope=scope, stream=name, sealed=identifiers, into=len(ranges))
        self._finish_later(IntentRecord("stream", scope, name))
        for identifier in identifiers:
            await self._tables.remove(IDLE_SEGMENTS, _key(stream, identifier))

    async def _write_mark(self, stream: Stream, event: AutoScaleEvent) -> None:
        if event.silent:
            mark = IdleSegmentRecord(None, await self._length(stream, event.segment_id))
        else:
            mark = IdleSegmentRecord(self._now_ms() + int(1000 * self._idle_seconds))
        await self._tables.put(IDLE_SEGMENTS, _key(stream, event.segment_id), encode(mark))

    async def _idle_of(self, stream: Stream, identifiers: Sequence[int]) -> set[int]:
        """Return the segments whose marks still say that they are idle."""
        keys = [_key(stream, identifier) for identifier in identifiers]
        idle = set()
        for identifier, entry in zip(
            identifiers, await self._tables.get_all(IDLE_SEGMENTS, keys), strict=True
        ):
            if entry is None:
                continue
            mark = decode(entry.value, IdleSegmentRecord)
            if mark.until_ms is None:
                if await self._length(stream, identifier) == mark.length:
                    idle.add(identifier)
            elif self._lasts(mark.until_ms):
                idle.add(identifier)
        return idle

    def _lasts(self, until_ms: int) -> bool:
        """Return whether a mark with this end still counts."""
        return 0 < until_ms - self._now_ms() <= 1000 * self._idle_seconds

    async def _length(self, stream: Stream, segment_id: int) -> int:
        info = await self._segments.segment_info(stream.segment_name(segment_id))
        if info is None:
            raise NotFoundError(f"segment {segment_id} does not exist any more")
        return info.length


def _why_not(stream: Stream, segment_id: int) -> str | None:
    """Return why no event about the segment can change the stream, or None."""
    record = stream.record
    if isinstance(record.pending, Create):
        return "the stream is being created"
    if record.is_sealed:
        return "the stream is sealed"
    if stream.configuration.scaling.scale_type is ScaleType.FIXED:
        return "the stream has a fixed number of segments"
    if all(segment.segment_id != segment_id for segment in stream.active):
        return "the segment is not active any more"
    return None


def _key(stream: Stream, segment_id: int) -> bytes:
    return f"{names.scoped_name(stream.scope.name, stream.name)}/{segment_id}".encode()
