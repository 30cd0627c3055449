"""Handlers of the RPCs about writers' times: one function per method.

Owns: their answers, by the rule of ``handlers``.
"""

from __future__ import annotations

from pravega_controller.errors import InvalidRequestError, NotFoundError
from pravega_controller.rpc import permissions
from pravega_controller.rpc.rpc import Call, rpc
from pravega_controller.watermarks.watermarks import OldPositionError, OldTimeError
from pravega_wire import controller_pb2 as pb


@rpc("noteTimestampFromWriter", permissions.change_stream)
async def note_timestamp_from_writer(
    call: Call, request: pb.TimestampFromWriter
) -> pb.TimestampResponse:
    info = request.position.streamInfo
    position = dict(request.position.cut)
    status = pb.TimestampResponse.SUCCESS
    try:
        await call.controller.watermarks.record_mark(
            info.scope, info.stream, request.writer, request.timestamp, position
        )
    except OldTimeError:
        status = pb.TimestampResponse.INVALID_TIME
    except OldPositionError:
        status = pb.TimestampResponse.INVALID_POSITION
    return pb.TimestampResponse(result=status)


@rpc("removeWriter", permissions.change_stream)
async def remove_writer(call: Call, request: pb.RemoveWriterRequest) -> pb.RemoveWriterResponse:
    info = request.stream
    status = pb.RemoveWriterResponse.SUCCESS
    try:
        await call.controller.watermarks.remove(info.scope, info.stream, request.writer)
    except (NotFoundError, InvalidRequestError):
        status = pb.RemoveWriterResponse.UNKNOWN_WRITER
    return pb.RemoveWriterResponse(result=status)
