"""A served controller over a real segment store: what only the two together can show."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.rules.transactions import segment_name
from pravega_controller.server import serve
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import (
    AppendSetup,
    ConditionalAppend,
    DataAppended,
    GetStreamSegmentInfo,
    NoSuchSegment,
    SetupAppend,
    StreamSegmentInfo,
)
from pravega_wire.transaction_ids import id_of_halves

HEADER_BYTES = 8
"""Length of the header that the protocol puts before each event."""


def info(stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope="s", stream=stream)


def config(stream: str, count: int) -> pb.StreamConfig:
    policy = pb.ScalingPolicy(minNumSegments=count)
    return pb.StreamConfig(streamInfo=info(stream), scalingPolicy=policy)


@pytest.fixture
def client_type(grpc_on_memory: Any) -> Any:
    return type(grpc_on_memory)


async def segment_info(address: tuple[str, int], stream: str, segment_id: int) -> Any:
    return await ask(address, names.segment_name("s", stream, segment_id))


async def ask(address: tuple[str, int], segment: str) -> Any:
    def call() -> Any:
        with SegmentConnection(*address) as connection:
            return connection.call(GetStreamSegmentInfo(connection.next_request_id(), segment, ""))

    return await trio.to_thread.run_sync(call)


async def append(address: tuple[str, int], segment: str, data: bytes) -> None:
    """Write an event to a segment and wait for the acknowledgement."""

    def write() -> None:
        writer = bytes(16)
        with SegmentConnection(*address) as connection:
            setup = SetupAppend(connection.next_request_id(), writer, segment, "")
            assert isinstance(connection.call(setup), AppendSetup)
            connection.send(ConditionalAppend(writer, 1, 0, data, connection.next_request_id()))
            assert isinstance(connection.receive(), DataAppended)

    await trio.to_thread.run_sync(write)


async def test_everything_outlives_the_controller(
    segment_store: tuple[str, int], client_type: Any
) -> None:
    settings = ControllerConfig(port=0, segment_stores=(segment_store,), drain_seconds=1)
    entry = pb.ScaleRequest.KeyRangeEntry

    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(partial(serve, settings))
        client = client_type(f"{host}:{port}")
        assert (await client.call("createScope", pb.ScopeInfo(scope="s"))).status == 0
        assert (await client.call("createStream", config("a", 1))).status == 0
        started = await client.call(
            "scale",
            pb.ScaleRequest(
                streamInfo=info("a"),
                sealedSegments=[0],
                newKeyRanges=[entry(start=0, end=0.5), entry(start=0.5, end=1)],
            ),
        )
        assert started.status == pb.ScaleResponse.STARTED
        client.close()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(partial(serve, replace(settings, port=port)))
        client = client_type(f"{host}:{port}")
        question = pb.ScaleStatusRequest(streamInfo=info("a"), epoch=0)
        with trio.fail_after(30):
            in_progress = pb.ScaleStatusResponse.IN_PROGRESS
            while (await client.call("checkScale", question)).status == in_progress:  # noqa: ASYNC110
                await trio.sleep(0.02)
        current = await client.call("getCurrentSegments", info("a"))
        lower, upper = (1 << 32) + 1, (1 << 32) + 2
        assert [s.segmentId.segmentId for s in current.segmentRanges] == [lower, upper]
        for segment_id, is_sealed in ((0, True), (lower, False), (upper, False)):
            reply = await segment_info(segment_store, "a", segment_id)
            assert isinstance(reply, StreamSegmentInfo)
            assert reply.is_sealed is is_sealed
        node = await client.call("getURI", pb.SegmentId(streamInfo=info("a"), segmentId=lower))
        assert (node.endpoint, node.port) == segment_store
        client.close()
        nursery.cancel_scope.cancel()


async def test_a_stream_truncated_sealed_and_deleted_leaves_no_segments(
    segment_store: tuple[str, int], client_type: Any
) -> None:
    settings = ControllerConfig(port=0, segment_stores=(segment_store,), drain_seconds=1)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(partial(serve, settings))
        client = client_type(f"{host}:{port}")
        await client.call("createScope", pb.ScopeInfo(scope="s"))
        await client.call("createStream", config("a", 2))
        assert (await client.call("updateStream", config("a", 3))).status == 0
        current = await client.call("getCurrentSegments", info("a"))
        cut = {s.segmentId.segmentId: 0 for s in current.segmentRanges}
        assert len(cut) == 3
        truncated = await client.call("truncateStream", pb.StreamCut(streamInfo=info("a"), cut=cut))
        assert truncated.status == pb.UpdateStreamStatus.SUCCESS
        assert isinstance(await segment_info(segment_store, "a", 0), NoSuchSegment)
        assert (await client.call("sealStream", info("a"))).status == 0
        assert (await client.call("deleteStream", info("a"))).status == 0
        for segment_id in cut:
            assert isinstance(await segment_info(segment_store, "a", segment_id), NoSuchSegment)
        assert (await client.call("deleteScope", pb.ScopeInfo(scope="s"))).status == 0
        client.close()
        nursery.cancel_scope.cancel()


async def test_transactions_outlive_the_controller_and_a_scale(
    segment_store: tuple[str, int], client_type: Any
) -> None:
    settings = ControllerConfig(port=0, segment_stores=(segment_store,), drain_seconds=1)
    entry = pb.ScaleRequest.KeyRangeEntry

    def request(identifier: pb.TxnId) -> pb.TxnRequest:
        return pb.TxnRequest(streamInfo=info("a"), txnId=identifier, writerId="w", timestamp=1)

    async def until(client: Any, identifier: pb.TxnId, state: int) -> None:
        with trio.fail_after(30):
            while (await client.call("checkTransactionState", request(identifier))).state != state:  # noqa: ASYNC110
                await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(partial(serve, settings))
        client = client_type(f"{host}:{port}")
        await client.call("createScope", pb.ScopeInfo(scope="s"))
        await client.call("createStream", config("a", 2))
        begin = pb.CreateTxnRequest(streamInfo=info("a"), lease=10_000)
        begun = [(await client.call("createTransaction", begin)).txnId for _ in range(3)]
        names_ = [segment_name("s", "a", 0, id_of_halves(i.highBits, i.lowBits)) for i in begun]
        for number, name in enumerate(names_):
            await append(segment_store, name, bytes([number]) * (number + 1))
        committed = await client.call("commitTransaction", request(begun[0]))
        assert committed.status == pb.TxnStatus.SUCCESS
        await until(client, begun[0], pb.TxnState.COMMITTED)
        assert (await segment_info(segment_store, "a", 0)).write_offset == HEADER_BYTES + 1
        await client.call(
            "scale",
            pb.ScaleRequest(
                streamInfo=info("a"),
                sealedSegments=[0],
                newKeyRanges=[entry(start=0, end=0.25), entry(start=0.25, end=0.5)],
            ),
        )
        client.close()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(partial(serve, replace(settings, port=port)))
        client = client_type(f"{host}:{port}")
        assert (await client.call("commitTransaction", request(begun[1]))).status == 0
        assert (await client.call("abortTransaction", request(begun[2]))).status == 0
        await until(client, begun[1], pb.TxnState.COMMITTED)
        await until(client, begun[2], pb.TxnState.ABORTED)
        merged = await segment_info(segment_store, "a", 2 << 32)
        assert (merged.write_offset, merged.is_sealed) == (HEADER_BYTES + 2, True)
        listed = await client.call(
            "listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=info("a"))
        )
        ends = {(r.txnId.highBits, r.txnId.lowBits): r.status for r in listed.response}
        assert [ends[i.highBits, i.lowBits] for i in begun] == [
            pb.TxnResponse.COMMITTED,
            pb.TxnResponse.COMMITTED,
            pb.TxnResponse.ABORTED,
        ]
        for name in names_:
            assert isinstance(await ask(segment_store, name), NoSuchSegment)
        client.close()
        nursery.cancel_scope.cancel()


async def test_two_controllers_answer_alike_and_one_takes_over_from_the_other(
    segment_store: tuple[str, int], client_type: Any
) -> None:
    settings = ControllerConfig(
        port=0, segment_stores=(segment_store,), drain_seconds=1, heartbeat_seconds=0.2
    )
    entry = pb.ScaleRequest.KeyRangeEntry
    async with trio.open_nursery() as nursery:
        first_scope = trio.CancelScope()

        async def serve_first(*, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
            with first_scope:
                await serve(settings, task_status=task_status)

        first_host, first_port = await nursery.start(serve_first)
        host, port = await nursery.start(partial(serve, settings))
        first, second = client_type(f"{first_host}:{first_port}"), client_type(f"{host}:{port}")
        await first.call("createScope", pb.ScopeInfo(scope="s"))
        assert (await first.call("createStream", config("a", 1))).status == 0
        assert len((await second.call("getCurrentSegments", info("a"))).segmentRanges) == 1
        assert (await second.call("updateStream", config("a", 2))).status == 0
        assert len((await first.call("getCurrentSegments", info("a"))).segmentRanges) == 2
        following = pb.SegmentId(streamInfo=info("a"), segmentId=0)
        found = await first.call("getSegmentsImmediatelyFollowing", following)
        assert len(found.segments) == 2, "no answer is older than its question"
        assert await servers(second) == await servers(first) == {first_port, port}
        sealed = [(1 << 32) + 1]
        scaled = pb.ScaleRequest(
            streamInfo=info("a"),
            sealedSegments=sealed,
            newKeyRanges=[entry(start=0, end=0.2), entry(start=0.2, end=0.5)],
        )
        assert (await first.call("scale", scaled)).status == pb.ScaleResponse.STARTED
        first_scope.cancel()
        with trio.fail_after(60):
            question = pb.ScaleStatusRequest(streamInfo=info("a"), epoch=1)
            in_progress = pb.ScaleStatusResponse.IN_PROGRESS
            while (await second.call("checkScale", question)).status == in_progress:  # noqa: ASYNC110
                await trio.sleep(0.1)
            while await servers(second) != {port}:
                assert first_scope.cancel_called
        assert len((await second.call("getCurrentSegments", info("a"))).segmentRanges) == 3
        first.close()
        second.close()
        nursery.cancel_scope.cancel()


async def servers(client: Any) -> set[int]:
    """Return the ports of the live controllers, by one of them, after it has looked again."""
    await trio.sleep(0.5)
    found = await client.call("getControllerServerList", pb.ServerRequest())
    return {node.port for node in found.nodeURI}


@pytest.mark.parametrize(
    ("scope", "stream", "user_name"),
    [
        ("x" * 255, "y" * 255, "z" * 250),
        ("." * 255, "." * 255, "." * 250),
        ("_.", "..a", "-"),
        ("_..", "...", "..."),
    ],
    ids=["longest", "dots", "short", "three dots"],
)
async def test_names_of_every_kind_work_from_their_creation_to_their_deletion(
    scope: str, stream: str, user_name: str, segment_store: tuple[str, int], client_type: Any
) -> None:
    settings = ControllerConfig(port=0, segment_stores=(segment_store,), drain_seconds=1)
    entry = pb.ScaleRequest.KeyRangeEntry
    at = pb.StreamInfo(scope=scope, stream=stream)
    cut = pb.StreamCut(streamInfo=at)
    group = pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=user_name,
        readerGroupId="11111111-2222-3333-4444-555555555555",
        retentionType=1,
        startingStreamCuts=[cut],
        endingStreamCuts=[cut],
    )
    table = pb.KeyValueTableConfig(
        scope=scope, kvtName=user_name, partitionCount=2, primaryKeyLength=8
    )
    policy = pb.ScalingPolicy(minNumSegments=1)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(partial(serve, settings))
        client = client_type(f"{host}:{port}")

        async def succeed(method: str, request: Any) -> Any:
            answer = await client.call(method, request)
            assert answer.status == 0, (method, answer)
            return answer

        await succeed("createScope", pb.ScopeInfo(scope=scope))
        await succeed("createStream", pb.StreamConfig(streamInfo=at, scalingPolicy=policy))
        await succeed("createReaderGroup", group)
        await succeed("createKeyValueTable", table)
        begin = pb.CreateTxnRequest(streamInfo=at, lease=10_000)
        begun = (await client.call("createTransaction", begin)).txnId
        identifier = id_of_halves(begun.highBits, begun.lowBits)
        await append(segment_store, segment_name(scope, stream, 0, identifier), b"event")
        halves = [entry(start=0, end=0.5), entry(start=0.5, end=1)]
        scale = pb.ScaleRequest(streamInfo=at, sealedSegments=[0], newKeyRanges=halves)
        await succeed("scale", scale)
        await succeed(
            "commitTransaction",
            pb.TxnRequest(streamInfo=at, txnId=begun, writerId="w", timestamp=1),
        )
        await succeed("sealStream", at)
        merged = await ask(segment_store, names.segment_name(scope, stream, 2 << 32))
        assert merged.write_offset == HEADER_BYTES + 5
        await succeed("deleteScopeRecursive", pb.ScopeInfo(scope=scope))
        for gone in (stream, names.mark_stream(stream), names.reader_group_stream(user_name)):
            found = await ask(segment_store, names.segment_name(scope, gone, 0))
            assert isinstance(found, NoSuchSegment)
        await succeed("createScope", pb.ScopeInfo(scope=scope))
        client.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", [".", "..", "", "\u00e9", "a/b", "x" * 256])
async def test_names_that_no_segment_can_have_get_the_status_that_clients_know(
    name: str, grpc_on_memory: Any, memory_store: Any
) -> None:
    call = grpc_on_memory.call
    await call("createScope", pb.ScopeInfo(scope="s"))
    requests = memory_store.requests
    created = await call("createScope", pb.ScopeInfo(scope=name))
    assert created.status == pb.CreateScopeStatus.INVALID_SCOPE_NAME
    stream = await call("createStream", config(name, 1))
    assert stream.status == pb.CreateStreamStatus.INVALID_STREAM_NAME
    group = await call(
        "createReaderGroup", pb.ReaderGroupConfiguration(scope="s", readerGroupName=name)
    )
    assert group.status == pb.CreateReaderGroupResponse.INVALID_RG_NAME
    table = await call(
        "createKeyValueTable",
        pb.KeyValueTableConfig(scope="s", kvtName=name, partitionCount=1, primaryKeyLength=8),
    )
    assert table.status == pb.CreateKeyValueTableStatus.INVALID_TABLE_NAME
    assert memory_store.requests == requests
