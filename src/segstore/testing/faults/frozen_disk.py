"""A disk whose writes wait, as while a snapshot of it is made: a file system of the kernel's own.

Owns: mounting and unmounting it, and freezing it. That needs root and loop devices.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Freezer:
    """Freezes the file system that is mounted on a directory: writes wait, and nothing fails."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def freeze(self) -> None:
        """Make writes wait from now on."""
        subprocess.run(["fsfreeze", "--freeze", self._path], check=True)

    def unfreeze(self) -> None:
        """Let writes go on."""
        subprocess.run(["fsfreeze", "--unfreeze", self._path], check=True)

    def freeze_often(self, *, seconds: float, pause_seconds: float) -> None:
        """Make writes wait for so long, again and again with pauses, until ``stop``."""

        def run() -> None:
            while not self._ended.wait(pause_seconds):
                self.freeze()
                self._ended.wait(seconds)
                self.unfreeze()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def stop(self) -> None:
        """Let writes go on, whatever was before."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        _succeeds("fsfreeze", "--unfreeze", self._path)


@contextmanager
def freezable_disk(path: Path, *, size_bytes: int) -> Iterator[Freezer | None]:
    """Make the directory ``path`` and mount an empty file system there, for the block.

    Yields None where that is refused: then ``path`` is a plain directory.
    """
    path.mkdir()
    image = path.with_name(f"{path.name}.image")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    if not (
        _succeeds("mkfs.ext4", "-q", str(image))
        and _succeeds("mount", "-o", "loop", str(image), str(path))
    ):
        yield None
        return
    freezer = Freezer(path)
    try:
        yield freezer
    finally:
        freezer.stop()
        subprocess.run(["umount", "--lazy", str(path)], check=False)


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
