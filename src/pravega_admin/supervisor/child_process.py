"""Starts one server process for a supervisor, and finds out how it ended.

Owns: a child's environment, its descriptors and its pid file.

Invariants:
1. This module imports almost nothing: the supervisor has it in memory for as long as a store runs,
   and the first children start before anything slow is imported.
2. Children are started from a thread that lives as long as they should; see ``child_protocol``.
3. A process is known by its id alone, so that another program that replaces this one in the same
   process can continue with its children.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from pravega_admin.run_directory import RunDirectory
from pravega_admin.supervisor.child_protocol import READY_VARIABLE, SUPERVISOR_VARIABLE


class ChildSpec:
    """A process to keep running; ``drain_seconds`` is how long it may take to end by itself."""

    __slots__ = ("command", "drain_seconds", "name")

    def __init__(self, name: str, command: tuple[str, ...], drain_seconds: float = 10.0) -> None:
        self.name = name
        self.command = command
        self.drain_seconds = drain_seconds


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

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        # It keeps its id, as a zombie, until we have waited for it.
        if self.poll() is None:
            os.kill(self.pid, number)

    def abandon(self) -> None:
        """End a process that was not taken over."""
        os.close(self.verdict_pipe)
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid == self.pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def spawn(spec: ChildSpec, directory: RunDirectory, *, log_file: int | None = None) -> ChildProcess:
    """Start the process; its output goes to the descriptor ``log_file``, or else to our stderr."""
    process = start_child_process(spec, directory, log_file=log_file)
    write_pid_or_abandon(process, spec, directory)
    return process


def write_pid_or_abandon(process: ChildProcess, spec: ChildSpec, directory: RunDirectory) -> None:
    """Write the pid file of a process that was not taken over yet; without one it ends."""
    try:
        directory.write_pid(spec.name, process.pid)
    except OSError:
        process.abandon()
        raise


def start_child_process(
    spec: ChildSpec, directory: RunDirectory, *, log_file: int | None = None
) -> ChildProcess:
    """Start a process that holds the directory's lock, without a pid file, and return it."""
    output = 2 if log_file is None else log_file
    return start_process(spec.command, inherited=[directory.lock_descriptor], output=output)


def start_process(
    command: tuple[str, ...], *, inherited: Sequence[int], output: int = 2
) -> ChildProcess:
    """Start a child that inherits these descriptors."""
    reader, writer = os.pipe()
    environment = {
        # Otherwise each thread keeps some MB of its own for pieces that it once read or wrote.
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
            # Ctrl-C is for the supervisor alone.
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
