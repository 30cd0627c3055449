"""A disk in memory that forgets what was not synced.

Owns: ``SimulatedDisk``, a ``Disk`` of the journal with power cuts, torn writes, flipped bits, a
full disk and failing calls.

Invariants:
1. Bytes written before a successful sync of their file survive every power cut. Of each later
   write, a power cut keeps any set of whole sectors, or any number of leading bytes; where it is
   told to, it flips bits in what it keeps of them.
2. Names made durable by ``sync_directory`` survive; of later directory changes a power cut keeps
   any number of leading ones.
3. The kill of a process loses nothing: the kernel still holds what was not synced, and a later
   power cut may lose it.
4. After a failed sync what was not synced is lost for ever, as on Linux, although reads see it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from segstore.tiers.api import Buffer

SECTOR_BYTES = 512


class PowerCutError(BaseException):
    """The machine lost power in the middle of a call. No code may catch it and go on."""


@dataclass(slots=True)
class _Content:
    """One file: what is on the disk, what the kernel holds, and the writes between the two."""

    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    is_shared: bool = False
    """Whether a copy has the same bytes: who changes them makes bytes of its own first."""

    def write(self, offset: int, data: bytes) -> None:
        self.separate()
        _overlay(self.current, offset, data)
        self.unsynced.append((offset, data))

    def sync(self) -> None:
        self.separate()
        for offset, data in self.unsynced:
            _overlay(self.durable, offset, data)
        self.unsynced.clear()

    def settle(self) -> None:
        """Let reads see what is on the disk."""
        self.separate()
        self.current[:] = self.durable

    def copy(self) -> _Content:
        # Most copies are of preallocated files of which a start changes little or nothing.
        self.is_shared = True
        return _Content(self.durable, self.current, list(self.unsynced), is_shared=True)

    def separate(self) -> None:
        """Make the bytes this file's alone, before they are changed."""
        if self.is_shared:
            self.durable, self.current = bytearray(self.durable), bytearray(self.current)
            self.is_shared = False

    def torn(self, random: Random, *, flip_bits: bool) -> _Content:
        """Return what a power cut may leave."""
        left = bytearray(self.durable)
        for offset, data in self.unsynced:
            if flip_bits and data and random.randrange(4) == 0:
                data = _damaged(data, random)
            choice = random.randrange(4)
            if choice == 0:
                continue
            if choice == 1:
                _overlay(left, offset, data)
            elif choice == 2:
                _overlay(left, offset, data[: random.randrange(len(data) + 1)])
            else:
                _overlay_sectors(left, offset, data, random)
        return _Content(left, bytearray(left))


def _overlay(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _damaged(data: bytes, random: Random) -> bytes:
    """Return the same bytes with some bits flipped."""
    damaged = bytearray(data)
    for _ in range(random.randrange(1, 8)):
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def _overlay_sectors(target: bytearray, offset: int, data: bytes, random: Random) -> None:
    """Write any of the sectors that ``data`` touches."""
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        if random.randrange(2):
            _overlay(target, offset + start, data[start:end])
        start = end


class SimulatedDisk:
    """One directory of a disk in memory.

    ``step_count`` counts the calls that change something. Set ``power_cut_at`` to the number of
    the call during which the power goes (``on_power_cut`` is told, once); ``write_errors`` and
    ``sync_errors`` map the number of such a call to the errno with which it fails, ``open_errors``
    that of one that opens or creates a file, which ``open_count`` counts;
    ``capacity_bytes`` bounds the files' lengths, together with what ``other_bytes`` returns of
    others that share the space. With ``ignores_syncs`` it is a disk that says
    that it has synced, and has not.
    """

    def __init__(self, *, capacity_bytes: int | None = None, ignores_syncs: bool = False) -> None:
        self.capacity_bytes = capacity_bytes
        self.other_bytes: Callable[[], int] = lambda: 0
        self.ignores_syncs = ignores_syncs
        self.step_count = 0
        self.sync_count = 0
        self.power_cut_at: int | None = None
        self.on_power_cut: Callable[[], None] = lambda: None
        self.write_errors: dict[int, int] = {}
        self.sync_errors: dict[int, int] = {}
        self.open_count = 0
        self.open_errors: dict[int, int] = {}
        self.read_error: int | None = None
        self._names: dict[str, _Content] = {}
        self._durable_names: dict[str, _Content] = {}
        self._directory_changes: list[dict[str, _Content]] = []

    def free_bytes(self) -> int:
        """Return how many bytes files may still grow by."""
        if self.capacity_bytes is None:
            return 2**62
        return self.capacity_bytes - self.used_bytes - self.other_bytes()

    @property
    def used_bytes(self) -> int:
        """Return the length of all files together."""
        return sum(len(content.current) for content in self._names.values())

    def list_files(self) -> list[str]:
        """Return the names of the files."""
        return sorted(self._names)

    def open_file(self, name: str) -> SimulatedFile:
        """Open an existing file."""
        self._open()
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return SimulatedFile(self, self._names[name])

    def create_file(self, name: str) -> SimulatedFile:
        """Create an empty file."""
        self._step()
        self._open()
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "the file exists", name)
        content = self._names[name] = _Content()
        self._directory_changes.append(dict(self._names))
        return SimulatedFile(self, content)

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self._step()
        self._names[new] = self._names.pop(old)
        self._directory_changes.append(dict(self._names))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._step()
        del self._names[name]
        self._directory_changes.append(dict(self._names))

    def sync_directory(self) -> None:
        """Make the names durable."""
        self._step()
        self._durable_names = dict(self._names)
        self._directory_changes.clear()

    def after_power_cut(self, random: Random, *, flip_bits: bool = False) -> SimulatedDisk:
        """Return a disk as it may be found after the power came back."""
        kept = random.randrange(len(self._directory_changes) + 1)
        names = self._directory_changes[kept - 1] if kept else self._durable_names
        return self._with(
            {name: content.torn(random, flip_bits=flip_bits) for name, content in names.items()}
        )

    def after_kill(self) -> SimulatedDisk:
        """Return the disk as the next process finds it after this one was killed."""
        disk = self._with({})
        copies = {id(content): content.copy() for content in self._contents()}
        disk._names = {name: copies[id(content)] for name, content in self._names.items()}
        disk._durable_names = {
            name: copies[id(content)] for name, content in self._durable_names.items()
        }
        disk._directory_changes = [
            {name: copies[id(content)] for name, content in names.items()}
            for names in self._directory_changes
        ]
        return disk

    def content(self, name: str) -> bytes:
        """Return a file's bytes."""
        return bytes(self._names[name].current)

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Change bytes of a file, as damage does."""
        content = self._names[name]
        content.separate()
        for copy in (content.current, content.durable):
            copy[offset : offset + len(data)] = data

    def flip_bit(self, name: str, offset: int, bit: int) -> None:
        """Flip one bit of a file, as damage does."""
        self.overwrite(name, offset, bytes([self._names[name].current[offset] ^ 1 << bit]))

    def cut(self, name: str, length: int) -> None:
        """Shorten a file, as damage does."""
        content = self._names[name]
        content.separate()
        for copy in (content.current, content.durable):
            del copy[length:]

    def forget(self, name: str) -> None:
        """Lose a file, as damage does."""
        del self._names[name]
        self._durable_names.pop(name, None)

    def _contents(self) -> list[_Content]:
        listings = [self._names, self._durable_names, *self._directory_changes]
        return [content for names in listings for content in names.values()]

    def _with(self, names: dict[str, _Content]) -> SimulatedDisk:
        disk = SimulatedDisk(capacity_bytes=self.capacity_bytes, ignores_syncs=self.ignores_syncs)
        disk.other_bytes = self.other_bytes
        disk._names = names
        disk._durable_names = dict(names)
        return disk

    def _step(self) -> None:
        self.step_count += 1
        if self.power_cut_at is not None and self.step_count >= self.power_cut_at:
            on_power_cut, self.on_power_cut = self.on_power_cut, lambda: None
            on_power_cut()
            raise PowerCutError

    def _open(self) -> None:
        self.open_count += 1
        code = self.open_errors.get(self.open_count)
        if code is not None:
            raise OSError(code, os.strerror(code))

    def _write(self, content: _Content, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        if self.step_count + 1 == self.power_cut_at:
            content.write(offset, data)
        self._step()
        code = self.write_errors.get(self.step_count)
        if code is not None:
            content.write(offset, data[: len(data) // 2])
            raise OSError(code, os.strerror(code))
        grows = max(0, offset + len(data) - len(content.current))
        if grows > self.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        content.write(offset, data)

    def _sync(self, content: _Content) -> None:
        self._step()
        self.sync_count += 1
        code = self.sync_errors.get(self.step_count)
        if code is not None:
            content.unsynced.clear()
            raise OSError(code, os.strerror(code))
        if not self.ignores_syncs:
            content.sync()


class SimulatedFile:
    """An open file of a ``SimulatedDisk``."""

    def __init__(self, disk: SimulatedDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content
        self.block_bytes = SECTOR_BYTES

    def length(self) -> int:
        """Return the file's length."""
        return len(self._content.current)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read what the kernel holds."""
        if self._disk.read_error is not None:
            raise OSError(self._disk.read_error, os.strerror(self._disk.read_error))
        data = memoryview(self._content.current)[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write without syncing."""
        self._disk._write(self._content, buffers, offset)

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write and sync."""
        self._disk._write(self._content, buffers, offset)
        self._disk._sync(self._content)

    def allocate(self, length: int) -> None:
        """Grow the file with zeros."""
        grown = length - self.length()
        if grown > 0:
            self._disk._write(self._content, [bytes(grown)], self.length())

    def writing_descriptor(self) -> int | None:
        """Return None: there is no descriptor."""
        return None

    def sync(self) -> None:
        """Sync."""
        self._disk._sync(self._content)

    def settle(self) -> None:
        """Sync, and let reads see what is on the disk."""
        self._disk._sync(self._content)
        if not self._disk.ignores_syncs:
            self._content.settle()

    def close(self) -> None:
        """Do nothing: nothing is open."""
