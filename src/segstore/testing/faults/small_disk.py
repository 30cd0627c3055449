"""A small file system of the kernel's own, which tests and the vortex fill up.

Owns: mounting and unmounting it. That needs root, or a namespace in which one is root.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PIECE_BYTES = 16 * 1024**2


@contextmanager
def mounted_disk(path: Path, *, size_bytes: int, inodes_max: int | None = None) -> Iterator[bool]:
    """Make the directory ``path`` and mount an empty file system there, for the block.

    Yields whether it is mounted: where that is refused, ``path`` is a plain directory.
    """
    path.mkdir()
    options = f"size={size_bytes}" + (f",nr_inodes={inodes_max}" if inodes_max else "")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=False)


def fill_disk(balloon: Path) -> None:
    """Write zeros to the end of a file until its disk refuses a single byte more."""
    descriptor = os.open(balloon, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        length = PIECE_BYTES
        while length:
            try:
                os.write(descriptor, bytes(length))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                length //= 2
    finally:
        with suppress(OSError):
            os.close(descriptor)
