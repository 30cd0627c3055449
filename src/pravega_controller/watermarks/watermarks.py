"""Watermarks: the marks of writers, and the rounds that compute watermarks from them.

Owns: the marks of writers, and the content of mark streams.

    _system/_tables/controller/writer-marks    scope/stream/writer -> WriterMarkRecord

A writer sends a mark: a time, and its position when it had written all events up to this time. Once
all writers of a stream have sent a time after the last watermark, a round appends the next
watermark to the stream's mark stream, from which readers read it. A round begins by reading all
marks. So it costs one request when no writer sends times, whatever the number of streams.

A writer that sends nothing for a while delays the watermarks until its time-out. Only the
controller that makes the rounds measures this time; another controller begins to measure again.

Invariants:
1. When two controllers make rounds at the same time, one appends the watermark, and the times of
   watermarks never go back: an append names the end of the last watermark that was read.
   Held by ``test_of_two_controllers_one_writes``.
2. When a writer sends a mark while a round removes it, the writer stays.
   Held by ``test_a_writer_that_sends_a_mark_while_it_is_removed_stays``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import structlog
import trio
from msgspec import structs

from pravega_controller.errors import (
    ControllerError,
    CorruptMetadataError,
    InvalidRequestError,
    NoSuchTableError,
    NotFoundError,
    VersionConflictError,
)
from pravega_controller.metadata.records import Create, decode, encode
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.streams import Segment
from pravega_controller.rules.watermarks import (
    Position,
    WriterState,
    add_to_bound,
    bound_cut,
    goes_on,
    judge_writers,
)
from pravega_controller.store_client.segment_client import SegmentClient
from pravega_controller.store_client.table_client import NOT_EXISTS, Entry
from pravega_wire import names
from pravega_wire.codec import HEADER_BYTES
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.watermarks import SegmentWithRange, Watermark, decode_watermark, encode_watermark

WRITER_MARKS = names.table_name(names.INTERNAL_SCOPE, "controller", "writer-marks")

WRITER_NAME_LENGTH_MAX = 512
ATTEMPTS_MAX = 10
"""Maximum number of attempts to write a mark that other controllers change at the same time."""

StreamName: TypeAlias = tuple[str, str]

log = structlog.get_logger(__name__)


class WriterMarkRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A writer's mark: a time, and its position when it had written all events up to this time."""

    stream_id: str
    time: int
    position: dict[int, int]
    is_alive: bool = True
    """True if watermarks wait for the writer when its time is too early. False after a client has
    removed the writer: then it counts until its time is too early."""


class OldTimeError(ControllerError):
    """A writer has sent an earlier time than in its last mark."""


class OldPositionError(ControllerError):
    """A writer has sent a position before that of its last mark."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A writer's mark as read in a round."""

    key: bytes
    version: int
    record: WriterMarkRecord


@dataclass(frozen=True, slots=True)
class _Last:
    """A stream's last watermark, and the length of its mark segment."""

    segment: str
    end: int
    begin: int = 0
    watermark: Watermark | None = None


class Watermarks:
    """Appends watermarks. One task must call ``run_round`` again and again."""

    def __init__(
        self,
        store: MetadataStore,
        segments: SegmentClient,
        *,
        owns: Callable[[str], bool],
        writer_id: bytes,
    ) -> None:
        self._owns = owns
        self._store = store
        self._segments = segments
        self._tables = store.tables
        self._writer_id = writer_id
        self._is_open = False
        self._lagging_since: dict[bytes, float] = {}
        self._last: dict[StreamName, _Last] = {}

    # ---- Writers ---------------------------------------------------------------------------------

    async def record_mark(
        self, scope: str, name: str, writer: str, time: int, position: Mapping[int, int]
    ) -> None:
        """Record a writer's mark.

        Raises ``OldTimeError`` or ``OldPositionError`` when it goes back, ``StreamNotFoundError``,
        and ``InvalidRequestError``.
        """
        _check_writer(writer)
        stream = await self._store.streams.read(scope, name)
        mark = WriterMarkRecord(stream.stream_id, time, dict(position))
        key = _key(scope, name, writer)
        for _ in range(ATTEMPTS_MAX):
            entry = await self._find(key)
            version = NOT_EXISTS if entry is None else entry.version
            earlier = None if entry is None else decode(entry.value, WriterMarkRecord)
            if earlier is not None and earlier.stream_id == stream.stream_id:
                if earlier.time > time:
                    raise OldTimeError(
                        f"writer {writer} has sent time {earlier.time} before time {time}"
                    )
                if not goes_on(earlier.position, position):
                    raise OldPositionError(f"writer {writer} was further on before")
            try:
                await self._tables.put(WRITER_MARKS, key, encode(mark), version=version)
            except VersionConflictError:
                continue
            return
        raise VersionConflictError(f"others keep changing the mark of writer {writer}")

    async def remove(self, scope: str, name: str, writer: str) -> None:
        """Stop waiting for a writer. Raises ``NotFoundError`` for an unknown writer or stream."""
        _check_writer(writer)
        stream = await self._store.streams.read(scope, name)
        key = _key(scope, name, writer)
        for _ in range(ATTEMPTS_MAX):
            entry = await self._find(key)
            mark = None if entry is None else decode(entry.value, WriterMarkRecord)
            if entry is None or mark is None or mark.stream_id != stream.stream_id:
                raise NotFoundError(f"{writer} is no writer of {scope}/{name}")
            stopped = structs.replace(mark, is_alive=False)
            try:
                await self._tables.put(WRITER_MARKS, key, encode(stopped), version=entry.version)
            except VersionConflictError:
                continue
            return
        raise VersionConflictError(f"others keep changing the mark of writer {writer}")

    async def _find(self, key: bytes) -> Entry | None:
        try:
            return await self._tables.get(WRITER_MARKS, key)
        except NoSuchTableError:
            await self._tables.create(WRITER_MARKS)
            return None

    # ---- Rounds ----------------------------------------------------------------------------------

    async def run_round(self) -> None:
        """Visit every stream whose writers send times."""
        if not self._is_open:
            await self._tables.create(WRITER_MARKS)
            self._is_open = True
        marks = await self._read_marks()
        known = {mark.key for of_stream in marks.values() for mark in of_stream.values()}
        self._lagging_since = {k: at for k, at in self._lagging_since.items() if k in known}
        self._last = {name: last for name, last in self._last.items() if name in marks}
        for (scope, name), of_stream in sorted(marks.items()):
            if not self._owns(f"{scope}/{name}"):
                continue
            try:
                await self._advance(scope, name, of_stream)
            except ControllerError as error:
                log.warning("no watermark", scope=scope, stream=name, reason=str(error))
            # An error about one stream must not delay the others.
            except Exception:
                log.exception("no watermark", scope=scope, stream=name)

    async def _read_marks(self) -> dict[StreamName, dict[str, _Mark]]:
        marks: defaultdict[StreamName, dict[str, _Mark]] = defaultdict(dict)
        async with aclosing(self._tables.pages(WRITER_MARKS)) as pages:
            async for entries in pages:
                for entry in entries:
                    scope, name, writer = entry.key.decode().split("/", 2)
                    try:
                        record = decode(entry.value, WriterMarkRecord)
                    except CorruptMetadataError as error:
                        log.error("a writer's mark is damaged", key=entry.key, reason=str(error))
                        continue
                    marks[scope, name][writer] = _Mark(entry.key, entry.version, record)
        return marks

    async def _advance(self, scope: str, name: str, marks: dict[str, _Mark]) -> None:
        """Append the next watermark of a stream, if all its writers have advanced."""
        try:
            stream = await self._store.streams.read(scope, name)
        except NotFoundError:
            await self._drop(marks.values())
            return
        if isinstance(stream.record.pending, Create):
            return
        strangers = [m for m in marks.values() if m.record.stream_id != stream.stream_id]
        await self._drop(strangers)
        marks = {w: m for w, m in marks.items() if m.record.stream_id == stream.stream_id}
        last = await self._find_last(stream)
        last_lower = None if last.watermark is None else last.watermark.lower
        timeout_ms = stream.configuration.timestamp_aggregation_timeout_ms
        states = {writer: self._state_of(mark, last_lower) for writer, mark in marks.items()}
        verdict = judge_writers(states, last_lower, timeout_ms / 1000)
        await self._drop(marks[writer] for writer in verdict.gone)
        if not verdict.is_complete:
            return
        remaining = [mark for writer, mark in marks.items() if writer not in verdict.gone]
        cut = await self._bound_cut(stream, remaining, last.watermark)
        if cut:
            await self._append(scope, name, last, Watermark(verdict.lower, verdict.upper, cut))

    def _state_of(self, mark: _Mark, last_lower: int | None) -> WriterState:
        now = trio.current_time()
        lags = last_lower is not None and mark.record.time <= last_lower
        since = self._lagging_since.setdefault(mark.key, now) if lags else now
        if not lags:
            self._lagging_since.pop(mark.key, None)
        return WriterState(mark.record.time, mark.record.is_alive, now - since)

    async def _drop(self, marks: Iterable[_Mark]) -> None:
        for mark in marks:
            try:
                await self._tables.remove(WRITER_MARKS, mark.key, version=mark.version)
            except VersionConflictError:
                log.debug("a writer has advanced meanwhile", key=mark.key)
                continue
            self._lagging_since.pop(mark.key, None)

    async def _bound_cut(
        self, stream: Stream, marks: Sequence[_Mark], last: Watermark | None
    ) -> dict[SegmentWithRange, int]:
        named = {segment_id for mark in marks for segment_id in mark.record.position}
        segments = await stream.history.segments(named)
        positions = []
        for mark in marks:
            # A client may send a predecessor and its successor: only the later one counts.
            position: dict[Segment, int] = {}
            written = mark.record.position.items()
            found = {segments[i]: max(0, o) for i, o in written if i in segments}
            add_to_bound(position, found)
            positions.append(position)
        last_cut: dict[Segment, int] = {}
        if last is not None:
            last_cut = {Segment(s.segment_id, s.low, s.high): o for s, o in last.cut.items()}
        history = stream.history

        async def segments_in(number: int) -> Sequence[Segment]:
            # The epoch of a segment that only the last watermark names may have been dropped.
            return await history.segments_in(max(number, history.first))

        cut = await self._end_at_tail(stream, await bound_cut(positions, last_cut, segments_in))
        return {
            SegmentWithRange(segment.segment_id, segment.low, segment.high): cut[segment]
            for segment in sorted(cut, key=lambda each: each.low)
        }

    async def _end_at_tail(self, stream: Stream, cut: Position) -> dict[Segment, int]:
        """Return a cut in which offsets beyond the ends of segments are replaced by the ends.

        A writer may send such an offset. No reader would ever reach the watermark.
        """
        written = [segment for segment in cut if cut[segment] > 0]
        names_of = [stream.segment_name(segment.segment_id) for segment in written]
        infos = await self._segments.segment_infos(names_of)
        lengths = {
            segment: info.length
            for segment, info in zip(written, infos, strict=True)
            if info is not None
        }
        return {
            segment: min(offset, lengths.get(segment, offset)) for segment, offset in cut.items()
        }

    # ---- The mark stream -------------------------------------------------------------------------

    async def _find_last(self, stream: Stream) -> _Last:
        """Return the last watermark; read it again if another controller has appended one."""
        scope, name = stream.scope.name, stream.name
        mark_stream = await self._store.streams.read(scope, names.mark_stream(name))
        segment = mark_stream.segment_name(mark_stream.active[0].segment_id)
        info = await self._segments.segment_info(segment)
        if info is None:
            raise NotFoundError(f"{segment} does not exist")
        known = self._last.get((scope, name))
        if known is not None and (known.segment, known.end) == (segment, info.length):
            return known
        mark = await self._segments.get_attribute(segment, REVISION_MARK)
        begin = max(info.start_offset, mark)
        data = b""
        if begin < info.length:
            length = info.length - begin
            data = await self._segments.read_segment(segment, offset=begin, length=length)
        last = _Last(segment, info.length)
        try:
            for start, end in iterate_event_spans(data):
                watermark = decode_watermark(data[start:end])
                last = _Last(segment, info.length, begin + start - HEADER_BYTES, watermark)
        except RemoteProtocolError as error:
            raise CorruptMetadataError(f"{segment} holds no watermark: {error}") from error
        self._last[scope, name] = last
        return last

    async def _append(self, scope: str, name: str, last: _Last, watermark: Watermark) -> None:
        appended = await self._segments.append_if_at(
            last.segment,
            encode_watermark(watermark),
            expected_offset=last.end,
            writer_id=self._writer_id,
        )
        self._last.pop((scope, name), None)
        if not appended:
            log.info("another controller has written a watermark", scope=scope, stream=name)
            return
        log.debug("watermark", scope=scope, stream=name, lower=watermark.lower)
        if last.watermark is not None:
            # Readers begin at the offset in this attribute, so they find the newest watermark
            # first.
            earlier = await self._segments.get_attribute(last.segment, REVISION_MARK)
            if earlier < last.end:
                await self._segments.replace_attribute(
                    last.segment, REVISION_MARK, last.end, expected=earlier
                )


def _check_writer(writer: str) -> None:
    if not 0 < len(writer) <= WRITER_NAME_LENGTH_MAX:
        raise InvalidRequestError(
            f"a writer's name has 1 to {WRITER_NAME_LENGTH_MAX} characters, not {len(writer)}"
        )


def _key(scope: str, name: str, writer: str) -> bytes:
    return f"{names.scoped_name(scope, name)}/{writer}".encode()
