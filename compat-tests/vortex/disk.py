"""A small disk for the store under test, which can be filled up.

Owns: its size, and the file that fills it. Mounting needs root: without it the store lies in
the plain directory, and the fault of a full disk is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from segstore.testing.faults.small_disk import fill_disk, mounted_disk

DISK_BYTES = 3 * 1024**3


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of the store's data. ``can_fill`` says whether ``full`` may be used."""

    path: Path
    can_fill: bool

    @contextmanager
    def full(self) -> Iterator[Callable[[], None]]:
        """Leave no free byte on the disk inside the block; yield a function that fills what has
        become free since."""
        balloon = self.path / "balloon"
        try:
            fill_disk(balloon)
            yield lambda: fill_disk(balloon)
        finally:
            balloon.unlink(missing_ok=True)


@contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """Yield a disk of its own at ``path``, or the plain directory where mounting is refused."""
    with mounted_disk(path, size_bytes=DISK_BYTES) as is_mounted:
        yield Disk(path, is_mounted)
