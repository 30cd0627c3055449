"""Counts the round trips to segment stores that each request waits for, one after the other.

Every request to the store takes a while of a clock that jumps, side by side with others; what a
call takes of it tells the number of trips it waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.metadata.records import NamedCut, ReaderGroupConfiguration
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
Request = Callable[[Controller], Awaitable[object]]

TRIP_SECONDS = 0.01

GROUP_ID = "11111111-2222-3333-4444-555555555555"
GROUP = ReaderGroupConfiguration(3000, 30000, 3, 1, (NamedCut("s", "a", {}),), ())


async def scale(c: Controller) -> None:
    await c.streams.scale("s", "a", [0], [(0.0, 0.2), (0.2, 0.5)], now_ms=5)
    await c.streams.workflows.work.finish("s", "a")


async def truncate(c: Controller) -> None:
    await c.streams.truncate("s", "a", {(1 << 32) + 2: 0, (1 << 32) + 3: 0, 1: 0})


REQUESTS: list[tuple[str, int, Request]] = [
    ("create", 4, lambda c: c.streams.create("s", "a", fixed_configuration(2))),
    ("create again", 1, lambda c: c.streams.create("s", "a", fixed_configuration(2))),
    ("scale", 7, scale),
    ("truncate", 4, truncate),
    ("group", 7, lambda c: c.groups.create("s", "g", GROUP_ID, GROUP)),
    ("seal", 6, lambda c: c.streams.seal("s", "a")),
    ("delete", 7, lambda c: c.streams.delete("s", "a")),
]


async def test_requests_wait_for_few_trips(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    taken: dict[str, int] = {}
    async with open_on_memory(reply_seconds_max=100.0) as controller:
        await controller.scopes.create("s")
        memory_store.reply_seconds = TRIP_SECONDS
        for name, _, request in REQUESTS:
            # Intents of the request before have gone: each one is written anew.
            await trio.sleep(60)
            began = trio.current_time()
            await request(controller)
            taken[name] = round((trio.current_time() - began) / TRIP_SECONDS)
        memory_store.reply_seconds = 0.0
    assert taken == {name: trips for name, trips, _ in REQUESTS}


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: c.streams.active_segments("s", "a"),
        lambda c: c.streams.successors("s", "a", 0),
        lambda c: c.streams.head("s", "a"),
        lambda c: c.streams.configuration("s", "a"),
    ],
    ids=["segments", "successors", "head", "configuration"],
)
async def test_questions_about_a_known_stream_wait_for_one(
    ask: Request,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(reply_seconds_max=100.0) as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(2))
        await scale(controller)
        memory_store.reply_seconds = TRIP_SECONDS
        began = trio.current_time()
        await ask(controller)
        assert trio.current_time() - began == pytest.approx(TRIP_SECONDS)
        memory_store.reply_seconds = 0.0
