"""Handlers of the RPCs about scopes and streams: one function per method.

Owns: their answers. If the interface has a status value for a refusal, the answer carries that; any
other error goes to the service, which answers with a gRPC status. The same holds for requests with
values that are never valid: a status FAILURE would make some clients try again.
"""

from __future__ import annotations

from collections.abc import Awaitable

from pravega_controller import messages
from pravega_controller.authority import is_local
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
async def get_controller_server_list(call: Call, request: pb.ServerRequest) -> pb.ServerResponse:
    """Return the living controllers: this one as the caller reached it, others as registered."""
    found = [pb.NodeUri(endpoint=call.host, port=call.port)]
    for other in call.controller.members.living()[1:]:
        # A host that is valid on one machine only is replaced by the caller's name of this one.
        host = call.host if is_local(other.host) else other.host
        found.append(pb.NodeUri(endpoint=host, port=other.port))
    return pb.ServerResponse(nodeURI=found)


def _segment_of(request: pb.SegmentId) -> str:
    info = request.streamInfo
    return names.segment_name(info.scope, info.stream, request.segmentId)


def _find_uri(call: Call, segment: str) -> pb.NodeUri:
    host, port = call.controller.placement.address_for(segment, call.host)
    return pb.NodeUri(endpoint=host, port=port)


def _find_uri_now(call: Call, request: pb.SegmentId) -> pb.NodeUri | None:
    segment = _segment_of(request)
    if not call.controller.segments.is_known_to_live(segment):
        return None
    return _find_uri(call, segment)


@rpc("getURI", immediate=_find_uri_now, question=True)
async def get_uri(call: Call, request: pb.SegmentId) -> pb.NodeUri:
    """Return the store of a segment, which need not exist: its name alone decides.

    Waits while a store is away and until another one takes its place, because the Java client keeps
    the answer for 20 seconds without asking again.
    """
    segment = _segment_of(request)
    await call.controller.segments.wait_until_alive(segment)
    return _find_uri(call, segment)


def _give_empty_token(call: Call, request: pb.StreamInfo) -> pb.DelegationToken:
    return pb.DelegationToken(delegationToken="")


@rpc("getDelegationToken", immediate=_give_empty_token)
async def get_delegation_token(call: Call, request: pb.StreamInfo) -> pb.DelegationToken:
    """Return the empty token: clients request one even where authorization is off."""
    return _give_empty_token(call, request)


# ---- Scopes --------------------------------------------------------------------------------------


@rpc("createScope")
async def create_scope(call: Call, request: pb.ScopeInfo) -> pb.CreateScopeStatus:
    try:
        await call.controller.scopes.create(request.scope)
    except InvalidNameError:
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.INVALID_SCOPE_NAME)
    except AlreadyExistsError:
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)
    return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SUCCESS)


@rpc("checkScopeExists", question=True)
async def check_scope_exists(call: Call, request: pb.ScopeInfo) -> pb.ExistsResponse:
    return pb.ExistsResponse(exists=await call.controller.scopes.exists(request.scope))


@rpc("deleteScope")
async def delete_scope(call: Call, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
    try:
        await call.controller.scopes.delete(request.scope)
    except ScopeNotFoundError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_FOUND)
    except TableNotEmptyError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_EMPTY)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


@rpc("deleteScopeRecursive")
async def delete_scope_recursive(call: Call, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
    """Delete a scope with its contents; a missing scope counts as deleted, as in the original."""
    try:
        await call.controller.scopes.delete_with_contents(request.scope)
    except ScopeNotFoundError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


@rpc("listScopes", question=True)
async def list_scopes(call: Call, request: pb.ScopesRequest) -> pb.ScopesResponse:
    listing = await call.controller.store.list_scopes(request.continuationToken.token)
    return pb.ScopesResponse(scopes=listing.names, continuationToken=_token(listing))


@rpc("listStreamsInScope", question=True)
async def list_streams_in_scope(
    call: Call, request: pb.StreamsInScopeRequest
) -> pb.StreamsInScopeResponse:
    scope, token = request.scope.scope, request.continuationToken.token
    return await _streams_of(scope, call.controller.store.list_streams(scope, token))


@rpc("listStreamsInScopeForTag", question=True)
async def list_streams_in_scope_for_tag(
    call: Call, request: pb.StreamsInScopeWithTagRequest
) -> pb.StreamsInScopeResponse:
    scope, token = request.scope.scope, request.continuationToken.token
    return await _streams_of(
        scope, call.controller.streams.list_with_tag(scope, request.tag, token)
    )


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
async def create_stream(call: Call, request: pb.StreamConfig) -> pb.CreateStreamStatus:
    info = request.streamInfo
    try:
        names.validate_stream_name(info.stream)
        configuration = messages.to_configuration(request)
        created = await call.controller.streams.create(info.scope, info.stream, configuration)
    except InvalidNameError:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.INVALID_STREAM_NAME)
    except ScopeNotFoundError:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SCOPE_NOT_FOUND)
    if not created:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.STREAM_EXISTS)
    return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SUCCESS)


@rpc("checkStreamExists", question=True)
async def check_stream_exists(call: Call, request: pb.StreamInfo) -> pb.ExistsResponse:
    return pb.ExistsResponse(
        exists=await call.controller.streams.exists(request.scope, request.stream)
    )


@rpc("getStreamConfiguration", question=True)
async def get_stream_configuration(call: Call, request: pb.StreamInfo) -> pb.StreamConfig:
    configuration = await call.controller.streams.configuration(request.scope, request.stream)
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
async def update_stream(call: Call, request: pb.StreamConfig) -> pb.UpdateStreamStatus:
    info = request.streamInfo
    configuration = messages.to_configuration(request)
    return await _stream_status(
        call.controller.streams.update(info.scope, info.stream, configuration)
    )


@rpc("truncateStream")
async def truncate_stream(call: Call, request: pb.StreamCut) -> pb.UpdateStreamStatus:
    info = request.streamInfo
    return await _stream_status(
        call.controller.streams.truncate(info.scope, info.stream, dict(request.cut))
    )


@rpc("sealStream")
async def seal_stream(call: Call, request: pb.StreamInfo) -> pb.UpdateStreamStatus:
    return await _stream_status(call.controller.streams.seal(request.scope, request.stream))


@rpc("deleteStream")
async def delete_stream(call: Call, request: pb.StreamInfo) -> pb.DeleteStreamStatus:
    try:
        await call.controller.streams.delete(request.scope, request.stream)
    except NotFoundError:
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_FOUND)
    except StreamNotSealedError:
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_SEALED)
    return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.SUCCESS)


# ---- Segments ------------------------------------------------------------------------------------


@rpc("getCurrentSegments", question=True)
async def get_current_segments(call: Call, request: pb.StreamInfo) -> pb.SegmentRanges:
    segments = await call.controller.streams.active_segments(request.scope, request.stream)
    return messages.segment_ranges(request.scope, request.stream, segments)


@rpc("getEpochSegments", question=True)
async def get_epoch_segments(call: Call, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
    info = request.streamInfo
    segments = await call.controller.streams.epoch_segments(info.scope, info.stream, request.epoch)
    return messages.segment_ranges(info.scope, info.stream, segments)


@rpc("getSegments", question=True)
async def get_segments(call: Call, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
    """Return the head of the stream; the request's timestamp is ignored."""
    info = request.streamInfo
    head = await call.controller.streams.head(info.scope, info.stream)
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
    call: Call, request: pb.SegmentId
) -> pb.SuccessorResponse:
    info = request.streamInfo
    found = await call.controller.streams.successors(info.scope, info.stream, request.segmentId)
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
async def get_segments_between(call: Call, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
    info = request.streamInfo
    start: dict[int, int] = dict(getattr(request, "from"))
    found = await call.controller.streams.segments_between(
        info.scope, info.stream, start, dict(request.to)
    )
    return pb.StreamCutRangeResponse(
        segments=[
            messages.segment_id(info.scope, info.stream, segment.segment_id) for segment in found
        ]
    )


@rpc("isSegmentValid", question=True)
async def is_segment_valid(call: Call, request: pb.SegmentId) -> pb.SegmentValidityResponse:
    info = request.streamInfo
    active = await call.controller.streams.is_segment_active(
        info.scope, info.stream, request.segmentId
    )
    return pb.SegmentValidityResponse(response=active)


@rpc("isStreamCutValid", question=True)
async def is_stream_cut_valid(call: Call, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
    info = request.streamInfo
    valid = await call.controller.streams.is_cut_valid(info.scope, info.stream, dict(request.cut))
    return pb.StreamCutValidityResponse(response=valid)


# ---- Scaling -------------------------------------------------------------------------------------


@rpc("scale")
async def scale(call: Call, request: pb.ScaleRequest) -> pb.ScaleResponse:
    """Record a scale and answer; the scale is then carried out in any case."""
    info = request.streamInfo
    ranges = [(entry.start, entry.end) for entry in request.newKeyRanges]
    try:
        started = await call.controller.streams.scale(
            info.scope,
            info.stream,
            list(request.sealedSegments),
            ranges,
            now_ms=call.controller.now_ms(),
        )
    except ScalePreconditionError:
        return pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED)
    except (NotFoundError, InvalidRequestError, StreamSealedError):
        return pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)
    call.controller.finish_later(IntentRecord("stream", info.scope, info.stream))
    return pb.ScaleResponse(
        status=pb.ScaleResponse.STARTED,
        segments=[messages.segment_range(info.scope, info.stream, s) for s in started.created],
        epoch=started.epoch,
    )


@rpc("checkScale", question=True)
async def check_scale(call: Call, request: pb.ScaleStatusRequest) -> pb.ScaleStatusResponse:
    info = request.streamInfo
    try:
        done = await call.controller.streams.has_left_epoch(info.scope, info.stream, request.epoch)
    except (NotFoundError, InvalidRequestError):
        return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.INVALID_INPUT)
    if not done:
        return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.IN_PROGRESS)
    return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.SUCCESS)
