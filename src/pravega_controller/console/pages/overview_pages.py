"""The first page: health, traffic and latency of everything in one look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from pravega_controller.console.rendering import path_to
from pravega_controller.console.routes import HtmlPage, Lead, Numbers, PageAnswer, PageRequest, page
from pravega_controller.console.store_numbers import (
    busiest_streams,
    reasons_for_care,
    track_stores,
    traffic_of,
)
from pravega_controller.errors import InvalidRequestError, NotFoundError
from pravega_controller.store_client.segment_client import for_each
from pravega_metrics import store_metrics as metrics
from pravega_wire import controller_pb2 as pb

BUSY_STREAMS_MAX: Final = 10
SCOPES_SEARCHED_MAX: Final = 100
"""Maximum number of scopes in which a name without a scope is looked for."""

Lookup = tuple[str, Callable[[str, str], Message], Callable[[Any], bool]]
"""A call, its request about a scope and a name, and whether its answer says that there is one."""
LOOKUPS: Final[Mapping[str, Lookup]] = {
    "streams": (
        "getStreamConfiguration",
        lambda scope, name: pb.StreamInfo(scope=scope, stream=name),
        lambda answer: True,
    ),
    "groups": (
        "getReaderGroupConfig",
        lambda scope, name: pb.ReaderGroupInfo(scope=scope, readerGroup=name),
        lambda answer: bool(answer.status == pb.ReaderGroupConfigResponse.SUCCESS),
    ),
    "tables": (
        "getKeyValueTableConfiguration",
        lambda scope, name: pb.KeyValueTableInfo(scope=scope, kvtName=name),
        lambda answer: bool(answer.status == pb.KeyValueTableConfigResponse.SUCCESS),
    ),
}
"""The kinds of things in a scope, by the first part of the path of their pages."""
KINDS: Final = tuple(LOOKUPS)


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
async def find_by_name(request: PageRequest) -> PageAnswer:
    """Lead to a scope, or to what has a name in it: also for those who may not list all of them.

    Without a scope, the name is looked for in those that the user may list.
    """
    scope, _, name = request.query.get("name", "").strip().strip("/").partition("/")
    if not scope:
        raise InvalidRequestError("Write the name of a scope, or SCOPE/NAME.")
    if name:
        kinds = [kind for kind in KINDS if await _is_there(request, kind, scope, name)]
        # What is not there has the page that says so.
        return _lead_to([(kind, scope, name) for kind in kinds or KINDS[:1]], name)
    return _lead_to(await _find_everywhere(request, scope) or [("scopes", scope)], scope)


def _lead_to(found: Sequence[tuple[str, ...]], name: str) -> PageAnswer:
    """Return the answer that leads to what was found, or shows a list if it is several things."""
    if len(found) == 1:
        return Lead(path_to(*found[0]))
    return HtmlPage("found.html", {"name": name, "found": found})


async def _is_there(request: PageRequest, kind: str, scope: str, name: str) -> bool:
    """Return whether a scope has something of a kind by this name that the caller may read."""
    method, make, is_found = LOOKUPS[kind]
    question = make(scope, name)
    if not await request.calls.may(method, question):
        return False
    try:
        return is_found(await request.calls.call(method, question))
    except (NotFoundError, InvalidRequestError):
        return False


async def _find_everywhere(request: PageRequest, name: str) -> list[tuple[str, ...]]:
    """Return what has this name: the scope, and things in the first scopes that may be listed."""
    calls = request.calls
    if not await calls.may("listScopes", pb.ScopesRequest()):
        return []
    listed = await calls.list_all(
        "listScopes", lambda token: pb.ScopesRequest(continuationToken=token), "scopes"
    )
    found: list[tuple[str, ...]] = [("scopes", name)] if name in listed else []

    async def look(scope: str) -> None:
        for kind in KINDS:
            if await _is_there(request, kind, scope, name):
                found.append((kind, scope, name))

    await for_each(sorted(listed)[:SCOPES_SEARCHED_MAX], look)
    return sorted(found, key=lambda each: (len(each), each))
