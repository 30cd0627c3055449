"""Runs trio so that a step of the reactor costs no round of trio.

Owns: ``run_event_loop``, which takes the place of ``trio.run`` where a server runs, and
``LoopDriver``, which waits for the reactor and for trio.

A round of trio looks for deadlines, resumes a task, and arms the descriptor that the task waits for
again. A step of the reactor needs nothing of that. So the driver is the clock that trio asks how
long it may sleep when no task can run. It waits before it answers: for the reactor's descriptors
and for trio's, with one ``epoll`` that has trio's own among its descriptors. Meanwhile it makes the
reactor's steps. It answers when trio has something to do.

Invariants:
1. The driver answers when a task can run, when a descriptor of trio has something (signals and
   calls of other threads are such), or when trio's deadline has come; and always that trio shall
   not sleep.
2. While tasks can always run, so that trio does not ask, the reactor makes a step in each round.
3. Callbacks of steps set no deadline of trio: they leave that to tasks.
4. Without a running reactor, or where the kernel does not tell which ``epoll`` is trio's, the
   driver is a usual clock, and the reactor's own task waits for its descriptors.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio

from segstore.runtime.reactor import DRIVER, Reactor

SLEEP_SECONDS_MAX: Final = 24 * 3600.0
_DESCRIPTORS: Final = Path("/proc/self/fdinfo")

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def run_event_loop(
    function: Callable[[Unpack[Arguments]], Awaitable[T]], *arguments: *Arguments
) -> T:
    """Run an async function like ``trio.run``, with a driver for its reactor."""
    driver = LoopDriver()

    async def run() -> T:
        DRIVER.set(driver)
        return await function(*arguments)

    return trio.run(run, clock=driver)


class LoopDriver(trio.abc.Clock, trio.abc.Instrument):
    """The clock of one event loop; see the module. As an instrument, it is told what trio does."""

    def __init__(self) -> None:
        self._reactor: Reactor | None = None
        self._task: trio.lowlevel.Task | None = None
        self._failure: BaseException | None = None
        self._trio_epoll: int | None = None
        self._has_stepped = False
        self._trio_is_needed = False

    # ---- For the reactor -------------------------------------------------------------------------

    async def drive(self, reactor: Reactor) -> None:
        """Make the reactor's steps until cancelled. Returns at once if that is not possible.

        Raises what the reactor's callbacks raise.
        """
        if self._trio_epoll is None:
            self._trio_epoll = await _find_epoll_of_trio()
        if self._trio_epoll is None:
            return
        reactor.watch_epoll(self._trio_epoll, self._trio_has_event)
        trio.lowlevel.add_instrument(self)
        self._reactor = reactor
        try:
            await self._wait_for_failure()
        finally:
            self._reactor = None
            trio.lowlevel.remove_instrument(self)
            reactor.unwatch(self._trio_epoll)

    async def _wait_for_failure(self) -> None:
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            # A callback may have raised after the task was cancelled, and before it went on.
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def _trio_has_event(self, _: int) -> None:
        self._trio_is_needed = True

    def _fail(self, failure: BaseException) -> None:
        """Make the task that drives the reactor raise what a callback raised, cancelled or not."""
        self._reactor = None
        self._failure = failure
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    # ---- For trio --------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """See ``trio.abc.Clock``."""

    def current_time(self) -> float:
        """Return the time of a steady clock, in seconds."""
        return monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Make steps of the reactor until trio has something to do; return how many seconds trio
        may sleep then."""
        now = monotonic()
        reactor = self._reactor
        if reactor is None:
            return deadline - now
        self._trio_is_needed = False
        self._has_stepped = True
        try:
            while True:
                reactor.wait_and_step(min(max(deadline - now, 0.0), SLEEP_SECONDS_MAX))
                now = monotonic()
                if self._trio_is_needed or now >= deadline:
                    return 0.0
        except BaseException as failure:
            self._fail(failure)
            return 0.0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Remember that a task can run."""
        self._trio_is_needed = True

    def before_io_wait(self, timeout: float) -> None:
        """Make a step in a round in which trio did not ask how long it may sleep."""
        has_stepped, self._has_stepped = self._has_stepped, False
        if not has_stepped and self._reactor is not None:
            try:
                self._reactor.wait_and_step(0.0)
            except BaseException as failure:
                self._fail(failure)


async def _find_epoll_of_trio() -> int | None:
    """Return the descriptor of trio's epoll; None if the kernel does not tell."""
    probe = os.eventfd(0, os.EFD_CLOEXEC)

    async def wait(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.lowlevel.wait_readable(probe)

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(wait)
            found = find_epoll_of(probe)
            nursery.cancel_scope.cancel()
    finally:
        os.close(probe)
    return found


def find_epoll_of(descriptor: int, directory: Path = _DESCRIPTORS) -> int | None:
    """Return the descriptor of the epoll of this process that watches another descriptor; None if
    the kernel does not tell."""
    with suppress(OSError):
        for path in directory.iterdir():
            with suppress(OSError):
                for line in path.read_text("ascii").splitlines():
                    if line.startswith("tfd:") and int(line.split()[1]) == descriptor:
                        return int(path.name)
    return None
