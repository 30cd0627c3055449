"""A small disk for the store under test, which can be filled up.

Owns: mounting a tmpfs and the file that fills it. Mounting needs root: without it the store lies in
the plain directory, and the fault of a full disk is left out.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

DISK_BYTES = 3 * 1024**3
PIECE_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of the store's data. ``can_fill`` says whether ``full`` may be used."""

    path: Path
    can_fill: bool

    @contextmanager
    def full(self) -> Iterator[None]:
        """Leave no free byte on the disk inside the block."""
        balloon = self.path / "balloon"
        try:
            _fill(balloon)
            yield
        finally:
            balloon.unlink(missing_ok=True)


@contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """Yield a disk of its own at ``path``, or the plain directory where mounting is refused."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield Disk(path, is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=False)


def _fill(balloon: Path) -> None:
    """Write zeros until the disk refuses a single byte more."""
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
