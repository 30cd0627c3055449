"""Runs a command and finds the processes that it leaves behind.

The process that calls ``adopt_orphans`` becomes the parent of every descendant whose own parent has
ended. So what is left is what is still its child, by whatever way it was started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""From ``linux/prctl.h``."""
END_SECONDS_MAX = 10.0
"""A process that was told to end gets this long: a JVM on a busy machine needs seconds."""
POLL_SECONDS = 0.05


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parents end."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end and return its exit code; collect the orphans that end meanwhile."""
    sys.stdout.flush()
    started = os.posix_spawn(command[0], command, environment)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == started:
            return os.waitstatus_to_exitcode(status)


def end_orphans(*, seconds_max: float = END_SECONDS_MAX) -> list[str]:
    """Return the commands of the children that do not end by themselves; kill them and theirs."""
    deadline = time.monotonic() + seconds_max
    while (left := find_children()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    told = [f"{each} {read_command(each)}" for each in left]
    while left:
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        left = find_children()
    return told


def find_children() -> list[int]:
    """Return the ids of this process's children that still run; collect those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    me = os.getpid()
    text = Path(f"/proc/{me}/task/{me}/children").read_text()
    return [int(each) for each in text.split()]


def read_command(process: int) -> str:
    """Return the command line of a process, shortened."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return "(ended)"
    return command.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
