"""Requests over the wire do not see which segments are active."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from pravega_metrics.metrics import Family
from pravega_wire import commands as wire
from segstore.container import Container
from segstore.errors import NoSuchSegmentError, SegmentExistsError
from segstore.model.attributes import AttributeUpdate
from segstore.network.handler_table import RequestContext, Store
from segstore.network.handlers import SEGMENT_HANDLERS
from segstore.process.registry import ContainerRegistry
from segstore.tables.settings import TableSettings
from support.faults.crashing_tiers import CrashingTiers, active_names, evict

SEGMENT, OTHER = "scope/stream/0.#epoch.0", "scope/stream/0.#epoch.0#transaction.1"


class Served:
    """A container behind a registry."""

    def __init__(self, context: RequestContext, container: Container) -> None:
        self.context = context
        self.container = container

    async def ask(self, request: wire.Request) -> wire.Reply:
        """Return the answer of the request's handler."""
        return await SEGMENT_HANDLERS[type(request)].handle(self.context, request)


async def read_no_metrics() -> list[Family]:
    return []


@asynccontextmanager
async def serve(tiers: CrashingTiers) -> AsyncIterator[Served]:
    registry = ContainerRegistry(
        lambda _: tiers.open(),
        container_count=1,
        container_ids=[0],
        tables=TableSettings(),
        restart_seconds_min=0.1,
        restart_seconds_max=1.0,
    )
    store = Store(registry, lambda: 5, bytes, read_no_metrics)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.run)
        await registry.hosted(0).wait_online()
        container = registry.container_for(SEGMENT)
        assert isinstance(container, Container)
        yield Served(RequestContext(store), container)
        nursery.cancel_scope.cancel()


async def make_inactive(served: Served) -> None:
    for name in (SEGMENT, OTHER):
        await served.ask(wire.CreateSegment(1, name, 0, 0, ""))
        await served.container.append(name, b"abc")
    await evict(served.container)
    assert SEGMENT not in active_names(served.container)


async def test_an_inactive_segment_tells_about_itself(tiers: CrashingTiers) -> None:
    async with serve(tiers) as served:
        await make_inactive(served)
        reply = await served.ask(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
        assert isinstance(reply, wire.StreamSegmentInfo)
        assert (reply.write_offset, reply.start_offset, reply.is_sealed) == (3, 0, False)
        assert SEGMENT not in active_names(served.container), "it stays inactive"


async def test_inactive_segments_are_merged(tiers: CrashingTiers) -> None:
    async with serve(tiers) as served:
        await make_inactive(served)
        reply = await served.ask(wire.MergeSegments(1, SEGMENT, OTHER, "", ()))
        assert isinstance(reply, wire.SegmentsMerged)
        assert reply.new_target_write_offset == 6
        await evict(served.container)
        with pytest.raises(NoSuchSegmentError):
            await served.ask(wire.GetStreamSegmentInfo(1, OTHER, ""))


async def test_sources_that_leave_again_before_their_turn_are_merged_all_the_same(
    tiers: CrashingTiers,
) -> None:
    sources = [f"{SEGMENT}#transaction.{number}" for number in range(3)]
    async with serve(tiers) as served:
        for name in (SEGMENT, *sources):
            await served.ask(wire.CreateSegment(1, name, 0, 0, ""))
            await served.container.append(name, b"abc")
        merge = served.container.merge_segment

        async def merge_slowly(
            target: str, source: str, *, attribute_updates: Sequence[AttributeUpdate] = ()
        ) -> int:
            length = await merge(target, source, attribute_updates=attribute_updates)
            await evict(served.container)
            assert active_names(served.container) == set()
            return length

        served.container.merge_segment = merge_slowly  # type: ignore[method-assign]
        reply = await served.ask(wire.MergeSegmentsBatch(1, SEGMENT, tuple(sources), ""))
        assert isinstance(reply, wire.SegmentsBatchMerged)
        assert [each.new_target_write_offset for each in reply.sources] == [6, 9, 12]
        again = await served.ask(wire.MergeSegmentsBatch(1, SEGMENT, tuple(sources), ""))
        assert isinstance(again, wire.SegmentsBatchMerged)
        assert [each.new_target_write_offset for each in again.sources] == [12, 12, 12]


async def test_an_inactive_segment_is_truncated_sealed_and_deleted(tiers: CrashingTiers) -> None:
    async with serve(tiers) as served:
        await make_inactive(served)
        await served.ask(wire.TruncateSegment(1, SEGMENT, 2, ""))
        await evict(served.container)
        await served.ask(wire.SealSegment(1, SEGMENT, ""))
        await evict(served.container)
        reply = await served.ask(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
        assert isinstance(reply, wire.StreamSegmentInfo)
        assert (reply.start_offset, reply.is_sealed) == (2, True)
        await evict(served.container)
        await served.ask(wire.DeleteSegment(1, SEGMENT, ""))
        with pytest.raises(NoSuchSegmentError):
            await served.ask(wire.GetStreamSegmentInfo(1, SEGMENT, ""))


async def test_an_inactive_segment_is_not_made_again(tiers: CrashingTiers) -> None:
    async with serve(tiers) as served:
        await make_inactive(served)
        with pytest.raises(SegmentExistsError):
            await served.ask(wire.CreateSegment(1, SEGMENT, 0, 0, ""))
