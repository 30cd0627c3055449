"""Starts server processes, starts them again when they die, and ends them.

Owns: the processes and their pid files.

Invariants:
1. This module imports almost nothing, because a supervisor has it in memory for as long as a store
   runs. One thread waits for everything: ends of children, their messages, and requests to stop.
2. A child that dies is restarted: at once the first time, then after 0.1 s and after ever longer
   pauses up to 5 s; one that ran for ``STABLE_SECONDS`` begins again.
3. A child that cannot work is not restarted: one that exits with the code of
   ``ConfigurationError``, or dies ``START_ATTEMPTS`` times before it was ever ready, ends the
   supervisor with one sentence.
4. The supervisor waits out a lack of memory, processes, descriptors or disk space: it tries again
   to start a process, or to write a pid file, as after the death of a child.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from pravega_admin.errors import (
    EXIT_CONFIGURATION,
    EXIT_NO_ROOM,
    AdminError,
    ConfigurationError,
    NoRoomError,
)
from pravega_admin.run_directory import RunDirectory
from pravega_admin.supervisor.child_process import (
    ChildProcess,
    ChildSpec,
    describe_exit,
    start_child_process,
)
from pravega_admin.supervisor.child_protocol import Verdict, parse_verdict
from pravega_blocking.backoff import delays

STABLE_SECONDS = 2.0
START_ATTEMPTS = 4
VERDICT_BYTES_MAX = 64 * 1024

Report = Callable[[str], None]


def _pauses() -> Iterator[float]:
    return chain([0.0], delays(0.1))


class _Child:
    """A process that is kept running."""

    __slots__ = (
        "end_descriptor",
        "failed_starts",
        "pauses",
        "pid_file_at",
        "pid_file_pauses",
        "process",
        "ready_at",
        "spec",
        "start_at",
        "unread",
        "verdict",
        "was_ready",
    )

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: ChildProcess | None = None
        self.end_descriptor = -1
        """Readable when the process has ended."""
        self.unread = b""
        """The beginning of a line that it is still writing."""
        self.verdict = Verdict(is_ready=False)
        """The last message of the process."""
        self.start_at: float | None = 0.0
        """Time at which to start it, while it does not run."""
        self.pid_file_at: float | None = None
        """Time at which to write its pid file, while that is missing."""
        self.pid_file_pauses = _pauses()
        self.ready_at: float | None = None
        self.was_ready = False
        self.pauses = _pauses()
        self.failed_starts = 0

    def adopt(self, process: ChildProcess) -> None:
        """Start to supervise a process that was started."""
        self.end_descriptor = os.pidfd_open(process.pid)
        self.process = process
        self.unread, self.verdict = b"", Verdict(is_ready=False)
        self.start_at = self.ready_at = None

    def close_verdict(self) -> None:
        """Close the pipe on which the child reports its start. Idempotent."""
        if self.process is not None and self.process.verdict_pipe >= 0:
            os.close(self.process.verdict_pipe)
            self.process.verdict_pipe = -1

    def end(self) -> int:
        """Wait for the process, which has ended, and return its exit code."""
        assert self.process is not None
        self.close_verdict()
        code = self.process.wait()
        os.close(self.end_descriptor)
        self.process = self.pid_file_at = None
        return code


class Supervisor:
    """Keeps processes running. ``report`` gets sentences about their fate.

    The descriptor ``log_file`` gets the output of the children; without it they share our stderr.
    ``started`` are the first processes of the children, if they run already. Without ``restarts`` a
    child that was ready once and ends is not restarted.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        directory: RunDirectory,
        report: Report,
        log_file: int | None = None,
        started: Sequence[ChildProcess] = (),
        restarts: bool = True,
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        for child, process in zip(self._children, started, strict=False):
            child.adopt(process)
        self._directory = directory
        self._report = report
        self._log_file = log_file
        self._restarts = restarts
        self._by_force = False
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()

    def run(self, *, on_ready: Callable[[], None]) -> None:
        """Keep the children running until ``stop``; call ``on_ready`` once, when all are ready.

        Ends them, the last one first, each within its ``drain_seconds``. Raises
        ``ConfigurationError`` or ``AdminError`` when a child cannot be kept running.
        """
        announced = False
        try:
            while not self._stopping:
                self._start_due()
                self._wait()
                if not announced and all(child.was_ready for child in self._children):
                    announced = True
                    on_ready()
        finally:
            self._stop_children()
            reader, self._wake_reader = self._wake_reader, -1
            os.close(reader)
            os.close(self._wake_writer)

    def stop(self) -> None:
        """Make ``run`` end the children and return. Any thread or signal handler may call this."""
        self._stopping = True
        if self._wake_reader >= 0:
            os.write(self._wake_writer, b"!")

    def kill_all(self) -> None:
        """End every child at once. From a signal handler, too."""
        self._by_force = True
        for child in self._children:
            if child.process is not None:
                # Not by its id: the code that was interrupted may be collecting it just now.
                with suppress(OSError):
                    signal.pidfd_send_signal(child.end_descriptor, signal.SIGKILL)

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.start_at is not None and child.start_at <= now:
                self._start(child)
            if child.pid_file_at is not None and child.pid_file_at <= now:
                self._write_pid(child)

    def _start(self, child: _Child) -> None:
        """Start a child, or report why not and try again later."""
        try:
            process = start_child_process(child.spec, self._directory, log_file=self._log_file)
            try:
                child.adopt(process)
            except OSError:
                process.abandon()
                raise
        except OSError as error:
            name, reason = child.spec.name, error.strerror
            if not child.was_ready:
                self._count_failed_start(child, f"its process cannot be started: {reason}")
            self._report(f"{name} cannot be started now: {reason}; trying again")
            child.start_at = time.monotonic() + next(child.pauses)
            return
        child.pid_file_pauses = _pauses()
        self._write_pid(child)

    def _write_pid(self, child: _Child) -> None:
        """Write a child's pid file. It runs without one until there is space for it."""
        assert child.process is not None
        try:
            self._directory.write_pid(child.spec.name, child.process.pid)
            child.pid_file_at = None
        except OSError as error:
            self._report(f"{child.spec.name} has no pid file yet: {error.strerror}")
            child.pid_file_at = time.monotonic() + next(child.pid_file_pauses)

    def _wait(self) -> None:
        """Wait for the next event, and handle it."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        hearing: dict[int, _Child] = {}
        ending: dict[int, _Child] = {}
        for child in self._children:
            if child.process is None:
                continue
            poll.register(child.end_descriptor, select.POLLIN)
            ending[child.end_descriptor] = child
            if child.process.verdict_pipe >= 0:
                poll.register(child.process.verdict_pipe, select.POLLIN)
                hearing[child.process.verdict_pipe] = child
        times = [at for child in self._children for at in (child.start_at, child.pid_file_at)]
        due = [at for at in times if at is not None]
        timeout = None if not due else max(0.0, min(due) - time.monotonic()) * 1000 + 1
        ready = {descriptor for descriptor, _ in poll.poll(timeout)}
        # A child's message comes before its end, which closes the pipe.
        for descriptor in ready & hearing.keys():
            self._read_messages(hearing[descriptor])
        for descriptor in ready & ending.keys():
            self._process_end(ending[descriptor])

    def _read_messages(self, child: _Child) -> None:
        """Handle a child's message about its start or its end."""
        assert child.process is not None
        data = os.read(child.process.verdict_pipe, VERDICT_BYTES_MAX)
        *lines, child.unread = (child.unread + data).split(b"\n")
        if not data or len(child.unread) > VERDICT_BYTES_MAX:
            child.close_verdict()
        for line in lines:
            child.verdict = parse_verdict(line)
            if child.verdict.is_ready:
                self._record_ready(child)

    def _record_ready(self, child: _Child) -> None:
        if child.was_ready:
            self._report(f"{child.spec.name} is back")
        child.was_ready = True
        child.ready_at = time.monotonic()

    def _process_end(self, child: _Child) -> None:
        """Report the end of a child, and start it again later or raise ``ConfigurationError``."""
        assert child.process is not None
        while child.process.verdict_pipe >= 0:
            self._read_messages(child)
        verdict = child.verdict
        code = child.end()
        self._directory.remove_pid(child.spec.name)
        if code == EXIT_CONFIGURATION:
            raise ConfigurationError(verdict.error or f"{child.spec.name} cannot start")
        how = describe_exit(code)
        if not child.was_ready:
            kind = NoRoomError if code == EXIT_NO_ROOM else AdminError
            self._count_failed_start(child, verdict.error or f"it {how}; see its log", kind)
        if child.was_ready and not self._restarts:
            self._report(f"{child.spec.name} {how}; it stays down")
            return
        if child.ready_at is not None and time.monotonic() - child.ready_at >= STABLE_SECONDS:
            child.pauses = _pauses()
        self._report(f"{child.spec.name} {how}; starting it again")
        child.start_at = time.monotonic() + next(child.pauses)

    def _count_failed_start(
        self, child: _Child, reason: str, kind: type[AdminError] = AdminError
    ) -> None:
        child.failed_starts += 1
        if child.failed_starts >= START_ATTEMPTS:
            raise kind(f"{child.spec.name} cannot start: {reason}")

    def _stop_children(self) -> None:
        """End the children, the last one first; by force those that do not end in time."""
        for child in reversed(self._children):
            process = child.process
            if process is None:
                continue
            child.close_verdict()
            if not self._by_force:
                process.send_signal(signal.SIGTERM)
                ended = _wait_for_end(child.end_descriptor, child.spec.drain_seconds)
                if not ended and not self._by_force:
                    self._report(f"{child.spec.name} does not end by itself; killing it")
            process.send_signal(signal.SIGKILL)
            child.end()
            self._directory.remove_pid(child.spec.name)


def _wait_for_end(descriptor: int, seconds: float) -> bool:
    """Return whether the process ends within that time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
