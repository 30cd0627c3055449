"""Runs trio so that the same seed gives the same run, step by step.

Owns: ``run_seeded``, the trace of a run, and the instrument that sees every step of every task.

Invariants:
1. Nothing of a run depends on the machine, on real time, or on earlier runs in the process: the
   clock is simulated, the scheduler draws from the seed, and no garbage is collected meanwhile (the
   collector would end abandoned generators at a step that depends on what else was allocated).
2. The trace's hash covers the name of every task that was run, in order, and every line.
"""

from __future__ import annotations

import gc
import time
import traceback
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random

import trio
import trio.testing
from trio._core import _run

TRACE_LINES_MAX = 2000
STEP_CPU_SECONDS_MAX = 2.0
"""Of the processor, for one step: nobody else is served meanwhile."""
CPU_SAMPLE_SECONDS = 0.05
"""The time of the processor is asked so seldom, since the kernel answers; a step is measured with
what came before it since then."""
STEP_SECONDS = 20e-6
"""Steps take time: who spins without waiting does not stop the clock."""


class Trace:
    """The events of a run, as a hash and as the last lines."""

    def __init__(self) -> None:
        self.hash = 0
        self.step_count = 0
        self.lines: deque[str] = deque(maxlen=TRACE_LINES_MAX)

    def __call__(self, line: str) -> None:
        """Add a line."""
        self.hash = zlib.crc32(line.encode(), self.hash)
        self.lines.append(f"{trio.current_time():12.6f} {self.step_count:6d} {line}")


class StepCounter(trio.abc.Instrument):
    """An instrument that counts the steps of tasks, lets them take time, and calls ``on_step``
    before each.

    ``on_long_step`` is told of those that keep the processor.
    """

    def __init__(
        self,
        trace: Trace,
        clock: trio.testing.MockClock,
        on_step: Callable[[], None],
        on_long_step: Callable[[str], None],
    ) -> None:
        self._on_long_step = on_long_step
        self._began = self._sampled = 0.0
        self._cpu = 0.0
        self._trace = trace
        self._clock = clock
        self._on_step = on_step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a step; called by trio before it."""
        trace = self._trace
        trace.step_count += 1
        trace.hash = zlib.crc32(task.name.encode(), trace.hash)
        self._clock.jump(STEP_SECONDS)
        self._on_step()
        self._began = now = time.perf_counter()
        if now - self._sampled > CPU_SAMPLE_SECONDS:
            self._sampled, self._cpu = now, time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Measure a step; called by trio after it."""
        # Not of the first step, which began before anybody looked.
        if not self._began or time.perf_counter() - self._began <= STEP_CPU_SECONDS_MAX:
            return
        if time.thread_time() - self._cpu > STEP_CPU_SECONDS_MAX:
            self._on_long_step(f"{task.name} kept the processor for seconds in one step")


def run_seeded(
    seed: int,
    main: Callable[[], Awaitable[None]],
    trace: Trace,
    on_step: Callable[[], None],
    on_long_step: Callable[[str], None],
) -> None:
    """Run ``main`` under the simulated clock and the seeded scheduler."""
    with _no_garbage_collection(), _seeded_scheduler(seed):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(main, clock=clock, instruments=[StepCounter(trace, clock, on_step, on_long_step)])


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    # What was made while collection was off is young, garbage or not.
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _seeded_scheduler(seed: int) -> Iterator[None]:
    """Use Trio's own switch for property tests: tasks of a batch in an order drawn from
    ``seed``."""
    allowed, random = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r = Random(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # type: ignore[misc]
        _run._r = random


def waiting_tasks() -> str:
    """Return where every task of the run waits."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    lines: list[str] = []
    _describe(root, 0, lines)
    return "\n".join(lines)


def _describe(task: trio.lowlevel.Task, depth: int, lines: list[str]) -> None:
    frames = list(traceback.StackSummary.extract(task.iter_await_frames(), lookup_lines=False))
    own = [frame for frame in frames if "/trio/" not in frame.filename] or frames
    place = " < ".join(
        f"{frame.name} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})"
        for frame in reversed(own[-3:])
    )
    lines.append(f"{'  ' * depth}{task.name.rsplit('.', 1)[-1]}: {place}")
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda child: child._counter):
            _describe(child, depth + 1, lines)
