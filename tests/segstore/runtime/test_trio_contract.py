"""Checks what the reactor needs of trio, with the version of trio that is installed.

``docs/internals/reactor.md`` lists the same points by their numbers. When a test fails with a new
trio, that version is not supported until the reactor does without the point.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import select
import signal
import socket
import sys
import threading
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

import pytest
import trio
import trio.testing
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from segstore.runtime.event_loop import find_epoll_of

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the reactor waits by epoll")


class WaitingClock(trio.abc.Clock, trio.abc.Instrument):
    """A clock that makes ``step`` before it answers, as the driver of the reactor does, and writes
    down what trio asks and tells."""

    def __init__(self, step: Callable[[float], float] | None = None) -> None:
        self.step = step
        self.told: list[str] = []

    def start_clock(self) -> None:
        self.told.append("start")

    def current_time(self) -> float:
        return monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self.told.append("clock")
        seconds = deadline - monotonic()
        return seconds if self.step is None else self.step(seconds)

    def before_io_wait(self, timeout: float) -> None:
        self.told.append(f"wait {min(timeout, 1):.0f}")

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.told.append("scheduled")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.told.append("task")


def run_with(clock: WaitingClock, function: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        with trio.fail_after(60):
            await function()

    trio.run(run, clock=clock, instruments=[clock])


async def epoll_of_trio() -> select.epoll:
    """Return trio's epoll while a task waits for a descriptor, which lasts as long as that."""
    probe = os.eventfd(0)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, probe)
            await trio.testing.wait_all_tasks_blocked()
            found = find_epoll_of(probe)
            nursery.cancel_scope.cancel()
    finally:
        os.close(probe)
    assert found is not None
    return found


def supported() -> SpecifierSet:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (required,) = (
        requirement
        for requirement in map(Requirement, project["dependencies"])
        if requirement.name == "trio"
    )
    return required.specifier


def test_the_installed_version_is_in_the_supported_range() -> None:
    assert supported().contains(importlib.metadata.version("trio"))


def test_make_runs_these_tests_with_each_supported_version() -> None:
    listed = re.search(r"^TRIOS := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    assert listed[1].split() == [
        version for version in (f"0.{minor}" for minor in range(100)) if version in supported()
    ]


# ---- 1 to 3: the clock and the instrument --------------------------------------------------------


def test_1_the_clock_is_asked_before_each_wait_when_no_task_can_run() -> None:
    clock = WaitingClock()

    async def run() -> None:
        clock.told.clear()
        await trio.sleep(0.02)

    run_with(clock, run)
    asked = [place for place, told in enumerate(clock.told) if told == "clock"]
    assert asked
    assert all(clock.told[place + 1].startswith("wait") for place in asked)


def test_1_the_clock_is_not_asked_while_tasks_can_run() -> None:
    clock = WaitingClock()

    async def run() -> None:
        clock.told.clear()
        for _ in range(3):
            await trio.lowlevel.cancel_shielded_checkpoint()
        clock.told.append("done")

    run_with(clock, run)
    told = clock.told[: clock.told.index("done")]
    assert told.count("wait 0") == 3
    assert "clock" not in told


def test_1_the_deadline_is_the_earliest_one_in_the_clocks_own_time() -> None:
    asked: list[float] = []

    def step(seconds: float) -> float:
        asked.append(seconds)
        return seconds

    clock = WaitingClock(step)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0.05)
            nursery.start_soon(trio.sleep, 0.1)

    run_with(clock, run)
    assert any(0 < seconds <= 0.05 for seconds in asked)
    assert max(seconds for seconds in asked if seconds < math.inf) <= 60


def test_2_trio_waits_no_longer_than_the_clock_says() -> None:
    clock = WaitingClock(lambda seconds: 0.0)

    async def run() -> None:
        clock.told.clear()
        await trio.sleep(0.02)

    run_with(clock, run)
    # It looks, finds nothing, and asks again until the deadline has come.
    assert clock.told.count("clock") > 1
    assert "wait 1" not in clock.told


def test_3_the_instrument_is_told_of_each_round_and_each_task_that_can_run() -> None:
    clock = WaitingClock()

    async def run() -> None:
        event = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(event.wait)
            await trio.testing.wait_all_tasks_blocked()
            clock.told.clear()
            event.set()
            assert clock.told == ["scheduled"]

    run_with(clock, run)


def test_3_an_instrument_that_a_task_adds_is_told_and_can_be_removed() -> None:
    clock = WaitingClock()

    async def run() -> None:
        trio.lowlevel.add_instrument(clock)
        await trio.lowlevel.checkpoint()
        assert "task" in clock.told
        trio.lowlevel.remove_instrument(clock)
        clock.told.clear()
        await trio.lowlevel.checkpoint()
        assert clock.told == []

    trio.run(run)


# ---- 4: what the clock may do --------------------------------------------------------------------


@pytest.mark.parametrize("way", ["reschedule", "event", "start", "cancel"])
def test_4_what_the_clock_lets_run_runs_in_the_same_round(way: str) -> None:
    ran: list[str] = []
    clock = WaitingClock()

    async def run() -> None:
        task, event = trio.lowlevel.current_task(), trio.Event()
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:

            async def begin() -> None:
                ran.append("began")
                event.set()

            def step(_: float) -> float:
                clock.step = None
                clock.told.clear()
                assert trio.current_time() > 0
                {
                    "reschedule": lambda: trio.lowlevel.reschedule(task),
                    "event": event.set,
                    "start": lambda: nursery.start_soon(begin),
                    "cancel": scope.cancel,
                }[way]()
                return 0.0

            clock.step = step
            if way == "reschedule":
                await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
            elif way == "cancel":
                with scope:
                    await trio.sleep_forever()
            else:
                await event.wait()
        ran.append("done")

    run_with(clock, run)
    assert ran[-1] == "done"
    assert ("began" in ran) == (way == "start")
    assert [told for told in clock.told if told != "scheduled"][:2] == ["wait 0", "task"]


# ---- 5 and 6: one epoll --------------------------------------------------------------------------


def test_5_a_task_waits_for_any_descriptor_that_an_epoll_takes() -> None:
    async def run() -> None:
        with select.epoll() as epoll:
            descriptor = os.eventfd(0)
            epoll.register(descriptor, select.EPOLLIN)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.wait_readable, epoll.fileno())
                await trio.testing.wait_all_tasks_blocked()
                os.eventfd_write(descriptor, 1)
            os.close(descriptor)

    run_with(WaitingClock(), run)


def test_6_one_epoll_has_what_tasks_wait_for() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        with await epoll_of_trio() as epoll, ours, theirs:
            assert epoll.poll(0) == []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.wait_readable, ours)
                await trio.testing.wait_all_tasks_blocked()
                theirs.send(b"x")
                assert epoll.poll(10) == [(ours.fileno(), select.EPOLLIN)]
                # Trio asked for one event, and has not seen it.
                nursery.cancel_scope.cancel()

    run_with(WaitingClock(), run)


@pytest.mark.parametrize("way", ["descriptor", "thread", "signal"])
def test_6_another_epoll_is_readable_while_trios_has_something(way: str) -> None:
    """An epoll that has trio's among its descriptors looks, and takes nothing away from trio."""
    woken: list[bool] = []
    clock = WaitingClock()

    async def wait(ours: socket.socket) -> None:
        if way == "descriptor":
            await trio.lowlevel.wait_readable(ours)
        elif way == "thread":
            await trio.to_thread.run_sync(threading.Event().wait, 0.02)
        else:
            with trio.open_signal_receiver(signal.SIGUSR1) as signals:
                await signals.__anext__()

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, await epoll_of_trio() as epoll, select.epoll() as outer:
            outer.register(epoll.fileno(), select.EPOLLIN)

            def step(seconds: float) -> float:
                woken.append(bool(outer.poll(seconds)))
                return 0.0

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, ours)
                await trio.testing.wait_all_tasks_blocked()
                clock.step = step
                if way == "descriptor":
                    threading.Timer(0.02, theirs.send, (b"x",)).start()
                elif way == "signal":
                    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            clock.step = None

    run_with(clock, run)
    assert woken[0]
