"""Starts server processes, starts them again when they die, and ends them.

Owns: the processes and their pid files.

Invariants:
1. The event loop runs in the main thread: that is where children must be started, see
   ``child_protocol``. All of them start at once.
2. A child that dies is started again: at once the first time, then after 0.1 s and ever longer up
   to 5 s; one that stayed up for ``STABLE_SECONDS`` begins anew.
3. Nobody restarts what cannot work: a child that exits with the code of ``ConfigurationError``, or
   dies ``START_ATTEMPTS`` times before it was ever ready, ends the supervisor with one sentence.
4. ``run`` returns or raises only when every child has been waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import IO

import trio

from pravega_admin.backoff import delays
from pravega_admin.child_process import ChildProcess, ChildSpec, describe_exit, spawn
from pravega_admin.child_protocol import Verdict, parse_verdict
from pravega_admin.data_directory import RunDirectory
from pravega_admin.errors import AdminError, ConfigurationError

STABLE_SECONDS = 2.0
START_ATTEMPTS = 4
VERDICT_BYTES_MAX = 64 * 1024

Report = Callable[[str], None]


def _pauses() -> Iterator[float]:
    return chain([0.0], delays(0.1))


@dataclass(eq=False, slots=True)
class _Child:
    """A process that is kept running."""

    spec: ChildSpec
    started: ChildProcess | None = None
    """The process that runs now."""
    is_listened_to: bool = False
    """Whether the verdict's pipe has an owner who closes it."""
    was_ready: bool = False
    ready: trio.Event = field(default_factory=trio.Event)


class Supervisor:
    """Keeps processes running. ``report`` is told, in sentences, what happens to them.

    ``log_file`` takes the output of the children; they share our stderr if it is None. ``started``
    are the first processes of the children, if they run already.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        directory: RunDirectory,
        report: Report,
        log_file: IO[bytes] | None = None,
        started: Sequence[ChildProcess] = (),
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        for child, process in zip(self._children, started, strict=False):
            child.started = process
        self._directory = directory
        self._report = report
        self._log_file = log_file
        self._by_force = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the children running until cancelled; it has started when all are ready.

        Ends them, the last one first, each within its ``drain_seconds``. Raises
        ``ConfigurationError`` or ``AdminError`` when a child cannot be kept running.
        """
        try:
            async with trio.open_nursery() as nursery:
                for child in self._children:
                    nursery.start_soon(self._tend, child)
                for child in self._children:
                    await child.ready.wait()
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                await self._stop()

    def kill_all(self) -> None:
        """End every child at once."""
        self._by_force = True
        for child in self._children:
            if child.started is not None:
                child.started.process.kill()

    async def _tend(self, child: _Child) -> None:
        """Keep one child running."""
        pauses = _pauses()
        failed_starts = 0
        while True:
            if child.started is None:
                self._spawn(child)
            verdict, ready_at = await self._wait_until_ready(child)
            code = await self._wait_until_gone(child)
            if code == ConfigurationError.exit_code:
                raise ConfigurationError(verdict.error or f"{child.spec.name} cannot start")
            how = describe_exit(code)
            if not child.was_ready:
                failed_starts += 1
                if failed_starts >= START_ATTEMPTS:
                    reason = verdict.error or f"it {how}; see its log"
                    raise AdminError(f"{child.spec.name} cannot start: {reason}")
            if ready_at is not None and trio.current_time() - ready_at >= STABLE_SECONDS:
                pauses = _pauses()
            self._report(f"{child.spec.name} {how}; starting it again")
            await trio.sleep(next(pauses))

    def _spawn(self, child: _Child) -> None:
        child.started = spawn(child.spec, self._directory, log_file=self._log_file)

    async def _wait_until_ready(self, child: _Child) -> tuple[Verdict, float | None]:
        """What the child says of its start, and when it was ready."""
        assert child.started is not None
        line = b""
        async with trio.lowlevel.FdStream(child.started.verdict_pipe) as pipe:
            child.is_listened_to = True
            async for data in pipe:
                line += data
                if b"\n" in line or len(line) > VERDICT_BYTES_MAX:
                    break
        verdict = parse_verdict(line)
        if not verdict.is_ready:
            return verdict, None
        if child.was_ready:
            self._report(f"{child.spec.name} is back")
        child.was_ready = True
        child.ready.set()
        return verdict, trio.current_time()

    async def _wait_until_gone(self, child: _Child) -> int:
        """The child's exit code, once it has ended."""
        assert child.started is not None
        await _wait_for_exit(child.started.process)
        code = child.started.process.wait()
        child.started = None
        child.is_listened_to = False
        self._directory.remove_pid(child.spec.name)
        return code

    async def _stop(self) -> None:
        """End the children, the last one first; by force those that do not end in time."""
        for child in reversed(self._children):
            if child.started is None:
                continue
            if not child.is_listened_to:
                os.close(child.started.verdict_pipe)
            process = child.started.process
            if process.poll() is None and not self._by_force:
                process.send_signal(signal.SIGTERM)
                with trio.move_on_after(child.spec.drain_seconds):
                    await _wait_for_exit(process)
            if process.poll() is None:
                if not self._by_force:
                    self._report(f"{child.spec.name} does not end by itself; killing it")
                process.kill()
            await self._wait_until_gone(child)


async def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended, without collecting its exit code."""
    if process.returncode is not None:
        # Collected already: the kernel knows it no more.
        return
    descriptor = os.pidfd_open(process.pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
