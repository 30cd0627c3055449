"""Segment stores to run a controller against: one in memory, and the real one over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.testing.memory_segment_store import MemorySegmentStore

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


@pytest.fixture
async def memory_store(nursery: trio.Nursery) -> MemorySegmentStore:
    """A segment store in memory that outlives controllers."""
    store = MemorySegmentStore()
    await nursery.start(store.run)
    return store


@pytest.fixture
def open_on_memory(memory_store: MemorySegmentStore) -> OpenController:
    """Opens controllers, one after the other, on the same segment store in memory."""
    clock = iter(range(1_000_000, 2_000_000))

    @asynccontextmanager
    async def open_it(**settings: Any) -> AsyncIterator[Controller]:
        config = ControllerConfig(**{"reply_seconds_max": 5.0, **settings})
        environment = Environment(
            now_ms=lambda: next(clock), random=Random(7), open_stream=memory_store.open_stream
        )
        async with open_controller(config, environment) as controller:
            yield controller

    return open_it


@pytest.fixture
async def segment_store(tmp_path: Path, nursery: trio.Nursery) -> tuple[str, int]:
    """The address of a real segment store that is served over TCP, with four containers."""
    server = pytest.importorskip("segstore.server", reason="there is no segment store to serve")
    from segstore.config import SegmentStoreConfig

    config = SegmentStoreConfig(host="127.0.0.1", port=0, data_dir=tmp_path, container_count=4)
    address: tuple[str, int] = await nursery.start(server.serve, config)
    return address
