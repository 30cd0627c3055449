"""Routes about scopes and their reader groups, as the original has them.

Owns: their answers.
"""

from __future__ import annotations

from typing import Any

from pravega_controller.errors import NotFoundError
from pravega_controller.http.calls import Refusal
from pravega_controller.http.routes import NO_CONTENT, HttpRequest, route
from pravega_wire import controller_pb2 as pb
from pravega_wire import names

SCOPES = "/v1/scopes"
SCOPE = "/v1/scopes/{scope}"
GROUPS = "/v1/scopes/{scope}/readergroups"
GROUP = "/v1/scopes/{scope}/readergroups/{group}"
NO_SCOPE = "there is no such scope"
NO_GROUP = "there is no such scope, or no such reader group"


@route("GET", SCOPES, {200: "the scopes that the caller may read"}, reply="Scopes")
async def list_scopes(request: HttpRequest) -> Any:
    """List the scopes."""
    scopes = [
        {"scopeName": name}
        for name in await request.calls.list_all(
            "listScopes", lambda token: pb.ScopesRequest(continuationToken=token), "scopes"
        )
    ]
    return {"scopes": scopes} if scopes else {}


@route(
    "POST",
    SCOPES,
    {201: "created", 400: "it cannot be the name of a scope", 409: "the scope exists"},
    request="Scope",
    reply="Scope",
)
async def create_scope(request: HttpRequest) -> Any:
    """Create a scope."""
    scope = request.text("scopeName")
    answer = await request.calls.call("createScope", pb.ScopeInfo(scope=scope))
    if answer.status == pb.CreateScopeStatus.SCOPE_EXISTS:
        raise Refusal(409, f"scope {scope} exists")
    _check_done(answer, pb.CreateScopeStatus.SUCCESS)
    return {"scopeName": scope}


@route("GET", SCOPE, {200: "the scope exists", 404: NO_SCOPE}, reply="Scope")
async def describe_scope(request: HttpRequest) -> Any:
    """Tell whether a scope exists."""
    scope = request.path["scope"]
    await check_scope(request)
    return {"scopeName": scope}


@route(
    "DELETE", SCOPE, {NO_CONTENT: "deleted", 404: NO_SCOPE, 412: "the scope has streams or tables"}
)
async def delete_scope(request: HttpRequest) -> None:
    """Delete an empty scope."""
    scope = request.path["scope"]
    answer = await request.calls.call("deleteScope", pb.ScopeInfo(scope=scope))
    if answer.status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND:
        raise NotFoundError(f"there is no scope {scope}")
    if answer.status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY:
        raise Refusal(412, f"scope {scope} is not empty")
    _check_done(answer, pb.DeleteScopeStatus.SUCCESS)


@route("GET", GROUPS, {200: "the reader groups", 404: NO_SCOPE}, reply="ReaderGroups")
async def list_groups(request: HttpRequest) -> Any:
    """List the reader groups of a scope."""
    groups = [
        {"readerGroupName": stream.removeprefix(names.READER_GROUP_PREFIX)}
        for stream in await list_streams(request)
        if stream.startswith(names.READER_GROUP_PREFIX)
    ]
    return {"readerGroups": groups} if groups else {}


@route(
    "GET",
    GROUP,
    {200: "the reader group", 404: NO_GROUP, 409: "its readers' state cannot be read"},
    reply="ReaderGroup",
)
async def describe_group(request: HttpRequest) -> Any:
    """Describe a reader group: the streams that it reads, and the readers that are online."""
    scope, group = request.path["scope"], request.path["group"]
    found = await _find_group(request)
    state = await request.calls.controller.groups.open_state(scope, group)
    streams = dict.fromkeys(
        names.scoped_name(cut.streamInfo.scope, cut.streamInfo.stream)
        for cut in found.startingStreamCuts
    )
    return {
        "scopeName": scope,
        "readerGroupName": group,
        "streamList": list(streams),
        "onlineReaderIds": (await state.read()).readers,
    }


@route("DELETE", GROUP, {NO_CONTENT: "deleted", 404: NO_GROUP})
async def delete_group(request: HttpRequest) -> None:
    """Delete a reader group."""
    found = await _find_group(request)
    info = pb.ReaderGroupInfo(
        scope=request.path["scope"],
        readerGroup=request.path["group"],
        readerGroupId=found.readerGroupId,
        generation=found.generation,
    )
    answer = await request.calls.call("deleteReaderGroup", info)
    if answer.status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND:
        raise NotFoundError(NO_GROUP)
    _check_done(answer, pb.DeleteReaderGroupStatus.SUCCESS)


async def check_scope(request: HttpRequest) -> None:
    """Raise ``NotFoundError`` if the scope of the path does not exist."""
    scope = request.path["scope"]
    answer = await request.calls.call("checkScopeExists", pb.ScopeInfo(scope=scope))
    if not answer.exists:
        raise NotFoundError(f"there is no scope {scope}")


async def list_streams(request: HttpRequest, tag: str | None = None) -> list[str]:
    """Return the names of the streams of the path's scope, with a tag if one is given.

    Raises ``Refusal``.
    """
    scope = pb.ScopeInfo(scope=request.path["scope"])

    def with_tag(token: pb.ContinuationToken) -> pb.StreamsInScopeWithTagRequest:
        return pb.StreamsInScopeWithTagRequest(scope=scope, tag=tag, continuationToken=token)

    def without(token: pb.ContinuationToken) -> pb.StreamsInScopeRequest:
        return pb.StreamsInScopeRequest(scope=scope, continuationToken=token)

    if tag is not None:
        found = await request.calls.list_all("listStreamsInScopeForTag", with_tag, "streams")
    else:
        found = await request.calls.list_all("listStreamsInScope", without, "streams")
    return [info.stream for info in found]


async def _find_group(request: HttpRequest) -> pb.ReaderGroupConfiguration:
    info = pb.ReaderGroupInfo(scope=request.path["scope"], readerGroup=request.path["group"])
    answer = await request.calls.call("getReaderGroupConfig", info)
    if answer.status != pb.ReaderGroupConfigResponse.SUCCESS:
        raise NotFoundError(NO_GROUP)
    found: pb.ReaderGroupConfiguration = answer.config
    return found


def _check_done(answer: Any, success: int) -> None:
    if answer.status != success:
        raise Refusal(500, f"the controller answered {answer.Status.Name(answer.status)}")
