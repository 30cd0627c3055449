"""Workflows that a segment store refuses for good: they end, are told, and are not repeated.

``test_workflow_crashes`` kills controllers in the middle of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest
import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    ScopeNotFoundError,
    StepRefusedError,
)
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import InvalidNameError

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
ONE = fixed_configuration(1)


async def leave_stuck(open_it: OpenController, memory: MemorySegmentStore, *streams: str) -> None:
    """Leave the records of streams in scope ``s`` as earlier versions left them.

    These accepted such names, and were repeating the creation of the first segments for ever.
    """
    async with open_it() as controller:
        await controller.scopes.create("s")
        for stream in streams:
            memory.fault = fault = Fault(at=10**9, is_applied=False)

            def reach(request: wire.Request, fault: Fault = fault) -> bool:
                if isinstance(request, wire.CreateSegment):
                    fault.at = memory.changes
                return False

            memory.pause, memory.pauses = trio.Event(), reach
            async with trio.open_nursery() as nursery:
                create = controller.streams.workflows.creation.create
                nursery.start_soon(create, "s", stream, ONE)
                await fault.reached.wait()
                nursery.cancel_scope.cancel()
            memory.fault = memory.pause = None
            assert any(f"s/{stream}".encode() in table.entries for table in memory.tables.values())


async def settle(memory: MemorySegmentStore) -> None:
    """Wait until no workflow is unfinished."""
    with trio.fail_after(600):
        while memory.tables[INTENTS].entries:  # noqa: ASYNC110 (the store in memory has no events)
            await trio.sleep(1)


@pytest.mark.parametrize("name", [".", ".."])
async def test_names_that_no_store_takes_are_refused_at_once(
    name: str, open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        requests = memory_store.requests
        with pytest.raises(InvalidNameError, match=r'"\." and "\.\." are no names'):
            await controller.scopes.create(name)
        with pytest.raises(InvalidNameError):
            await controller.streams.create("s", name, ONE)
        assert memory_store.requests == requests


async def test_streams_that_earlier_versions_left_stuck_are_gone_after_a_start(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await leave_stuck(open_on_memory, memory_store, ".", "..")
    async with open_on_memory() as controller:
        await settle(memory_store)
        assert (await controller.store.names.list_page("s", "")).names == []
        requests = memory_store.changes
        await trio.sleep(300)
        assert memory_store.changes == requests, "something is still being tried"
        await controller.scopes.delete("s")
        await controller.scopes.create("s")
    assert not memory_store.segments


@pytest.mark.parametrize("request_name", ["delete", "seal", "delete scope"])
async def test_a_stuck_stream_can_be_deleted(
    request_name: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await leave_stuck(open_on_memory, memory_store, ".")
    # Nobody promised to finish it.
    memory_store.tables[INTENTS].entries.clear()
    async with open_on_memory() as controller:
        assert "." in (await controller.store.names.list_page("s", "")).names
        match request_name:
            case "delete":
                await controller.streams.delete("s", ".")
            case "seal":
                # It is like one that was deleted since the request came.
                await controller.streams.seal("s", ".")
            case _:
                await controller.scopes.delete_with_contents("s")
                with pytest.raises(ScopeNotFoundError):
                    await controller.scopes.delete("s")
                await controller.scopes.create("s")
        assert (await controller.store.names.list_page("s", "")).names == []
        assert not await controller.streams.exists("s", ".")
        await settle(memory_store)


async def test_a_client_gets_the_reason_of_a_refused_step(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await call("createScope", pb.ScopeInfo(scope="s"))
    memory_store.refuses = lambda segment: "s/a/" in segment
    with pytest.raises(grpc.RpcError) as refusal:
        await call("createStream", stream_config("a"))
    # Official clients do not repeat what is refused so.
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "refuses s/a/0.#epoch.0" in refusal.value.details()
    memory_store.refuses = lambda segment: False
    assert (await call("createStream", stream_config("a"))).status == pb.CreateStreamStatus.SUCCESS


async def test_who_asks_for_a_refused_scale_is_told_that_it_failed(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    call = grpc_on_memory.call
    await call("createScope", pb.ScopeInfo(scope="s"))
    await call("createStream", stream_config("a"))
    memory_store.refuses = lambda segment: "#epoch.1" in segment
    info = pb.StreamInfo(scope="s", stream="a")
    entry = pb.ScaleRequest.KeyRangeEntry
    halves = [entry(start=0, end=0.5), entry(start=0.5, end=1)]
    wanted = pb.ScaleRequest(streamInfo=info, sealedSegments=[0], newKeyRanges=halves)
    assert (await call("scale", wanted)).status == pb.ScaleResponse.STARTED
    question = pb.ScaleStatusRequest(streamInfo=info, epoch=0)
    with trio.fail_after(30):
        while True:
            status = (await call("checkScale", question)).status
            if status != pb.ScaleStatusResponse.IN_PROGRESS:
                break
    assert status == pb.ScaleStatusResponse.INTERNAL_ERROR
    found = await call("getCurrentSegments", info)
    assert [one.segmentId.segmentId for one in found.segmentRanges] == [0]


async def test_a_truncation_beyond_what_is_stored_ends_and_is_told(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", ONE)
        segment = memory_store.segments["s/a/0.#epoch.0"]
        segment.append(bytes(100))

        def lose(request: wire.Request) -> bool:
            # Between the check of the cut and the truncation.
            if isinstance(request, wire.TruncateSegment):
                segment.length = 20
            return False

        memory_store.pause, memory_store.pauses = trio.Event(), lose
        with pytest.raises(StepRefusedError, match="it ends earlier"):
            await controller.streams.truncate("s", "a", {0: 50})
        # The stream is usable: nothing is pending.
        await controller.streams.seal("s", "a")
        await controller.streams.delete("s", "a")
        await settle(memory_store)


async def test_a_transaction_whose_segments_are_refused_is_not_begun(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(2))
        memory_store.refuses = lambda segment: "s/a/1.#epoch.0#transaction" in segment
        with pytest.raises(StepRefusedError):
            await controller.transactions.begin("s", "a", lease_ms=10_000)
        await settle(memory_store)
        assert not [name for name in memory_store.segments if "#transaction" in name]
        memory_store.refuses = lambda segment: False
        begun = await controller.transactions.begin("s", "a", lease_ms=10_000)
        assert await controller.transactions.abort("s", "a", begun.identifier)


def stream_config(name: str) -> pb.StreamConfig:
    info = pb.StreamInfo(scope="s", stream=name)
    return pb.StreamConfig(streamInfo=info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
