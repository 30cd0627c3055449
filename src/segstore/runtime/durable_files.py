"""Writes files and names that survive a power cut.

Owns: ``write_durably``, ``make_directory`` and ``sync_directory``, for files that are written
seldom, and always as a whole. They block and raise ``OSError``. Chunks and the journal are written
by other code.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file and sync its content. Its name becomes durable only with ``sync_directory``."""
    data = memoryview(content.encode() if isinstance(content, str) else content)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents durably."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a directory")
    sync_directory(path.parent)


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
