"""Events of a stream, read from a position on, through scales, up to a bound.

Owns: ``walk`` and the position from which it continues, and ``find_tail``.

A position is the next offset of each segment that is being read, as in a reader group: when a
sealed segment has been read, its successors are read once all that they replace have been.

Events are read as clients frame them. Where the position of an event is not known, near the end of
a long segment, it is the first from which headers lead exactly to the end. An event that contains
such headers itself can only make the first events of this view look wrong.

Invariants:
1. When a walk has read ``BYTES_MAX`` or found enough, it ends, and the next one continues at its
   position: no event is left out or told twice. Held by ``test_walks_tell_each_event_once``.
2. When segments are truncated or deleted during a walk, it continues behind them. Held by
   ``test_a_walk_continues_behind_a_truncation``.
3. When a segment has no events, the walk says so, and does not fail. Held by
   ``test_bytes_that_are_no_events_are_told``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pravega_controller.controller import Controller
from pravega_controller.errors import NotFoundError, StoreAnswerError
from pravega_controller.store_client.segment_client import SegmentBounds
from pravega_wire import names
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import iterate_event_spans

HEADER_BYTES: Final = 8
BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum number of bytes that one walk reads."""
PIECE_BYTES: Final = 256 * 1024
"""Number of bytes after which other requests get a turn."""
EVENT_BYTES_MAX: Final = 8 * 1024 * 1024 + HEADER_BYTES
"""Maximum length of an event with its header: larger ones are parts of clients' large events."""
TAIL_BYTES: Final = 64 * 1024
"""Length of the end of a segment in which its last events are looked for."""
SHOWN_BYTES_MAX: Final = 16 * 1024
"""Maximum number of bytes of an event that are kept to be shown."""


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event: where it is, the begin of its bytes, and their whole number."""

    segment_id: int
    offset: int
    data: bytes
    length: int


@dataclass(slots=True)
class Walk:
    """The bounds of a walk, and its result so far."""

    position: dict[int, int]
    wanted: bytes
    count_max: int
    events: list[SeenEvent] = field(default_factory=list)
    read_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences about what could not be read."""
    is_at_end: bool = False
    """True if all events that there were have been read."""

    @property
    def is_enough(self) -> bool:
        """Return whether the walk ends here, because of its bounds."""
        return self.read_bytes >= BYTES_MAX or len(self.events) >= self.count_max

    def take(self, segment_id: int, event: bytes, after: int) -> None:
        """Take the next event of a segment, which ends before the offset ``after``."""
        self.position[segment_id] = after
        if self.wanted in event:
            offset = after - len(event) - HEADER_BYTES
            seen = SeenEvent(segment_id, offset, event[:SHOWN_BYTES_MAX], len(event))
            self.events.append(seen)


class _Segments:
    """The segments of a stream, as far as a walk needs them."""

    def __init__(self, controller: Controller, scope: str, stream: str) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream

    def name(self, segment_id: int) -> str:
        return names.segment_name(self._scope, self._stream, segment_id)

    async def bounds(self, segment_id: int) -> SegmentBounds | None:
        return await self._controller.segments.segment_info(self.name(segment_id))

    async def read(self, segment_id: int, offset: int, length: int) -> bytes:
        name = self.name(segment_id)
        return await self._controller.segments.read_segment(name, offset=offset, length=length)

    async def succeed(self, segment_id: int, position: dict[int, int]) -> None:
        """Replace a segment that was read by its successors, if all that they replace were."""
        del position[segment_id]
        try:
            found = await self._controller.streams.successors(self._scope, self._stream, segment_id)
        except NotFoundError:
            return
        for each in found:
            if not any(other in position for other in each.predecessors):
                position.setdefault(each.segment.segment_id, 0)


async def walk(
    controller: Controller,
    scope: str,
    stream: str,
    position: Mapping[int, int],
    *,
    wanted: bytes = b"",
    count_max: int,
) -> Walk:
    """Return the events with ``wanted`` in them from a position on, at most ``count_max``.

    Raises ``NotFoundError`` and ``StoreUnavailableError``.
    """
    segments = _Segments(controller, scope, stream)
    found = Walk(dict(position), wanted, count_max)
    ended: set[int] = set()
    while left := [each for each in found.position if each not in ended]:
        if found.is_enough:
            return found
        segment_id = left[0]
        if not await _walk_segment(segments, segment_id, found):
            continue
        bounds = await segments.bounds(segment_id)
        if bounds is None or (bounds.is_sealed and found.position[segment_id] >= bounds.length):
            await segments.succeed(segment_id, found.position)
        else:
            ended.add(segment_id)
    found.is_at_end = True
    return found


async def _walk_segment(segments: _Segments, segment_id: int, found: Walk) -> bool:
    """Read a segment from its position on; return whether all of its bytes were read."""
    bounds = await segments.bounds(segment_id)
    if bounds is None:
        return True
    offset = max(found.position[segment_id], bounds.start_offset)
    found.position[segment_id] = offset
    pieces = _Pieces(segments, segment_id, offset, bounds.length)
    try:
        while not pieces.is_read:
            for event, after in await pieces.read(found):
                found.take(segment_id, event, after)
                if found.is_enough:
                    return False
    except StoreAnswerError:
        now = await segments.bounds(segment_id)
        if now is not None and now.start_offset <= found.position[segment_id]:
            raise
        # It was truncated or deleted meanwhile; the next attempt begins behind that.
        return now is None
    except RemoteProtocolError:
        number = names.segment_number(segment_id)
        found.notes.append(f"Segment {number} has bytes that are no events; they are left out.")
        found.position[segment_id] = bounds.length
    return True


class _Pieces:
    """A range of a segment, piece by piece."""

    def __init__(self, segments: _Segments, segment_id: int, offset: int, end: int) -> None:
        self._segments = segments
        self._segment_id = segment_id
        self._offset = offset
        self._end = end
        self._left = b""

    @property
    def is_read(self) -> bool:
        """Return whether the whole range was read."""
        return self._offset >= self._end

    async def read(self, found: Walk) -> list[tuple[bytes, int]]:
        """Return the events that end in the next piece, each with the offset behind it.

        Raises ``RemoteProtocolError`` for bytes that are no events.
        """
        length = min(PIECE_BYTES, self._end - self._offset)
        data = await self._segments.read(self._segment_id, self._offset, length)
        begin = self._offset - len(self._left)
        whole = self._left + data
        self._offset += len(data)
        found.read_bytes += len(data)
        spans = list(iterate_event_spans(whole))
        self._left = whole[spans[-1][1] :] if spans else whole
        if len(self._left) > EVENT_BYTES_MAX:
            raise RemoteProtocolError("no event is so long")
        return [(whole[start:end], begin + end) for start, end in spans]


def find_tail(data: bytes) -> int | None:
    """Return the first position in the end of a segment from which events lead to its end."""
    leads = bytearray(len(data) + 1)
    leads[-1] = 1
    first = None
    position = data.rfind(bytes(4), 0, max(0, len(data) - 4))
    while position >= 0:
        end = position + HEADER_BYTES + int.from_bytes(data[position + 4 : position + 8])
        if end <= len(data) and leads[end]:
            leads[position] = 1
            first = position
        position = data.rfind(bytes(4), 0, position + 3)
    return first


async def tail_position(
    controller: Controller, scope: str, stream: str, segment_ids: list[int]
) -> dict[int, int]:
    """Return a position some events before the end of each segment."""
    segments = _Segments(controller, scope, stream)
    found = {}
    for segment_id in segment_ids:
        bounds = await segments.bounds(segment_id)
        if bounds is None:
            continue
        offset = bounds.start_offset
        if bounds.length - offset > TAIL_BYTES:
            offset = bounds.length - TAIL_BYTES
            data = await segments.read(segment_id, offset, TAIL_BYTES)
            begin = find_tail(data[: bounds.length - offset])
            offset = bounds.length if begin is None else offset + begin
        found[segment_id] = offset
    return found
