"""Routes about streams, as the original has them.

Owns: their answers.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from pravega_controller.errors import InvalidRequestError, NotFoundError, StreamSealedError
from pravega_controller.http.calls import Refusal
from pravega_controller.http.documents import scale_documents, stream_document, stream_message
from pravega_controller.http.routes import NO_CONTENT, HttpRequest, route
from pravega_controller.http.scope_routes import check_scope, list_streams
from pravega_wire import controller_pb2 as pb

STREAMS: Final = "/v1/scopes/{scope}/streams"
STREAM: Final = "/v1/scopes/{scope}/streams/{stream}"
NO_STREAM: Final = "there is no such stream"
SEALED: Final = "SEALED"
READS_MAX: Final = 16
"""Maximum number of streams whose configurations one request reads at a time."""
EPOCHS_MAX: Final = 1000
"""Maximum number of scales in an answer: the last ones."""


@route(
    "GET",
    STREAMS,
    {200: "the streams that the caller may read", 404: "there is no such scope"},
    reply="Streams",
    query={
        "filter_type": "showInternalStreams for the internal streams alone, tag for those with a"
        " tag",
        "filter_value": "the tag",
    },
)
async def list_scope_streams(request: HttpRequest) -> Any:
    """List the streams of a scope with their configurations."""
    kind = request.query.get("filter_type")
    tag = request.query.get("filter_value", "") if kind == "tag" else None
    await check_scope(request)
    is_internal = kind == "showInternalStreams"
    wanted = [
        name for name in await list_streams(request, tag) if name.startswith("_") == is_internal
    ]
    found: dict[str, Any] = {}
    limiter = trio.CapacityLimiter(READS_MAX)

    async def read(name: str) -> None:
        async with limiter:
            try:
                found[name] = stream_document(await _read(request, name))
            except NotFoundError:
                # The stream was deleted after it was listed.
                return

    async with trio.open_nursery() as nursery:
        for name in wanted:
            nursery.start_soon(read, name)
    return {"streams": [found[name] for name in wanted if name in found]}


@route(
    "POST",
    STREAMS,
    {
        201: "created",
        400: "the configuration is not valid",
        404: "there is no such scope",
        409: "the stream exists",
    },
    request="NewStream",
    reply="Stream",
)
async def create_stream(request: HttpRequest) -> Any:
    """Create a stream."""
    scope, stream = request.path["scope"], request.text("streamName")
    message = stream_message(scope, stream, request.body)
    answer = await request.calls.call("createStream", message)
    if answer.status == pb.CreateStreamStatus.SCOPE_NOT_FOUND:
        raise NotFoundError(f"there is no scope {scope}")
    if answer.status == pb.CreateStreamStatus.STREAM_EXISTS:
        raise Refusal(409, f"stream {scope}/{stream} exists")
    if answer.status != pb.CreateStreamStatus.SUCCESS:
        raise Refusal(500, f"stream {scope}/{stream} could not be created")
    return stream_document(message)


@route("GET", STREAM, {200: "the stream", 404: NO_STREAM}, reply="Stream")
async def describe_stream(request: HttpRequest) -> Any:
    """Describe a stream."""
    return stream_document(await _read(request, request.path["stream"]))


@route(
    "PUT",
    STREAM,
    {
        200: "changed",
        400: "the configuration is not valid",
        404: NO_STREAM,
        409: "the stream is sealed",
    },
    request="StreamSettings",
    reply="Stream",
)
async def update_stream(request: HttpRequest) -> Any:
    """Replace the configuration of a stream."""
    scope, stream = request.path["scope"], request.path["stream"]
    message = stream_message(scope, stream, _object_of(request))
    _check_change(await request.calls.call("updateStream", message))
    return stream_document(message)


@route("DELETE", STREAM, {NO_CONTENT: "deleted", 404: NO_STREAM, 412: "the stream is not sealed"})
async def delete_stream(request: HttpRequest) -> None:
    """Delete a sealed stream."""
    answer = await request.calls.call("deleteStream", _info(request))
    if answer.status == pb.DeleteStreamStatus.STREAM_NOT_FOUND:
        raise NotFoundError(NO_STREAM)
    if answer.status == pb.DeleteStreamStatus.STREAM_NOT_SEALED:
        raise Refusal(412, "the stream is not sealed")
    if answer.status != pb.DeleteStreamStatus.SUCCESS:
        raise Refusal(500, "the stream could not be deleted")


@route(
    "PUT",
    f"{STREAM}/state",
    {200: "sealed", 400: f"the state is not {SEALED}", 404: NO_STREAM},
    request="StreamState",
    reply="StreamState",
)
async def seal_stream(request: HttpRequest) -> Any:
    """Seal a stream."""
    if request.text("streamState") != SEALED:
        raise InvalidRequestError(f"streamState can only be {SEALED}")
    _check_change(await request.calls.call("sealStream", _info(request)))
    return {"streamState": SEALED}


@route(
    "GET",
    f"{STREAM}/scaling-events",
    {200: "the scales", 400: "a time is missing or wrong", 404: NO_STREAM},
    reply="ScalingEvents",
    query={
        "from": "a time in milliseconds since 1970",
        "to": "a time in milliseconds since 1970",
    },
)
async def list_scales(request: HttpRequest) -> Any:
    """List the scales of a stream within a time, and the last one before it."""
    since, until = request.milliseconds("from"), request.milliseconds("to")
    if since > until:
        raise InvalidRequestError("from is after to")
    scope, stream = request.path["scope"], request.path["stream"]
    # No RPC returns the times of scales. The one of ``_read`` checks that the caller may read the
    # stream.
    await _read(request, stream)
    found = await request.calls.controller.streams.last_epochs(scope, stream, EPOCHS_MAX)
    epochs, segments = zip(*found, strict=True)
    return scale_documents(epochs, segments, since, until)


async def _read(request: HttpRequest, stream: str) -> pb.StreamConfig:
    info = pb.StreamInfo(scope=request.path["scope"], stream=stream)
    found: pb.StreamConfig = await request.calls.call("getStreamConfiguration", info)
    return found


def _info(request: HttpRequest) -> pb.StreamInfo:
    return pb.StreamInfo(scope=request.path["scope"], stream=request.path["stream"])


def _object_of(request: HttpRequest) -> dict[str, Any]:
    if not isinstance(request.body, dict):
        raise InvalidRequestError("the body has to be an object")
    return request.body


def _check_change(answer: pb.UpdateStreamStatus) -> None:
    if answer.status == pb.UpdateStreamStatus.STREAM_NOT_FOUND:
        raise NotFoundError(NO_STREAM)
    if answer.status == pb.UpdateStreamStatus.STREAM_SEALED:
        raise StreamSealedError("the stream is sealed")
    if answer.status != pb.UpdateStreamStatus.SUCCESS:
        raise Refusal(500, "the stream could not be changed")
