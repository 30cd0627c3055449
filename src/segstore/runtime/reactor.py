"""The reactor: makes the calls that follow events, such as received bytes and durable batches.

Owns: ``Reactor``, one for each event loop, with its descriptors and deferred calls, and
``DeferredWork``, which does a task's work without resuming the task.

Why there is one
================
An append passes four parts of a store: the connection that receives it, the container that gives it
an offset, the journal that makes it durable, and the connection again, which acknowledges it. Each
has its own task, because each sometimes has to wait: for memory, for tier 2, for a disk, or for a
slow client. Most of the time none of them waits. If each of them resumed the task of the next one,
every append would need four rounds of the event loop, and a round costs more than all the work.

So tasks are used for waiting, and the reactor does the rest by plain calls.

How it works
============
The reactor waits for all *watched* descriptors with one ``epoll``: in a server together with trio's
own descriptors (``runtime.event_loop``), otherwise in a task. When some of them have events, it
makes a *step*::

    epoll ─▶ on_event of each ready descriptor ─▶ deferred calls, until none is left ─▶ epoll
             └──────────────── one step: nothing waits, and no task runs ───────────────┘

A callback of a step does its own part and *defers* what follows. An append takes two steps:

    a socket is ready:    receive and queue the append ┄▶ fill a data frame ┄▶ submit a batch
    the batch is durable: commit the data frame ┄▶ acknowledge ┄▶ submit the next batch

Here ``┄▶`` is a deferred call. Deferring instead of calling at once makes batches: the reactor
receives from all sockets before the first frame is filled, all containers fill their frames before
the batch is submitted, and all acknowledgements of a connection leave in one write. Calls are made
in the order in which they were deferred, so each stage is finished before the next one begins.

What has to wait
================
``DeferredWork`` connects tasks with steps. Its owner is a task, which waits in ``wait``. Meanwhile,
``request`` makes the reactor call the owner's ``work`` at the end of the step. ``work`` does what
is possible without waiting, and returns whether the task is needed: because of a throttle, a full
disk, or a socket that takes no more bytes. Only then is the task resumed. Until it waits again,
requests only wake it. When ``work`` raises an exception, ``wait`` raises it in the owner's task.

Where no reactor runs, as in simulations, ``request`` resumes the task each time. Owners do the same
work in both cases, so a simulation checks the code that a server runs.

Invariants:
1. When a deferred call defers another one, both are made in the same step, in the order in which
   they were deferred. Held by ``test_what_a_deferred_call_defers_is_called_in_the_same_step``.
2. When a step defers a call, it is made at the end of the step. Held by
   ``test_what_is_deferred_in_a_step_is_called_when_it_ends``. When a task defers a call, it is made
   in a step of its own, in the next round of the event loop. Held by
   ``test_what_a_task_defers_is_called_in_the_next_round``.
3. When an event comes for a descriptor, its callback is called once, also if bytes are left: the
   descriptor is registered edge-triggered, and its owner must remember the event. Held by
   ``test_each_event_of_a_descriptor_is_told_once``.
4. Callbacks must not wait or raise. When one raises, the task that runs the reactor ends with the
   error. Held by ``test_what_a_callback_raises_ends_who_runs_the_reactor``. Calls that were
   deferred already are still made. Held by
   ``test_a_call_that_raises_ends_its_step_and_not_the_others``.
5. When several tasks run one reactor, for instance a server and its journals, one of them waits for
   descriptors. When that one ends, another one continues. Held by
   ``test_it_runs_as_long_as_one_of_several_tasks_runs_it``.
6. When ``work`` needs the task, the task is resumed, and otherwise it is not. Held by
   ``test_the_task_is_resumed_for_what_has_to_wait``.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final, Protocol

import trio

Callback = Callable[[], object]
"""A call that must not wait or raise, because it runs in another task than the one that asked for
it."""
OnEvent = Callable[[int], object]
"""A ``Callback`` that gets the flags of ``epoll``: the events that came, such as
``select.EPOLLIN``."""

WAIT_SECONDS_MAX: Final = 24 * 3600.0
"""Maximum time, in seconds, of one wait. The kernel accepts no longer ones."""
_WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Driver(Protocol):
    """The part of an event loop that waits for the reactor's descriptors instead of the reactor's
    own task."""

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
        self._is_interrupted = False
        self._deferred_by_task = trio.Event()

    def watch(self, descriptor: int, on_event: OnEvent) -> None:
        """Call ``on_event`` in a step whenever an event comes, until ``unwatch``.

        Raises ``OSError`` when the kernel does not watch more descriptors.
        """
        assert self.is_running, "no reactor would call it"
        self._epoll.register(descriptor, _WATCHED)
        self._watched[descriptor] = on_event

    def watch_epoll(self, descriptor: int, on_event: OnEvent) -> None:
        """Watch another epoll: call ``on_event`` in each step while that epoll has events."""
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
            if deferred:  # a callback raised and ends this task: another one continues
                self._deferred_by_task.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make steps until cancelled, and then a last one for the calls that are still deferred.

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

    def make_steps(self, deadline: float) -> None:
        """Wait for events and make steps of them and of the deferred calls, until ``interrupt`` is
        called or the deadline comes. If it is over already, make one step.

        The deadline is a time of ``monotonic``. Raises what callbacks raise.
        """
        deferred, watched, poll = self._deferred, self._watched, self._epoll.poll
        self._is_interrupted = False
        while True:
            seconds = 0.0 if deferred else min(max(deadline - monotonic(), 0.0), WAIT_SECONDS_MAX)
            events = poll(seconds)
            self._is_in_step = True
            try:
                for ready, flags in events:
                    watched[ready](flags)
                while deferred:
                    call = deferred.popleft()
                    # The same as ``run``, but without a call, because most deferred calls are such
                    # work.
                    if type(call) is DeferredWork and call._is_delegated:
                        call._is_requested = False
                        try:
                            task_is_needed = call._work()
                        except Exception as defect:
                            call.defect = defect
                            task_is_needed = True
                        if task_is_needed:
                            call.wake()
                    else:
                        call()
            finally:
                self._is_in_step = False
                if deferred:  # a callback raised and ends this task: another one continues
                    self._deferred_by_task.set()
            if self._is_interrupted or monotonic() >= deadline:
                return

    def interrupt(self) -> None:
        """End ``make_steps`` after this step."""
        self._is_interrupted = True

    async def _step_for_events(self) -> None:
        """Make a step whenever watched descriptors have events."""
        descriptor = self._epoll.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            self.make_steps(-inf)

    async def _step_for_tasks(self) -> None:
        """Make a step whenever a task has deferred a call."""
        while True:
            await self._deferred_by_task.wait()
            self._deferred_by_task = trio.Event()
            self.run_step(_do_nothing)


class DeferredWork:
    """Does a task's work in the reactor's steps, and resumes the task when it is needed.

    One task owns it and waits. ``work`` does what is possible without waiting, and returns whether
    the task is needed. ``defect`` is the exception that ``work`` raised, or that was passed to
    ``fail``.
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
        """Schedule the work for the end of this step, or for the next step. If the task is in
        ``wait_for_request``, or no reactor runs, resume the task instead. While the task is not
        waiting, the request is kept for it."""
        if self._is_requested:
            return
        reactor = self._reactor
        if not self._is_delegated or not reactor.is_running:
            self.wake()
            return
        self._is_requested = True
        # The same as ``defer``, but without a call, because this runs for every append.
        reactor._deferred.append(self)
        if not reactor._is_in_step:
            reactor._deferred_by_task.set()

    def run(self) -> None:
        """Do the work now, or resume the task if the task does the work itself. For callbacks of a
        step."""
        self._is_requested = False
        task_is_needed = True
        if self._is_delegated:
            try:
                task_is_needed = self._work()
            # The exception belongs to the owner, not to the task that makes the step.
            except Exception as defect:
                self.defect = defect
        if task_is_needed:
            self.wake()

    __call__ = run

    def wake(self) -> None:
        """Resume the task, or let its next ``wait`` return at once."""
        self._is_woken = True
        self._is_delegated = False
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def fail(self, defect: Exception) -> None:
        """Make the task raise the exception of another callback that works for it."""
        self.defect = defect
        self.wake()

    def forget_wake(self) -> None:
        """Reset the wake, because the task has handled its reason. The next ``wait`` waits."""
        self._is_woken = False

    async def wait(self) -> None:
        """Wait until the task is needed. Meanwhile, the reactor does the requested work.

        A checkpoint in any case. Raises ``defect`` if there is one.
        """
        await self._park(is_delegated=True)

    async def wait_for_request(self) -> None:
        """Wait until work is requested, which the task then does itself. Else like ``wait``."""
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
    """Begin a step that only makes calls which were deferred before."""


_CURRENT: Final[trio.lowlevel.RunVar[Reactor]] = trio.lowlevel.RunVar("reactor")


def current_reactor() -> Reactor:
    """Return the reactor of the running event loop."""
    try:
        return _CURRENT.get()
    except LookupError:
        reactor = Reactor()
        _CURRENT.set(reactor)
        return reactor
