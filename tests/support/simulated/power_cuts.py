"""Tier 2 in files whose machine may lose its power.

Owns: ``PowerCuts``: what of the files of a directory is on the disk, and what a power cut leaves.

Invariants:
1. What was synced survives, under the names that a sync of their directory has made durable.
2. Of what was written since, a power cut leaves anything: nothing, all, any of its sectors, or the
   length alone, with zeros or with what lay there before in place of the bytes. That is what file
   systems do that write a file's length before bytes in a block that the file has already.
3. After the power cut nothing is written or synced any more; reads still work.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

from _fast.native_io.chunk_files import NOT_OPENED, NOT_RENAMED, NOT_STORED, STORED, TOO_SHORT
from segstore.runtime import durable_files
from segstore.tiers import direct_io, vectored_io
from segstore.tiers.api import Buffer
from segstore.tiers.files import filesystem, open_files
from support.simulated.simulated_disk import SECTOR_BYTES

_MODULES: Final = (direct_io, durable_files, filesystem, open_files, vectored_io)

Request = tuple[bytes, bytes | None, int, Sequence[Buffer]]


class PowerCuts:
    """The files below ``root`` while the block of ``watching`` lasts; what is there was synced.

    Set ``cut_at`` to the number of the write, sync, or change of a name at which the power goes;
    ``step_count`` counts them. ``cut_when`` is asked after each append to a file, by its path.
    ``left`` is then what is found afterwards, by path.
    """

    def __init__(self, root: Path, random: Random) -> None:
        self._root = os.path.realpath(root)
        self._random = random
        self._lock = threading.RLock()
        self._synced: dict[str, bytes] = {
            path: Path(self._root, path).read_bytes() for path in self._paths()
        }
        self._unsynced_names: list[tuple[str, dict[str, bytes]]] = []
        self.step_count = 0
        self.cut_at: int | None = None
        self.cut_when: Callable[[str], bool] = lambda path: False
        self.left: dict[str, bytes] | None = None

    @property
    def is_off(self) -> bool:
        """Return whether the power is gone."""
        return self.left is not None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Replace the operating system's calls of the storage in files, inside the block."""
        with contextmanager(self._patched)():
            yield

    def _patched(self) -> Iterator[None]:
        standing_in: list[tuple[ModuleType, str, object]] = [
            *((module, "os", _System(self)) for module in _MODULES),
            (filesystem, "write_files", self._write_files),
            (filesystem, "sync_directories", self._sync_directories),
        ]
        patches = [patch.object(module, name, other) for module, name, other in standing_in]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()

    def cut(self) -> None:
        """Cut the power now."""
        with self._lock:
            if self.left is None:
                self.left = self._what_is_left()

    def restore(self, root: Path) -> None:
        """Make a directory with what is found when the power is back."""
        assert self.left is not None
        for path, data in self.left.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    # ---- Calls -----------------------------------------------------------------------------------

    def write(self, descriptor: int, do: Callable[[], Any]) -> Any:
        """Write to a file; the bytes are durable no sooner than at the file's next sync."""
        with self._lock:
            self._refuse_when_off()
            done = do()
            path = self._path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path is not None and self._synced.get(path) and self.cut_when(path):
                self.cut_at = self.step_count
            self._step()
            return done

    def sync(self, descriptor: int) -> None:
        """Sync a file or a directory."""
        with self._lock:
            self._refuse_when_off()
            self._step()
            path = self._path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path is not None and os.path.isdir(f"{self._root}/{path}"):
                self._sync_names(path)
            elif path is not None and os.path.exists(f"{self._root}/{path}"):
                self._synced[path] = Path(self._root, path).read_bytes()

    def change_name(self, do: Callable[[], None], old: str, new: str | None) -> None:
        """Rename a file, or remove it if there is no new name."""
        with self._lock:
            self._refuse_when_off()
            old_path, new_path = self._path(old), new and self._path(new)
            assert old_path is not None
            before = {
                path: self._synced[path]
                for path in (old_path, new_path)
                if path and path in self._synced
            }
            do()
            content = self._synced.pop(old_path, b"")
            if new_path is not None:
                before.pop(old_path, None)  # unfinished files are never looked for
                self._synced[new_path] = content
            self._unsynced_names.append((new_path or old_path, before))
            self._step()

    def _write_files(self, requests: Sequence[Request]) -> list[tuple[int, int, int]]:
        """Write files as ``_fast.native_io.chunk_files.write_files`` does."""
        outcomes: list[tuple[int, int, int]] = []
        descriptors: list[int] = []
        for path, final_path, offset, buffers in requests:
            flags = os.O_RDWR if final_path is None else os.O_RDWR | os.O_CREAT | os.O_TRUNC
            length = outcome = number = 0
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
            except OSError as error:
                descriptors.append(-1)
                outcomes.append((NOT_OPENED, error.errno or 0, 0))
                continue
            descriptors.append(descriptor)
            length = os.fstat(descriptor).st_size
            if offset > length:
                outcome = TOO_SHORT
            else:
                outcome, number = STORED, 0
                position = offset
                for buffer in buffers:
                    try:
                        self._write_one(descriptor, buffer, position)
                    except OSError as error:
                        outcome, number = NOT_STORED, error.errno or 0
                        break
                    position += len(buffer)
            outcomes.append((outcome, number, length))
        for index, (path, final_path, _, _) in enumerate(requests):
            outcomes[index] = self._finish(path, final_path, descriptors[index], outcomes[index])
        return outcomes

    def _write_one(self, descriptor: int, buffer: Buffer, offset: int) -> None:
        self.write(descriptor, lambda: os.pwrite(descriptor, buffer, offset))

    def _finish(
        self, path: bytes, final_path: bytes | None, descriptor: int, outcome: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        result, number, length = outcome
        if result == STORED:
            try:
                self.sync(descriptor)
            except OSError as error:
                result, number = NOT_STORED, error.errno or 0
        if descriptor >= 0:
            os.close(descriptor)
        if result == STORED and final_path is not None:
            old, new = os.fsdecode(path), os.fsdecode(final_path)
            try:
                self.change_name(lambda: os.rename(old, new), old, new)
            except OSError as error:
                result, number = NOT_RENAMED, error.errno or 0
        return result, number, length

    def _sync_directories(self, paths: Sequence[bytes]) -> list[int]:
        numbers = []
        for path in paths:
            number = 0
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    self.sync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                number = error.errno or 0
            numbers.append(number)
        return numbers

    # ---- The disk --------------------------------------------------------------------------------

    def _refuse_when_off(self) -> None:
        if self.left is not None:
            raise OSError(errno.EIO, "injected: the power is off")

    def _step(self) -> None:
        self.step_count += 1
        if self.cut_at is not None and self.step_count >= self.cut_at:
            self.cut()
            self._refuse_when_off()

    def _path(self, path: str) -> str | None:
        whole = os.path.normpath(path)
        if whole == self._root:
            return ""
        return os.path.relpath(whole, self._root) if whole.startswith(f"{self._root}/") else None

    def _paths(self) -> Iterator[str]:
        for directory, _, names in os.walk(self._root):
            for name in names:
                yield os.path.relpath(f"{directory}/{name}", self._root)

    def _sync_names(self, directory: str) -> None:
        self._unsynced_names = [
            each for each in self._unsynced_names if os.path.dirname(each[0]) != directory
        ]

    def _what_is_left(self) -> dict[str, bytes]:
        left = {}
        for path in self._paths():
            data = self._torn(self._synced.get(path, b""), Path(self._root, path).read_bytes())
            left[path] = data
        forgotten = self._unsynced_names[self._random.randrange(len(self._unsynced_names) + 1) :]
        for path, before in reversed(forgotten):
            left.pop(path, None)
            left |= before
        return left

    def _torn(self, synced: bytes, present: bytes) -> bytes:
        """Return what may be found after a power cut of a file with these synced and these present
        bytes."""
        random = self._random
        if synced == present:
            return present
        choice = random.randrange(5)
        if choice == 0:
            return synced
        if choice == 1 or len(present) < len(synced):
            return present
        length = max(len(synced), random.randrange(len(synced), len(present) + 1))
        if choice == 2:
            length = max(len(synced), len(present))
        filler = random.randbytes(1) if random.randrange(4) == 0 else b"\0"
        torn = bytearray(synced.ljust(length, filler))
        if choice == 4:
            for start in range(0, length, SECTOR_BYTES):
                if random.randrange(2):
                    end = min(start + SECTOR_BYTES, length, len(present))
                    torn[start:end] = present[start:end]
        return bytes(torn)


class _System:
    """The module ``os``, with the calls that a power cut may undo."""

    def __init__(self, cuts: PowerCuts) -> None:
        self._cuts = cuts

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], offset: int, *rest: int) -> int:
        written: int = self._cuts.write(
            descriptor, lambda: os.pwritev(descriptor, buffers, offset, *rest)
        )
        return written

    def ftruncate(self, descriptor: int, length: int) -> None:
        self._cuts.write(descriptor, lambda: os.ftruncate(descriptor, length))

    def fsync(self, descriptor: int) -> None:
        self._cuts.sync(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        self._cuts.sync(descriptor)

    def rename(self, old: str, new: str) -> None:
        self._cuts.change_name(lambda: os.rename(old, new), old, new)

    def unlink(self, path: str) -> None:
        self._cuts.change_name(lambda: os.unlink(path), path, None)
