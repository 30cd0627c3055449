"""The data directory of a standalone store: whose it is, and who uses it now.

Owns: ``<data-dir>/run``: the lock, the pid files. What the servers keep in the rest is theirs.

    run/standalone.lock     held, by flock, by the supervisor and all of its children
    run/standalone.pid      the supervisor
    run/<child>.pid         each server process

Invariants:
1. Two supervisors never use the same directory. The children inherit the lock, so that it is free
   only when the last of them has ended, even after the supervisor was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pravega_admin.errors import ConfigurationError

LOCK_SECONDS = 3.0
"""How long the processes of a killed supervisor may take to be gone."""

_RUN = "run"
_LOCK = "standalone.lock"


class RunDirectory:
    """``<data-dir>/run``, locked. Children must inherit ``lock_descriptor``."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path = path
        self.lock_descriptor = lock_descriptor

    def write_pid(self, name: str, pid: int) -> None:
        """Note which process plays the part ``name``."""
        (self.path / f"{name}.pid").write_text(f"{pid}\n")

    def remove_pid(self, name: str) -> None:
        """The process that played the part ``name`` has ended."""
        (self.path / f"{name}.pid").unlink(missing_ok=True)


@contextlib.contextmanager
def open_run_directory(data_dir: Path) -> Iterator[RunDirectory]:
    """Create the data directory if need be, and lock it.

    Raises ``ConfigurationError`` when it cannot be written or is in use.
    """
    run = data_dir / _RUN
    try:
        run.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"data directory {data_dir} cannot be used: {error.strerror}"
        ) from error
    try:
        _lock(descriptor, data_dir, run)
        yield RunDirectory(run, descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, data_dir: Path, run: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise ConfigurationError(
                    f"data directory {data_dir} cannot be locked: {error.strerror}"
                ) from error
        if _owner_lives(run) or time.monotonic() > deadline:
            raise ConfigurationError(
                f"data directory {data_dir} is in use by another segstore{_owner(run)}"
            )
        time.sleep(0.02)


def _owner_lives(run: Path) -> bool:
    pid = _owner_pid(run)
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _owner(run: Path) -> str:
    pid = _owner_pid(run)
    return "" if pid is None else f" (process {pid})"


def _owner_pid(run: Path) -> int | None:
    try:
        return int((run / "standalone.pid").read_text())
    except (OSError, ValueError):
        return None
