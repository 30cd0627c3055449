"""A stream of a real controller and a real segment store, which both run in this process.

Owns: ``ServedStream``, the stream ``s/t``, and what may happen to it. Its clients block, so they
run in threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio

import segstore.network.server
from pravega_controller.config import ControllerConfig
from pravega_controller.server import serve
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.errors import PositionGoneError

SCALE_SECONDS = 60.0
DROPPED_SECONDS = 120.0


class ServedStream:
    """The stream, and a client of its controller."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = ControllerClient(address)

    async def make(self, events: int) -> None:
        """Create the stream with one segment, and write events."""
        settings = StreamSettings(scaling=Scaling(segment_count_min=1))
        await run(self.client.ensure_scope, "s")
        await run(self.client.create_stream, "s", "t", settings)
        await self.write(events)

    async def write(self, events: int) -> None:
        def write() -> None:
            with BlockingEventWriter(self.client, "s", "t") as writer:
                for number in range(events):
                    writer.submit(b"event %d" % number)

        await run(write)

    async def make_again(self, events: int) -> None:
        """Seal and delete the stream, and make another one of its name."""
        await run(self.client.seal_stream, "s", "t")
        await run(self.client.delete_stream, "s", "t")
        await self.make(events)

    async def scale(self, *ranges: tuple[float, float]) -> None:
        """Replace all segments."""

        def scale() -> None:
            sealed = [each.segment_id for each in self.client.current_segments("s", "t").ranges]
            self.client.scale_stream("s", "t", sealed=sealed, ranges=ranges, timeout=SCALE_SECONDS)

        await run(scale)

    async def truncate_at_last_segments(self) -> None:
        """Truncate the stream where its last segments begin."""

        def truncate() -> None:
            active = self.client.current_segments("s", "t").ranges
            self.client.truncate_stream("s", "t", {each.segment_id: 0 for each in active})

        await run(truncate)

    async def wait_until_dropped(self, segment: int) -> None:
        """Wait until the controller has no record of a segment any more."""
        with trio.fail_after(DROPPED_SECONDS), suppress(PositionGoneError):
            while True:
                await run(self.client.successors, "s", "t", segment)


async def run(function: Any, *arguments: Any) -> Any:
    """Call a function that blocks, in a thread."""
    return await trio.to_thread.run_sync(function, *arguments)


@asynccontextmanager
async def served_stream(
    data_dir: Path, events: int | None = None, **settings: Any
) -> AsyncIterator[ServedStream]:
    """Serve for the block; with ``events`` the stream is made, with so many events.

    The settings are the controller's.
    """
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, data_dir, **settings)
        if events is not None:
            await stream.make(events)
        yield stream
        nursery.cancel_scope.cancel()


async def serve_stream(
    nursery: trio.Nursery, data_dir: Path, *, port: int = 0, **settings: Any
) -> ServedStream:
    """Start the servers in a nursery; the controller drops old epochs at once."""
    store = SegmentStoreConfig(
        host="127.0.0.1", port=0, data_dir=data_dir, container_count=4, drain_seconds=0.1
    )
    store_port = await nursery.start(_serve_segments, store)
    config = ControllerConfig(
        port=port,
        segment_stores=(("127.0.0.1", store_port),),
        drain_seconds=0.1,
        history_period_seconds=0.1,
        history_seconds_min=0.0,
        **settings,
    )
    _, port = await nursery.start(serve, config)
    return ServedStream(f"tcp://127.0.0.1:{port}")


async def _serve_segments(config: SegmentStoreConfig, *, task_status: trio.TaskStatus[int]) -> None:
    async with open_containers(config) as open_container:
        await segstore.network.server.serve(config, open_container, task_status=task_status)
