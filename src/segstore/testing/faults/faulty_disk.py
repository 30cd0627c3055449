"""A journal's disk that fails when it is told to.

Owns: ``FaultyDisk``, which is the machine's own otherwise. A durable write or a sync that fails has
written nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from segstore.tiers.api import Buffer
from segstore.tiers.direct_io import DirectFile
from segstore.tiers.journal.disk import LocalDisk, LocalFile


class FaultyDisk(LocalDisk):
    """One directory. While ``error`` is an errno, durable writes and syncs fail with it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.error: int | None = None

    def fail(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise OSError(self.error, f"injected: {os.strerror(self.error)}")

    def wrap(self, descriptor: int, direct: DirectFile | None) -> LocalFile:
        return _FaultyFile(self, descriptor, direct)


class _FaultyFile(LocalFile):
    def __init__(self, disk: FaultyDisk, descriptor: int, direct: DirectFile | None) -> None:
        super().__init__(descriptor, direct)
        self._disk = disk

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._disk.fail()
        super().write_durably(buffers, offset)

    def writing_descriptor(self) -> int | None:
        return None if self._disk.error is not None else super().writing_descriptor()

    def sync(self) -> None:
        self._disk.fail()
        super().sync()
