"""Deletions: what they deleted is in no listing or answer, and its name is free."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import controller_pb2 as pb
from pravega_wire.commands import INT64_MIN

Call = Callable[[str, Message], Awaitable[Any]]

SCOPE, OTHER = pb.ScopeInfo(scope="s"), pb.ScopeInfo(scope="other")
STREAM = pb.StreamInfo(scope="s", stream="a")
GROUP_ID = "11111111-2222-3333-4444-555555555555"
TABLE = pb.KeyValueTableInfo(scope="s", kvtName="t")
TABLE_CONFIG = pb.KeyValueTableConfig(scope="s", kvtName="t", partitionCount=2, primaryKeyLength=8)
STREAM_CONFIG = pb.StreamConfig(
    streamInfo=STREAM, scalingPolicy=pb.ScalingPolicy(minNumSegments=2), tags=pb.Tags(tag=["tag"])
)
NOT_FOUND = "gRPC NOT_FOUND"


def group(scope: str) -> pb.ReaderGroupConfiguration:
    """Return a group that subscribes to the stream."""
    return pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName="g",
        readerGroupId=GROUP_ID,
        retentionType=2,
        startingStreamCuts=[pb.StreamCut(streamInfo=STREAM)],
        endingStreamCuts=[pb.StreamCut(streamInfo=STREAM)],
    )


GROUP = pb.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId=GROUP_ID)


async def make_all(call: Call) -> pb.TxnId:
    """Make one of each thing in the scope, and a group elsewhere; return an open transaction."""
    for scope in (SCOPE, OTHER):
        assert (await call("createScope", scope)).status == pb.CreateScopeStatus.SUCCESS
    created = await call("createStream", STREAM_CONFIG)
    assert created.status == pb.CreateStreamStatus.SUCCESS
    for scope in ("s", "other"):
        made = await call("createReaderGroup", group(scope))
        assert made.status == pb.CreateReaderGroupResponse.SUCCESS
    table = await call("createKeyValueTable", TABLE_CONFIG)
    assert table.status == pb.CreateKeyValueTableStatus.SUCCESS
    for time in (INT64_MIN, 7):
        begun = await call(
            "createTransaction", pb.CreateTxnRequest(streamInfo=STREAM, lease=10_000)
        )
        if time == 7:
            request = pb.TxnRequest(
                streamInfo=STREAM, txnId=begun.txnId, writerId="w", timestamp=time
            )
            assert (await call("commitTransaction", request)).status == pb.TxnStatus.SUCCESS
        else:
            left_open = begun.txnId
    noted = pb.TimestampFromWriter(
        writer="w2", timestamp=5, position=pb.StreamCut(streamInfo=STREAM, cut={0: 0, 1: 0})
    )
    assert (await call("noteTimestampFromWriter", noted)).result == pb.TimestampResponse.SUCCESS
    identifier: pb.TxnId = left_open
    return identifier


async def delete_stream(call: Call) -> None:
    assert (await call("sealStream", STREAM)).status == pb.UpdateStreamStatus.SUCCESS
    assert (await call("deleteStream", STREAM)).status == pb.DeleteStreamStatus.SUCCESS


async def delete_group(call: Call) -> None:
    assert (await call("deleteReaderGroup", GROUP)).status == pb.DeleteReaderGroupStatus.SUCCESS


async def delete_table(call: Call) -> None:
    assert (await call("deleteKeyValueTable", TABLE)).status == pb.DeleteKVTableStatus.SUCCESS


async def delete_scope(call: Call) -> None:
    await delete_group(call)
    await delete_stream(call)
    await delete_table(call)
    assert (await call("deleteScope", SCOPE)).status == pb.DeleteScopeStatus.SUCCESS


async def delete_scope_with_contents(call: Call) -> None:
    assert (await call("deleteScopeRecursive", SCOPE)).status == pb.DeleteScopeStatus.SUCCESS


async def answer_of(call: Call, method: str, request: Message) -> object:
    """Return what tells whether a thing is there: a status's name, or that of a listing."""
    try:
        answer = await call(method, request)
    except grpc.RpcError as error:
        return f"gRPC {error.code().name}"  # type: ignore[attr-defined]
    for field in ("status", "result"):
        if field in answer.DESCRIPTOR.fields_by_name:
            kind = answer.DESCRIPTOR.fields_by_name[field].enum_type
            return kind.values_by_number[getattr(answer, field)].name
    for field in ("exists", "state", "response", "subscribers"):
        if field in answer.DESCRIPTOR.fields_by_name:
            found = getattr(answer, field)
            return found if isinstance(found, int) else list(found)
    return answer


async def listed(call: Call, method: str, request: Message, field: str) -> list[str]:
    """Return the names in a listing that tells of no token."""
    names: list[str] = []
    while True:
        page = await call(method, request)
        found = [
            one if isinstance(one, str) else getattr(one, "stream", "") or one.kvtName
            for one in getattr(page, field)
        ]
        if not found:
            return names
        names += found
        request.continuationToken.CopyFrom(page.continuationToken)  # type: ignore[attr-defined]


async def check_no_stream(call: Call, open_transaction: pb.TxnId) -> None:
    txn = pb.TxnRequest(streamInfo=STREAM, txnId=open_transaction)
    segment = pb.SegmentId(streamInfo=STREAM, segmentId=0)
    cut = pb.StreamCut(streamInfo=STREAM, cut={0: 0, 1: 0})
    mark = pb.TimestampFromWriter(writer="w2", timestamp=6, position=cut)
    expected: dict[str, tuple[Message, object]] = {
        "checkStreamExists": (STREAM, False),
        "getStreamConfiguration": (STREAM, NOT_FOUND),
        "getCurrentSegments": (STREAM, NOT_FOUND),
        "getEpochSegments": (pb.GetEpochSegmentsRequest(streamInfo=STREAM), NOT_FOUND),
        "getSegments": (pb.GetSegmentsRequest(streamInfo=STREAM), NOT_FOUND),
        "getSegmentsImmediatelyFollowing": (segment, NOT_FOUND),
        "getSegmentsBetween": (pb.StreamCutRange(streamInfo=STREAM, to={0: 0, 1: 0}), NOT_FOUND),
        "isSegmentValid": (segment, NOT_FOUND),
        "isStreamCutValid": (cut, NOT_FOUND),
        "updateStream": (STREAM_CONFIG, "STREAM_NOT_FOUND"),
        "truncateStream": (cut, "STREAM_NOT_FOUND"),
        "sealStream": (STREAM, "STREAM_NOT_FOUND"),
        "deleteStream": (STREAM, "STREAM_NOT_FOUND"),
        "scale": (pb.ScaleRequest(streamInfo=STREAM, sealedSegments=[0]), "FAILURE"),
        "checkScale": (pb.ScaleStatusRequest(streamInfo=STREAM), "INVALID_INPUT"),
        "listSubscribers": (STREAM, "STREAM_NOT_FOUND"),
        "createTransaction": (pb.CreateTxnRequest(streamInfo=STREAM, lease=10_000), NOT_FOUND),
        "pingTransaction": (
            pb.PingTxnRequest(streamInfo=STREAM, txnId=open_transaction, lease=10_000),
            "UNKNOWN",
        ),
        "checkTransactionState": (txn, pb.TxnState.UNKNOWN),
        "commitTransaction": (txn, "FAILURE"),
        "abortTransaction": (txn, "FAILURE"),
        "listCompletedTransactions": (pb.ListCompletedTxnRequest(streamInfo=STREAM), NOT_FOUND),
        "noteTimestampFromWriter": (mark, NOT_FOUND),
        "removeWriter": (
            pb.RemoveWriterRequest(stream=STREAM, writer="w2"),
            "UNKNOWN_WRITER",
        ),
    }
    answers = {
        name: await answer_of(call, name, request) for name, (request, _) in expected.items()
    }
    assert answers == {name: answer for name, (_, answer) in expected.items()}


async def check_no_group(call: Call, scope: str = "s") -> None:
    info = pb.ReaderGroupInfo(scope=scope, readerGroup="g", readerGroupId=GROUP_ID)
    gone = ("RG_NOT_FOUND", NOT_FOUND)
    assert await answer_of(call, "getReaderGroupConfig", info) in gone
    assert await answer_of(call, "updateReaderGroup", group(scope)) in gone
    assert await answer_of(call, "deleteReaderGroup", info) in gone
    state = pb.StreamInfo(scope=scope, stream="_RGg")
    assert await answer_of(call, "checkStreamExists", state) is False


async def check_no_table(call: Call) -> None:
    assert await answer_of(call, "getKeyValueTableConfiguration", TABLE) == "TABLE_NOT_FOUND"
    assert await answer_of(call, "getCurrentSegmentsKeyValueTable", TABLE) == NOT_FOUND
    assert await answer_of(call, "deleteKeyValueTable", TABLE) == "TABLE_NOT_FOUND"


def of_scope(request: Any) -> Any:
    request.scope.CopyFrom(SCOPE)
    return request


async def streams_in(call: Call) -> list[str]:
    request = of_scope(pb.StreamsInScopeRequest())
    return await listed(call, "listStreamsInScope", request, "streams")


async def tagged_in(call: Call) -> list[str]:
    request = of_scope(pb.StreamsInScopeWithTagRequest(tag="tag"))
    return await listed(call, "listStreamsInScopeForTag", request, "streams")


async def tables_in(call: Call) -> list[str]:
    request = of_scope(pb.KVTablesInScopeRequest())
    return await listed(call, "listKeyValueTablesInScope", request, "kvtables")


async def test_a_deleted_stream_is_gone(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    open_transaction = await make_all(call)
    before = list(memory_store.created)
    await delete_stream(call)
    await check_no_stream(call, open_transaction)
    assert await tagged_in(call) == []
    assert set(await streams_in(call)) == {"_RGg", "_MARK_RGg"}
    assert not [name for name in memory_store.segments if name.startswith(("s/a/", "s/_MARKa/"))]
    # The name is free, and nothing of the first stream is in the second.
    created = await call("createStream", STREAM_CONFIG)
    assert created.status == pb.CreateStreamStatus.SUCCESS
    assert (await call("listSubscribers", STREAM)).subscribers == []
    assert not (
        await call("listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=STREAM))
    ).response
    assert await tagged_in(call) == ["a"]
    assert not set(memory_store.created[len(before) :]) & set(before)


async def test_a_deleted_group_is_gone(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await make_all(call)
    assert (await call("listSubscribers", STREAM)).subscribers == ["other/g", "s/g"]
    await delete_group(call)
    await check_no_group(call)
    assert (await call("listSubscribers", STREAM)).subscribers == ["other/g"]
    assert set(await streams_in(call)) == {"a", "_MARKa"}
    assert not [name for name in memory_store.segments if name.startswith("s/_RGg/")]
    made = await call("createReaderGroup", group("s"))
    assert made.status == pb.CreateReaderGroupResponse.SUCCESS
    assert made.config.generation == 0
    assert (await call("listSubscribers", STREAM)).subscribers == ["other/g", "s/g"]


async def test_a_deleted_table_is_gone(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await make_all(call)
    await delete_table(call)
    await check_no_table(call)
    assert await tables_in(call) == []
    assert not [name for name in memory_store.tables if name.startswith("s/")]
    made = await call("createKeyValueTable", TABLE_CONFIG)
    assert made.status == pb.CreateKeyValueTableStatus.SUCCESS
    assert await tables_in(call) == ["t"]


@pytest.mark.parametrize("delete", [delete_scope, delete_scope_with_contents])
async def test_a_deleted_scope_is_gone_with_all_that_was_in_it(
    delete: Callable[[Call], Awaitable[None]],
    grpc_on_memory: Any,
    memory_store: MemorySegmentStore,
) -> None:
    call = grpc_on_memory.call
    open_transaction = await make_all(call)
    await delete(call)
    await check_no_stream(call, open_transaction)
    await check_no_group(call)
    await check_no_table(call)
    assert await answer_of(call, "checkScopeExists", SCOPE) is False
    assert await answer_of(call, "deleteScope", SCOPE) == "SCOPE_NOT_FOUND"
    assert await listed(call, "listScopes", pb.ScopesRequest(), "scopes") == ["other", "_system"]
    for method, request in (
        ("listStreamsInScope", pb.StreamsInScopeRequest()),
        ("listStreamsInScopeForTag", pb.StreamsInScopeWithTagRequest(tag="tag")),
        ("listKeyValueTablesInScope", pb.KVTablesInScopeRequest()),
    ):
        assert await answer_of(call, method, of_scope(request)) == "SCOPE_NOT_FOUND"
    for method, config, status in (
        ("createStream", STREAM_CONFIG, "SCOPE_NOT_FOUND"),
        ("createReaderGroup", group("s"), "SCOPE_NOT_FOUND"),
        ("createKeyValueTable", TABLE_CONFIG, "SCOPE_NOT_FOUND"),
    ):
        assert await answer_of(call, method, config) == status
    assert not [name for name in memory_store.segments if name.startswith("s/")]
    assert not [name for name in memory_store.tables if name.startswith("s/")]
    assert (await call("createScope", SCOPE)).status == pb.CreateScopeStatus.SUCCESS
    assert await streams_in(call) == await tables_in(call) == await tagged_in(call) == []
    await delete_group_elsewhere(call)
    await call("deleteScopeRecursive", OTHER)
    await delete_scope_with_contents(call)
    await make_all(call)


async def delete_group_elsewhere(call: Call) -> None:
    """Delete the group of the other scope, whose stream is gone."""
    info = pb.ReaderGroupInfo(scope="other", readerGroup="g", readerGroupId=GROUP_ID)
    assert (await call("deleteReaderGroup", info)).status == pb.DeleteReaderGroupStatus.SUCCESS
    await check_no_group(call, "other")
