"""The page of a reader group: the streams that it reads, and its readers that are online."""

from __future__ import annotations

from typing import Any

from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.errors import ControllerError, NotFoundError
from pravega_wire import controller_pb2 as pb


@page("GET", "/groups/{scope}/{group}")
async def show_group(request: PageRequest) -> PageAnswer:
    """Show a reader group."""
    return HtmlPage("group.html", await _look(request))


@page("GET", "/groups/{scope}/{group}/live")
async def show_group_again(request: PageRequest) -> PageAnswer:
    """Show what changes on the page of a reader group."""
    return HtmlPage("group_live.html", await _look(request))


async def _look(request: PageRequest) -> dict[str, Any]:
    scope, group = request.path["scope"], request.path["group"]
    info = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
    answer = await request.calls.call("getReaderGroupConfig", info)
    if answer.status != pb.ReaderGroupConfigResponse.SUCCESS:
        raise NotFoundError(f"there is no reader group {scope}/{group}")
    readers: list[str] | None = None
    reason = ""
    try:
        readers = await request.calls.controller.groups.online_readers(scope, group)
    except ControllerError as error:
        # Readers of the Rust and Python clients keep their state elsewhere.
        reason = str(error)
    streams = dict.fromkeys(
        (cut.streamInfo.scope, cut.streamInfo.stream) for cut in answer.config.startingStreamCuts
    )
    return {
        "scope": scope,
        "group": group,
        "generation": answer.config.generation,
        "streams": list(streams),
        "readers": readers,
        "reason": reason,
    }
