"""Counts all Python calls of one append, from its socket to its acknowledgement.

The profiler of the interpreter counts them, in the threads of a real server on a real socket: those
of the store, of trio, of the standard library, whatever their module. Each costs about 0.1 us where
appends come thick, and several times that where they come singly and find the caches cold: the
number is what a new indirection on this way adds to.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType

import pytest
import trio

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.connection import append_block
from segstore.network.server import serve
from segstore.process import assembly
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.runtime.event_loop import run_event_loop
from segstore.throttling import throttle
from segstore.tiers.journal.settings import JournalSettings

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = bytes(range(16))
WARM_UP = 200
APPENDS = 200

CALLS_MAX = 60
"""Maximum of Python calls in the thread of the event loop."""
OTHER_CALLS_MAX = 0
"""Maximum of Python calls in other threads: the journal's does not use the interpreter."""


class Calls:
    """The Python calls of a process, of the event loop and of other threads, by file and name."""

    def __init__(self) -> None:
        self.of_loop: list[str] = []
        self.of_others: list[str] = []
        self.is_counting = False

    def count_in_loop(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.of_loop.append(_name(frame))

    def count_elsewhere(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self.is_counting:
            self.of_others.append(_name(frame))

    @contextmanager
    def of_new_threads(self) -> Iterator[None]:
        """Count in threads that are started in the block."""
        threading.setprofile(self.count_elsewhere)
        try:
            yield
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in the block, which runs in a thread of the event loop."""
        trio.from_thread.run_sync(sys.setprofile, self.count_in_loop)
        self.is_counting = True
        try:
            yield
        finally:
            self.is_counting = False
            trio.from_thread.run_sync(sys.setprofile, None)


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.rpartition('/src/')[2]}:{code.co_qualname}"


def append_one(connection: SegmentConnection, number: int) -> None:
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


@pytest.fixture
def rare_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rare what is due by time and not by appends: on a slow machine each append would meet
    it."""
    settings = partial(JournalSettings, mark_delay_seconds=3600.0)
    monkeypatch.setattr(assembly, "JournalSettings", settings)
    monkeypatch.setattr(throttle, "SAMPLE_SECONDS", 3600.0)


@pytest.mark.usefixtures("rare_timers")
def test_an_append_takes_few_calls(tmp_path: Path) -> None:
    calls = Calls()
    marks: list[tuple[int, int]] = []

    def client(port: int) -> None:
        sys.setprofile(None)  # this thread is no part of the server
        with SegmentConnection("127.0.0.1", port, timeout=20) as connection:
            connection.call(wire.CreateSegment(1, SEGMENT, 0, 0, ""))
            connection.call(wire.SetupAppend(2, WRITER, SEGMENT, ""))
            for number in range(WARM_UP):
                append_one(connection, number)
            with calls.counting():
                for number in range(WARM_UP, WARM_UP + APPENDS + 1):
                    append_one(connection, number)
                    marks.append((len(calls.of_loop), len(calls.of_others)))

    with calls.of_new_threads():
        run_event_loop(serve_with, client, tmp_path)
    # From one acknowledgement to the next.
    of_each, others = [], []
    for (before, others_before), (after, others_after) in pairwise(marks):
        of_each.append(calls.of_loop[before:after])
        others.append(others_after - others_before)
    of_each.sort(key=len)
    usual = of_each[APPENDS // 2]
    assert len(of_each) == APPENDS
    assert len(usual) <= CALLS_MAX, "\n".join([str([*map(len, of_each)]), *usual])
    assert median(others) <= OTHER_CALLS_MAX, "\n".join(calls.of_others[-50:])
