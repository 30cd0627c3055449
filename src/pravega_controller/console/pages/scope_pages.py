"""Pages of scopes: which there are, and the streams, reader groups and tables of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from pravega_controller.console.outcomes import is_told, tell_outcome
from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.console.scope_names import NamesPart, choose, track_names
from pravega_security.resources import (
    key_value_table_resource,
    reader_group_resource,
    stream_resource,
)
from pravega_wire import controller_pb2 as pb
from pravega_wire import names

SCOPE: Final = "/scopes/{scope}"
PAGE_NUMBER_MAX: Final = 1_000_000


@page("GET", "/scopes")
async def list_scopes(request: PageRequest) -> PageAnswer:
    """List the scopes."""
    found = await request.calls.list_all(
        "listScopes", lambda token: pb.ScopesRequest(continuationToken=token), "scopes"
    )
    return HtmlPage("scopes.html", {"scopes": sorted(found)})


@page("GET", SCOPE)
async def show_scope(request: PageRequest) -> PageAnswer:
    """Show the streams, reader groups and key-value tables of a scope, page by page."""
    values = await _look(request)
    return HtmlPage("scope.html", {**values, "done": _tell_deletion(request)})


def _tell_deletion(request: PageRequest) -> str | None:
    """Return the sentence about a stream that was deleted, if the page is asked for it."""
    stream = request.query.get("stream", "")
    if not is_told(request, "deleted") or not stream:
        return None
    return tell_outcome(request, names.scoped_name(request.path["scope"], stream))


@page("GET", f"{SCOPE}/live")
async def show_scope_again(request: PageRequest) -> PageAnswer:
    """Show the names that are known by now."""
    return HtmlPage("scope_live.html", await _look(request))


async def _look(request: PageRequest) -> dict[str, Any]:
    scope, wanted = request.path["scope"], request.query.get("find", "").strip()
    number = request.number("page", 1, PAGE_NUMBER_MAX)
    calls = request.calls
    # The lists of streams and of tables need the same.
    await calls.permit(
        "listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope=scope))
    )
    seen = (await track_names(request.looks, calls.controller, scope).look())[-1].seen

    def part(found: Sequence[str], resource_of: Callable[[str, str], str]) -> NamesPart:
        return choose(found, wanted, number, lambda name: calls.may_read(resource_of(scope, name)))

    kinds = (
        ("streams", "Streams", part(seen.streams, stream_resource)),
        ("groups", "Reader groups", part(seen.groups, reader_group_resource)),
        ("tables", "Key-value tables", part(seen.tables, key_value_table_resource)),
    )
    return {
        "scope": scope,
        "find": wanted,
        "kinds": kinds,
        "number": max(part.number for _, _, part in kinds),
        "page_count": max(part.page_count for _, _, part in kinds),
        "is_whole": seen.is_whole,
        "age": trio.current_time() - seen.began,
    }
