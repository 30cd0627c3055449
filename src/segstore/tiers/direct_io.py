"""Reads and writes past the page cache.

Owns: ``DirectFile``, a second descriptor of a file, opened with ``O_DIRECT``, and the aligned
memory that such reads and writes need: ``StagingBuffers`` for writes and ``ReadMemory`` for reads.

A direct transfer begins and ends at multiples of ``BLOCK_BYTES``. Callers transfer the rest through
the page cache; the kernel keeps both ways coherent. Each staging buffer has ``STAGING_BYTES``, and
there are as many as threads have used at the same time; they are never freed.

Invariants:
1. When a write does not fill its last block, only the whole blocks are written, and their length is
   returned. Held by ``test_whole_blocks_are_written_and_the_rest_is_left``.
2. When a file system does not support ``O_DIRECT``, ``DirectFile.open`` returns None. Held by
   ``test_a_file_system_in_memory_offers_nothing``.
3. When direct and other writes to a file alternate, reads of both kinds return the newest bytes.
   Held by ``test_a_journal_file_reads_back_what_both_ways_wrote``.
4. When there was no read for ``READ_MEMORY_SECONDS``, the free memory for reads goes back to the
   system soon. Held by ``test_memory_for_reads_is_given_back_when_nobody_has_read_for_a_while``.
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
"""Logical block size, in bytes, that a device must have for direct transfers. The journal's batches
begin at multiples of it."""
READ_BYTES_MAX: Final = 3 * 512 * 1024 + 2 * 64 * 1024
"""Maximum length, in bytes, of a read into lent memory: the longest request for data, and the rest
of the checksummed blocks in which it begins and ends."""
READ_MEMORY_FREE_MAX: Final = 64
"""Maximum number of free pieces of memory that are kept for later reads."""
READ_MEMORY_SECONDS: Final = 10.0
"""Time without a read, in seconds, after which free memory goes back to the system. Memory is kept
while reads continue, because the first touch of new memory costs more than a read into it."""
READ_PIECE_BYTES: Final = 256 * 1024
"""Maximum length, in bytes, of one read from the device. Longer reads are split, because a sync
waits for the reads that were submitted before it."""
STAGING_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
NOT_SUPPORTED_ERRNOS: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY})


def block_bytes_of(path: Path | str) -> int | None:
    """Return the logical block size, in bytes, of the device that holds ``path``; None if it is not
    a local disk."""
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
    """The memory that ``DirectFile.read`` reads into, which is reused while reads continue."""

    def __init__(self) -> None:
        block_bytes = READ_BYTES_MAX + 2 * BLOCK_BYTES
        self.memory = LentMemory(block_bytes=block_bytes, free_max=READ_MEMORY_FREE_MAX)
        self._read_at = 0.0
        self._is_watched = False

    def record_read(self) -> None:
        """Record the time of a read. Call this in the event loop; any thread may lend memory."""
        self._read_at = trio.current_time()
        if not self._is_watched:
            self._is_watched = True
            # No caller of this function is still running when the memory has to be freed.
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
    """Aligned memory buffers, each lent to one thread at a time. The method may be called from any
    thread."""

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()

    @contextmanager
    def lend(self) -> Iterator[memoryview]:
        """Yield ``STAGING_BYTES`` of memory that begins at a page. It has any content."""
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
    """A descriptor that transfers a file's blocks past the page cache."""

    def __init__(self, descriptor: int, staging: StagingBuffers) -> None:
        self.descriptor = descriptor
        """For callers with aligned memory of their own."""
        self._staging = staging

    @classmethod
    def open(cls, path: Path | str, staging: StagingBuffers) -> DirectFile | None:
        """Open a second descriptor of an existing file; return None if the file system does not
        support direct transfers."""
        if block_bytes_of(path) != BLOCK_BYTES:
            return None
        try:
            return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT), staging)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED_ERRNOS:
                raise
            return None

    def write(self, buffers: Sequence[Buffer], offset: int, *, durably: bool = False) -> int:
        """Write the whole blocks of ``buffers``, with ``durably`` synced; return their length in
        bytes.

        The result is 0 when there is no whole block, when ``offset`` is not a multiple of
        ``BLOCK_BYTES``, or when the file system refuses direct writes after all.
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
            written = os.pwritev(self.descriptor, [data], offset, os.RWF_DSYNC if durably else 0)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED_ERRNOS:
                raise
            return False
        if written < len(data):
            pwrite_all(self.descriptor, [data[written:]], offset + written)
            if durably:
                os.fdatasync(self.descriptor)
        return True

    def read_into(self, buffer: memoryview, offset: int) -> int | None:
        """Fill ``buffer`` from ``offset`` on, up to the file's end; return the number of bytes, or
        None if the file system refuses direct reads."""
        filled = 0
        with self._staging.lend() as staging:
            while filled < len(buffer):
                skipped = (offset + filled) % BLOCK_BYTES
                wanted = min(skipped + len(buffer) - filled, STAGING_BYTES)
                length = (wanted + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
                try:
                    start = offset + filled - skipped
                    count = os.preadv(self.descriptor, [staging[:length]], start)
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
        """Return ``length`` bytes from ``offset`` on, or fewer at the end of the file; None if the
        file system refuses direct reads.

        The result is a part of ``memory``, which must begin at a page and be two blocks longer than
        ``length``.
        """
        skipped = offset % BLOCK_BYTES
        start, wanted = offset - skipped, skipped + length
        rounded = (wanted + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        try:
            filled = read_in_pieces(self.descriptor, memory[:rounded], start, READ_PIECE_BYTES)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED_ERRNOS:
                raise
            return None
        return memory[skipped : max(skipped, min(filled, wanted))]

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
