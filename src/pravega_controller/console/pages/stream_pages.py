"""Pages of one stream: configuration, segments with live rates, key ranges over epochs.

Invariants:
1. When requests about a segment of the stream wait or fail, its page says why, and does not wait
   with them. Held by ``test_the_page_of_a_stalled_stream_says_why``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import trio

from pravega_controller.console.epoch_picture import EPOCHS_MAX, HEIGHT, draw
from pravega_controller.console.group_numbers import (
    LagRow,
    LagSum,
    lag_rows,
    sum_rows,
    track_group,
)
from pravega_controller.console.group_numbers import sort_rows as sort_lags
from pravega_controller.console.outcomes import tell_outcome
from pravega_controller.console.routes import HtmlPage, Numbers, PageAnswer, PageRequest, page
from pravega_controller.console.store_numbers import reasons_of_segments, track_stores
from pravega_controller.console.stream_numbers import (
    SORTS,
    StreamSeen,
    segment_rows,
    sort_rows,
    track_stream,
)
from pravega_controller.console.stream_readers import track_readers
from pravega_controller.errors import ControllerError, InvalidRequestError
from pravega_controller.store_client.segment_client import for_each
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.stream_cut_text import StreamCutTextError, decode_cut_text

ROWS_MAX: Final = 200
"""Maximum number of segments in a table."""
GROUPS_MAX: Final = 20
"""Maximum number of reader groups on the page of a stream."""
READERS_SECONDS_MAX: Final = 2.0
"""Maximum time, in seconds, for segment stores to tell the state of a reader group."""

STREAM: Final = "/streams/{scope}/{stream}"


@page("GET", STREAM)
async def show_stream(request: PageRequest) -> PageAnswer:
    """Show a stream."""
    configuration = await read_configuration(request)
    values = {
        "configuration": configuration,
        "may_change": await request.calls.may("sealStream", stream_info(request)),
        "done": tell_outcome(
            request, names.scoped_name(request.path["scope"], request.path["stream"])
        ),
    }
    return HtmlPage("stream.html", {**values, **await _look(request)})


@page("GET", f"{STREAM}/live")
async def show_stream_again(request: PageRequest) -> PageAnswer:
    """Show what changes on the page of a stream."""
    await read_configuration(request)
    return HtmlPage("stream_live.html", await _look(request))


@page("GET", f"{STREAM}/points")
async def tell_points(request: PageRequest) -> PageAnswer:
    """Tell the points of a stream's chart."""
    await read_configuration(request)
    scope, stream = request.path["scope"], request.path["stream"]
    track = track_stream(request.looks, request.calls.controller, scope, stream)
    await track.look()
    return Numbers([[time / 1000, *numbers] for time, numbers in track.points])


async def read_configuration(request: PageRequest) -> pb.StreamConfig:
    """Return the configuration of the path's stream, if the caller may read the stream."""
    info = stream_info(request)
    found: pb.StreamConfig = await request.calls.call("getStreamConfiguration", info)
    return found


def stream_info(request: PageRequest) -> pb.StreamInfo:
    """Return the message that names the path's stream."""
    return pb.StreamInfo(scope=request.path["scope"], stream=request.path["stream"])


def read_cut(name: str, text: str) -> dict[int, int]:
    """Return the cut of a stream in a text. Raises ``InvalidRequestError``."""
    try:
        of_stream, cut = decode_cut_text(text)
    except StreamCutTextError as error:
        raise InvalidRequestError(str(error)) from None
    if of_stream != name:
        raise InvalidRequestError(f"this is a cut of {of_stream}, and not of {name}")
    return cut


async def _look(request: PageRequest) -> dict[str, Any]:
    order = request.query.get("sort", SORTS[0])
    if order not in SORTS:
        raise InvalidRequestError(f"sort has to be one of {', '.join(SORTS)}")
    scope, stream = request.path["scope"], request.path["stream"]
    controller = request.calls.controller
    looks = await track_stream(request.looks, controller, scope, stream).look()
    seen = looks[-1].seen
    rows = segment_rows(looks)
    epochs = await controller.streams.last_epochs(scope, stream, EPOCHS_MAX)
    rates = {row.segment.segment_id: row.rate for row in rows}
    known = [row.rate for row in rows if row.rate is not None]
    return {
        "scope": scope,
        "stream": stream,
        "is_sealed": seen.is_sealed,
        "segment_count": len(rows),
        "rows": sort_rows(rows, order)[:ROWS_MAX],
        "order": order,
        "rate": sum(known) if known else None,
        "kept": sum(row.kept for row in rows) if seen.are_bounds_known else None,
        "reasons": await _find_reasons(request, seen),
        "picture": draw(epochs, rates, is_sealed=seen.is_sealed),
        "picture_height": HEIGHT,
        "readers": await _look_at_readers(request),
        "groups_max": GROUPS_MAX,
        "rows_max": ROWS_MAX,
    }


async def _find_reasons(request: PageRequest, seen: StreamSeen) -> list[str]:
    """Return in words why the stream may be slow to write or to read now."""
    controller = request.calls.controller
    scope, stream = request.path["scope"], request.path["stream"]
    stores = (await track_stores(request.looks, controller).look())[-1].seen
    segments = [names.segment_name(scope, stream, each.segment_id) for each in seen.segments]
    return reasons_of_segments(stores, controller, segments)


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A reader group with its lag in the stream, or why that cannot be told."""

    scope: str
    group: str
    rows: list[LagRow]
    reason: str

    @property
    def total(self) -> LagSum:
        """Return the lag of all segments together."""
        return sum_rows(self.rows)


async def _look_at_readers(request: PageRequest) -> list[ReaderRow]:
    """Return the reader groups of the stream that the caller may read; the last one is first."""
    scope, stream = request.path["scope"], request.path["stream"]
    looks, controller = request.looks, request.calls.controller
    groups = (await track_readers(looks, controller, scope, stream).look())[-1].seen
    may_read = [
        each
        for each in groups
        if await request.calls.may(
            "getReaderGroupConfig", pb.ReaderGroupInfo(scope=each[0], readerGroup=each[1])
        )
    ]
    found: list[ReaderRow] = []

    async def look(group: tuple[str, str]) -> None:
        rows, reason = [], ""
        try:
            with trio.fail_after(READERS_SECONDS_MAX):
                seen = await track_group(looks, controller, *group).look()
            rows = lag_rows(seen, [names.scoped_name(scope, stream)])
            reason = "" if seen[-1].seen.is_begun else "nobody has begun to read with it"
        except ControllerError as error:
            reason = str(error)
        except trio.TooSlowError:
            reason = f"segment stores do not tell within {READERS_SECONDS_MAX:g} s"
        found.append(ReaderRow(*group, sort_lags(rows, "unread"), reason))

    await for_each(may_read[:GROUPS_MAX], look)
    return sorted(found, key=lambda row: (-row.total.unread, row.scope, row.group))
