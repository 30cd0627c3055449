"""The order of a truncation's steps, as a client sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import commands as wire


async def test_a_truncation_moves_the_head_before_it_drops_bytes(
    open_on_memory: Callable[..., AbstractAsyncContextManager[Controller]],
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller, trio.open_nursery() as nursery:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(1))
        segment = memory_store.segments["s/a/0.#epoch.0"]
        segment.append(bytes(100))
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: isinstance(request, wire.TruncateSegment)
        nursery.start_soon(controller.streams.truncate, "s", "a", {0: 50})
        await memory_store.is_paused.wait()
        with trio.fail_after(1):
            # The question does not wait for the truncation, which is still under way.
            assert await controller.streams.head("s", "a") == {0: 50}
        assert segment.start == 0
        memory_store.pause.set()
    assert segment.start == 50
