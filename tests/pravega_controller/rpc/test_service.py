"""The gRPC face, called by a client over TCP: statuses, paging, round trips, addresses."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import closing
from functools import partial
from random import Random
from typing import Any

import grpc
import pytest
import trio
from google.protobuf import message_factory

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.rpc import service
from pravega_controller.rpc.health import HEALTH
from pravega_controller.rpc.permissions import anybody
from pravega_controller.rpc.rpc import RPCS, Rpc
from pravega_controller.server import ListenError, StartupError, serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import controller_pb2 as pb
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import (
    EarlierStreamError,
    PositionGoneError,
    PravegaError,
    StoreDelayedError,
    UnavailableError,
)

GROUP_ID = "11111111-2222-3333-4444-555555555555"
NIL = "00000000-0000-0000-0000-000000000000"


def info(stream: str, scope: str = "s") -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def config(stream: str, count: int = 1, *, scope: str = "s", tags: tuple[str, ...] = ()) -> Any:
    policy = pb.ScalingPolicy(minNumSegments=count)
    return pb.StreamConfig(
        streamInfo=info(stream, scope), scalingPolicy=policy, tags=pb.Tags(tag=tags)
    )


async def refused(client: Any, name: str, request: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        await client.call(name, request)
    assert caught.value.details()
    return caught.value.code()


async def make_stream(client: Any, stream: str = "a", count: int = 1) -> None:
    await client.call("createScope", pb.ScopeInfo(scope="s"))
    answer = await client.call("createStream", config(stream, count))
    assert answer.status == pb.CreateStreamStatus.SUCCESS


def test_every_method_is_served_or_refused_in_words() -> None:
    methods = {method.name for each in (service.SERVICE, HEALTH) for method in each.methods}
    assert RPCS.keys() == methods


async def test_what_is_not_served_says_so(grpc_on_memory: Any) -> None:
    request = pb.ControllerToBucketMappingRequest()
    code = await refused(grpc_on_memory, "getControllerToBucketMapping", request)
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_writers_times_are_noted(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory)
    answer = pb.TimestampResponse

    async def note(writer: str, time: int, offset: int, stream: str = "a") -> Any:
        position = pb.StreamCut(streamInfo=info(stream), cut={0: offset})
        request = pb.TimestampFromWriter(writer=writer, position=position, timestamp=time)
        return (await grpc_on_memory.call("noteTimestampFromWriter", request)).result

    assert await note("w", 10, 5) == answer.SUCCESS
    assert await note("w", 9, 6) == answer.INVALID_TIME
    assert await note("w", 11, 4) == answer.INVALID_POSITION
    assert await note("w", 11, 5) == answer.SUCCESS
    for name, status in (
        ("w", pb.RemoveWriterResponse.SUCCESS),
        ("x", pb.RemoveWriterResponse.UNKNOWN_WRITER),
        ("", pb.RemoveWriterResponse.UNKNOWN_WRITER),
    ):
        request = pb.RemoveWriterRequest(writer=name, stream=info("a"))
        assert (await grpc_on_memory.call("removeWriter", request)).result == status
    empty = pb.TimestampFromWriter(writer="", position=pb.StreamCut(streamInfo=info("a")))
    code = await refused(grpc_on_memory, "noteTimestampFromWriter", empty)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    missing = pb.TimestampFromWriter(writer="w", position=pb.StreamCut(streamInfo=info("b")))
    code = await refused(grpc_on_memory, "noteTimestampFromWriter", missing)
    assert code is grpc.StatusCode.NOT_FOUND


async def test_scopes_come_and_go(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    status = pb.CreateScopeStatus
    for name, expected in (
        ("s", status.SUCCESS),
        ("s", status.SCOPE_EXISTS),
        ("_system", status.SCOPE_EXISTS),
        ("bad name", status.INVALID_SCOPE_NAME),
        ("", status.INVALID_SCOPE_NAME),
        ("x" * 256, status.INVALID_SCOPE_NAME),
    ):
        assert (await call("createScope", pb.ScopeInfo(scope=name))).status == expected, name
    assert (await call("checkScopeExists", pb.ScopeInfo(scope="s"))).exists
    await call("createStream", config("a"))
    deleted = pb.DeleteScopeStatus
    for method, name, expected in (
        ("deleteScope", "nope", deleted.SCOPE_NOT_FOUND),
        ("deleteScope", "s", deleted.SCOPE_NOT_EMPTY),
        ("deleteScopeRecursive", "s", deleted.SUCCESS),
        ("deleteScopeRecursive", "s", deleted.SUCCESS),
        ("deleteScope", "s", deleted.SCOPE_NOT_FOUND),
    ):
        answer = await call(method, pb.ScopeInfo(scope=name))
        assert answer.status == expected, (method, name)
    assert not (await call("checkScopeExists", pb.ScopeInfo(scope="s"))).exists


async def test_a_scope_that_was_not_empty_goes_on(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory)
    await grpc_on_memory.call("deleteScope", pb.ScopeInfo(scope="s"))
    answer = await grpc_on_memory.call("createStream", config("b"))
    assert answer.status == pb.CreateStreamStatus.SUCCESS


async def test_listings_end_with_an_empty_page(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    memory_store.page_entries_max = 3
    call = grpc_on_memory.call
    await call("createScope", pb.ScopeInfo(scope="s"))
    for number in range(7):
        tags = ("odd",) if number % 2 else ("even",)
        await call("createStream", config(f"a{number}", tags=tags))

    async def listed(method: str, request: Any) -> list[str]:
        found: list[str] = []
        while True:
            page = await call(method, request)
            if not page.streams:
                return found
            found += [stream.stream for stream in page.streams]
            request.continuationToken.CopyFrom(page.continuationToken)

    scope = pb.ScopeInfo(scope="s")
    everything = await listed("listStreamsInScope", pb.StreamsInScopeRequest(scope=scope))
    plain = [f"a{number}" for number in range(7)]
    assert sorted(everything) == sorted([*plain, *(f"_MARK{name}" for name in plain)])
    request = pb.StreamsInScopeWithTagRequest(scope=scope, tag="odd")
    assert sorted(await listed("listStreamsInScopeForTag", request)) == ["a1", "a3", "a5"]
    request = pb.StreamsInScopeWithTagRequest(scope=scope, tag="od")
    assert await listed("listStreamsInScopeForTag", request) == []


async def test_the_systems_own_scope_is_listed_last(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    memory_store.page_entries_max = 2
    made = [f"a{number}" for number in range(5)]
    for name in made:
        await grpc_on_memory.call("createScope", pb.ScopeInfo(scope=name))
    found: list[str] = []
    request = pb.ScopesRequest()
    while (page := await grpc_on_memory.call("listScopes", request)).scopes:
        found += page.scopes
        request.continuationToken.CopyFrom(page.continuationToken)
    assert sorted(found[:-1]) == made
    assert found[-1] == "_system"


async def test_a_foreign_token_is_refused_for_good(grpc_on_memory: Any) -> None:
    token = pb.ContinuationToken(token="rubbish")
    request = pb.ScopesRequest(continuationToken=token)
    code = await refused(grpc_on_memory, "listScopes", request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_listing_of_a_missing_scope_says_so(grpc_on_memory: Any) -> None:
    scope = pb.ScopeInfo(scope="nope")
    page = await grpc_on_memory.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=scope))
    assert page.status == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND


async def test_creating_streams_answers_with_a_status(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory)
    status = pb.CreateStreamStatus
    for request, expected in (
        (config("a", 7), status.STREAM_EXISTS),
        (config("a", scope="nope"), status.SCOPE_NOT_FOUND),
        (config("bad name"), status.INVALID_STREAM_NAME),
        (config(""), status.INVALID_STREAM_NAME),
        (config("_internal"), status.SUCCESS),
    ):
        assert (await grpc_on_memory.call("createStream", request)).status == expected, request


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("getCurrentSegments", info("nope")),
        ("getStreamConfiguration", info("nope")),
        ("getCurrentSegments", info("a", "nope")),
        ("getSegments", pb.GetSegmentsRequest(streamInfo=info("nope"))),
        ("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=info("nope"))),
        ("getSegmentsImmediatelyFollowing", pb.SegmentId(streamInfo=info("nope"))),
        ("isSegmentValid", pb.SegmentId(streamInfo=info("nope"))),
    ],
)
async def test_questions_about_missing_streams_are_not_found(
    grpc_on_memory: Any, method: str, request_: Any
) -> None:
    await grpc_on_memory.call("createScope", pb.ScopeInfo(scope="s"))
    assert await refused(grpc_on_memory, method, request_) is grpc.StatusCode.NOT_FOUND


async def test_changes_of_missing_streams_answer_with_a_status(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    missing = pb.UpdateStreamStatus.STREAM_NOT_FOUND
    assert (await call("sealStream", info("nope"))).status == missing
    assert (await call("updateStream", config("nope"))).status == missing
    cut = pb.StreamCut(streamInfo=info("nope"), cut={0: 0})
    assert (await call("truncateStream", cut)).status == missing
    deleted = await call("deleteStream", info("nope"))
    assert deleted.status == pb.DeleteStreamStatus.STREAM_NOT_FOUND
    assert not (await call("checkStreamExists", info("nope"))).exists
    scale = await call("scale", pb.ScaleRequest(streamInfo=info("nope"), sealedSegments=[0]))
    assert scale.status == pb.ScaleResponse.FAILURE


async def test_a_configuration_comes_back_as_it_went_in(grpc_on_memory: Any) -> None:
    await grpc_on_memory.call("createScope", pb.ScopeInfo(scope="s"))
    sent = pb.StreamConfig(
        streamInfo=info("a"),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC,
            targetRate=100,
            scaleFactor=2,
            minNumSegments=3,
        ),
        retentionPolicy=pb.RetentionPolicy(
            retentionType=pb.RetentionPolicy.SIZE, retentionParam=5, retentionMax=2**60
        ),
        tags=pb.Tags(tag=["x", "y"]),
        timestampAggregationTimeout=7,
        rolloverSizeBytes=2**40,
    )
    await grpc_on_memory.call("createStream", sent)
    assert await grpc_on_memory.call("getStreamConfiguration", info("a")) == sent


async def test_the_policy_and_tags_are_always_filled_in(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory)
    answer = await grpc_on_memory.call("getStreamConfiguration", info("a"))
    assert answer.HasField("scalingPolicy")
    assert answer.HasField("tags")
    assert not answer.HasField("retentionPolicy")


async def test_a_sealed_stream_has_no_current_segments_but_a_head(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory, count=2)
    unsealed = await call("deleteStream", info("a"))
    assert unsealed.status == pb.DeleteStreamStatus.STREAM_NOT_SEALED
    for _ in range(2):
        answer = await call("sealStream", info("a"))
        assert answer.status == pb.UpdateStreamStatus.SUCCESS
    assert not (await call("getCurrentSegments", info("a"))).segmentRanges
    assert (
        len((await call("getSegments", pb.GetSegmentsRequest(streamInfo=info("a")))).segments) == 2
    )
    following = pb.SegmentId(streamInfo=info("a"), segmentId=0)
    assert not (await call("getSegmentsImmediatelyFollowing", following)).segments
    sealed = pb.UpdateStreamStatus.STREAM_SEALED
    assert (await call("updateStream", config("a"))).status == sealed
    cut = pb.StreamCut(streamInfo=info("a"), cut={0: 0, 1: 0})
    assert (await call("truncateStream", cut)).status == sealed
    deleted = await call("deleteStream", info("a"))
    assert deleted.status == pb.DeleteStreamStatus.SUCCESS


async def test_a_scale_is_started_and_then_done(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory, count=2)
    entry = pb.ScaleRequest.KeyRangeEntry
    started = await call(
        "scale",
        pb.ScaleRequest(
            streamInfo=info("a"),
            sealedSegments=[0],
            newKeyRanges=[entry(start=0, end=0.25), entry(start=0.25, end=0.5)],
        ),
    )
    assert (started.status, started.epoch) == (pb.ScaleResponse.STARTED, 0)
    assert [(s.minKey, s.maxKey) for s in started.segments] == [(0, 0.25), (0.25, 0.5)]
    question = pb.ScaleStatusRequest(streamInfo=info("a"), epoch=0)
    with trio.fail_after(60):
        in_progress = pb.ScaleStatusResponse.IN_PROGRESS
        while (await call("checkScale", question)).status == in_progress:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert (await call("checkScale", question)).status == pb.ScaleStatusResponse.SUCCESS
    question.epoch = 5
    assert (await call("checkScale", question)).status == pb.ScaleStatusResponse.INVALID_INPUT
    segment = pb.SegmentId(streamInfo=info("a"), segmentId=0)
    misspelt = await call("getSegmentsImmediatlyFollowing", segment)
    answer = await call("getSegmentsImmediatelyFollowing", segment)
    assert answer == misspelt
    assert [list(entry.value) for entry in answer.segments] == [[0], [0]]
    assert not (await call("isSegmentValid", segment)).response
    again = await call(
        "scale",
        pb.ScaleRequest(
            streamInfo=info("a"), sealedSegments=[0], newKeyRanges=[entry(start=0, end=0.5)]
        ),
    )
    assert again.status == pb.ScaleResponse.PRECONDITION_FAILED


async def test_a_scale_below_the_policys_segment_count_is_not_started(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory, count=2)
    merge = pb.ScaleRequest(
        streamInfo=info("a"),
        sealedSegments=[0, 1],
        newKeyRanges=[pb.ScaleRequest.KeyRangeEntry(start=0, end=1)],
    )
    answer = await grpc_on_memory.call("scale", merge)
    assert answer.status == pb.ScaleResponse.PRECONDITION_FAILED
    current = await grpc_on_memory.call("getCurrentSegments", info("a"))
    assert len(current.segmentRanges) == 2


async def test_stream_cuts_can_be_asked_about_and_truncated_to(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory, count=2)
    memory_store.segments["s/a/0.#epoch.0"].length = 10
    for cut, is_valid in (({0: 0, 1: 0}, True), ({0: 0}, False), ({}, False), ({9: 0}, False)):
        message = pb.StreamCut(streamInfo=info("a"), cut=cut)
        assert (await call("isStreamCutValid", message)).response is is_valid
    status = pb.UpdateStreamStatus
    for cut, expected in (
        ({0: 11, 1: 0}, status.FAILURE),
        ({0: 5}, status.FAILURE),
        ({0: 5, 1: 0}, status.SUCCESS),
        ({0: 4, 1: 0}, status.FAILURE),
    ):
        message = pb.StreamCut(streamInfo=info("a"), cut=cut)
        assert (await call("truncateStream", message)).status == expected, cut
    assert memory_store.segments["s/a/0.#epoch.0"].start == 5
    head = await call("getSegments", pb.GetSegmentsRequest(streamInfo=info("a"), timestamp=99))
    assert {s.segmentId.segmentId: s.offset for s in head.segments} == {0: 5, 1: 0}


async def test_the_reason_of_a_refused_cut_reaches_people(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory, count=2)
    with closing(ControllerClient(grpc_on_memory.target)) as client:

        async def refusal(ask: Any, cut: dict[int, int]) -> str:
            with pytest.raises(PravegaError) as caught:
                await trio.to_thread.run_sync(ask, "s", "a", cut)
            return str(caught.value)

        for cut, reason in (
            ({5: 7, 1: 0}, "segment 5 does not belong to this stream"),
            ({0: 7, 1: 0}, "offset 7 lies beyond the 0 bytes of segment 0"),
            ({0: 0}, "no segment covers the key 0.5"),
            (
                {0: -1, 1: 0},
                "offset -1 is the end of a sealed segment, and segment 0 is not sealed",
            ),
            ({0: 0, 1: -2}, "offset -2 of segment 1 is negative"),
            ({}, "the stream cut names no segment"),
        ):
            assert await refusal(client.truncate_stream, cut) == (
                f"the controller could not truncate s/a: {reason}"
            )
            assert await refusal(client.check_cut, cut) == (
                f"this is no stream cut of s/a: {reason}"
            )
        await trio.to_thread.run_sync(client.check_cut, "s", "a", {0: 0, 1: 0})


async def test_a_client_is_told_of_which_stream_a_position_is(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory)
    await grpc_on_memory.call("sealStream", info("a"))
    await grpc_on_memory.call("deleteStream", info("a"))
    await make_stream(grpc_on_memory)
    told = "segment 0 is of an earlier stream s/a, which was deleted before the present one"
    with closing(ControllerClient(grpc_on_memory.target)) as client:
        for question in (
            partial(client.successors, "s", "a", 0),
            partial(client.successors_of_gone, "s", "a", 0),
            partial(client.segments_between, "s", "a", {0: 0}, {}),
            partial(client.check_cut, "s", "a", {0: 0}),
        ):
            with pytest.raises(EarlierStreamError, match=told):
                await trio.to_thread.run_sync(question)
        with pytest.raises(PravegaError, match=told):
            await trio.to_thread.run_sync(client.truncate_stream, "s", "a", {0: 0})
        # Of a segment that no stream of the name has had, only so much is known.
        assert await trio.to_thread.run_sync(client.successors, "s", "a", 7) == ()
        with pytest.raises(PositionGoneError, match="no record of segment 7"):
            await trio.to_thread.run_sync(client.successors_of_gone, "s", "a", 7)
    old = pb.SegmentId(streamInfo=info("a"), segmentId=0)
    code = await refused(grpc_on_memory, "getSegmentsImmediatelyFollowing", old)
    assert code is grpc.StatusCode.NOT_FOUND
    # The group begins at segment 0.
    code = await refused(grpc_on_memory, "createReaderGroup", group())
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_segments_between_wants_at_least_one_cut(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory)
    request = pb.StreamCutRange(streamInfo=info("a"))
    code = await refused(grpc_on_memory, "getSegmentsBetween", request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    for start, end in (({}, {0: 0}), ({0: 77}, {}), ({0: 3}, {0: 3})):
        request = pb.StreamCutRange(streamInfo=info("a"), to=end)
        getattr(request, "from").update(start)
        found = await grpc_on_memory.call("getSegmentsBetween", request)
        assert [segment.segmentId for segment in found.segments] == [0]


def group(name: str = "g", **fields: Any) -> pb.ReaderGroupConfiguration:
    cuts = [pb.StreamCut(streamInfo=info("a"), cut={0: 0}), pb.StreamCut(streamInfo=info("a"))]
    values: dict[str, Any] = {
        "scope": "s",
        "readerGroupName": name,
        "groupRefreshTimeMillis": 3000,
        "automaticCheckpointIntervalMillis": -1,
        "maxOutstandingCheckpointRequest": 3,
        "readerGroupId": GROUP_ID,
        "startingStreamCuts": cuts[:1],
        "endingStreamCuts": cuts[1:],
        "rolloverSizeBytes": 77,
        **fields,
    }
    return pb.ReaderGroupConfiguration(**values)


async def test_a_reader_group_is_made_once_and_comes_back_as_it_was(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory)
    made = await call("createReaderGroup", group())
    assert made.status == pb.CreateReaderGroupResponse.SUCCESS
    assert made.config == group()
    other = group(readerGroupId="22222222-2222-3333-4444-555555555555", groupRefreshTimeMillis=9)
    assert (await call("createReaderGroup", other)).config == group()
    asked = pb.ReaderGroupInfo(scope="s", readerGroup="g")
    assert (await call("getReaderGroupConfig", asked)).config == group()
    assert (await call("checkStreamExists", info("_RGg"))).exists
    assert (await call("checkStreamExists", info("_MARK_RGg"))).exists
    state = await call("getStreamConfiguration", info("_RGg"))
    assert state.rolloverSizeBytes == 4 * 1024 * 1024


async def test_reader_groups_are_refused_with_a_status(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory)
    status = pb.CreateReaderGroupResponse
    for request, expected in (
        (group(scope="nope"), status.SCOPE_NOT_FOUND),
        (group("bad name"), status.INVALID_RG_NAME),
        (group("_g"), status.INVALID_RG_NAME),
    ):
        assert (await call("createReaderGroup", request)).status == expected
    missing = pb.ReaderGroupInfo(scope="s", readerGroup="g")
    answer = await call("getReaderGroupConfig", missing)
    assert answer.status == pb.ReaderGroupConfigResponse.RG_NOT_FOUND


async def test_refusals_of_groups_come_in_one_order(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory)
    missing = [pb.StreamCut(streamInfo=info("nope")), pb.StreamCut(streamInfo=info("a", "other"))]
    lacking = {"startingStreamCuts": missing, "retentionType": 2}
    created = pb.CreateReaderGroupResponse
    before = memory_store.contents()
    for request, expected in (
        (group(scope="nope", **lacking), created.SCOPE_NOT_FOUND),
        (group("g g", scope="nope", **lacking), created.INVALID_RG_NAME),
        (group(**lacking), created.FAILURE),
    ):
        assert (await call("createReaderGroup", request)).status == expected
    assert memory_store.contents()[0] == before[0]
    assert (await call("createReaderGroup", group())).status == created.SUCCESS
    # What is there is handed out, whatever the caller would have liked.
    again = await call("createReaderGroup", group(**lacking))
    assert (again.status, again.config) == (created.SUCCESS, group())
    updated = pb.UpdateReaderGroupResponse
    for request, expected in (
        (group("nope", generation=4, retentionType=9), updated.RG_NOT_FOUND),
        (group(generation=4, **lacking), updated.INVALID_CONFIG),
        (group(readerGroupId=NIL, **lacking), updated.INVALID_CONFIG),
        (group(**lacking), updated.FAILURE),
    ):
        answer = await call("updateReaderGroup", request)
        assert (answer.status, answer.generation) == (expected, request.generation)


async def test_groups_of_a_scope_that_is_not_there_are_not_found(grpc_on_memory: Any) -> None:
    asked = pb.ReaderGroupInfo(scope="nope", readerGroup="g", readerGroupId=GROUP_ID)
    for method, request in (
        ("getReaderGroupConfig", asked),
        ("deleteReaderGroup", asked),
        ("updateReaderGroup", group(scope="nope")),
    ):
        assert await refused(grpc_on_memory, method, request) is grpc.StatusCode.NOT_FOUND
    listed = await grpc_on_memory.call("listSubscribers", info("a", "nope"))
    assert listed.status == pb.SubscribersResponse.STREAM_NOT_FOUND


async def test_the_nil_id_is_replaced_by_one_of_ours(grpc_on_memory: Any) -> None:
    await make_stream(grpc_on_memory)
    made = await grpc_on_memory.call("createReaderGroup", group(readerGroupId=NIL))
    assert made.config.readerGroupId != NIL
    assert len(made.config.readerGroupId) == len(NIL)


async def test_updating_a_group_counts_generations_and_moves_subscriptions(
    grpc_on_memory: Any,
) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory)
    await call("createReaderGroup", group())
    status = pb.UpdateReaderGroupResponse
    for request, expected, generation in (
        (group("nope"), status.RG_NOT_FOUND, 0),
        (group(generation=4), status.INVALID_CONFIG, 4),
        (group(readerGroupId=NIL), status.INVALID_CONFIG, 0),
        (group(retentionType=2), status.SUCCESS, 1),
        (group(retentionType=2), status.INVALID_CONFIG, 0),
    ):
        answer = await call("updateReaderGroup", request)
        assert (answer.status, answer.generation) == (expected, generation)
    assert list((await call("listSubscribers", info("a"))).subscribers) == ["s/g"]
    await call("updateReaderGroup", group(generation=1))
    assert not (await call("listSubscribers", info("a"))).subscribers


async def test_a_subscriber_releases_a_stream_step_by_step(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory)
    memory_store.segments["s/a/0.#epoch.0"].length = 10
    await call("createReaderGroup", group(retentionType=1))
    status = pb.UpdateSubscriberStatus

    async def release(**fields: Any) -> int:
        values: dict[str, Any] = {
            "subscriber": "s/g",
            "generation": 0,
            "readerGroupId": GROUP_ID,
            "streamCut": pb.StreamCut(streamInfo=info("a"), cut={0: 5}),
            **fields,
        }
        answer = await call("updateSubscriberStreamCut", pb.SubscriberStreamCut(**values))
        return int(answer.status)

    def at(cut: dict[int, int], stream: str = "a") -> pb.StreamCut:
        return pb.StreamCut(streamInfo=info(stream), cut=cut)

    assert await release() == status.SUCCESS
    assert await release() == status.SUCCESS
    assert await release(streamCut=at({0: 4})) == status.STREAM_CUT_NOT_VALID
    assert await release(streamCut=at({1: 9})) == status.STREAM_CUT_NOT_VALID
    assert await release(streamCut=at({})) == status.STREAM_CUT_NOT_VALID
    assert await release(streamCut=at({0: 6}, "nope")) == status.STREAM_NOT_FOUND
    assert await release(subscriber="s/other") == status.SUBSCRIBER_NOT_FOUND
    assert await release(subscriber="rubbish") == status.SUBSCRIBER_NOT_FOUND
    assert await release(readerGroupId=NIL) == status.SUBSCRIBER_NOT_FOUND
    assert await release(generation=1) == status.GENERATION_MISMATCH


async def test_deleting_a_group_wants_its_id(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory)
    await call("createReaderGroup", group(retentionType=1))
    asked = pb.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId=NIL)
    status = pb.DeleteReaderGroupStatus
    assert (await call("deleteReaderGroup", asked)).status == status.RG_NOT_FOUND
    asked.readerGroupId = GROUP_ID
    assert (await call("deleteReaderGroup", asked)).status == status.SUCCESS
    assert (await call("deleteReaderGroup", asked)).status == status.RG_NOT_FOUND
    assert not (await call("listSubscribers", info("a"))).subscribers
    assert not (await call("checkStreamExists", info("_RGg"))).exists


async def test_a_stream_goes_although_a_group_still_reads_it(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await make_stream(grpc_on_memory)
    await call("createReaderGroup", group(retentionType=1))
    await call("sealStream", info("a"))
    assert (await call("deleteStream", info("a"))).status == pb.DeleteStreamStatus.SUCCESS
    asked = pb.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId=GROUP_ID)
    answer = await call("deleteReaderGroup", asked)
    assert answer.status == pb.DeleteReaderGroupStatus.SUCCESS


async def test_the_delegation_token_is_empty(grpc_on_memory: Any) -> None:
    answer = await grpc_on_memory.call("getDelegationToken", info("a"))
    assert answer.delegationToken == ""


# ---- Addresses -----------------------------------------------------------------------------------


async def uri(
    memory_store: MemorySegmentStore,
    nursery: trio.Nursery,
    client_type: Any,
    *,
    authority: str,
    **settings: Any,
) -> tuple[str, int]:
    """Return the answer of getURI to a client that dialled this authority."""
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    stores = (("10.9.9.9", 6000), ("10.9.9.9", 6001))
    config = ControllerConfig(port=0, segment_stores=stores, **settings)
    _, port = await nursery.start(partial(serve, config, environment=environment))
    client = client_type(f"127.0.0.1:{port}", ("grpc.default_authority", authority))
    try:
        node = await client.call("getURI", pb.SegmentId(streamInfo=info("a"), segmentId=0))
    finally:
        client.close()
    return node.endpoint, node.port


async def test_where_a_segment_is_needs_no_turn_of_the_loop(grpc_on_memory: Any) -> None:
    with grpc.insecure_channel(grpc_on_memory.target) as channel:
        ask = channel.unary_unary(
            f"/{service.SERVICE.full_name}/getURI",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.NodeUri.FromString,
        )
        # This holds the loop up until it is answered.
        answer = ask(pb.SegmentId(streamInfo=info("a"), segmentId=0), timeout=30)
    assert answer.port


async def test_where_a_segment_is_waits_for_a_store_that_is_away(
    nursery: trio.Nursery, memory_store: MemorySegmentStore
) -> None:
    """The Java client keeps an answer for 20 s, whether somebody is there or not."""
    opened: list[trio.abc.Stream] = []
    is_away = trio.Event()

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        if is_away.is_set():
            raise ConnectionRefusedError("nobody listens")
        opened.append(await memory_store.open_stream(host, port))
        return opened[-1]

    environment = Environment(random=Random(7), open_stream=open_stream)
    config = ControllerConfig(port=0, segment_stores=(("10.9.9.9", 6000),))
    _, port = await nursery.start(partial(serve, config, environment=environment))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        is_away.set()
        for stream in opened:
            await trio.aclose_forcefully(stream)
        await trio.sleep(0.1)
        call = begin(channel, "getURI", pb.SegmentId(streamInfo=info("a"), segmentId=0))
        await trio.sleep(0.5)
        assert not call.done()
        is_away = trio.Event()
        await until(call.done)
        assert call.result().port == 6000


# ---- Calls that wait -----------------------------------------------------------------------------


def begin(channel: grpc.Channel, name: str, request: Any, *, timeout: float = 60) -> Any:
    """Start a call and return its future."""
    invoke = channel.unary_unary(
        f"/{service.SERVICE.full_name}/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(
            service.SERVICE.methods_by_name[name].output_type
        ).FromString,
    )
    return invoke.future(request, timeout=timeout)


async def until(condition: Any) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_calls_that_wait_for_a_segment_store_hold_up_no_other(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    memory_store.pause = trio.Event()
    with grpc.insecure_channel(grpc_on_memory.target) as channel:
        waiting = [
            begin(channel, "checkScopeExists", pb.ScopeInfo(scope=f"x{number}"))
            for number in range(300)
        ]
        await memory_store.is_paused.wait()
        with trio.fail_after(60):
            listed = await grpc_on_memory.call("getControllerServerList", pb.ServerRequest())
            node = await grpc_on_memory.call("getURI", pb.SegmentId(streamInfo=info("a")))
        assert listed.nodeURI
        assert node.port
        assert not any(call.done() for call in waiting)
        memory_store.pause.set()
        await until(lambda: all(call.done() for call in waiting))
        assert {call.code() for call in waiting} == {grpc.StatusCode.OK}


async def test_calls_whose_request_does_not_come_hold_up_no_other(grpc_on_memory: Any) -> None:
    silent = threading.Event()

    def send_nothing() -> Any:
        silent.wait(30)
        return
        yield b""

    with grpc.insecure_channel(grpc_on_memory.target) as channel:
        method = f"/{service.SERVICE.full_name}/checkScopeExists"
        calls = [
            channel.stream_unary(method).future(send_nothing(), timeout=60) for _ in range(100)
        ]
        with trio.fail_after(60):
            found = await grpc_on_memory.call("checkScopeExists", pb.ScopeInfo(scope="_system"))
            assert found.exists
            await grpc_on_memory.call("getURI", pb.SegmentId(streamInfo=info("a")))
        assert not any(call.done() for call in calls)
        silent.set()
        await until(lambda: all(call.done() for call in calls))
        assert {call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}


async def test_more_calls_than_may_wait_are_told_to_try_again(
    grpc_on_memory: Any, memory_store: MemorySegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WAITING_CALLS_MAX", 3)
    memory_store.pause = trio.Event()
    with grpc.insecure_channel(grpc_on_memory.target) as channel:
        calls = [
            begin(channel, "checkScopeExists", pb.ScopeInfo(scope=f"x{number}"))
            for number in range(5)
        ]
        await until(lambda: sum(call.done() for call in calls) == 2)
        refused_codes = {call.code() for call in calls if call.done()}
        assert refused_codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        memory_store.pause.set()
        await until(lambda: all(call.done() for call in calls))
    assert sum(call.code() is grpc.StatusCode.OK for call in calls) == 3


@pytest.mark.parametrize(
    ("delays", "code", "kind", "words"),
    [
        (
            ("the disk of /data is full",),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            StoreDelayedError,
            "createScope for scope s has to wait: .* waits: the disk of /data is full",
        ),
        (
            (),
            grpc.StatusCode.UNAVAILABLE,
            UnavailableError,
            "createScope for scope s cannot be done now: gave up after ",
        ),
    ],
)
async def test_callers_are_told_what_a_segment_store_waits_for(
    memory_store: MemorySegmentStore,
    nursery: trio.Nursery,
    delays: tuple[str, ...],
    code: grpc.StatusCode,
    kind: type[Exception],
    words: str,
) -> None:
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    limits = ControllerConfig(
        port=0,
        drain_seconds=0.5,
        request_poll_seconds=0.0,
        retention_period_seconds=0.0,
        reply_seconds_max=0.4,
        retry_seconds_max=0.6,
    )
    host, port = await nursery.start(partial(serve, limits, environment=environment))
    memory_store.delays = delays
    memory_store.pause = trio.Event()
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        call = begin(channel, "createScope", pb.ScopeInfo(scope="s"))
        await until(call.done)
        assert call.code() is code
    with (
        ControllerClient(f"{host}:{port}", patience=0.0) as client,
        pytest.raises(kind, match=words),
    ):
        await trio.to_thread.run_sync(client.create_scope, "s")


async def test_a_question_ends_with_its_caller_and_a_change_does_not(
    grpc_on_memory: Any, memory_store: MemorySegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    async def wait(call: Any, request: pb.ScopeInfo) -> pb.ExistsResponse:
        try:
            await trio.sleep(0.5 if request.scope == "change" else 60)
            ended.append(request.scope)
        except trio.Cancelled:
            ended.append("cancelled " + request.scope)
            raise
        return pb.ExistsResponse()

    server = service.ControllerServer("127.0.0.1", 0)
    port = server.listen()
    methods = {"question": "checkScopeExists", "change": "createScope"}
    for scope, method in methods.items():
        declared = Rpc(method, wait, anybody, question=scope == "question")
        monkeypatch.setitem(RPCS, method, declared)
    async with trio.open_nursery() as calls:
        server.start(object(), calls)  # type: ignore[arg-type]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for scope, method in methods.items():
                request = pb.ScopeInfo(scope=scope)
                call = begin(channel, method, request, timeout=0.2)
                await until(call.done)
                assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                await until(lambda name=scope: any(name in entry for entry in ended))
        await server.stop(calls, drain_seconds=0)
    assert ended == ["cancelled question", "change"]


@pytest.fixture
def client_type(grpc_on_memory: Any) -> Any:
    return type(grpc_on_memory)


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("stream.example.com:9090", "stream.example.com"),
        ("localhost:9090", "localhost"),
        ("[::1]:9090", "::1"),
        ("h1:9090,h2:9090", "127.0.0.1"),
        ("0.0.0.0:9090", "127.0.0.1"),
    ],
)
async def test_clients_are_sent_to_the_host_they_dialled(
    memory_store: MemorySegmentStore,
    nursery: trio.Nursery,
    client_type: Any,
    authority: str,
    host: str,
) -> None:
    found, port = await uri(memory_store, nursery, client_type, authority=authority)
    assert found == host
    assert port in (6000, 6001)


async def test_a_published_address_comes_first(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, client_type: Any
) -> None:
    found, _ = await uri(
        memory_store,
        nursery,
        client_type,
        authority="dialled.example.com:9090",
        published_address="public.example.com",
    )
    assert found == "public.example.com"


async def test_a_listener_on_every_address_answers_with_the_one_that_was_used(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, client_type: Any
) -> None:
    found, _ = await uri(memory_store, nursery, client_type, authority="h1:1,h2:2", host="0.0.0.0")
    assert found == "127.0.0.1"


async def test_idle_clients_may_ping_as_often_as_they_like(
    grpc_on_memory: Any, client_type: Any
) -> None:
    pinging = client_type(
        grpc_on_memory.target,
        ("grpc.keepalive_time_ms", 200),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    states: list[str] = []
    pinging.subscribe(states.append)
    await pinging.call("listScopes", pb.ScopesRequest())
    # A server with the defaults hangs up at the third ping.
    await trio.sleep(2)
    pinging.close()
    assert "READY" in states
    assert "IDLE" not in states[states.index("READY") :]


# ---- Start and stop ------------------------------------------------------------------------------


async def test_a_port_in_use_is_one_clear_sentence(memory_store: MemorySegmentStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            await serve(ControllerConfig(port=port), environment=environment)
    assert caught.value.errno == errno.EADDRINUSE


async def test_two_controllers_do_not_share_a_port(
    memory_store: MemorySegmentStore, nursery: trio.Nursery
) -> None:
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    _, port = await nursery.start(partial(serve, ControllerConfig(port=0), environment=environment))
    with pytest.raises(ListenError):
        await serve(ControllerConfig(port=port), environment=environment)


async def test_without_a_segment_store_it_gives_up_in_words(
    memory_store: MemorySegmentStore,
) -> None:
    memory_store.refuse_connections = 1_000_000
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    config = ControllerConfig(port=0, startup_seconds_max=0.2)
    with pytest.raises(StartupError, match=r"cannot connect to 127\.0\.0\.1:12345"):
        await serve(config, environment=environment)


async def test_it_waits_for_a_segment_store_that_comes_late(
    memory_store: MemorySegmentStore, nursery: trio.Nursery
) -> None:
    memory_store.refuse_connections = 5
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    config = ControllerConfig(port=0, startup_seconds_max=30)
    with trio.fail_after(60):
        await nursery.start(partial(serve, config, environment=environment))
    assert memory_store.refuse_connections == 0


async def test_a_call_under_way_is_answered_before_the_end(
    memory_store: MemorySegmentStore, client_type: Any
) -> None:
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    answers: list[Any] = []

    async def create(client: Any) -> None:
        answers.append(await client.call("createScope", pb.ScopeInfo(scope="s")))

    async with trio.open_nursery() as clients, trio.open_nursery() as servers:
        config = ControllerConfig(port=0, drain_seconds=10)
        host, port = await servers.start(partial(serve, config, environment=environment))
        client = client_type(f"{host}:{port}")
        await client.call("listScopes", pb.ScopesRequest())
        memory_store.pause = trio.Event()
        clients.start_soon(create, client)
        await memory_store.is_paused.wait()
        servers.cancel_scope.cancel()
        memory_store.pause.set()
    client.close()
    assert [answer.status for answer in answers] == [pb.CreateScopeStatus.SUCCESS]
