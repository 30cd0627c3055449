"""Handlers of the RPCs about reader groups and their subscriptions: one function per method.

Owns: their answers, by the rule of ``handlers``.
"""

from __future__ import annotations

from pravega_controller.errors import (
    GenerationMismatchError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from pravega_controller.rpc import messages, permissions
from pravega_controller.rpc.rpc import Call, rpc
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import InvalidNameError


@rpc("createReaderGroup", permissions.change_groups)
async def create_reader_group(
    call: Call, request: pb.ReaderGroupConfiguration
) -> pb.CreateReaderGroupResponse:
    try:
        group = await call.controller.groups.create(
            request.scope,
            request.readerGroupName,
            request.readerGroupId,
            messages.to_group_configuration(request),
        )
    except InvalidNameError as error:
        call.explain(error)
        return pb.CreateReaderGroupResponse(status=pb.CreateReaderGroupResponse.INVALID_RG_NAME)
    except ScopeNotFoundError:
        return pb.CreateReaderGroupResponse(status=pb.CreateReaderGroupResponse.SCOPE_NOT_FOUND)
    except StreamNotFoundError:
        return pb.CreateReaderGroupResponse(status=pb.CreateReaderGroupResponse.FAILURE)
    return pb.CreateReaderGroupResponse(
        status=pb.CreateReaderGroupResponse.SUCCESS, config=messages.from_group(group)
    )


@rpc("getReaderGroupConfig", permissions.read_scope)
async def get_reader_group_config(
    call: Call, request: pb.ReaderGroupInfo
) -> pb.ReaderGroupConfigResponse:
    try:
        group = await call.controller.groups.get(request.scope, request.readerGroup)
    except ReaderGroupNotFoundError:
        # Old clients read the configuration before the status, and fail without one.
        return pb.ReaderGroupConfigResponse(
            config=pb.ReaderGroupConfiguration(),
            status=pb.ReaderGroupConfigResponse.RG_NOT_FOUND,
        )
    return pb.ReaderGroupConfigResponse(
        config=messages.from_group(group), status=pb.ReaderGroupConfigResponse.SUCCESS
    )


@rpc("updateReaderGroup", permissions.change_groups)
async def update_reader_group(
    call: Call, request: pb.ReaderGroupConfiguration
) -> pb.UpdateReaderGroupResponse:
    status = pb.UpdateReaderGroupResponse.FAILURE
    try:
        generation = await call.controller.groups.update(
            request.scope,
            request.readerGroupName,
            request.readerGroupId,
            request.generation,
            messages.to_group_configuration(request),
        )
    except ReaderGroupNotFoundError:
        status = pb.UpdateReaderGroupResponse.RG_NOT_FOUND
    except InvalidStreamCutError:
        # The Java client repeats an update without end after INVALID_CONFIG.
        raise
    except (GenerationMismatchError, InvalidRequestError):
        status = pb.UpdateReaderGroupResponse.INVALID_CONFIG
    except StreamNotFoundError:
        status = pb.UpdateReaderGroupResponse.FAILURE
    else:
        return pb.UpdateReaderGroupResponse(
            status=pb.UpdateReaderGroupResponse.SUCCESS, generation=generation
        )
    return pb.UpdateReaderGroupResponse(status=status, generation=request.generation)


@rpc("deleteReaderGroup", permissions.change_groups)
async def delete_reader_group(
    call: Call, request: pb.ReaderGroupInfo
) -> pb.DeleteReaderGroupStatus:
    try:
        await call.controller.groups.delete(
            request.scope, request.readerGroup, request.readerGroupId
        )
    except ReaderGroupNotFoundError:
        return pb.DeleteReaderGroupStatus(status=pb.DeleteReaderGroupStatus.RG_NOT_FOUND)
    return pb.DeleteReaderGroupStatus(status=pb.DeleteReaderGroupStatus.SUCCESS)


@rpc("listSubscribers", permissions.change_stream, question=True)
async def list_subscribers(call: Call, request: pb.StreamInfo) -> pb.SubscribersResponse:
    try:
        found = await call.controller.groups.subscribers(request.scope, request.stream)
    except NotFoundError:
        return pb.SubscribersResponse(status=pb.SubscribersResponse.STREAM_NOT_FOUND)
    return pb.SubscribersResponse(subscribers=found, status=pb.SubscribersResponse.SUCCESS)


@rpc("updateSubscriberStreamCut", permissions.change_stream)
async def update_subscriber_stream_cut(
    call: Call, request: pb.SubscriberStreamCut
) -> pb.UpdateSubscriberStatus:
    info = request.streamCut.streamInfo
    status = pb.UpdateSubscriberStatus.SUCCESS
    try:
        await call.controller.groups.release(
            info.scope,
            info.stream,
            subscriber=request.subscriber,
            group_id=request.readerGroupId,
            generation=request.generation,
            cut=dict(request.streamCut.cut),
        )
    except SubscriberNotFoundError:
        status = pb.UpdateSubscriberStatus.SUBSCRIBER_NOT_FOUND
    except NotFoundError:
        status = pb.UpdateSubscriberStatus.STREAM_NOT_FOUND
    except GenerationMismatchError:
        status = pb.UpdateSubscriberStatus.GENERATION_MISMATCH
    except InvalidStreamCutError as error:
        call.explain(error)
        status = pb.UpdateSubscriberStatus.STREAM_CUT_NOT_VALID
    return pb.UpdateSubscriberStatus(status=status)
