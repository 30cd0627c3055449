"""Key-value tables through the gRPC face: statuses, segments, listings, and bad values."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import trio

from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import controller_pb2 as pb
from pravega_wire.commands import DeleteTableSegment

SCOPE = pb.ScopeInfo(scope="s")


def config(name: str = "t", scope: str = "s", **fields: int) -> pb.KeyValueTableConfig:
    values = {"partitionCount": 2, "primaryKeyLength": 8, "secondaryKeyLength": 4, **fields}
    return pb.KeyValueTableConfig(scope=scope, kvtName=name, **values)


def info(name: str = "t", scope: str = "s") -> pb.KeyValueTableInfo:
    return pb.KeyValueTableInfo(scope=scope, kvtName=name)


async def test_creating_tables_answers_with_a_status(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await call("createScope", SCOPE)
    status = pb.CreateKeyValueTableStatus
    for request, expected in (
        (config(), status.SUCCESS),
        (config(), status.TABLE_EXISTS),
        (config(partitionCount=9), status.TABLE_EXISTS),
        (config(scope="nope"), status.SCOPE_NOT_FOUND),
        (config("bad name"), status.INVALID_TABLE_NAME),
        (config("_internal"), status.INVALID_TABLE_NAME),
        (config("x" * 251), status.INVALID_TABLE_NAME),
        (config(""), status.INVALID_TABLE_NAME),
        (config("longest", primaryKeyLength=200, secondaryKeyLength=56), status.SUCCESS),
    ):
        assert (await call("createKeyValueTable", request)).status == expected, request


@pytest.mark.parametrize(
    "fields",
    [
        {"partitionCount": 0},
        {"partitionCount": -1},
        {"partitionCount": 5001},
        {"primaryKeyLength": 0},
        {"primaryKeyLength": -1},
        {"secondaryKeyLength": -1},
        {"primaryKeyLength": 200, "secondaryKeyLength": 57},
        {"primaryKeyLength": 2**31 - 1, "secondaryKeyLength": 2**31 - 1},
        {"rolloverSizeBytes": -1},
    ],
)
async def test_numbers_that_no_table_can_have_are_refused_for_good(
    grpc_on_memory: Any, memory_store: MemorySegmentStore, fields: dict[str, int]
) -> None:
    await grpc_on_memory.call("createScope", SCOPE)
    before = memory_store.changes
    with pytest.raises(grpc.RpcError) as caught:
        await grpc_on_memory.call("createKeyValueTable", config(**fields))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details()
    assert memory_store.changes == before


async def test_segments_carry_the_bare_name_and_cover_the_key_space(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await call("createScope", SCOPE)
    await call("createKeyValueTable", config(rolloverSizeBytes=5))
    ranges = (await call("getCurrentSegmentsKeyValueTable", info())).segmentRanges
    assert [(r.segmentId.segmentId, r.minKey, r.maxKey) for r in ranges] == [
        (0, 0.0, 0.5),
        (1, 0.5, 1.0),
    ]
    assert {r.segmentId.streamInfo.stream for r in ranges} == {"t"}
    answer = await call("getKeyValueTableConfiguration", info())
    assert answer.config == config(rolloverSizeBytes=5)


async def test_absent_tables_are_not_found(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await call("createScope", SCOPE)
    for scope in ("s", "nope"):
        missing = info("nope", scope)
        with pytest.raises(grpc.RpcError) as caught:
            await call("getCurrentSegmentsKeyValueTable", missing)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        answer = await call("getKeyValueTableConfiguration", missing)
        assert answer.status == pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND
        deleted = await call("deleteKeyValueTable", missing)
        assert deleted.status == pb.DeleteKVTableStatus.TABLE_NOT_FOUND
    request = pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="nope"))
    listed = await call("listKeyValueTablesInScope", request)
    assert listed.status == pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND


async def test_listings_show_tables_alone_and_end_with_an_empty_page(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    memory_store.page_entries_max = 2
    call = grpc_on_memory.call
    await call("createScope", SCOPE)
    request = pb.KVTablesInScopeRequest(scope=SCOPE)
    assert not (await call("listKeyValueTablesInScope", request)).kvtables
    policy = pb.ScalingPolicy(minNumSegments=1)
    for number in range(5):
        await call("createKeyValueTable", config(f"t{number}"))
        stream = pb.StreamInfo(scope="s", stream=f"t{number}")
        await call("createStream", pb.StreamConfig(streamInfo=stream, scalingPolicy=policy))
    found: list[str] = []
    while (page := await call("listKeyValueTablesInScope", request)).kvtables:
        found += [table.kvtName for table in page.kvtables]
        request.continuationToken.CopyFrom(page.continuationToken)
    assert sorted(found) == [f"t{number}" for number in range(5)]


async def test_a_scope_with_a_table_in_it_is_not_empty(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await call("createScope", SCOPE)
    await call("createKeyValueTable", config())
    status = pb.DeleteScopeStatus
    assert (await call("deleteScope", SCOPE)).status == status.SCOPE_NOT_EMPTY
    assert (await call("getKeyValueTableConfiguration", info())).config == config()
    assert (await call("deleteScopeRecursive", SCOPE)).status == status.SUCCESS
    assert not [name for name in memory_store.tables if name.startswith("s/")]


async def test_a_scope_made_anew_uses_no_segment_name_again(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    for _ in range(2):
        await call("createScope", SCOPE)
        await call("createKeyValueTable", config())
        await call("deleteScopeRecursive", SCOPE)
    made = [name for name in memory_store.created if name.startswith("s/t_kvtable/")]
    assert sorted(made) == [f"s/t_kvtable/{number}.#epoch.0" for number in range(4)]


async def test_a_recursive_deletion_is_told_when_it_is_over_and_refusals_at_once(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await call("createScope", SCOPE)
    await call("createKeyValueTable", config())
    answers: list[int] = []

    async def delete() -> None:
        answers.append((await call("deleteScopeRecursive", SCOPE)).status)

    async with trio.open_nursery() as nursery:
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: isinstance(request, DeleteTableSegment)
        nursery.start_soon(delete)
        await memory_store.is_paused.wait()
        nursery.start_soon(delete)
        with trio.fail_after(60):
            created = await call("createKeyValueTable", config("other"))
            assert created.status == pb.CreateKeyValueTableStatus.SCOPE_NOT_FOUND
            again = await call("createScope", SCOPE)
            assert again.status == pb.CreateScopeStatus.SCOPE_EXISTS
        assert answers == []
        memory_store.pause.set()
    assert answers == [pb.DeleteScopeStatus.SUCCESS] * 2
    assert not (await call("checkScopeExists", SCOPE)).exists
