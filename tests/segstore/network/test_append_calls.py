"""Counts the function calls for one append, from its socket to its acknowledgement.

Each call costs about 0.1 us where appends come thick, and several times that where they come singly
and find the caches cold: the number is what a new indirection on this way adds to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import trio

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.connection import append_block
from segstore.network.server import serve
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.runtime.event_loop import run_event_loop

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = bytes(range(16))
APPENDS = 30
WARM_UP = 100

HANDING_ON = (
    "segstore/network/",
    "segstore/runtime/reactor.py",
    "segstore/container.py",
    "segstore/durable_log/operation_processor.py",
    "segstore/tiers/journal/runner.py",
)
"""The modules that pass an append from one part to the next."""
CALLS_MAX = 40
ALL_CALLS_MAX = 102
"""Maximum including the work of the parts themselves: validation, the batch, metadata."""


class Calls:
    """The functions of the store that are called in the thread of an event loop, by file and name,
    from a socket's event to each acknowledgement."""

    def __init__(self) -> None:
        self.of_appends: list[list[str]] = []
        self._current: list[str] = []

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        _, _, path = code.co_filename.rpartition("/src/")
        if event != "call" or not path.startswith(("segstore/", "pravega_wire/")):
            return
        if code.co_name == "_something_came":
            self._current = []
        self._current.append(f"{path}:{code.co_qualname}")
        if code.co_name == "send_now":
            self.of_appends.append(self._current)


def append_one_by_one(connection: SegmentConnection, first: int, count: int) -> None:
    for number in range(first, first + count):
        block = append_block(WRITER, [bytes(100)], last_event_number=number, request_id=number)
        connection.send_bytes(block)
        assert isinstance(connection.receive(), wire.DataAppended)


async def serve_with(client: Callable[[int], None], directory: Path) -> None:
    config = SegmentStoreConfig(port=0, data_dir=directory, drain_seconds=0.2, container_count=1)
    shutdown = trio.Event()
    async with open_containers(config) as open_container, trio.open_nursery() as nursery:
        port = await nursery.start(partial(serve, config, open_container, shutdown=shutdown))
        await trio.to_thread.run_sync(client, port)
        shutdown.set()


def test_an_append_is_handed_on_by_few_calls(tmp_path: Path) -> None:
    calls = Calls()

    def client(port: int) -> None:
        with SegmentConnection("127.0.0.1", port, timeout=20) as connection:
            connection.call(wire.CreateSegment(1, SEGMENT, 0, 0, ""))
            connection.call(wire.SetupAppend(2, WRITER, SEGMENT, ""))
            append_one_by_one(connection, 0, WARM_UP)
            trio.from_thread.run_sync(sys.setprofile, calls.profile)
            append_one_by_one(connection, WARM_UP, APPENDS)
            trio.from_thread.run_sync(sys.setprofile, None)

    run_event_loop(serve_with, client, tmp_path)
    # Now and then something else is due: the fewest are those of an append alone.
    calls_of_one = min(calls.of_appends, key=len)
    handing_on = [call for call in calls_of_one if call.startswith(HANDING_ON)]
    assert len(calls.of_appends) >= APPENDS - 1
    assert len(handing_on) <= CALLS_MAX, "\n".join(handing_on)
    assert len(calls_of_one) <= ALL_CALLS_MAX, "\n".join(calls_of_one)
