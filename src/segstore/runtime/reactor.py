"""The reactor: calls what has to be called when bytes, durable batches or timers come.

Owns: ``Reactor``, one for each event loop, with its descriptors and deferred calls, and
``DeferredWork``, which does a task's work without resuming the task.

Why there is one
================
An append passes through four parties: the connection that receives it, the container that gives it
an offset, the journal that makes it durable, and the connection again, which acknowledges it. Each
has a task of its own, because each sometimes has to wait: for memory, for tier 2, for a disk, for a
slow client. Most of the time none of them waits. If each of them resumed the task of the next one,
every append would pay for four rounds of the event loop, and a round costs more than all the work.

So the tasks are there for waiting, and the reactor does the rest by plain calls.

How it works
============
The reactor waits for all *watched* descriptors with one ``epoll``: in a server beside trio's own
descriptors (``runtime.event_loop``), otherwise in a task. When some of them have something, it
makes a *step*::

    epoll ─▶ on_event of each ready descriptor ─▶ deferred calls, until none is left ─▶ epoll
             └──────────────── one step: nothing waits, and no task runs ───────────────┘

A callback of a step does its own part and *defers* what follows. An append takes two steps:

    a socket is ready:    receive and queue the append ┄▶ fill a data frame ┄▶ submit a batch
    the batch is durable: commit the data frame ┄▶ acknowledge ┄▶ submit the next batch

where ``┄▶`` is a deferred call. Deferring instead of calling at once is what makes batches: all
sockets are received from before the first frame is filled, all containers fill their frames before
the batch is submitted, and all acknowledgements of a connection leave in one write. Calls are made
in the order in which they were deferred, so each stage is finished before the next one begins.

What has to wait
================
``DeferredWork`` connects both worlds. Its owner is a task, which parks in ``wait``. While it is
parked, ``request`` makes the reactor call the owner's ``work`` at the end of the step. ``work``
does what is possible without waiting, and returns whether the task is needed: for a throttle, a
full disk, a socket that takes no more. Then, and only then, the task is resumed; until it parks
again, requests only wake it. An exception of ``work`` is the owner's: ``wait`` raises it.

Where no reactor runs, as in simulations, ``request`` resumes the task each time. Owners do the same
work in both cases, so what a simulation checks is what a server runs.

Invariants
==========
1. Calls are made in the order in which they were deferred; what they defer is made with them.
2. What is deferred in a step is called when the step ends; what a task defers is called in a step
   of its own, in the next round of the event loop.
3. A descriptor is registered once, edge-triggered: an event tells that something came since the
   last one. Whoever watches it remembers that until there is nothing left.
4. Callbacks do not wait and do not raise: an exception ends the task that runs the reactor.
5. Several tasks may run one reactor, for instance a server and its journals. One of them waits for
   descriptors; when it ends, the next one goes on.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import trio

Callback = Callable[[], object]
"""A call that neither waits nor raises: it is made in another task than the one that asked."""
OnEvent = Callable[[int], object]
"""A ``Callback`` that is given the flags of ``epoll``: the events that came, such as
``select.EPOLLIN``."""

_WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Driver(Protocol):
    """The part of an event loop that waits for its reactor, in place of the reactor's own task."""

    async def drive(self, reactor: Reactor) -> None:
        """Make the reactor's steps until cancelled. Returns at once if that is not possible."""
        ...


DRIVER: Final[trio.lowlevel.RunVar[Driver | None]] = trio.lowlevel.RunVar("driver", None)
"""The driver of an event loop; see ``runtime.event_loop``."""


class Reactor:
    """The reactor of an event loop; ``current_reactor`` returns it, and ``run`` runs it.

    ``is_running`` tells whether a task runs it. Otherwise nothing may be watched or deferred.
    """

    def __init__(self) -> None:
        self.is_running = False
        self._runner_count = 0
        self._waiting_turn = trio.Lock()
        self._epoll: select.epoll
        self._watched: dict[int, OnEvent] = {}
        self._deferred: deque[Callback] = deque()
        self._is_in_step = False
        self._deferred_by_task = trio.Event()

    def watch(self, descriptor: int, on_event: OnEvent) -> None:
        """Call ``on_event`` in a step whenever something comes, until ``unwatch``.

        Raises ``OSError`` when the kernel does not watch more descriptors.
        """
        assert self.is_running, "no reactor would call it"
        self._epoll.register(descriptor, _WATCHED)
        self._watched[descriptor] = on_event

    def watch_epoll(self, descriptor: int, on_event: OnEvent) -> None:
        """Watch another epoll: call ``on_event`` in each step as long as that has something."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._watched[descriptor] = on_event

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor, before it is closed. Idempotent."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def defer(self, call: Callback) -> None:
        """Make the call when this step ends, or in the next one."""
        self._deferred.append(call)
        if not self._is_in_step:
            self._deferred_by_task.set()

    def run_step(self, call: Callback) -> None:
        """Make a step of one call, and of what it defers. Raises what these calls raise."""
        self._is_in_step = True
        deferred = self._deferred
        try:
            call()
            while deferred:
                deferred.popleft()()
        finally:
            self._is_in_step = False
            if deferred:  # a callback raised, which ends the task of this step: others continue
                self._deferred_by_task.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make steps until cancelled, and one for what is deferred by then.

        Raises what callbacks raise, and ``OSError`` when the kernel provides no epoll.
        """
        if not self._runner_count:
            self._epoll = select.epoll()
        self._runner_count += 1
        self.is_running = True
        try:
            task_status.started()
            async with self._waiting_turn:
                if (driver := DRIVER.get(None)) is not None:
                    await driver.drive(self)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._step_for_tasks)
                    nursery.start_soon(self._step_for_events)
        finally:
            self._runner_count -= 1
            self.is_running = self._runner_count > 0
            try:
                self.run_step(_do_nothing)
            finally:
                if not self.is_running:
                    self._watched.clear()
                    self._epoll.close()

    def wait_and_step(self, seconds: float) -> None:
        """Wait for events, at most so long, and make a step of them and of what was deferred.

        Raises what callbacks raise. For a task that waits for the reactor.
        """
        deferred = self._deferred
        watched = self._watched
        events = self._epoll.poll(0.0 if deferred else seconds)
        self._is_in_step = True
        try:
            for ready, flags in events:
                watched[ready](flags)
            while deferred:
                deferred.popleft()()
        finally:
            self._is_in_step = False
            if deferred:  # a callback raised, which ends the task of this step: others continue
                self._deferred_by_task.set()

    async def _step_for_events(self) -> None:
        """Make a step whenever watched descriptors have something."""
        descriptor = self._epoll.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            self.wait_and_step(0.0)

    async def _step_for_tasks(self) -> None:
        """Make a step whenever a task deferred something."""
        while True:
            await self._deferred_by_task.wait()
            self._deferred_by_task = trio.Event()
            self.run_step(_do_nothing)


class DeferredWork:
    """Does a task's work in the reactor's steps, and resumes the task when it is needed.

    One task owns it and waits. ``work`` does what it can without waiting and returns whether the
    task is needed. ``defect`` is the exception that it raised, or that ``fail`` was given.
    """

    __slots__ = (
        "_is_delegated",
        "_is_requested",
        "_is_woken",
        "_reactor",
        "_task",
        "_work",
        "defect",
    )

    def __init__(self, reactor: Reactor, work: Callable[[], bool]) -> None:
        self._reactor = reactor
        self._work = work
        self._task: trio.lowlevel.Task | None = None
        self._is_delegated = False
        self._is_requested = False
        self._is_woken = False
        self.defect: Exception | None = None

    def request(self) -> None:
        """Schedule the work for the end of this step, or for the next one. Resume the task instead
        if it waits for that, or if no reactor runs. The request is kept while the task does
        something else."""
        if self._is_requested:
            return
        reactor = self._reactor
        if not self._is_delegated or not reactor.is_running:
            self.wake()
            return
        self._is_requested = True
        # Like ``defer``: this is called for every append.
        reactor._deferred.append(self.run)
        if not reactor._is_in_step:
            reactor._deferred_by_task.set()

    def run(self) -> None:
        """Do the work now, unless the task is resumed for it. For callbacks of a step."""
        self._is_requested = False
        task_is_needed = True
        if self._is_delegated:
            try:
                task_is_needed = self._work()
            # It is the owner's, not the task's in which the step is made.
            except Exception as defect:
                self.defect = defect
        if task_is_needed:
            self.wake()

    def wake(self) -> None:
        """Resume the task, or let its next ``wait`` return at once."""
        self._is_woken = True
        self._is_delegated = False
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def fail(self, defect: Exception) -> None:
        """Make the task raise the exception of a callback that belongs to it."""
        self.defect = defect
        self.wake()

    def forget_wake(self) -> None:
        """Reset the wake: the task has seen what it was woken for, so that its next ``wait``
        waits."""
        self._is_woken = False

    async def wait(self) -> None:
        """Wait until the task is needed; meanwhile the reactor does what is requested.

        A checkpoint in any case. Raises ``defect`` if there is one.
        """
        await self._park(is_delegated=True)

    async def wait_for_request(self) -> None:
        """Wait until work is requested, which the task does itself. Otherwise like ``wait``."""
        await self._park(is_delegated=False)

    async def _park(self, *, is_delegated: bool) -> None:
        if self._is_woken:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            self._is_delegated = is_delegated

            def abort(_: object) -> trio.lowlevel.Abort:
                self._task = None
                self._is_delegated = False
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        self._is_woken = False
        if self.defect is not None:
            raise self.defect


def _do_nothing() -> None:
    """Begin a step that has nothing but what was deferred before."""


_CURRENT: Final[trio.lowlevel.RunVar[Reactor]] = trio.lowlevel.RunVar("reactor")


def current_reactor() -> Reactor:
    """Return the reactor of the running event loop."""
    try:
        return _CURRENT.get()
    except LookupError:
        reactor = Reactor()
        _CURRENT.set(reactor)
        return reactor
