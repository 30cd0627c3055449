"""The page of a reader group: its live lag by segment and reader, and the streams that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from pravega_controller.console.group_numbers import (
    SORTS,
    LagRow,
    LagSum,
    lag_rows,
    sort_rows,
    sum_rows,
    track_group,
)
from pravega_controller.console.routes import HtmlPage, Numbers, PageAnswer, PageRequest, page
from pravega_controller.errors import (
    ControllerError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from pravega_wire import controller_pb2 as pb
from pravega_wire import names

ROWS_MAX: Final = 200
"""Maximum number of segments in a table."""
GROUP: Final = "/groups/{scope}/{group}"


@page("GET", GROUP)
async def show_group(request: PageRequest) -> PageAnswer:
    """Show a reader group."""
    return HtmlPage("group.html", await _look(request))


@page("GET", f"{GROUP}/live")
async def show_group_again(request: PageRequest) -> PageAnswer:
    """Show what changes on the page of a reader group."""
    return HtmlPage("group_live.html", await _look(request))


@page("GET", f"{GROUP}/points")
async def tell_points(request: PageRequest) -> PageAnswer:
    """Tell the points of a group's charts, to those who may read all of its streams."""
    streams = await _find_streams(request)
    if len(await readable(request, streams)) < len(streams):
        raise PermissionDeniedError("You may not read all streams of this group.")
    track = track_group(request.looks, request.calls.controller, **request.path)
    # The page tells why there is nothing new.
    with suppress(ControllerError):
        await track.look()
    return Numbers([[time / 1000, *numbers] for time, numbers in track.points])


async def _find_streams(request: PageRequest) -> list[tuple[str, str]]:
    """Return the streams of the path's group, if the caller may read the group."""
    scope, group = request.path["scope"], request.path["group"]
    info = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
    answer = await request.calls.call("getReaderGroupConfig", info)
    if answer.status != pb.ReaderGroupConfigResponse.SUCCESS:
        raise NotFoundError(f"there is no reader group {scope}/{group}")
    cuts = answer.config.startingStreamCuts
    return sorted({(cut.streamInfo.scope, cut.streamInfo.stream) for cut in cuts})


async def readable(request: PageRequest, streams: Iterable[tuple[str, str]]) -> list[str]:
    """Return the scoped names of those streams that the caller may read."""
    return [
        names.scoped_name(scope, stream)
        for scope, stream in streams
        if await request.calls.may(
            "getStreamConfiguration", pb.StreamInfo(scope=scope, stream=stream)
        )
    ]


async def _look(request: PageRequest) -> dict[str, Any]:
    order = request.query.get("sort", SORTS[0])
    if order not in SORTS:
        raise InvalidRequestError(f"sort has to be one of {', '.join(SORTS)}")
    streams = await _find_streams(request)
    may_read = await readable(request, streams)
    values = {
        **request.path,
        "streams": streams,
        "is_partial": len(may_read) < len(streams),
        "order": order,
        "rows_max": ROWS_MAX,
        "reason": "",
        "is_begun": True,
        "is_updating": False,
        "rows": [],
        "readers": {},
        "total": sum_rows([]),
    }
    try:
        track = track_group(request.looks, request.calls.controller, **request.path)
        looks = await track.look()
    except ControllerError as error:
        # Readers of the Rust and Python clients keep their state elsewhere.
        return {**values, "reason": str(error)}
    seen, rows = looks[-1].seen, lag_rows(looks, may_read)
    return {
        **values,
        "is_begun": seen.is_begun,
        "is_updating": seen.is_updating,
        "rows": sort_rows(rows, order),
        "readers": _by_reader(seen.readers, rows),
        "total": sum_rows(rows),
    }


def _by_reader(readers: Sequence[str], rows: Sequence[LagRow]) -> dict[str, LagSum]:
    return {
        reader: sum_rows([row for row in rows if row.lag.reader == reader]) for reader in readers
    }
