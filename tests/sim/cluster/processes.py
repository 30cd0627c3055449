"""Processes that share one event loop, and can be stopped, woken up and killed one by one.

Owns: ``Process`` and ``stoppable_processes``.

Invariants:
1. While a process is stopped no task of it takes a step, whatever wakes it: as after SIGSTOP. All
   that came in the meantime is there when it goes on.
2. A process that was killed takes its last steps only to clean up. What it uses of the outside has
   been told before, and lets nothing out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio
from trio._core import _run

_PROCESS: ContextVar[Process | None] = ContextVar("_PROCESS", default=None)


class Process:
    """One life of a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.is_dead = False
        self.ended = trio.Event()
        self.held: list[trio.lowlevel.Task] = []
        """Tasks that would run if the process did."""
        self.on_kill: list[Callable[[], None]] = []
        """Functions that stop everything the process sends, called when it is killed."""
        self._scope = trio.CancelScope()

    async def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run ``main`` as the process, until it ends or is killed."""
        _PROCESS.set(self)
        try:
            with self._scope:
                await main()
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Take no step from now on."""
        self.is_stopped = True
        queue = _run.GLOBAL_RUN_CONTEXT.runner.runq
        assert isinstance(queue, _RunQueue)
        queue.hold()

    def resume(self) -> None:
        """Resume the process."""
        self.is_stopped = False
        held, self.held = self.held, []
        _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(held)

    def kill(self) -> None:
        """End the process without its doing anything about it."""
        self.is_dead = True
        for tell in self.on_kill:
            tell()
        self.resume()
        self._scope.cancel()


def current_process() -> Process | None:
    """Return the process whose task calls."""
    return _PROCESS.get()


class _RunQueue(deque[trio.lowlevel.Task]):
    """Trio's queue of tasks that can run, without those of stopped processes."""

    def append(self, task: trio.lowlevel.Task) -> None:
        process = task.context.get(_PROCESS)
        if process is not None and process.is_stopped:
            process.held.append(task)
        else:
            super().append(task)

    def hold(self) -> None:
        """Look through the queue again, after a process was stopped."""
        tasks = list(self)
        self.clear()
        for task in tasks:
            self.append(task)


@contextmanager
def stoppable_processes() -> Iterator[None]:
    """Make processes of this run stoppable inside the block."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    runner.runq = _RunQueue(runner.runq)
    try:
        yield
    finally:
        runner.runq = deque(runner.runq)
