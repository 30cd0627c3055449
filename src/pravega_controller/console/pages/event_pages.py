"""Pages of a stream's events: the newest ones live, from a position or time on, a search; and the
form that writes one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from pravega_controller.console.events.avro_records import SCHEMA_LENGTH_MAX
from pravega_controller.console.events.decoders import FORMS, Shown, View, decode, read_view
from pravega_controller.console.events.event_walks import (
    SHOWN_BYTES_MAX,
    SeenEvent,
    tail_position,
    walk,
)
from pravega_controller.console.events.publishing import publish
from pravega_controller.console.events.times import find_time, parse_time
from pravega_controller.console.looks import Looks, Track
from pravega_controller.console.pages.stream_pages import (
    STREAM,
    read_configuration,
    read_cut,
    stream_info,
)
from pravega_controller.console.rendering import path_to
from pravega_controller.console.routes import HtmlPage, Lead, PageAnswer, PageRequest, page
from pravega_controller.controller import Controller
from pravega_controller.errors import InvalidRequestError
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.stream_cut_text import encode_cut_text

EVENTS_SHOWN: Final = 50
"""Number of events on a page, and maximum number of those that a search finds at a time."""
TAIL_SEGMENTS_MAX: Final = 16
"""Maximum number of segments whose newest events are shown together."""
TAIL_READ_MAX: Final = 1000
"""Maximum number of events that one look at the newest ones reads."""
STARTS: Final = ("newest", "head", "time", "cut")


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as it is shown."""

    number: int
    epoch: int
    offset: int
    length: int
    is_whole: bool
    shown: Shown
    cut: str
    """The cut at which the event begins, of its segment alone."""


async def _show(name: str, events: Sequence[SeenEvent], view: View) -> list[EventRow]:
    """Return events as they are shown. It may take long, so other requests go on meanwhile."""
    return await trio.to_thread.run_sync(_rows, name, events, view)


def _rows(name: str, events: Sequence[SeenEvent], view: View) -> list[EventRow]:
    return [
        EventRow(
            names.segment_number(each.segment_id),
            names.segment_epoch(each.segment_id),
            each.offset,
            each.length,
            len(each.data) == each.length,
            decode(each.data, view, is_whole=len(each.data) == each.length),
            encode_cut_text(name, {each.segment_id: each.offset}),
        )
        for each in events
    ]


class Tail:
    """The newest events of a stream: each look adds those that have come since."""

    def __init__(self, controller: Controller, scope: str, stream: str) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._position: dict[int, int] | None = None
        self._events: deque[SeenEvent] = deque(maxlen=EVENTS_SHOWN)

    async def take(self) -> tuple[SeenEvent, ...]:
        """Return the newest events, the newest last."""
        controller, scope, stream = self._controller, self._scope, self._stream
        if self._position is None:
            active = await controller.streams.active_segments(scope, stream)
            if not active:
                [(_, active)] = await controller.streams.last_epochs(scope, stream, 1)
            ids = [each.segment_id for each in active[:TAIL_SEGMENTS_MAX]]
            self._position = await tail_position(controller, scope, stream, ids)
        found = await walk(controller, scope, stream, self._position, count_max=TAIL_READ_MAX)
        self._position = found.position
        self._events += _mixed(found.events)
        return tuple(self._events)


def _mixed(events: Sequence[SeenEvent]) -> list[SeenEvent]:
    """Return events of several segments by turns, the last ones of each at the end."""
    of_segment: dict[int, list[SeenEvent]] = {}
    for each in events:
        of_segment.setdefault(each.segment_id, []).append(each)
    longest = max(map(len, of_segment.values()), default=0)
    return [
        group[len(group) - left]
        for left in range(longest, 0, -1)
        for group in of_segment.values()
        if left <= len(group)
    ]


def _track_tail(
    looks: Looks, controller: Controller, scope: str, stream: str
) -> Track[tuple[SeenEvent, ...]]:
    tail = Tail(controller, scope, stream)
    return looks.track(("events", scope, stream), tail.take)


@page("GET", f"{STREAM}/events")
async def show_events(request: PageRequest) -> PageAnswer:
    """Show events of a stream."""
    await read_configuration(request)
    start = request.query.get("start", STARTS[0])
    if start not in STARTS:
        raise InvalidRequestError(f"start has to be one of {', '.join(STARTS)}")
    wanted = request.query.get("find", "")
    if start == "newest" and wanted:
        start = "head"
    values = {
        "start": start,
        "find": wanted,
        "time": request.query.get("time", ""),
        "cut": request.query.get("cut", ""),
        "forms": FORMS,
        "schema_length_max": SCHEMA_LENGTH_MAX,
        "written": _digits(request.query.get("written", "")),
        "may_write": await request.calls.may(
            "createTransaction", pb.CreateTxnRequest(streamInfo=stream_info(request))
        ),
        "event_bytes_max": SHOWN_BYTES_MAX,
    }
    found = await (_look_at_tail(request) if start == "newest" else _walk(request, start, wanted))
    return HtmlPage("events.html", {**values, **_names(request), **found})


@page("GET", f"{STREAM}/events/live")
async def show_events_again(request: PageRequest) -> PageAnswer:
    """Show the newest events."""
    await read_configuration(request)
    found = await _look_at_tail(request)
    return HtmlPage("events_list.html", {**_names(request), "find": "", **found})


async def _look_at_tail(request: PageRequest) -> dict[str, Any]:
    scope, stream = request.path["scope"], request.path["stream"]
    looks = await _track_tail(request.looks, request.calls.controller, scope, stream).look()
    name = names.scoped_name(scope, stream)
    rows = await _show(name, looks[-1].seen, read_view(request.query))
    return {"events": rows[::-1], "notes": [], "next": None, "is_at_end": True}


async def _walk(request: PageRequest, start: str, wanted: str) -> dict[str, Any]:
    scope, stream = request.path["scope"], request.path["stream"]
    controller, notes = request.calls.controller, []
    if start == "cut":
        cut = read_cut(names.scoped_name(scope, stream), request.query.get("cut", ""))
        position = {segment_id: max(0, offset) for segment_id, offset in cut.items()}
    elif start == "time":
        found = await find_time(
            controller, scope, stream, parse_time(request.query.get("time", ""))
        )
        position, notes = found.position, [found.note]
    else:
        position = await controller.streams.head(scope, stream)
    walked = await walk(
        controller, scope, stream, position, wanted=wanted.encode(), count_max=EVENTS_SHOWN
    )
    name = names.scoped_name(scope, stream)
    return {
        "events": await _show(name, walked.events, read_view(request.query)),
        "notes": [*notes, *walked.notes],
        "next": encode_cut_text(name, walked.position) if walked.position else None,
        "is_at_end": walked.is_at_end,
        "read_bytes": walked.read_bytes,
    }


def _digits(text: str) -> str | None:
    return text if text.isascii() and text.isdecimal() else None


def _names(request: PageRequest) -> dict[str, Any]:
    return {**request.path, "view": read_view(request.query)}


@page("POST", f"{STREAM}/events")
async def write_event(request: PageRequest) -> PageAnswer:
    """Write an event."""
    scope, stream = request.path["scope"], request.path["stream"]
    text = request.form.get("event", "").replace("\r\n", "\n")
    try:
        data = bytes.fromhex(text) if request.form.get("kind") == "hex" else text.encode()
    except ValueError:
        raise InvalidRequestError("these are no hexadecimal digits") from None
    if not data:
        raise InvalidRequestError("An event has at least one byte.")
    key = request.form.get("key") or None
    segment_id = await publish(request.calls, scope, stream, data, key)
    number = names.segment_number(segment_id)
    return Lead(path_to("streams", scope, stream, "events"), {"written": str(number)})
