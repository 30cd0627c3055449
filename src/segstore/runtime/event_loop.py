"""Runs trio so that a step of the reactor needs no round of trio.

Owns: ``run_event_loop``, which a server uses instead of ``trio.run``, and ``LoopDriver``, which
waits for the reactor and for trio.

A round of trio checks deadlines, resumes a task, and arms the descriptor that the task waits for
again. A step of the reactor needs none of that. So the driver is the clock that trio asks how long
it may sleep when no task can run. Before the driver answers, it waits for the reactor's descriptors
and for trio's, with one ``epoll`` that watches trio's ``epoll``, too, and makes the reactor's
steps. It answers when trio has something to do. Callbacks of steps must not set deadlines of trio,
because the driver would not see them; tasks may.

``docs/internals/reactor.md`` lists what the driver needs of trio, and ``test_trio_contract`` checks
it.

Invariants:
1. When a descriptor of trio has an event, a thread calls trio, or trio's deadline comes, the driver
   answers that trio shall not sleep. Held by
   ``test_trios_descriptors_deadlines_and_threads_are_served``. It does so, too, when a signal
   comes. Held by ``test_a_signal_is_received``. It does so, too, when a step wakes a task. Held by
   ``test_a_task_that_a_step_wakes_runs_at_once``.
2. While steps follow each other without a pause, trio's deadlines are still met. Held by
   ``test_deadlines_come_while_steps_go_on_and_on``.
3. While tasks can always run, so that trio does not ask, the reactor makes a step in each round.
   Held by ``test_steps_are_made_while_tasks_can_always_run``.
4. When trio waits without an ``epoll`` of its own, the driver is an ordinary clock, and the
   reactor's own task waits for its descriptors. Held by
   ``test_without_an_epoll_of_trio_the_reactors_own_task_waits``.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio

from segstore.runtime.reactor import DRIVER, Reactor

DESCRIPTOR_MAX: Final = 4096
"""Number of descriptors among which trio's epoll is searched. An event loop opens it before
connections come."""

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
    """The clock of one event loop; see the module. It is an instrument, too, because trio tells
    instruments what it does."""

    def __init__(self) -> None:
        self._reactor: Reactor | None = None
        self._task: trio.lowlevel.Task | None = None
        self._failure: BaseException | None = None
        self._has_stepped = False

    # ---- For the reactor -------------------------------------------------------------------------

    async def drive(self, reactor: Reactor) -> None:
        """Make the reactor's steps until cancelled. Returns at once if trio has no epoll.

        Raises what the reactor's callbacks raise.
        """
        trio_epoll = await _find_epoll_of_trio()
        if trio_epoll is None:
            return
        with trio_epoll:
            reactor.watch_epoll(trio_epoll.fileno(), lambda _: reactor.interrupt())
            trio.lowlevel.add_instrument(self)
            self._reactor = reactor
            try:
                await self._wait_for_failure()
            finally:
                self._reactor = None
                trio.lowlevel.remove_instrument(self)
                reactor.unwatch(trio_epoll.fileno())

    async def _wait_for_failure(self) -> None:
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            # A callback may have raised after the task was cancelled and before it ran again.
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def _fail(self, failure: BaseException) -> None:
        """Make the task that drives the reactor raise the exception of a callback, even if the task
        is cancelled."""
        self._reactor = None
        self._failure = failure
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    # ---- For trio --------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """See ``trio.abc.Clock``."""

    current_time = staticmethod(monotonic)
    """Returns the time of a monotonic clock, in seconds."""

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Make steps of the reactor until trio has something to do. Return how many seconds trio
        may sleep then."""
        reactor = self._reactor
        if reactor is None:
            return deadline - monotonic()
        self._has_stepped = True
        try:
            reactor.make_steps(deadline)
        except BaseException as failure:
            self._fail(failure)
        return 0.0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Let trio continue, because a task can run."""
        if self._reactor is not None:
            self._reactor.interrupt()

    def before_io_wait(self, timeout: float) -> None:
        """Make a step in a round in which trio did not ask how long it may sleep."""
        has_stepped, self._has_stepped = self._has_stepped, False
        if not has_stepped and self._reactor is not None:
            try:
                self._reactor.make_steps(-inf)
            except BaseException as failure:
                self._fail(failure)


async def _find_epoll_of_trio() -> select.epoll | None:
    """Return a new descriptor of trio's epoll; None if trio waits without one."""
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


def find_epoll_of(probe: int) -> select.epoll | None:
    """Return a new descriptor of the epoll that watches ``probe`` in this process; None if there is
    none. ``probe`` has no event, and one task waits until it is readable.

    The function tries to change the events for which a descriptor watches ``probe``. The kernel
    refuses that if the descriptor is no epoll, or does not watch ``probe``.
    """
    for descriptor in range(DESCRIPTOR_MAX):
        with suppress(OSError):
            # An epoll has no file type. Files are left alone, because closing a duplicate of a
            # file's descriptor would release the locks of the file.
            if stat.S_IFMT(os.fstat(descriptor).st_mode) == 0:
                epoll = select.epoll.fromfd(os.dup(descriptor))
                epoll.modify(probe, select.EPOLLIN | select.EPOLLONESHOT)
                return epoll
    return None
