"""Stopping a process without ending it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from foreign_servers.deadlines import scale

POLL_SECONDS = 0.005
SECONDS_MAX = scale(60.0)
STANDING = frozenset("TtZX")
"""States of a thread in which it takes no step: stopped, or ended."""


def pause_process(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands still.

    A thread that runs goes on until the kernel looks for signals. On a busy machine a server has
    answered meanwhile. Raises ``TimeoutError``.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + SECONDS_MAX
    while not _thread_states(pid) <= STANDING:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"process {pid} does not stand still after {SECONDS_MAX:.0f} s")
        time.sleep(POLL_SECONDS)


def _thread_states(pid: int) -> set[str]:
    """Return the states of a process's threads, each a letter of proc(5). It may end meanwhile."""
    states = set()
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states
