"""Handlers of the RPCs about scopes and streams: one function per method.

Owns: their answers. If the interface has a status value for a refusal, the answer carries that; any
other error goes to the service, which answers with a gRPC status. The same holds for requests with
values that are never valid: a status FAILURE would make some clients try again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio
from google.protobuf.message import Message

from pravega_controller.authority import is_local
from pravega_controller.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StepRefusedError,
    StreamNotSealedError,
    StreamSealedError,
    TableNotEmptyError,
    UnservedError,
)
from pravega_controller.metadata.records import IntentRecord
from pravega_controller.metadata.scope_records import Listing
from pravega_controller.rpc import messages, permissions
from pravega_controller.rpc.listings import list_readable
from pravega_controller.rpc.permissions import Operation
from pravega_controller.rpc.rpc import Call, rpc
from pravega_security.resources import Level, resource_kept_for, scope_resource
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.names import InvalidNameError

# ---- Places --------------------------------------------------------------------------------------


@rpc("getControllerServerList", permissions.anybody, question=True)
async def get_controller_server_list(call: Call, request: pb.ServerRequest) -> pb.ServerResponse:
    """Return the live controllers: this one by the caller's address, others as registered."""
    found = [pb.NodeUri(endpoint=call.host, port=call.port)]
    for other in call.controller.members.living()[1:]:
        # A host such as 127.0.0.1 is replaced by the host at which the caller reached us.
        host = call.host if is_local(other.host) else other.host
        found.append(pb.NodeUri(endpoint=host, port=other.port))
    return pb.ServerResponse(nodeURI=found)


@rpc("getControllerToBucketMapping", permissions.read_root, question=True)
async def get_controller_to_bucket_mapping(
    call: Call, request: pb.ControllerToBucketMappingRequest
) -> Message:
    """Refuse the call, which only the original's administration tool makes."""
    await trio.lowlevel.checkpoint()
    raise UnservedError("this controller runs no bucket services")


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


@rpc("getURI", permissions.read_segments, immediate=_find_uri_now, question=True)
async def get_uri(call: Call, request: pb.SegmentId) -> pb.NodeUri:
    """Return the store of a segment, which need not exist: its name alone decides.

    Waits while a store is away and until another one takes its place, because the Java client keeps
    the answer for 20 seconds without asking again.
    """
    segment = _segment_of(request)
    await call.controller.segments.wait_until_alive(segment)
    return _find_uri(call, segment)


def _give_token(call: Call, request: pb.StreamInfo) -> pb.DelegationToken:
    wanted = Level.READ_UPDATE
    if request.accessOperation in (Operation.READ, Operation.NONE):
        wanted = Level(request.accessOperation == Operation.READ)
    return pb.DelegationToken(delegationToken=call.token_for(request, wanted))


@rpc("getDelegationToken", permissions.use_segments, immediate=_give_token, question=True)
async def get_delegation_token(call: Call, request: pb.StreamInfo) -> pb.DelegationToken:
    """Return a token for the segments of a stream, or of a table of its name.

    It is empty where authorization is off: clients request one even there.
    """
    return _give_token(call, request)


# ---- Scopes --------------------------------------------------------------------------------------


@rpc("createScope", permissions.change_root)
async def create_scope(call: Call, request: pb.ScopeInfo) -> pb.CreateScopeStatus:
    try:
        await call.controller.scopes.create(request.scope)
    except InvalidNameError as error:
        call.explain(error)
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.INVALID_SCOPE_NAME)
    except AlreadyExistsError:
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS)
    return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SUCCESS)


@rpc("checkScopeExists", permissions.read_scope, question=True)
async def check_scope_exists(call: Call, request: pb.ScopeInfo) -> pb.ExistsResponse:
    return pb.ExistsResponse(exists=await call.controller.scopes.exists(request.scope))


@rpc("deleteScope", permissions.change_root)
async def delete_scope(call: Call, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
    try:
        await call.controller.scopes.delete(request.scope)
    except ScopeNotFoundError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_FOUND)
    except TableNotEmptyError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_EMPTY)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


@rpc("deleteScopeRecursive", permissions.change_root)
async def delete_scope_recursive(call: Call, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
    """Delete a scope with its contents; a missing scope counts as deleted, as in the original."""
    try:
        await call.controller.scopes.delete_with_contents(request.scope)
    except ScopeNotFoundError:
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)
    return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)


@rpc("listScopes", permissions.read_root, question=True)
async def list_scopes(call: Call, request: pb.ScopesRequest) -> pb.ScopesResponse:
    listing = await list_readable(
        call,
        call.controller.store.scopes.list_page,
        request.continuationToken.token,
        scope_resource,
    )
    return pb.ScopesResponse(scopes=listing.names, continuationToken=_token(listing))


@rpc("listStreamsInScope", permissions.read_scope, question=True)
async def list_streams_in_scope(
    call: Call, request: pb.StreamsInScopeRequest
) -> pb.StreamsInScopeResponse:
    scope, token = request.scope.scope, request.continuationToken.token
    names_of = partial(call.controller.store.names.list_page, scope)
    return await _list_streams(call, scope, token, names_of)


@rpc("listStreamsInScopeForTag", permissions.read_scope, question=True)
async def list_streams_in_scope_for_tag(
    call: Call, request: pb.StreamsInScopeWithTagRequest
) -> pb.StreamsInScopeResponse:
    scope, token = request.scope.scope, request.continuationToken.token
    names_of = partial(call.controller.streams.list_with_tag, scope, request.tag)
    return await _list_streams(call, scope, token, names_of)


async def _list_streams(
    call: Call, scope: str, token: str, list_page: Callable[[str], Awaitable[Listing]]
) -> pb.StreamsInScopeResponse:
    resource_of = partial(resource_kept_for, scope)
    try:
        listing = await list_readable(call, list_page, token, resource_of)
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


@rpc("createStream", permissions.create_stream)
async def create_stream(call: Call, request: pb.StreamConfig) -> pb.CreateStreamStatus:
    info = request.streamInfo
    try:
        names.validate_name(info.stream)
        configuration = messages.to_configuration(request)
        created = await call.controller.streams.create(info.scope, info.stream, configuration)
    except InvalidNameError as error:
        call.explain(error)
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.INVALID_STREAM_NAME)
    except ScopeNotFoundError:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SCOPE_NOT_FOUND)
    if not created:
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.STREAM_EXISTS)
    return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SUCCESS)


@rpc("checkStreamExists", permissions.read_stream, question=True)
async def check_stream_exists(call: Call, request: pb.StreamInfo) -> pb.ExistsResponse:
    return pb.ExistsResponse(
        exists=await call.controller.streams.exists(request.scope, request.stream)
    )


@rpc("getStreamConfiguration", permissions.read_stream, question=True)
async def get_stream_configuration(call: Call, request: pb.StreamInfo) -> pb.StreamConfig:
    configuration = await call.controller.streams.configuration(request.scope, request.stream)
    return messages.from_configuration(request.scope, request.stream, configuration)


async def _stream_status(call: Call, change: Awaitable[None]) -> pb.UpdateStreamStatus:
    """Return the status of a change to an existing stream."""
    status = pb.UpdateStreamStatus.SUCCESS
    try:
        await change
    except NotFoundError:
        status = pb.UpdateStreamStatus.STREAM_NOT_FOUND
    except StreamSealedError:
        status = pb.UpdateStreamStatus.STREAM_SEALED
    except InvalidStreamCutError as error:
        call.explain(error)
        status = pb.UpdateStreamStatus.FAILURE
    return pb.UpdateStreamStatus(status=status)


@rpc("updateStream", permissions.change_stream)
async def update_stream(call: Call, request: pb.StreamConfig) -> pb.UpdateStreamStatus:
    info = request.streamInfo
    configuration = messages.to_configuration(request)
    return await _stream_status(
        call, call.controller.streams.update(info.scope, info.stream, configuration)
    )


@rpc("truncateStream", permissions.change_stream)
async def truncate_stream(call: Call, request: pb.StreamCut) -> pb.UpdateStreamStatus:
    info = request.streamInfo
    return await _stream_status(
        call, call.controller.streams.truncate(info.scope, info.stream, dict(request.cut))
    )


@rpc("sealStream", permissions.change_stream)
async def seal_stream(call: Call, request: pb.StreamInfo) -> pb.UpdateStreamStatus:
    return await _stream_status(call, call.controller.streams.seal(request.scope, request.stream))


@rpc("deleteStream", permissions.change_stream)
async def delete_stream(call: Call, request: pb.StreamInfo) -> pb.DeleteStreamStatus:
    try:
        await call.controller.streams.delete(request.scope, request.stream)
    except NotFoundError:
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_FOUND)
    except StreamNotSealedError:
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_SEALED)
    return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.SUCCESS)


# ---- Segments ------------------------------------------------------------------------------------


@rpc("getCurrentSegments", permissions.use_stream, question=True)
async def get_current_segments(call: Call, request: pb.StreamInfo) -> pb.SegmentRanges:
    segments = await call.controller.streams.active_segments(request.scope, request.stream)
    ranges = messages.segment_ranges(request.scope, request.stream, segments)
    if request.accessOperation != Operation.NONE:
        ranges.delegationToken = call.token_for(request, Level.READ_UPDATE)
    return ranges


@rpc("getEpochSegments", permissions.read_stream, question=True)
async def get_epoch_segments(call: Call, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
    info = request.streamInfo
    segments = await call.controller.streams.epoch_segments(info.scope, info.stream, request.epoch)
    ranges = messages.segment_ranges(info.scope, info.stream, segments)
    ranges.delegationToken = call.token_for(info, Level.READ_UPDATE)
    return ranges


@rpc("getSegments", permissions.use_stream, question=True)
async def get_segments(call: Call, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
    """Return the head of the stream; the request's timestamp is ignored."""
    info = request.streamInfo
    head = await call.controller.streams.head(info.scope, info.stream)
    is_for_data = info.accessOperation != Operation.NONE
    return pb.SegmentsAtTime(
        delegationToken=call.token_for(info, Level.READ_UPDATE) if is_for_data else "",
        segments=[
            pb.SegmentsAtTime.SegmentLocation(
                segmentId=messages.segment_id(info.scope, info.stream, identifier), offset=offset
            )
            for identifier, offset in head.items()
        ],
    )


@rpc("getSegmentsImmediatlyFollowing", permissions.read_stream, question=True)
@rpc("getSegmentsImmediatelyFollowing", permissions.read_stream, question=True)
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


@rpc("getSegmentsBetween", permissions.read_stream, question=True)
async def get_segments_between(call: Call, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
    info = request.streamInfo
    start: dict[int, int] = dict(getattr(request, "from"))
    found = await call.controller.streams.segments_between(
        info.scope, info.stream, start, dict(request.to)
    )
    return pb.StreamCutRangeResponse(
        delegationToken=call.token_for(info, Level.READ),
        segments=[
            messages.segment_id(info.scope, info.stream, segment.segment_id) for segment in found
        ],
    )


@rpc("isSegmentValid", permissions.read_stream, question=True)
async def is_segment_valid(call: Call, request: pb.SegmentId) -> pb.SegmentValidityResponse:
    info = request.streamInfo
    active = await call.controller.streams.is_segment_active(
        info.scope, info.stream, request.segmentId
    )
    return pb.SegmentValidityResponse(response=active)


@rpc("isStreamCutValid", permissions.read_stream, question=True)
async def is_stream_cut_valid(call: Call, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
    info = request.streamInfo
    try:
        await call.controller.streams.check_cut(info.scope, info.stream, dict(request.cut))
    except InvalidStreamCutError as error:
        call.explain(error)
        return pb.StreamCutValidityResponse(response=False)
    return pb.StreamCutValidityResponse(response=True)


# ---- Scaling -------------------------------------------------------------------------------------


@rpc("scale", permissions.change_stream)
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


@rpc("checkScale", permissions.read_stream, question=True)
async def check_scale(call: Call, request: pb.ScaleStatusRequest) -> pb.ScaleStatusResponse:
    info = request.streamInfo
    try:
        done = await call.controller.streams.has_left_epoch(info.scope, info.stream, request.epoch)
    except (NotFoundError, InvalidRequestError):
        return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.INVALID_INPUT)
    except StepRefusedError:
        return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.INTERNAL_ERROR)
    if not done:
        return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.IN_PROGRESS)
    return pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.SUCCESS)
