"""The interface of the journal's disk, and the machine's own disk.

Owns: the ``Disk`` and ``DiskFile`` protocols and ``LocalDisk``.

Invariants:
1. Every call may block; callers are threads (or a simulation that has no threads).
2. ``write_durably`` and ``sync`` return only when the bytes survive a power cut. After either
   raised, nothing is known of the bytes written since the last success: the write is not tried
   again, except that the same bytes may be written again in full when the disk was full.
3. Names are plain file names within one directory.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from segstore.runtime.durable_files import sync_directory
from segstore.tiers.api import Buffer
from segstore.tiers.direct_io import BLOCK_BYTES, DirectFile, StagingBuffers
from segstore.tiers.vectored_io import IOV_MAX, pwrite_all, remainder

PAGE_BYTES = 4096
JOIN_BYTES_MAX = 32 * 1024
DIRECT_READ_BYTES_MIN = 64 * 1024


class DiskFile(Protocol):
    """One open file."""

    @property
    def block_bytes(self) -> int:
        """Return the number of bytes at whose multiples writes should end to cost least; a divisor
        of 4,096."""
        ...

    def length(self) -> int:
        """Return the file's length in bytes."""
        ...

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read up to ``len(buffer)`` bytes at ``offset``; fewer only at the end of the file."""
        ...

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all the buffers one after the other at ``offset``."""
        ...

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all the buffers at ``offset`` and sync them: one sync however many there are."""
        ...

    def allocate(self, length: int) -> None:
        """Allocate blocks for ``length`` bytes, which read as zeros where nothing was written."""
        ...

    def writing_descriptor(self) -> int | None:
        """Return a descriptor for durable writes of whole blocks from aligned memory
        (``RWF_DSYNC``); None when only ``write_durably`` can do them."""
        ...

    def sync(self) -> None:
        """Make everything written to the file durable."""
        ...

    def settle(self) -> None:
        """Sync, and drop what the kernel caches of the file, so that reads return what the disk
        has.

        After a failed sync the kernel keeps the bytes that are not on the disk and takes them for
        stored: another sync would succeed without writing them.
        """
        ...

    def close(self) -> None:
        """Close the file. Idempotent."""
        ...


class Disk(Protocol):
    """One directory of files."""

    def list_files(self) -> list[str]:
        """Return the names of the files in the directory."""
        ...

    def open_file(self, name: str) -> DiskFile:
        """Open an existing file for reading and writing."""
        ...

    def create_file(self, name: str) -> DiskFile:
        """Create an empty file; ``FileExistsError`` if there is one."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing what ``new`` names; durable after ``sync_directory``."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; durable after ``sync_directory``."""
        ...

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""
        ...


class LocalDisk:
    """A directory of the machine's file system, past the page cache where that is offered."""

    def __init__(self, directory: Path, *, direct: bool = True) -> None:
        self._directory = directory
        self._staging = StagingBuffers() if direct else None

    def list_files(self) -> list[str]:
        """Return the names of the regular files in the directory."""
        with os.scandir(self._directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def open_file(self, name: str) -> LocalFile:
        """Open an existing file."""
        return self._opened(name, 0)

    def create_file(self, name: str) -> LocalFile:
        """Create an empty file."""
        return self._opened(name, os.O_CREAT | os.O_EXCL)

    def _opened(self, name: str, flags: int) -> LocalFile:
        path = self._directory / name
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        try:
            direct = DirectFile.open(path, self._staging) if self._staging is not None else None
        except OSError:
            os.close(descriptor)
            raise
        return self._file(descriptor, direct)

    def _file(self, descriptor: int, direct: DirectFile | None) -> LocalFile:
        return LocalFile(descriptor, direct)

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        os.rename(self._directory / old, self._directory / new)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self._directory / name)

    def sync_directory(self) -> None:
        """Sync the directory itself."""
        sync_directory(self._directory)


class UntouchedDisk(LocalDisk):
    """A disk for looking at a journal: a recovery removes nothing from it."""

    def remove(self, name: str) -> None:
        """Do nothing: the file stays where it is."""


class LocalFile:
    """A file of the machine's file system: whole blocks go past the page cache if they can."""

    def __init__(self, descriptor: int, direct: DirectFile | None) -> None:
        self._descriptor = descriptor
        self._direct = direct
        self._sync_flag = os.RWF_DSYNC

    @property
    def block_bytes(self) -> int:
        """Return the device's block past the page cache, else a page: the kernel would read the
        rest of a page."""
        return PAGE_BYTES if self._direct is None else BLOCK_BYTES

    def length(self) -> int:
        """Return the file's length in bytes."""
        return os.fstat(self._descriptor).st_size

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` up to the end of the file."""
        if self._direct is not None and len(buffer) >= DIRECT_READ_BYTES_MIN:
            count = self._direct.read_into(buffer, offset)
            if count is not None:
                return count
        filled = 0
        while filled < len(buffer):
            count = os.preadv(self._descriptor, [buffer[filled:]], offset + filled)
            if count == 0:
                break
            filled += count
        return filled

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all the buffers."""
        if self._direct is not None:
            written = self._direct.write(buffers, offset)
            buffers, offset = remainder(buffers, written), offset + written
        pwrite_all(self._descriptor, joined_if_small(buffers), offset)

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all the buffers and sync, in one system call where one is enough."""
        if self._direct is not None:
            written = self._direct.write(buffers, offset, durably=True)
            buffers, offset = remainder(buffers, written), offset + written
            if not buffers:
                return
        buffers = joined_if_small(buffers)
        if self._sync_flag and len(buffers) <= IOV_MAX:
            length = sum(map(len, buffers))
            try:
                written = os.pwritev(self._descriptor, buffers, offset, self._sync_flag)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                self._sync_flag = 0  # an old kernel or file system: nothing was written
                written = 0
            if written == length:
                return
            buffers, offset = remainder(buffers, written), offset + written
        pwrite_all(self._descriptor, buffers, offset)
        os.fdatasync(self._descriptor)

    def allocate(self, length: int) -> None:
        """Reserve the blocks; the C library writes them where the file system cannot."""
        os.posix_fallocate(self._descriptor, 0, length)

    def writing_descriptor(self) -> int | None:
        """Return the descriptor that bypasses the page cache, or the usual one if that writes
        durably, or None."""
        if self._direct is not None:
            return self._direct.fileno()
        return self._descriptor if self._sync_flag else None

    def sync(self) -> None:
        """Sync data, and the length if it changed."""
        os.fdatasync(self._descriptor)

    def settle(self) -> None:
        """Sync, and drop the file's pages, which are all clean then."""
        os.fdatasync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptors."""
        if self._direct is not None:
            self._direct.close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def joined_if_small(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return many small buffers as one: copying them costs less than describing them to the
    kernel."""
    if len(buffers) > 1 and sum(map(len, buffers)) <= JOIN_BYTES_MAX:
        return [b"".join(buffers)]
    return buffers


class DamagedDisk(UntouchedDisk):
    """A disk for a damaged journal: its files may be shorter than their headers say."""

    def _file(self, descriptor: int, direct: DirectFile | None) -> LocalFile:
        return _CutFile(descriptor, direct)


class _CutFile(LocalFile):
    """A file that pretends to be long enough: reads behind its end return fewer bytes, as at
    damage."""

    def length(self) -> int:
        """Return the length that any header may have."""
        return sys.maxsize
