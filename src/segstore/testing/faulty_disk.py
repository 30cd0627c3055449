"""A journal's disk that fails when it is told to.

Owns: ``FaultyDisk``, which wraps the machine's own disk.

Invariants:
1. A durable write or a sync that fails has written nothing; all other calls are the disk's own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from segstore.tiers.api import Buffer
from segstore.tiers.journal.disk import DiskFile, LocalDisk


class FaultyDisk:
    """One directory. While ``error`` is an errno, durable writes and syncs fail with it."""

    def __init__(self, directory: Path) -> None:
        self._disk = LocalDisk(directory)
        self.error: int | None = None

    def fail(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise OSError(self.error, f"injected: {os.strerror(self.error)}")

    def list_files(self) -> list[str]:
        """Return the files of the disk."""
        return self._disk.list_files()

    def open_file(self, name: str) -> DiskFile:
        """Open an existing file."""
        return _FaultyFile(self, self._disk.open_file(name))

    def create_file(self, name: str) -> DiskFile:
        """Create an empty file."""
        return _FaultyFile(self, self._disk.create_file(name))

    def rename(self, old: str, new: str) -> None:
        """Rename a file of the disk."""
        self._disk.rename(old, new)

    def remove(self, name: str) -> None:
        """Remove a file of the disk."""
        self._disk.remove(name)

    def sync_directory(self) -> None:
        """Sync the directory of the disk."""
        self._disk.sync_directory()


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file

    @property
    def block_bytes(self) -> int:
        return self._file.block_bytes

    def length(self) -> int:
        return self._file.length()

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return self._file.read_into(buffer, offset)

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._file.write(buffers, offset)

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._disk.fail()
        self._file.write_durably(buffers, offset)

    def allocate(self, length: int) -> None:
        self._file.allocate(length)

    def writing_descriptor(self) -> int | None:
        return None if self._disk.error is not None else self._file.writing_descriptor()

    def sync(self) -> None:
        self._disk.fail()
        self._file.sync()

    def settle(self) -> None:
        self._file.settle()

    def close(self) -> None:
        self._file.close()
