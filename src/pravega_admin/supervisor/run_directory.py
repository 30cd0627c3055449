"""The files in a data directory that name the processes of its store.

Owns: ``<data-dir>/run``: a pid file for the supervisor and for each server process.

Invariants:
1. No event loop and none of the slow standard modules is imported: the supervisor keeps its imports
   in memory as long as a store runs. Held by ``test_a_supervisor_has_little_in_memory``.
"""

from __future__ import annotations

import os
from contextlib import suppress

SUPERVISOR = "standalone"


class RunDirectory:
    """``<data-dir>/run``. No child inherits ``lock_descriptor``."""

    def __init__(self, path: str | os.PathLike[str], lock_descriptor: int) -> None:
        self.path = path
        self.lock_descriptor = lock_descriptor

    def write_pid(self, name: str, pid: int) -> None:
        """Write the pid file of ``name``."""
        with open(self._file(name), "w", encoding="ascii") as file:
            file.write(f"{pid}\n")

    def remove_pid(self, name: str) -> None:
        """Remove the pid file of ``name``: its process has ended."""
        # If this fails, the file names a process that has ended; readers of the file check that.
        with suppress(OSError):
            os.unlink(self._file(name))

    def _file(self, name: str) -> str:
        return os.path.join(self.path, f"{name}.pid")
