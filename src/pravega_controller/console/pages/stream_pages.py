"""Pages of one stream: configuration, segments with live rates, key ranges over epochs."""

from __future__ import annotations

from typing import Any, Final

from pravega_controller.console.epoch_picture import EPOCHS_MAX, HEIGHT, draw
from pravega_controller.console.routes import HtmlPage, Numbers, PageAnswer, PageRequest, page
from pravega_controller.console.stream_numbers import (
    SORTS,
    segment_rows,
    sort_rows,
    track_stream,
)
from pravega_controller.errors import InvalidRequestError
from pravega_wire import controller_pb2 as pb
from pravega_wire.stream_cut_text import StreamCutTextError, decode_cut_text

ROWS_MAX: Final = 200
"""Maximum number of segments in a table."""

STREAM: Final = "/streams/{scope}/{stream}"


@page("GET", STREAM)
async def show_stream(request: PageRequest) -> PageAnswer:
    """Show a stream."""
    configuration = await read_configuration(request)
    values = {
        "configuration": configuration,
        "may_change": await request.calls.may("sealStream", stream_info(request)),
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
        "kept": sum(row.kept for row in rows),
        "picture": draw(epochs, rates, is_sealed=seen.is_sealed),
        "picture_height": HEIGHT,
    }
