"""Starts one server process for a supervisor.

Owns: how a child is started: its environment, its descriptors, its pid file.

Invariants:
1. This module does not import trio, so that the first children start before the supervisor's own
   imports are done: theirs take just as long.
2. Children are started from the main thread; see ``child_protocol``.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from typing import IO

from pravega_admin.child_protocol import READY_VARIABLE, SUPERVISOR_VARIABLE
from pravega_admin.data_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to keep running; ``drain_seconds`` is how long it may take to end by itself."""

    name: str
    command: tuple[str, ...]
    drain_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A started process; ``verdict_pipe`` is where it says how its start went."""

    process: subprocess.Popen[bytes]
    verdict_pipe: int

    def abandon(self) -> None:
        """End a process that nobody has taken over."""
        os.close(self.verdict_pipe)
        self.process.kill()
        self.process.wait()


def spawn(
    spec: ChildSpec, directory: RunDirectory, *, log_file: IO[bytes] | None = None
) -> ChildProcess:
    """Start the process; ``log_file`` takes its output, else our stderr does."""
    reader, writer = os.pipe()
    environment = {
        **os.environ,
        SUPERVISOR_VARIABLE: str(os.getpid()),
        READY_VARIABLE: str(writer),
    }
    try:
        process = subprocess.Popen(
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=log_file or 2,
            stderr=log_file,
            pass_fds=(writer, directory.lock_descriptor),
            env=environment,
            # Ctrl-C is for the supervisor alone.
            process_group=0,
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    directory.write_pid(spec.name, process.pid)
    return ChildProcess(process, reader)


def describe_exit(code: int) -> str:
    """How a process ended, of its exit code as ``subprocess`` gives it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
