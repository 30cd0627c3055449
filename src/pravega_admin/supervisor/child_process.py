"""Starts one server process for a supervisor, and finds out how it ended.

Owns: a child's environment, its descriptors and its pid file.

Children are started from a thread that lives at least as long as they do; see ``child_protocol``.

Invariants:
1. No event loop and none of the slow standard modules is imported: the supervisor keeps its imports
   in memory as long as a store runs. Held by ``test_a_supervisor_has_little_in_memory``.
2. When another program replaces the supervisor's in the same process (``exec``), it supervises the
   running children, which it knows by their process ids. Held by
   ``test_another_program_in_the_same_process_goes_on_with_the_children``.
3. No child has the lock of the directory: one that does not end keeps no later start away. Held by
   ``test_no_child_has_the_lock_of_the_directory`` and
   ``test_a_child_does_not_get_the_lock_with_its_settings``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from pravega_admin.supervisor.child_protocol import READY_VARIABLE, SUPERVISOR_VARIABLE
from pravega_admin.supervisor.run_directory import RunDirectory

KILL_SECONDS_MAX = 5.0
"""Maximum time, in seconds, that a killed process may take to end. A process that waits for a disk,
or for a mount that is away, takes longer, and no signal can end it."""
KILL_POLL_SECONDS = 0.01


class ChildSpec:
    """A process to keep running; ``drain_seconds`` is how long it may take to end by itself.

    ``log_path`` names the file that only this process writes its output to, if there is one. With
    ``once`` it is no server: it ends with exit code 0 when its work is done, and those that are
    listed after it need that.
    """

    __slots__ = ("command", "drain_seconds", "log_path", "name", "once")

    def __init__(
        self,
        name: str,
        command: tuple[str, ...],
        drain_seconds: float = 10.0,
        log_path: str | None = None,
        once: bool = False,
    ) -> None:
        self.name = name
        self.command = command
        self.drain_seconds = drain_seconds
        self.log_path = log_path
        self.once = once

    @property
    def kind(self) -> str:
        """Return the name without the number at its end."""
        return self.name.rstrip("0123456789").rstrip("-")


class ChildProcess:
    """A started process; ``verdict_pipe`` delivers its messages about its start."""

    __slots__ = ("_code", "pid", "verdict_pipe")

    def __init__(self, pid: int, verdict_pipe: int) -> None:
        self.pid = pid
        self.verdict_pipe = verdict_pipe
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the process has ended and return its exit code."""
        code = self._wait(0)
        assert code is not None
        return code

    def close_verdict(self) -> None:
        """Close the pipe on which the process reports its start. Idempotent."""
        if self.verdict_pipe >= 0:
            os.close(self.verdict_pipe)
            self.verdict_pipe = -1

    def kill_group(self) -> None:
        """Kill the process with all that it has started, unless it was waited for."""
        # An ended process keeps its id, as a zombie, until we have waited for it, so the process
        # group is still the child's.
        if self._code is None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def abandon(self) -> None:
        """End a process that was not taken over, or leave it if not even the system can end it."""
        self.close_verdict()
        self.kill_group()
        deadline = time.monotonic() + KILL_SECONDS_MAX
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(KILL_POLL_SECONDS)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid == self.pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def spawn(spec: ChildSpec, directory: RunDirectory, *, log_file: int | None = None) -> ChildProcess:
    """Start the process; its output goes to the descriptor ``log_file``, or else to our stderr."""
    process = start_child_process(spec, log_file=log_file)
    write_pid_or_abandon(process, spec, directory)
    return process


def write_pid_or_abandon(process: ChildProcess, spec: ChildSpec, directory: RunDirectory) -> None:
    """Write the pid file of a process that was not taken over yet; without one it ends."""
    try:
        directory.write_pid(spec.name, process.pid)
    except OSError:
        process.abandon()
        raise


def start_child_process(spec: ChildSpec, *, log_file: int | None = None) -> ChildProcess:
    """Start a process without a pid file, and return it."""
    return start_process(spec.command, output=2 if log_file is None else log_file)


def start_process(
    command: tuple[str, ...], *, inherited: Sequence[int] = (), output: int = 2
) -> ChildProcess:
    """Start a child that inherits these descriptors, and never the directory's lock."""
    reader, writer = os.pipe()
    environment = {
        # With the default, the allocator keeps some MB per thread of memory that was freed.
        "MALLOC_ARENA_MAX": "1",
        **os.environ,
        SUPERVISOR_VARIABLE: str(os.getpid()),
        READY_VARIABLE: str(writer),
    }
    try:
        pid = os.posix_spawn(
            command[0],
            command,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                # Each is duplicated onto itself, which makes it inheritable.
                *((os.POSIX_SPAWN_DUP2, each, each) for each in (writer, *inherited)),
            ],
            # Ctrl-C must reach the supervisor alone, which then ends the children.
            setpgroup=0,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return ChildProcess(pid, reader)


def describe_exit(code: int) -> str:
    """Return a sentence about how a process ended, from its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
