"""Starts server processes, starts them again when they die, and ends them.

Owns: the processes and their pid files.

One thread waits for all events: ends of children, their messages, and requests to stop. Pauses
between starts are 0, 0.1, 0.2, 0.4 s and so on, up to 5 s.

Example: a store that serves is killed three times, each time within ``STABLE_SECONDS`` of its
start.

    1st end    it is started again at once; "store was killed by SIGKILL; starting it again"
    2nd end    it is started again after 0.1 s; "...; starting it again in 0.1 s"
    3rd end    it is started again after 0.2 s
    then       it serves for ``STABLE_SECONDS``: "store is back"; the next pause is 0 again

Invariants:
1. No event loop and none of the slow standard modules is imported: the supervisor keeps its imports
   in memory as long as a store runs. Held by ``test_a_supervisor_has_little_in_memory``.
2. A child that hangs, floods its pipe or leaves processes behind delays neither the restart of
   another child nor a stop. Held by ``test_a_bad_child_delays_neither_the_others_nor_a_stop``.
3. A stop takes at most ``drain_seconds`` for each kind of child, however many children the kind
   has, and ``KILL_SECONDS_MAX`` for all that must be killed. Held by
   ``test_a_stop_takes_no_longer_for_many_bad_children_than_for_one``.
4. A child that dies is restarted at once the first time, and then after longer and longer pauses.
   Held by ``test_the_pauses_between_starts_grow``. Only a child that serves for ``STABLE_SECONDS``
   is reported as back. Held by
   ``test_a_child_that_serves_and_ends_again_and_again_is_not_told_as_back``.
5. When a child ends, every process in its process group is killed. Held by
   ``test_what_a_child_has_started_ends_with_it``.
6. A child that exits with the code of ``ConfigurationError`` before it ever served ends the
   supervisor with the child's sentence. Held by
   ``test_a_child_that_cannot_start_as_configured_ends_the_supervisor``. So does a child that dies
   ``START_ATTEMPTS`` times before it ever served. Held by
   ``test_a_child_that_is_never_ready_is_given_up``. So does a child that served, if its data are
   lost. Held by ``test_a_child_that_served_says_why_it_cannot_go_on``.
7. With ``lasts``, only a stop ends the supervisor. Held by
   ``test_a_part_that_refuses_to_start_ends_no_other_and_its_reason_is_told``.
8. While there is not enough memory, or no process or descriptor is free, the supervisor repeats the
   start of a child after pauses. Held by
   ``test_a_child_that_cannot_be_started_for_a_while_is_tried_again``. While the disk is full, it
   does the same with a pid file. Held by
   ``test_a_pid_file_that_cannot_be_written_is_written_later``.
9. A child with ``once`` is restarted until it exits with 0. The children after it in the list are
   started only then. Held by
   ``test_what_is_done_once_is_tried_until_it_ends_well_and_the_others_wait``.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from threading import RLock

from pravega_admin.errors import (
    EXIT_CONFIGURATION,
    EXIT_NO_ROOM,
    EXIT_OK,
    AdminError,
    ConfigurationError,
    NoRoomError,
)
from pravega_admin.supervisor.child_process import (
    KILL_SECONDS_MAX,
    ChildProcess,
    ChildSpec,
    describe_exit,
    start_child_process,
)
from pravega_admin.supervisor.child_protocol import Verdict, parse_verdict
from pravega_admin.supervisor.log_tail import length_of, read_last_lines
from pravega_admin.supervisor.run_directory import RunDirectory
from segstore_client.backoff import delays

STABLE_SECONDS = 2.0
START_ATTEMPTS = 4
VERDICT_BYTES_MAX = 64 * 1024
PIPE_BYTES_MAX = 1024 * 1024
"""Maximum number of bytes that a pipe holds, unless the machine's administrator changed it."""

Report = Callable[[str], None]


def _pauses() -> Iterator[float]:
    return chain([0.0], delays(0.1))


class _Child:
    """A process that is kept running."""

    __slots__ = (
        "end_count",
        "end_descriptor",
        "failed_starts",
        "is_done",
        "log_position",
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
        """Time since which the process serves."""
        self.was_ready = False
        self.pauses = _pauses()
        self.end_count = 0
        """Number of ends since it last served for ``STABLE_SECONDS``, or since the beginning."""
        self.failed_starts = 0
        self.is_done = False
        """True when the work that it does once is done."""
        self.log_position = 0
        """Length of its log when the process was started."""

    @property
    def is_settled(self) -> bool:
        """Return whether it serves and had no recent end, or its one-time work is done."""
        return self.is_done or (self.ready_at is not None and self.end_count == 0)

    @property
    def settles_at(self) -> float | None:
        """Return the time at which it will have served for long enough; None while it does not."""
        if self.ready_at is None or self.end_count == 0:
            return None
        return self.ready_at + STABLE_SECONDS

    def adopt(self, process: ChildProcess) -> None:
        """Start to supervise a process that was started."""
        self.end_descriptor = os.pidfd_open(process.pid)
        os.set_blocking(process.verdict_pipe, False)
        self.process = process
        self.unread, self.verdict = b"", Verdict(is_ready=False)
        self.start_at = self.ready_at = None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone, unless it has ended."""
        # The id may belong to another process: a signal handler may interrupt the code that waits.
        if self.process is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self.end_descriptor, number)

    def end(self) -> int:
        """Kill the process group of the ended process, and return the exit code."""
        assert self.process is not None
        self.process.kill_group()
        self.process.close_verdict()
        code = self.process.wait()
        os.close(self.end_descriptor)
        self.process = self.pid_file_at = self.ready_at = None
        return code


class Supervisor:
    """Keeps processes running. ``report`` is called with sentences about their ends and starts.

    The descriptor ``log_file`` gets the output of the children; without it they share our stderr.
    ``started`` are the first processes of the children, if they run already. Without ``restarts`` a
    child that was ready once and ends is not restarted. If ``lasts``, a child that cannot start is
    tried again, whatever the reason, and the others continue.
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
        lasts: bool = False,
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        for child, process in zip(self._children, started, strict=False):
            child.adopt(process)
        self._directory = directory
        self._report = report
        self._log_file = log_file
        self._restarts = restarts
        self._lasts = lasts
        self._by_force = False
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()
        # A thread that stops the supervisor may meet ``run`` while it closes the pipe. A signal
        # handler may interrupt the thread that has the lock.
        self._waking = RLock()

    def run(self, *, on_ready: Callable[[], None]) -> None:
        """Keep the children running until ``stop``; call ``on_ready`` once, when all serve.

        Ends them, those of a kind together and the last kind first, within the ``drain_seconds`` of
        each kind. Raises ``ConfigurationError`` or ``AdminError`` when a child cannot be kept
        running.
        """
        announced = False
        try:
            while not self._stopping:
                self._start_due()
                self._wait()
                self._settle_due()
                if not announced and all(child.is_settled for child in self._children):
                    announced = True
                    on_ready()
        finally:
            self._stop_children()
            with self._waking:
                reader, self._wake_reader = self._wake_reader, -1
                os.close(reader)
                os.close(self._wake_writer)

    def stop(self) -> None:
        """Make ``run`` end the children and return. Any thread or signal handler may call this."""
        self._stopping = True
        self._wake()

    def kill_all(self) -> None:
        """Make ``run`` kill the children and return. Only a signal handler of the thread of ``run``
        may call this."""
        self._by_force = self._stopping = True
        for child in self._children:
            child.send_signal(signal.SIGKILL)
        # Wake ``run``, which may be waiting until children end by themselves.
        self._wake()

    def _wake(self) -> None:
        with self._waking:
            if self._wake_reader >= 0:
                os.write(self._wake_writer, b"!")

    def _permitted(self) -> list[_Child]:
        """Return the children up to the first that still does its work ``once``, or all of them."""
        for number, child in enumerate(self._children, 1):
            if child.spec.once and not child.is_done:
                return self._children[:number]
        return self._children

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._permitted():
            if child.start_at is not None and child.start_at <= now:
                self._start(child)
            if child.pid_file_at is not None and child.pid_file_at <= now:
                self._write_pid(child)

    def _start(self, child: _Child) -> None:
        """Start a child, or report why not and try again later."""
        child.log_position = length_of(child.spec.log_path)
        try:
            process = start_child_process(child.spec, log_file=self._log_file)
            try:
                child.adopt(process)
            except OSError:
                process.abandon()
                raise
        except OSError as error:
            name, reason = child.spec.name, error.strerror
            if not (child.was_ready or self._lasts):
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
        permitted = self._permitted()
        times = ((child.start_at, child.pid_file_at, child.settles_at) for child in permitted)
        due = [at for at in chain.from_iterable(times) if at is not None]
        timeout = None if not due else max(0.0, min(due) - time.monotonic()) * 1000 + 1
        ready = {descriptor for descriptor, _ in poll.poll(timeout)}
        # A child's message comes before its end, which closes the pipe.
        for descriptor in ready & hearing.keys():
            self._read_messages(hearing[descriptor])
        for descriptor in ready & ending.keys():
            self._process_end(ending[descriptor])

    def _read_messages(self, child: _Child) -> int:
        """Handle a child's messages about its start or its end; return how many bytes they have."""
        assert child.process is not None
        try:
            data = os.read(child.process.verdict_pipe, VERDICT_BYTES_MAX)
        except BlockingIOError:
            return 0
        *lines, child.unread = (child.unread + data).split(b"\n")
        if not data or len(child.unread) > VERDICT_BYTES_MAX:
            child.process.close_verdict()
        for line in lines:
            child.verdict = parse_verdict(line)
            if child.verdict.is_ready and child.ready_at is None:
                child.was_ready = True
                child.ready_at = time.monotonic()
        return len(data)

    def _settle_due(self) -> None:
        """Report as back each child that ended and has served for ``STABLE_SECONDS`` again."""
        now = time.monotonic()
        for child in self._children:
            if child.settles_at is not None and child.settles_at <= now:
                child.end_count = 0
                child.pauses = _pauses()
                self._report(f"{child.spec.name} is back")

    def _process_end(self, child: _Child) -> None:
        """Report the end of a child, and start it again later or raise ``AdminError``."""
        assert child.process is not None
        # Do not wait for the end of the pipe: a process that the child started may keep it open.
        unread = PIPE_BYTES_MAX
        while (
            child.process.verdict_pipe >= 0 and unread > 0 and (read := self._read_messages(child))
        ):
            unread -= read
        served = child.ready_at is not None
        code = child.end()
        self._directory.remove_pid(child.spec.name)
        if child.spec.once and code == EXIT_OK:
            child.is_done = True
            return
        how, reason = describe_exit(code), child.verdict.error
        if child.was_ready and not self._restarts:
            self._report(f"{child.spec.name} {how}; it stays down")
            return
        self._refuse_hopeless(child, code, reason or f"it {how}; see its log")
        child.end_count += 1
        pause = next(child.pauses)
        child.start_at = time.monotonic() + pause
        told = f"{how}: {reason}" if reason else how
        when = f" in {pause:g} s" if pause else ""
        lines = []
        # For a child that ends again and again, only the ends 1, 2, 4, 8 ... show the log's lines.
        if not reason and not (served and code < 0) and child.end_count.bit_count() == 1:
            lines = read_last_lines(child.spec.log_path, child.log_position)
        self._report("\n    ".join([f"{child.spec.name} {told}; starting it again{when}", *lines]))

    def _refuse_hopeless(self, child: _Child, code: int, reason: str) -> None:
        """Raise ``AdminError`` if a child that ended with this code must not be restarted."""
        if self._lasts:
            return
        if code == EXIT_CONFIGURATION and (child.verdict.is_final or not child.was_ready):
            raise ConfigurationError(child.verdict.error or f"{child.spec.name} cannot start")
        if not child.was_ready:
            kind = NoRoomError if code == EXIT_NO_ROOM else AdminError
            self._count_failed_start(child, reason, kind)

    def _count_failed_start(
        self, child: _Child, reason: str, kind: type[AdminError] = AdminError
    ) -> None:
        child.failed_starts += 1
        if child.failed_starts >= START_ATTEMPTS:
            raise kind(f"{child.spec.name} cannot start: {reason}")

    def _stop_children(self) -> None:
        """End the children, the last kind first; by force those that do not end in time."""
        killed: list[_Child] = []
        for _, kind in groupby(reversed(self._children), key=lambda child: child.spec.kind):
            running = [child for child in kind if child.process is not None]
            for child in running:
                assert child.process is not None
                child.process.close_verdict()
                if not self._by_force:
                    child.send_signal(signal.SIGTERM)
            patience = max((child.spec.drain_seconds for child in running), default=0.0)
            for child in self._collect_ended(running, patience, gently=True):
                assert child.process is not None
                if not self._by_force:
                    self._report(f"{child.spec.name} does not end by itself; killing it")
                child.process.kill_group()
                killed.append(child)
        for child in self._collect_ended(killed, KILL_SECONDS_MAX, gently=False):
            assert child.process is not None
            told = f"{child.spec.name}, process {child.process.pid}, was killed"
            self._report(f"{told} and does not end yet")

    def _collect_ended(
        self, children: Sequence[_Child], seconds: float, *, gently: bool
    ) -> list[_Child]:
        """Collect the children that end within that time, and return the others.

        ``gently`` means until children are killed.
        """
        deadline = time.monotonic() + seconds
        left = list(children)
        while left and not (gently and self._by_force):
            poll = select.poll()
            for descriptor in (self._wake_reader, *(child.end_descriptor for child in left)):
                poll.register(descriptor, select.POLLIN)
            now = time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, deadline - now) * 1000)}
            if self._wake_reader in ready:
                os.read(self._wake_reader, PIPE_BYTES_MAX)
            for child in left:
                if child.end_descriptor in ready:
                    child.end()
                    self._directory.remove_pid(child.spec.name)
            left = [child for child in left if child.process is not None]
            if now >= deadline:
                break
        return left
