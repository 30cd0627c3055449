"""Pages of scopes: which there are, and the streams, reader groups and tables of one."""

from __future__ import annotations

from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.console.scope_names import NAMES_READ_MAX, choose, track_names
from pravega_security.resources import (
    key_value_table_resource,
    reader_group_resource,
    stream_resource,
)
from pravega_wire import controller_pb2 as pb


@page("GET", "/scopes")
async def list_scopes(request: PageRequest) -> PageAnswer:
    """List the scopes."""
    found = await request.calls.list_all(
        "listScopes", lambda token: pb.ScopesRequest(continuationToken=token), "scopes"
    )
    return HtmlPage("scopes.html", {"scopes": sorted(found)})


@page("GET", "/scopes/{scope}")
async def show_scope(request: PageRequest) -> PageAnswer:
    """Show the streams, reader groups and key-value tables of a scope, page by page."""
    scope, wanted = request.path["scope"], request.query.get("find", "").strip()
    number = request.number("page", 1, NAMES_READ_MAX)
    calls = request.calls
    # The lists of streams and of tables need the same.
    await calls.permit(
        "listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope=scope))
    )
    seen = (await track_names(request.looks, calls.controller, scope).look())[-1].seen
    streams, groups, tables = (
        choose(names, wanted, number, lambda name, of=of: calls.may_read(of(scope, name)))  # type: ignore[misc]
        for names, of in (
            (seen.streams, stream_resource),
            (seen.groups, reader_group_resource),
            (seen.tables, key_value_table_resource),
        )
    )
    kinds = (
        ("streams", "Streams", streams),
        ("groups", "Reader groups", groups),
        ("tables", "Key-value tables", tables),
    )
    return HtmlPage(
        "scope.html",
        {
            "scope": scope,
            "find": wanted,
            "kinds": kinds,
            "number": max(part.number for _, _, part in kinds),
            "page_count": max(part.page_count for _, _, part in kinds),
            "is_whole": seen.is_whole,
        },
    )
