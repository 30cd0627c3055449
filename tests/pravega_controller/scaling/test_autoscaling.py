"""Requests for scaling, from the internal stream to the segments of other streams."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from pravega_controller.controller import Controller
from pravega_controller.errors import VersionConflictError
from pravega_controller.metadata.records import IntentRecord
from pravega_controller.rules.streams import ScaleType, ScalingPolicy, StreamConfiguration
from pravega_controller.scaling.autoscaling import IDLE_SEGMENTS, AutoScaling
from pravega_controller.scaling.request_events import RequestEvents
from pravega_controller.store_client.placement import StaticPlacement
from pravega_controller.store_client.segment_client import SegmentClient, open_segment_client
from pravega_controller.store_client.table_client import TableClient
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_wire import names
from pravega_wire.event_framing import frame_event
from pravega_wire.hashing import routing_key_hash
from pravega_wire.scale_events import AutoScaleEvent, ScaleDirection, encode_auto_scale

UP, DOWN = ScaleDirection.UP, ScaleDirection.DOWN
YEAR_MS = 365 * 86_400_000
REQUESTS = [f"_system/_requeststream/{number}.#epoch.0" for number in range(2)]


class Scene:
    """A controller whose requests the test reads when it likes, at a time that it sets."""

    def __init__(
        self, controller: Controller, segments: SegmentClient, store: MemorySegmentStore
    ) -> None:
        self.controller = controller
        self.memory = store
        self.now_ms = 1_000_000
        self.tables = TableClient(segments, random=Random(3))
        self.scaling = AutoScaling(
            controller.store,
            controller.streams,
            segments,
            now_ms=lambda: self.now_ms,
            finish_later=controller.finish_later,
            event_seconds_max=600,
            idle_seconds=600,
        )
        self.requests = RequestEvents(controller.store, controller.streams, segments, self.scaling)

    async def begin_reading(self) -> None:
        """Read what is there like a controller that has just started."""
        self.requests = RequestEvents(
            self.controller.store, self.controller.streams, self.requests._segments, self.scaling
        )
        await self.requests.poll()

    async def create(self, count: int = 1, *, kind: int = 2, factor: int = 4) -> None:
        await self.controller.scopes.create("s")
        policy = ScalingPolicy(ScaleType(kind), count, target_rate=10, scale_factor=factor)
        await self.controller.streams.create("s", "t", StreamConfiguration(policy))

    async def active(self) -> list[tuple[int, float, float]]:
        """Finish all work that was begun; return the active segments."""
        await self.settle("s", "t")
        found = await self.controller.streams.active_segments("s", "t")
        return [(each.segment_id, each.low, each.high) for each in found]

    async def settle(self, scope: str, name: str) -> None:
        self.controller.finish_later(IntentRecord("stream", scope, name))
        with trio.fail_after(60):
            while (await self.controller.store.streams.read(scope, name)).record.pending:  # noqa: ASYNC110
                await trio.sleep(0.001)

    def event(self, segment: int, direction: ScaleDirection, **more: Any) -> AutoScaleEvent:
        return AutoScaleEvent("s", "t", segment, direction, more.pop("at", self.now_ms), **more)

    def write(self, *events: AutoScaleEvent) -> None:
        for event in events:
            self.write_raw(encode_auto_scale(event), event.routing_key)

    def write_raw(self, payload: bytes, key: str = "s/t") -> None:
        segment = REQUESTS[routing_key_hash(key) >= 0.5]
        self.memory.segments[segment].append(frame_event(payload))

    async def marks(self) -> set[str]:
        pages = [page async for page in self.tables.pages(IDLE_SEGMENTS)]
        return {entry.key.decode() for page in pages for entry in page}


@asynccontextmanager
async def open_scene(
    memory: MemorySegmentStore, open_on_memory: Any, *, port: int = 1
) -> AsyncIterator[Scene]:
    placement = StaticPlacement((("127.0.0.1", 1),), 4)
    async with (
        open_on_memory(port=port) as controller,
        open_segment_client(
            placement,
            open_stream=memory.open_stream,
            random=controller.store._random,
            reply_seconds_max=5,
            retry_seconds_max=5,
        ) as segments,
    ):
        scene = Scene(controller, segments, memory)
        await scene.requests.open()
        yield scene


@pytest.fixture
async def scene(memory_store: MemorySegmentStore, open_on_memory: Any) -> AsyncIterator[Scene]:
    async with open_scene(memory_store, open_on_memory) as scene:
        yield scene


def first(number: int) -> int:
    """Return the id of a segment of epoch 1."""
    return names.segment_id(number, 1)


async def test_a_busy_segment_is_split(scene: Scene) -> None:
    await scene.create()
    scene.write(scene.event(0, UP, splits=3))
    await scene.requests.poll()
    third = 1 / 3
    assert await scene.active() == [
        (first(1), 0.0, third),
        (first(2), third, 2 * third),
        (first(3), 2 * third, 1.0),
    ]


async def test_an_event_counts_once_however_often_it_comes(scene: Scene) -> None:
    await scene.create()
    scene.write(*[scene.event(0, UP, splits=2)] * 3)
    await scene.requests.poll()
    assert len(await scene.active()) == 2
    await scene.requests.poll()
    scene.write(scene.event(0, UP, splits=2))
    await scene.requests.poll()
    assert len(await scene.active()) == 2


async def test_what_was_handled_is_gone_and_never_read_again(scene: Scene) -> None:
    await scene.create()
    scene.write(scene.event(0, UP, splits=2))
    await scene.requests.poll()
    segments = [scene.memory.segments[name] for name in REQUESTS]
    assert [segment.start for segment in segments] == [segment.length for segment in segments]
    assert sum(segment.start for segment in segments) > 0
    head = await scene.controller.streams.head("_system", "_requeststream")
    assert head == {number: segment.start for number, segment in enumerate(segments)}
    requests = scene.memory.changes
    await scene.requests.poll()
    assert scene.memory.changes == requests


async def test_neighbours_that_are_idle_merge(scene: Scene) -> None:
    await scene.create()
    scene.write(scene.event(0, UP, splits=4))
    await scene.requests.poll()
    await scene.active()
    scene.write(scene.event(first(1), DOWN))
    await scene.requests.poll()
    assert len(await scene.active()) == 4
    scene.write(scene.event(first(3), DOWN))
    await scene.requests.poll()
    assert len(await scene.active()) == 4
    scene.write(scene.event(first(2), DOWN))
    await scene.requests.poll()
    assert [segment[1:] for segment in await scene.active()] == [(0.0, 0.75), (0.75, 1.0)]
    assert await scene.marks() == set()


async def test_a_mark_ends_but_that_of_a_silent_segment_does_not(scene: Scene) -> None:
    await scene.create()
    scene.write(scene.event(0, UP, splits=3))
    await scene.requests.poll()
    await scene.active()
    scene.write(scene.event(first(1), DOWN), scene.event(first(3), DOWN, silent=True))
    await scene.requests.poll()
    scene.now_ms += 600_000
    scene.write(scene.event(first(2), DOWN))
    await scene.requests.poll()
    assert [segment[1:] for segment in await scene.active()] == [(0.0, 1 / 3), (1 / 3, 1.0)]


async def test_a_silent_segment_that_was_written_again_stays(scene: Scene) -> None:
    await scene.create()
    scene.write(scene.event(0, UP, splits=2))
    await scene.requests.poll()
    await scene.active()
    scene.write(scene.event(first(1), DOWN, silent=True))
    await scene.requests.poll()
    scene.memory.segments["s/t/1.#epoch.1"].append(b"again")
    scene.write(scene.event(first(2), DOWN))
    await scene.requests.poll()
    assert len(await scene.active()) == 2


async def test_a_stream_keeps_its_minimum(scene: Scene) -> None:
    await scene.create(2)
    scene.write(scene.event(0, DOWN), scene.event(1, DOWN))
    await scene.requests.poll()
    assert len(await scene.active()) == 2


async def test_old_events_and_fixed_streams_are_left_alone(scene: Scene) -> None:
    await scene.create(1, kind=0)
    scene.write(scene.event(0, UP, splits=2))
    await scene.requests.poll()
    policy = ScalingPolicy(ScaleType.EVENTS_PER_SECOND, 1, target_rate=10, scale_factor=2)
    await scene.controller.streams.update("s", "t", StreamConfiguration(policy))
    scene.write(scene.event(0, UP, splits=2, at=scene.now_ms - 600_001))
    await scene.begin_reading()
    assert len(await scene.active()) == 1
    scene.write(scene.event(0, UP, splits=2, at=scene.now_ms - 600_000))
    await scene.begin_reading()
    assert len(await scene.active()) == 2


@pytest.mark.parametrize("ahead_ms", [-YEAR_MS, -3_600_000, 3_600_000, YEAR_MS])
async def test_streams_are_scaled_whatever_the_clocks_of_segment_stores_say(
    ahead_ms: int, scene: Scene
) -> None:
    await scene.create()
    await scene.requests.poll()
    scene.write(scene.event(0, UP, splits=2, at=scene.now_ms + ahead_ms))
    await scene.requests.poll()
    assert len(await scene.active()) == 2
    at = scene.now_ms + ahead_ms
    scene.write(scene.event(first(1), DOWN, at=at), scene.event(first(2), DOWN, at=at))
    await scene.requests.poll()
    assert len(await scene.active()) == 1


async def test_a_mark_of_a_clock_that_was_ahead_ends(scene: Scene) -> None:
    await scene.create()
    scene.write(scene.event(0, UP, splits=3))
    await scene.requests.poll()
    await scene.active()
    scene.now_ms += YEAR_MS
    scene.write(scene.event(first(1), DOWN))
    await scene.requests.poll()
    scene.now_ms -= YEAR_MS
    scene.write(scene.event(first(2), DOWN))
    await scene.requests.poll()
    assert len(await scene.active()) == 3, "nobody knows when it was idle"
    await scene.scaling.forget_old_marks()
    assert await scene.marks() == {f"s/t/{first(2)}"}
    scene.write(scene.event(first(1), DOWN))
    await scene.requests.poll()
    assert len(await scene.active()) == 2


async def test_what_cannot_be_understood_is_passed_over(scene: Scene) -> None:
    await scene.create()
    scene.write_raw(b"")
    scene.write_raw(bytes([0, 5, 0, 1, 0, 0, 0, 0, 0]))
    scene.write_raw(b"\x00\x02garbage")
    scene.write(AutoScaleEvent("no", "such", 0, UP, scene.now_ms), scene.event(77, UP))
    scene.write(scene.event(0, UP, splits=2))
    await scene.requests.poll()
    assert len(await scene.active()) == 2
    name = REQUESTS[routing_key_hash("s/t") >= 0.5]
    scene.memory.segments[name].append(b"no event at all")
    await scene.requests.poll()
    assert scene.memory.segments[name].start == scene.memory.segments[name].length


async def test_marks_of_segments_that_are_gone_are_removed(scene: Scene) -> None:
    await scene.create(3)
    scene.write(*(scene.event(number, DOWN, silent=number > 0) for number in range(3)))
    await scene.requests.poll()
    assert await scene.marks() == {"s/t/0", "s/t/1", "s/t/2"}
    await scene.scaling.forget_old_marks()
    assert len(await scene.marks()) == 3
    scene.now_ms += 700_000
    await scene.scaling.forget_old_marks()
    assert await scene.marks() == {"s/t/1", "s/t/2"}
    await scene.controller.streams.scale("s", "t", [1], [(1 / 3, 0.5), (0.5, 2 / 3)], now_ms=1)
    await scene.active()
    await scene.scaling.forget_old_marks()
    assert await scene.marks() == {"s/t/2"}


async def test_the_stream_of_requests_is_read_across_its_own_scaling(scene: Scene) -> None:
    await scene.create()
    streams = scene.controller.streams
    await streams.scale("_system", "_requeststream", [0, 1], [(0.0, 0.3), (0.3, 1.0)], now_ms=1)
    scene.write(scene.event(0, UP, splits=2))
    await scene.settle("_system", "_requeststream")
    await scene.requests.poll()
    assert len(await scene.active()) == 2
    assert await streams.head("_system", "_requeststream") == {first(2): 0, first(3): 0}
    scene.memory.segments["_system/_requeststream/3.#epoch.1"].append(
        frame_event(encode_auto_scale(scene.event(first(1), UP, splits=2)))
    )
    await scene.requests.poll()
    assert len(await scene.active()) == 3


@pytest.mark.parametrize("applied", [False, True])
async def test_a_request_survives_the_controller_that_handles_it(
    memory_store: MemorySegmentStore, open_on_memory: Any, *, applied: bool
) -> None:
    """A controller dies at each change, and the next one does what is left: once."""
    async with open_scene(memory_store, open_on_memory) as scene:
        await scene.create(2)
        scene.write(scene.event(0, UP, splits=2), scene.event(1, UP, splits=2))
        scene.write(scene.event(1, DOWN, silent=True))
    before = memory_store.contents()
    for at in itertools.count():
        memory_store.restore(before)
        async with open_scene(memory_store, open_on_memory) as scene, trio.open_nursery() as dying:
            memory_store.changes = 0
            memory_store.fault = fault = Fault(at, applied, lasts=True)
            with trio.fail_after(60):
                dying.start_soon(end_after_poll, scene, fault)
                await fault.reached.wait()
            dying.cancel_scope.cancel()
        if memory_store.fault is None:
            break
        memory_store.fault = None
        async with open_scene(memory_store, open_on_memory) as scene:
            await scene.requests.poll()
            found = [segment[1:] for segment in await scene.active()]
            assert found == [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)], at
            read = [memory_store.segments[name] for name in REQUESTS]
            assert [segment.start for segment in read] == [segment.length for segment in read]
    assert at > 5


async def end_after_poll(scene: Scene, fault: Fault) -> None:
    """Poll once; a whole poll without reaching the fault ends the test."""
    await scene.requests.poll()
    scene.memory.fault = None
    fault.reached.set()


async def test_two_controllers_do_it_once(
    memory_store: MemorySegmentStore, open_on_memory: Any, scene: Scene
) -> None:
    async with open_scene(memory_store, open_on_memory, port=2) as other:
        other.now_ms = scene.now_ms
        await scene.create(4)
        scene.write(*(scene.event(number, UP, splits=2) for number in range(4)))

        async def poll(one: Scene) -> None:
            while True:
                try:
                    await one.requests.poll()
                    return
                except VersionConflictError:
                    # The rounds begin again after any error.
                    continue

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, scene)
            nursery.start_soon(poll, other)
        assert len(await scene.active()) == 8
        assert len(await other.active()) == 8
        read = [memory_store.segments[name] for name in REQUESTS]
        assert [segment.start for segment in read] == [segment.length for segment in read]


async def test_a_damaged_stream_does_not_hold_up_others(scene: Scene) -> None:
    await scene.create()
    policy = ScalingPolicy(ScaleType.EVENTS_PER_SECOND, 1, target_rate=10, scale_factor=2)
    await scene.controller.streams.create("s", "damaged", StreamConfiguration(policy))
    damaged = await scene.controller.store.streams.read("s", "damaged")
    await scene.tables.put(damaged.table, damaged.key("state"), b"no record")
    scene.write(AutoScaleEvent("s", "damaged", 0, UP, scene.now_ms), scene.event(0, UP, splits=2))
    await scene.requests.poll()
    assert len(await scene.active()) == 2
    read = [scene.memory.segments[name] for name in REQUESTS]
    assert [segment.start for segment in read] == [segment.length for segment in read]
