"""The position of a stream at a time.

Owns: ``find_time``, and ``read_marks`` for all that is told of times.

Events have no time of their own. A stream has two kinds of marks: watermarks, which writers make
that tell their times, and its epochs. The position is that of the last mark before the time, so no
later event is missing, and some earlier ones may come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pravega_controller.console.events.event_walks import find_tail
from pravega_controller.console.rendering import show_time
from pravega_controller.controller import Controller
from pravega_controller.errors import InvalidRequestError, NotFoundError, StoreAnswerError
from pravega_wire import names
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.watermarks import Watermark, decode_watermark

MARKS_BYTES_MAX: Final = 256 * 1024
"""Maximum number of bytes of a mark stream, from its end, in which a time is looked for."""
MARKS_MAX: Final = 10_000
"""Maximum number of watermarks that are kept of a stream."""
EPOCHS_MAX: Final = 200


def parse_time(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601; without a zone it is UTC.

    Raises ``InvalidRequestError``.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidRequestError(
            f"a time is written as 2026-03-01T12:00 or 2026-03-01T12:00:00+01:00, not {text!r}"
        ) from None


@dataclass(frozen=True, slots=True)
class TimePosition:
    """A position, and a sentence that says how exact it is."""

    position: dict[int, int]
    note: str


async def find_time(controller: Controller, scope: str, stream: str, time_ms: int) -> TimePosition:
    """Return the last known position before a time. Raises ``NotFoundError``."""
    for mark in reversed((await read_marks(controller, scope, stream)).marks):
        if mark.upper <= time_ms:
            position = {segment.segment_id: offset for segment, offset in mark.cut.items()}
            return TimePosition(
                position, f"From the writers' own mark of {show_time(mark.upper)} on."
            )
    epochs = await controller.streams.last_epochs(scope, stream, EPOCHS_MAX)
    for epoch, segments in reversed(epochs):
        if epoch.created_ms <= time_ms:
            return TimePosition(
                dict.fromkeys([each.segment_id for each in segments], 0),
                f"The writers tell no times, so this begins with the segments of epoch"
                f" {epoch.number}, which began at {show_time(epoch.created_ms)}.",
            )
    head = await controller.streams.head(scope, stream)
    return TimePosition(head, "The stream is younger than this, so this begins at its head.")


@dataclass(frozen=True, slots=True)
class Marks:
    """The last watermarks of a stream, in order, and the end of what was read of their segment."""

    marks: Sequence[Watermark] = ()
    segment: str = ""
    end: int = 0


async def read_marks(
    controller: Controller, scope: str, stream: str, known: Marks | None = None
) -> Marks:
    """Return the last watermarks of a stream; only those behind the ones that are known are read.
    Without a mark stream, or with one that is no such stream, there are none.
    """
    known = known or Marks()
    name = names.mark_stream(stream)
    try:
        [segment] = await controller.streams.active_segments(scope, name)
        full = names.segment_name(scope, name, segment.segment_id)
        info = await controller.segments.segment_info(full)
        if info is None or info.length == info.start_offset:
            return Marks()
        if known.segment != full or not info.start_offset <= known.end <= info.length:
            known = Marks(segment=full, end=info.start_offset)
        if known.end == info.length:
            return known
        offset = max(known.end, info.length - MARKS_BYTES_MAX)
        length = info.length - offset
        data = (await controller.segments.read_segment(full, offset=offset, length=length))[:length]
        begin = 0 if offset == known.end else find_tail(data)
        if begin is None:
            return Marks()
        marks = [decode_watermark(data[a:b]) for a, b in iterate_event_spans(data, begin)]
        return Marks([*known.marks, *marks][-MARKS_MAX:], full, info.length)
    except (NotFoundError, ValueError, StoreAnswerError, RemoteProtocolError):
        # The mark stream may also have been truncated meanwhile.
        return Marks()
