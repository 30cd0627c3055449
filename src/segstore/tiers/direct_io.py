"""Reads and writes past the page cache.

Owns: ``DirectFile``, a second descriptor of a file that the kernel reads and writes straight from
and to memory, and memory that is aligned as the kernel wants it: ``StagingBuffers`` for writes and
``ReadMemory`` for reads.

Invariants:
1. Only whole blocks at whole blocks are transferred; everything else is the caller's, through the
   page cache. The kernel keeps the two ways coherent.
2. Where a file system does not offer it there is no ``DirectFile``, and plain reads are used.
3. Staging memory is used again for ever and never grows beyond ``STAGING_BYTES`` a thread.
4. Memory for reads is used again while reads go on, and given back soon after the last one.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from _fast.native_io.paced_read import read_in_pieces
from _fast.wire.gather import gather
from _fast.wire.lent_memory import LentMemory
from segstore.tiers.api import Buffer
from segstore.tiers.vectored_io import pwrite_all, remainder

BLOCK_BYTES: Final = 512
"""Size, in bytes, of the block that a device must offer: the journal's batches begin at multiples
of it."""
READ_BYTES_MAX: Final = 3 * 512 * 1024 + 2 * 64 * 1024
"""Maximum length, in bytes, of a read into lent memory: the longest request, and the rest of the
blocks with checksums in which it begins and ends."""
READ_MEMORY_FREE_MAX: Final = 64
"""Maximum count of pieces of memory that are kept for reads."""
READ_MEMORY_SECONDS: Final = 10.0
"""Time without a read, in seconds, after which free memory goes back to the system. Touching new
memory costs more than reading into it, so it is not freed while reads go on."""
READ_PIECE_BYTES: Final = 256 * 1024
"""Maximum length of one read; longer ones are split, because a sync waits for reads that came
before."""
STAGING_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
NOT_SUPPORTED_ERRNOS: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY})


def block_bytes_of(path: Path | str) -> int | None:
    """Return the logical block of the device that holds ``path``; None when that is no local
    disk."""
    device = os.stat(path).st_dev
    directory = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in ("queue", "../queue"):  # of a disk, of a partition
        try:
            with open(f"{directory}/{place}/logical_block_size", encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            continue
    return None


class ReadMemory:
    """The memory that ``DirectFile.read`` reads into, which is reused while reads go on."""

    def __init__(self) -> None:
        block_bytes = READ_BYTES_MAX + 2 * BLOCK_BYTES
        self.memory = LentMemory(block_bytes=block_bytes, free_max=READ_MEMORY_FREE_MAX)
        self._read_at = 0.0
        self._is_watched = False

    def record_read(self) -> None:
        """Record the time of a read, which may have waited for memory. Call it in the event loop;
        any thread may lend memory."""
        self._read_at = trio.current_time()
        if not self._is_watched:
            self._is_watched = True
            # Readers come and go, and none of them is there when it is time.
            trio.lowlevel.spawn_system_task(self._free_unused)

    async def _free_unused(self) -> None:
        while True:
            await trio.sleep(READ_MEMORY_SECONDS)
            if trio.current_time() - self._read_at < READ_MEMORY_SECONDS:
                continue
            while self.memory.drop_one():
                await trio.lowlevel.checkpoint()
            if not self.memory.lent_count:
                break
        self._is_watched = False


class StagingBuffers:
    """Aligned memory, lent to one thread at a time. Every method is safe from any thread."""

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()

    @contextmanager
    def lend(self) -> Iterator[memoryview]:
        """Yield ``STAGING_BYTES`` of memory that begins at a page, touched or not."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = mmap.mmap(-1, STAGING_BYTES)
        try:
            with memoryview(memory) as view:
                yield view
        finally:
            self._free.append(memory)


class DirectFile:
    """A file's blocks without the page cache between."""

    def __init__(self, descriptor: int, staging: StagingBuffers) -> None:
        self._descriptor = descriptor
        self._staging = staging

    @classmethod
    def open(cls, path: Path | str, staging: StagingBuffers) -> DirectFile | None:
        """Open a second descriptor of an existing file; return None where that is not offered."""
        if block_bytes_of(path) != BLOCK_BYTES:
            return None
        try:
            return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT), staging)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED_ERRNOS:
                raise
            return None

    def write(self, buffers: Sequence[Buffer], offset: int, *, durably: bool = False) -> int:
        """Write the whole blocks of ``buffers``, with ``durably`` synced; return their length.

        That is 0 when there are none, when ``offset`` is within a block, or when the file system
        has thought better of it.
        """
        written = 0
        if offset % BLOCK_BYTES:
            return written
        with self._staging.lend() as staging:
            while True:
                gathered = gather(staging, buffers)
                length = gathered // BLOCK_BYTES * BLOCK_BYTES
                if not length or not self._write(staging[:length], offset + written, durably):
                    return written
                written += length
                if gathered < len(staging):
                    return written
                buffers = remainder(buffers, length)

    def _write(self, data: memoryview, offset: int, durably: bool) -> bool:
        try:
            written = os.pwritev(self._descriptor, [data], offset, os.RWF_DSYNC if durably else 0)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED_ERRNOS:
                raise
            return False
        if written < len(data):
            pwrite_all(self._descriptor, [data[written:]], offset + written)
            if durably:
                os.fdatasync(self._descriptor)
        return True

    def read_into(self, buffer: memoryview, offset: int) -> int | None:
        """Fill ``buffer`` from ``offset`` on, up to the file's end; None where not offered."""
        filled = 0
        with self._staging.lend() as staging:
            while filled < len(buffer):
                skipped = (offset + filled) % BLOCK_BYTES
                wanted = min(skipped + len(buffer) - filled, STAGING_BYTES)
                length = (wanted + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
                try:
                    start = offset + filled - skipped
                    count = os.preadv(self._descriptor, [staging[:length]], start)
                except OSError as error:
                    if error.errno not in NOT_SUPPORTED_ERRNOS:
                        raise
                    return None
                count = min(count, wanted) - skipped
                if count <= 0:
                    break
                buffer[filled : filled + count] = staging[skipped : skipped + count]
                filled += count
        return filled

    def read(self, memory: memoryview, offset: int, length: int) -> memoryview | None:
        """Return bytes from ``offset`` on, fewer than ``length`` at the end; None where not
        offered.

        They are a part of ``memory``, which begins at a page and is longer than them by two blocks.
        """
        skipped = offset % BLOCK_BYTES
        start, wanted = offset - skipped, skipped + length
        rounded = (wanted + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        try:
            filled = read_in_pieces(self._descriptor, memory[:rounded], start, READ_PIECE_BYTES)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED_ERRNOS:
                raise
            return None
        return memory[skipped : max(skipped, min(filled, wanted))]

    def fileno(self) -> int:
        """Return the descriptor, for callers with aligned memory of their own."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
