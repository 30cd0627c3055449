"""The interface of the journal's disk, and its implementation on a local file system.

Owns: the ``Disk`` and ``DiskFile`` protocols and ``LocalDisk``. Each call may block; callers run
them in threads (a simulation has no threads). Names are plain file names in one directory.

Invariants:
1. When ``write_durably`` or ``sync`` has returned, the bytes survive a power cut. Held by
   ``test_a_crash_at_any_point_loses_nothing_acknowledged``.
2. When either of them has raised another error than a full disk, nothing is written any more.
   Held by ``test_the_journal_fails_for_ever_after_an_error``.
3. When the disk was full, the same bytes are written again in full. Held by
   ``test_a_batch_that_met_a_full_disk_is_written_again_in_full``.
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
        """Return the block size in bytes: writes that end at a multiple of it are fastest. It
        divides 4,096."""
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
        """Write all the buffers at ``offset`` and sync them, with one sync."""
        ...

    def allocate(self, length: int) -> None:
        """Allocate blocks for ``length`` bytes, which read as zeros where nothing was written."""
        ...

    def writing_descriptor(self) -> int | None:
        """Return a descriptor for durable writes (``RWF_DSYNC``) of whole blocks from aligned
        memory; None if only ``write_durably`` can make them."""
        ...

    def sync(self) -> None:
        """Make everything written to the file durable."""
        ...

    def settle(self) -> None:
        """Sync, and drop the file's pages from the kernel's cache, so that reads return the disk's
        content.

        After a failed sync, the kernel has bytes in memory that are not on the disk, and takes them
        for stored: another sync would succeed and write nothing.
        """
        ...

    def close(self) -> None:
        """Close the file. Idempotent."""
        ...


class Disk(Protocol):
    """One directory of files."""

    def free_bytes(self) -> int:
        """Return how many bytes of the file system are free for users other than root."""
        ...

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
    """A directory of a local file system. Reads and writes go past the page cache if the file
    system supports it."""

    def __init__(self, directory: Path, *, direct: bool = True) -> None:
        self._directory = directory
        self._staging = StagingBuffers() if direct else None

    def free_bytes(self) -> int:
        """Return how many bytes the file system has left."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

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
        return self.wrap(descriptor, direct)

    def wrap(self, descriptor: int, direct: DirectFile | None) -> LocalFile:
        """Return the file of an open descriptor. Disks with other files override it."""
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
    """A disk to look at a journal without a change: ``remove`` does nothing."""

    def remove(self, name: str) -> None:
        """Do nothing: the file stays where it is."""


class LocalFile:
    """A file of a local file system. Whole blocks go past the page cache if the file system
    supports it."""

    def __init__(self, descriptor: int, direct: DirectFile | None) -> None:
        self._descriptor = descriptor
        self._direct = direct
        self._sync_flag = os.RWF_DSYNC
        self.block_bytes = PAGE_BYTES if direct is None else BLOCK_BYTES
        """The device's block size if writes go past the page cache. Otherwise the size of a page,
        because the kernel would read the rest of a page before it writes a part."""

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
        """Allocate the blocks. The C library writes them where the file system cannot allocate."""
        os.posix_fallocate(self._descriptor, 0, length)

    def writing_descriptor(self) -> int | None:
        """Return the descriptor that bypasses the page cache, or the usual one if that writes
        durably, or None."""
        if self._direct is not None:
            return self._direct.descriptor
        return self._descriptor if self._sync_flag else None

    def sync(self) -> None:
        """Sync data, and the length if it changed."""
        os.fdatasync(self._descriptor)

    def settle(self) -> None:
        """Sync, and drop the file's pages: all are clean after the sync."""
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
    """Return many small buffers as one: a copy costs less than a long list of buffers for the
    kernel."""
    if len(buffers) > 1 and sum(map(len, buffers)) <= JOIN_BYTES_MAX:
        return [b"".join(buffers)]
    return buffers


class DamagedDisk(UntouchedDisk):
    """A disk for a damaged journal, whose files may be shorter than their headers say."""

    def wrap(self, descriptor: int, direct: DirectFile | None) -> LocalFile:
        return _CutFile(descriptor, direct)


class _CutFile(LocalFile):
    """A file whose ``length`` is always large enough. Reads past its end return fewer bytes, like
    reads of a damaged file."""

    def length(self) -> int:
        """Return a length that no header exceeds."""
        return sys.maxsize
