"""Pages of scopes: which there are, and the streams, reader groups and tables of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.errors import NotFoundError
from pravega_controller.http.calls import Refusal
from pravega_wire import controller_pb2 as pb
from pravega_wire import names

NAMES_SHOWN_MAX: Final = 200
"""Number of names after which a page ends."""
PAGES_READ_MAX: Final = 200
"""Maximum number of pages of a listing that are read to find names."""


@page("GET", "/scopes")
async def list_scopes(request: PageRequest) -> PageAnswer:
    """List the scopes."""
    found = await request.calls.list_all(
        "listScopes", lambda token: pb.ScopesRequest(continuationToken=token), "scopes"
    )
    return HtmlPage("scopes.html", {"scopes": sorted(found)})


@dataclass(slots=True)
class Part:
    """Names of a scope's listing, and the token at which the rest begins; "" at its end."""

    streams: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    next: str = ""

    def add(self, name: str, wanted: str) -> None:
        """Add a name by its kind, if it contains what is wanted."""
        group = name.removeprefix(names.READER_GROUP_PREFIX)
        if group != name:
            if wanted in group:
                self.groups.append(group)
        elif not name.startswith("_") and wanted in name:
            self.streams.append(name)


@page("GET", "/scopes/{scope}")
async def show_scope(request: PageRequest) -> PageAnswer:
    """Show the streams, reader groups and key-value tables of a scope, page by page."""
    scope, wanted = request.path["scope"], request.query.get("find", "").strip()
    part = await _list(request, scope, wanted, request.query.get("from", ""))
    return HtmlPage(
        "scope.html",
        {
            "scope": scope,
            "find": wanted,
            "part": part,
            "tables": await _list_tables(request, scope),
            "is_first": "from" not in request.query,
        },
    )


async def _list(request: PageRequest, scope: str, wanted: str, token: str) -> Part:
    part = Part()
    for _ in range(PAGES_READ_MAX):
        answer = await request.calls.call(
            "listStreamsInScope",
            pb.StreamsInScopeRequest(
                scope=pb.ScopeInfo(scope=scope),
                continuationToken=pb.ContinuationToken(token=token),
            ),
        )
        if answer.status != pb.StreamsInScopeResponse.SUCCESS:
            raise NotFoundError(f"there is no scope {scope}")
        token = answer.continuationToken.token
        if not answer.streams:
            return part
        for info in answer.streams:
            part.add(info.stream, wanted)
        if len(part.streams) + len(part.groups) >= NAMES_SHOWN_MAX:
            break
    part.next = token
    return part


async def _list_tables(request: PageRequest, scope: str) -> list[str]:
    """Return the key-value tables of a scope that the caller may read."""

    def ask(token: pb.ContinuationToken) -> pb.KVTablesInScopeRequest:
        return pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope=scope), continuationToken=token)

    try:
        found = await request.calls.list_all("listKeyValueTablesInScope", ask, "kvtables")
    except Refusal:
        # The scope was deleted meanwhile.
        return []
    return sorted(info.kvtName for info in found)[:NAMES_SHOWN_MAX]
