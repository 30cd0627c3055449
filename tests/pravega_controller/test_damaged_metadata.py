"""One damaged record, whichever it is: the controller starts, and everything else works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random
from typing import Any

import grpc
import pytest
import trio
import trio.testing

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller, Environment
from pravega_controller.errors import ControllerError, CorruptMetadataError
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import (
    IntentRecord,
    NamedCut,
    ReaderGroupConfiguration,
    decode,
    encode,
)
from pravega_controller.metadata.scope_records import SCOPES
from pravega_controller.rules.streams import ScaleType, ScalingPolicy, StreamConfiguration
from pravega_controller.server import serve
from pravega_controller.tables.key_value_tables import KeyValueTableConfiguration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import controller_pb2 as pb

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]

GROUP_ID = "11111111-2222-3333-4444-555555555555"
CUTS = (NamedCut("s", "a", {}),)
GROUP = ReaderGroupConfiguration(3000, 30000, 3, 1, CUTS, CUTS)
DAMAGES = (b"", b'{"format":1}', b"\xff\xfe rubbish", b'{"format":77}', b"[1,2")


def tagged(count: int) -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy(ScaleType.FIXED, count), tags=("x",))


def keys(memory: MemorySegmentStore) -> set[tuple[str, bytes]]:
    return {(name, key) for name, table in memory.tables.items() for key in table.entries}


async def prepare(controller: Controller, memory: MemorySegmentStore) -> list[tuple[str, bytes]]:
    """Make what is damaged, and what must go on; returns where the former's records are."""
    await controller.scopes.create("other")
    await controller.streams.create("other", "a", tagged(1))
    await controller.scopes.create("s")
    before = keys(memory)
    await controller.streams.create("s", "a", tagged(2))
    await controller.streams.update("s", "a", tagged(3))
    await controller.tables.create("s", "t", KeyValueTableConfiguration(1, 8))
    victims = keys(memory) - before
    await controller.streams.create("s", "b", tagged(2))
    before = keys(memory)
    await controller.groups.create("s", "g", GROUP_ID, GROUP)
    victims |= keys(memory) - before
    scope_record = (SCOPES, b"s")
    return sorted(victims | {scope_record})


async def work(controller: Controller, scope: str, name: str) -> None:
    """Do every operation that exists for a stream."""
    streams = controller.streams
    await streams.configuration(scope, name)
    segments = await streams.active_segments(scope, name)
    await streams.successors(scope, name, segments[0].segment_id)
    await streams.update(scope, name, tagged(len(segments) + 1))
    segments = await streams.active_segments(scope, name)
    await streams.truncate(scope, name, {segment.segment_id: 0 for segment in segments})
    assert name in (await streams.list_with_tag(scope, "x", "")).names
    assert await streams.create(scope, "new", tagged(1))
    listed = (await controller.store.names.list_page(scope, "")).names
    assert {name, "new"} <= set(listed)
    await streams.seal(scope, name)
    await streams.delete(scope, name)
    assert not await streams.exists(scope, name)


@pytest.mark.proof
async def test_a_damaged_record_stops_what_it_belongs_to_alone(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller:
        victims = await prepare(controller, memory_store)
    contents = memory_store.contents()
    for table, key in victims:
        memory_store.restore(contents)
        if key not in memory_store.tables[table].entries:
            continue
        _, version = memory_store.tables[table].entries[key]
        memory_store.tables[table].entries[key] = (b"\xff\xfe rubbish", version)
        async with open_on_memory() as controller:
            assert "s" in (await controller.store.scopes.list_page("")).names
            await work(controller, *(("other", "a") if table == SCOPES else ("s", "b")))


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_intent_does_not_keep_the_controller_from_starting(
    damage: bytes,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
    intents = memory_store.tables[INTENTS].entries
    intents[b"stream/s/damaged"] = (damage, 1)
    intents[b"scope/s/"] = (encode(IntentRecord("scope", "s")), 2)
    async with open_on_memory() as controller:
        with trio.fail_after(60):
            while b"scope/s/" in intents:  # noqa: ASYNC110
                await trio.sleep(1)
        assert intents[b"stream/s/damaged"] == (damage, 1), "the only trace of it must stay"
        await controller.streams.create("s", "a", tagged(1))


async def test_the_answer_says_what_is_damaged(
    grpc_on_memory: Any, memory_store: MemorySegmentStore, nursery: trio.Nursery
) -> None:
    await grpc_on_memory.call("createScope", pb.ScopeInfo(scope="s"))
    before = keys(memory_store)
    stream = pb.StreamInfo(scope="s", stream="a")
    policy = pb.ScalingPolicy(minNumSegments=1)
    made = pb.StreamConfig(streamInfo=stream, scalingPolicy=policy)
    await grpc_on_memory.call("createStream", made)
    for table, key in keys(memory_store) - before:
        if b"MARK" not in key:
            memory_store.tables[table].entries[key] = (b"rubbish", 1)
    environment = Environment(random=Random(7), open_stream=memory_store.open_stream)
    host, port = await nursery.start(
        partial(serve, ControllerConfig(port=0), environment=environment)
    )
    client = type(grpc_on_memory)(f"{host}:{port}")
    with pytest.raises(grpc.RpcError) as caught:
        await client.call("getStreamConfiguration", stream)
    client.close()
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS
    assert caught.value.details().startswith("s/a: metadata is damaged: ")


def test_what_is_no_record_says_so() -> None:
    for damage in DAMAGES:
        with pytest.raises(CorruptMetadataError):
            decode(damage, IntentRecord)
    assert issubclass(CorruptMetadataError, ControllerError)
