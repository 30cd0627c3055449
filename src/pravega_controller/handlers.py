"""Handlers of the RPCs about scopes and streams: one function per method.

Owns: their answers. If the interface has a status value for a refusal, the answer carries that; any
other error goes to the service, which answers with a gRPC status. The same holds for requests with
values that are never valid: a status FAILURE would make some clients try again.
"""

from __future__ import annotations

from collections.abc import Awaitable

from pravega_controller import messages
from pravega_controller.authority import is_local
from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    TableNotEmptyError,
)
from pravega_controller.records import IntentRecord
from pravega_controller.rpc import Call, rpc
from pravega_controller.store import Listing
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.names import InvalidNameError

# ---- Places --------------------------------------------------------------------------------------


@rpc("getControllerServerList", question=True)
async def get_controller_server_list(
    controller: Controller, request: pb.ServerRequest, call: Call
) -> pb.ServerResponse:
    """Return the living controllers: this one as the caller reached it, others as registered."""
    found = [pb.NodeUri(endpoint=call.host, port=call.port)]
    for other in controller.members.living()[1:]:
        # A host that is valid on one machine only is replaced by the caller's name of this one.
        host = call.host if is_local(other.host) else other.host
        found.append(pb.NodeUri(endpoint=host, port=other.port))
    return pb.ServerResponse(nodeURI=found)


def _segment_of(request: pb.SegmentId) -> str:
    info = request.streamInfo
    return names.segment_name(info.scope, info.stream, request.segmentId)


def _find_uri(controller: Controller, segment: str, call: Call) -> pb.NodeUri:
    host, port = controller.placement.address_for(segment, call.host)
    return pb.NodeUri(endpoint=host, port=port)


def _find_uri_now(controller: Controller, request: pb.SegmentId, call: Call) -> pb.NodeUri | None:
    segment = _segment_of(request)
    if not controller.segments.is_known_to_live(segment):
        return None
    return _find_uri(controller, segment, call)


@rpc("getURI", immediate=_find_uri_now, question=True)
async def get_uri(controller: Controller, request: pb.SegmentId, call: Call) -> pb.NodeUri:
    """Return the store of a segment, which need not exist: its name alone decides.

    Waits while a store is away and until another one takes its place, because the Java client keeps
    the answer for 20 seconds without asking again.
    """
    segment = _segment_of(request)
    await controller.segments.wait_until_alive(segment)
    return _find_uri(controller, segment, call)


def _give_empty_token(
    controller: Controller, request: pb.StreamInfo, call: Call
) -> pb.DelegationToken:
    return pb.DelegationToken(delegationToken="")


@rpc("getDelegationToken", immediate=_give_empty_token)
async def get_delegation_token(
    controller: Controller, request: pb.StreamInfo, call: Call
) -> pb.DelegationToken:
    """Return the empty token: clients request one even where authorization is off."""
    return _give_empty_token(controller, request, call)


# ---- Scopes --------------------------------------------------------------------------------------


@rpc("createScope")
async def create_scope(
    controller: Controller, request: pb.ScopeInfo, call: Call
) -> pb.CreateScopeStatus:
    try:
        await controller.scopes.create(request.scope)
    except InvalidNameError:
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.INVALID_SCOPE_NAME)
    except AlreadyExistsError:
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)
    return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SUCCESS)


@rpc("checkScopeExists", question=True)
async def check_scope_exists(
    controller: Controller, request: pb.ScopeInfo, call: Call
) -> pb.ExistsResponse:
    return pb.ExistsResponse(exists=await controller.scopes.exists(request.scope))


@rpc("deleteScope")
async def delete_scope(
    controller: Controller, request: pb.ScopeInfo, call: Call
) -> pb.DeleteScopeStatus:
    try:
        await controller.scopes.delete(request.scope)
    except ScopeNotFoundError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_FOUND)
    except TableNotEmptyError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_EMPTY)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


@rpc("deleteScopeRecursive")
async def delete_scope_recursive(
    controller: Controller, request: pb.ScopeInfo, call: Call
) -> pb.DeleteScopeStatus:
    """Delete a scope with its contents; a missing scope counts as deleted, as in the original."""
    try:
        await controller.scopes.delete_with_contents(request.scope)
    except ScopeNotFoundError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


@rpc("listScopes", question=True)
async def list_scopes(
    controller: Controller, request: pb.ScopesRequest, call: Call
) -> pb.ScopesResponse:
    listing = await controller.store.list_scopes(request.continuationToken.token)
    return pb.ScopesResponse(scopes=listing.names, continuationToken=_token(listing))


@rpc("listStreamsInScope", question=True)
async def list_streams_in_scope(
    controller: Controller, request: pb.StreamsInScopeRequest, call: Call
) -> pb.StreamsInScopeResponse:
    scope, token = request.scope.scope, request.continuationToken.token
    return await _streams_of(scope, controller.store.list_streams(scope, token))


@rpc("listStreamsInScopeForTag", question=True)
async def list_streams_in_scope_for_tag(
    controller: Controller, request: pb.StreamsInScopeWithTagRequest, call: Call
) -> pb.StreamsInScopeResponse:
    scope, token = request.scope.scope, request.continuationToken.token
    return await _streams_of(scope, controller.streams.list_with_tag(scope, request.tag, token))


async def _streams_of(scope: str, search: Awaitable[Listing]) -> pb.StreamsInScopeResponse:
    try:
        listing = await search
    except ScopeNotFoundError:
        return pb.StreamsInScopeResponse(status=pb.StreamsInScopeResponse.SCOPE_NOT_FOUND)
    return pb.StreamsInScopeResponse(
        streams=[messages.stream_info(scope, name) for name in listing.names],
        continuationToken=_token(listing),
        status=pb.StreamsInScopeResponse.SUCCESS,
    )


def _token(listing: Listing) -> pb.ContinuationToken:
    return pb.ContinuationToken(token=listing.token)


# ---- Streams -------------------------------------------------------------------------------------


@rpc("createStream")
async def create_stream(
    controller: Controller, request: pb.StreamConfig, call: Call
) -> pb.CreateStreamStatus:
    info = request.streamInfo
    try:
        names.validate_stream_name(info.stream)
        configuration = messages.to_configuration(request)
        created = await controller.streams.create(info.scope, info.stream, configuration)
    except InvalidNameError:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.INVALID_STREAM_NAME)
    except ScopeNotFoundError:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SCOPE_NOT_FOUND)
    if not created:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.STREAM_EXISTS)
    return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SUCCESS)


@rpc("checkStreamExists", question=True)
async def check_stream_exists(
    controller: Controller, request: pb.StreamInfo, call: Call
) -> pb.ExistsResponse:
    return pb.ExistsResponse(exists=await controller.streams.exists(request.scope, request.stream))


@rpc("getStreamConfiguration", question=True)
async def get_stream_configuration(
    controller: Controller, request: pb.StreamInfo, call: Call
) -> pb.StreamConfig:
    configuration = await controller.streams.configuration(request.scope, request.stream)
    return messages.from_configuration(request.scope, request.stream, configuration)


async def _stream_status(change: Awaitable[None]) -> pb.UpdateStreamStatus:
    """Return the status of a change to an existing stream."""
    status = pb.UpdateStreamStatus.SUCCESS
    try:
        await change
    except NotFoundError:
        status = pb.UpdateStreamStatus.STREAM_NOT_FOUND
    except StreamSealedError:
        status = pb.UpdateStreamStatus.STREAM_SEALED
    except InvalidStreamCutError:
        status = pb.UpdateStreamStatus.FAILURE
    return pb.UpdateStreamStatus(status=status)


@rpc("updateStream")
async def update_stream(
    controller: Controller, request: pb.StreamConfig, call: Call
) -> pb.UpdateStreamStatus:
    info = request.streamInfo
    configuration = messages.to_configuration(request)
    return await _stream_status(controller.streams.update(info.scope, info.stream, configuration))


@rpc("truncateStream")
async def truncate_stream(
    controller: Controller, request: pb.StreamCut, call: Call
) -> pb.UpdateStreamStatus:
    info = request.streamInfo
    return await _stream_status(
        controller.streams.truncate(info.scope, info.stream, dict(request.cut))
    )


@rpc("sealStream")
async def seal_stream(
    controller: Controller, request: pb.StreamInfo, call: Call
) -> pb.UpdateStreamStatus:
    return await _stream_status(controller.streams.seal(request.scope, request.stream))


@rpc("deleteStream")
async def delete_stream(
    controller: Controller, request: pb.StreamInfo, call: Call
) -> pb.DeleteStreamStatus:
    try:
        await controller.streams.delete(request.scope, request.stream)
    except NotFoundError:
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_FOUND)
    except StreamNotSealedError:
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_SEALED)
    return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.SUCCESS)


# ---- Segments ------------------------------------------------------------------------------------


@rpc("getCurrentSegments", question=True)
async def get_current_segments(
    controller: Controller, request: pb.StreamInfo, call: Call
) -> pb.SegmentRanges:
    segments = await controller.streams.active_segments(request.scope, request.stream)
    return messages.segment_ranges(request.scope, request.stream, segments)


@rpc("getEpochSegments", question=True)
async def get_epoch_segments(
    controller: Controller, request: pb.GetEpochSegmentsRequest, call: Call
) -> pb.SegmentRanges:
    info = request.streamInfo
    segments = await controller.streams.epoch_segments(info.scope, info.stream, request.epoch)
    return messages.segment_ranges(info.scope, info.stream, segments)


@rpc("getSegments", question=True)
async def get_segments(
    controller: Controller, request: pb.GetSegmentsRequest, call: Call
) -> pb.SegmentsAtTime:
    """Return the head of the stream; the request's timestamp is ignored."""
    info = request.streamInfo
    head = await controller.streams.head(info.scope, info.stream)
    return pb.SegmentsAtTime(
        segments=[
            pb.SegmentsAtTime.SegmentLocation(
                segmentId=messages.segment_id(info.scope, info.stream, identifier), offset=offset
            )
            for identifier, offset in head.items()
        ]
    )


@rpc("getSegmentsImmediatlyFollowing", question=True)
@rpc("getSegmentsImmediatelyFollowing", question=True)
async def get_segments_immediately_following(
    controller: Controller, request: pb.SegmentId, call: Call
) -> pb.SuccessorResponse:
    info = request.streamInfo
    found = await controller.streams.successors(info.scope, info.stream, request.segmentId)
    return pb.SuccessorResponse(
        segments=[
            pb.SuccessorResponse.SegmentEntry(
                segment=messages.segment_range(info.scope, info.stream, successor.segment),
                value=successor.predecessors,
            )
            for successor in found
        ]
    )


@rpc("getSegmentsBetween", question=True)
async def get_segments_between(
    controller: Controller, request: pb.StreamCutRange, call: Call
) -> pb.StreamCutRangeResponse:
    info = request.streamInfo
    start: dict[int, int] = dict(getattr(request, "from"))
    found = await controller.streams.segments_between(
        info.scope, info.stream, start, dict(request.to)
    )
    return pb.StreamCutRangeResponse(
        segments=[
            messages.segment_id(info.scope, info.stream, segment.segment_id) for segment in found
        ]
    )


@rpc("isSegmentValid", question=True)
async def is_segment_valid(
    controller: Controller, request: pb.SegmentId, call: Call
) -> pb.SegmentValidityResponse:
    info = request.streamInfo
    active = await controller.streams.is_segment_active(info.scope, info.stream, request.segmentId)
    return pb.SegmentValidityResponse(response=active)


@rpc("isStreamCutValid", question=True)
async def is_stream_cut_valid(
    controller: Controller, request: pb.StreamCut, call: Call
) -> pb.StreamCutValidityResponse:
    info = request.streamInfo
    valid = await controller.streams.is_cut_valid(info.scope, info.stream, dict(request.cut))
    return pb.StreamCutValidityResponse(response=valid)


# ---- Scaling -------------------------------------------------------------------------------------


@rpc("scale")
async def scale(controller: Controller, request: pb.ScaleRequest, call: Call) -> pb.ScaleResponse:
    """Record a scale and answer; the scale is then carried out in any case."""
    info = request.streamInfo
    ranges = [(entry.start, entry.end) for entry in request.newKeyRanges]
    try:
        started = await controller.streams.scale(
            info.scope,
            info.stream,
            list(request.sealedSegments),
            ranges,
            now_ms=controller.now_ms(),
        )
    except ScalePreconditionError:
        return pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED)
    except (NotFoundError, InvalidRequestError, StreamSealedError):
        return pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)
    controller.finish_later(IntentRecord("stream", info.scope, info.stream))
    return pb.ScaleResponse(
        status=pb.ScaleResponse.STARTED,
        segments=[messages.segment_range(info.scope, info.stream, s) for s in started.created],
        epoch=started.epoch,
    )


@rpc("checkScale", question=True)
async def check_scale(
    controller: Controller, request: pb.ScaleStatusRequest, call: Call
) -> pb.ScaleStatusResponse:
    info = request.streamInfo
    try:
        done = await controller.streams.has_left_epoch(info.scope, info.stream, request.epoch)
    except (NotFoundError, InvalidRequestError):
        return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.INVALID_INPUT)
    if not done:
        return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.IN_PROGRESS)
    return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.SUCCESS)
