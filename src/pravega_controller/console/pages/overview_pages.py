"""The first page: health, traffic and latency of everything in one look."""

from __future__ import annotations

from typing import Any, Final

from pravega_controller.console.rendering import path_to
from pravega_controller.console.routes import HtmlPage, Lead, Numbers, PageAnswer, PageRequest, page
from pravega_controller.console.store_numbers import (
    busiest_streams,
    reasons_for_care,
    track_stores,
    traffic_of,
)
from pravega_controller.errors import InvalidRequestError
from pravega_metrics import store_metrics as metrics
from pravega_wire import controller_pb2 as pb

BUSY_STREAMS_MAX: Final = 10


@page("GET", "/")
async def show_overview(request: PageRequest) -> PageAnswer:
    """Show the overview; to somebody who may not read the root, the health alone."""
    return HtmlPage("overview.html", await _look(request))


@page("GET", "/overview/live")
async def show_overview_again(request: PageRequest) -> PageAnswer:
    """Show what changes on the overview."""
    return HtmlPage("overview_live.html", await _look(request))


async def _look(request: PageRequest) -> dict[str, Any]:
    health = await request.health.look()
    values: dict[str, Any] = {"reasons": list(health.reasons()), "may_read_root": False}
    if not await request.calls.may("listScopes", pb.ScopesRequest()):
        return values
    looks = await track_stores(request.looks, request.calls.controller).look()
    seen = looks[-1].seen
    return {
        **values,
        "may_read_root": True,
        "reasons": values["reasons"] + reasons_for_care(seen),
        "traffic": traffic_of(looks),
        "busy": busiest_streams(looks, BUSY_STREAMS_MAX),
        "stores": seen.stores,
        "unflushed": seen.total(metrics.UNFLUSHED_BYTES.name),
        "connections": seen.total(metrics.CONNECTIONS.name),
    }


@page("GET", "/overview/points")
async def tell_points(request: PageRequest) -> PageAnswer:
    """Tell the points of the overview's charts: see ``store_numbers.summarize``."""
    await request.calls.permit("listScopes", pb.ScopesRequest())
    track = track_stores(request.looks, request.calls.controller)
    await track.look()
    return Numbers([[time / 1000, *numbers] for time, numbers in track.points])


@page("GET", "/go")
async def find_stream(request: PageRequest) -> PageAnswer:
    """Lead to a scope, or to a stream, by its name: for those who may not list all of them."""
    scope, _, stream = request.query.get("name", "").strip().strip("/").partition("/")
    if not scope:
        raise InvalidRequestError("Write the name of a scope, or SCOPE/STREAM.")
    return Lead(path_to("streams", scope, stream) if stream else path_to("scopes", scope))
