"""The journal's writer on io_uring, for `bench_journal.py` alone: what would it gain?

The ring is reached by raw system calls through cffi, so that no library needs to be installed.
One batch is one submission: a vectored write with `RWF_DSYNC`, whose completion rings an eventfd
on which the event loop waits. There is no thread, and the interpreter's lock is held only while a
batch is encoded and submitted.
"""

import errno
import mmap
import os
from collections.abc import Callable
from typing import Any

import cffi
import trio

from segstore.tiers.api import Buffer
from segstore.tiers.journal.disk import LocalFile, joined_if_small
from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.journal.writer import BatchWriter, PreparedBatch, WrittenBatch

SYS_IO_URING_SETUP, SYS_IO_URING_ENTER, SYS_IO_URING_REGISTER = 425, 426, 427
OP_WRITEV = 2
REGISTER_EVENTFD = 4
OFFSET_SQ, OFFSET_CQ, OFFSET_SQES = 0, 0x8000000, 0x10000000
FLAG_ASYNC = 1 << 4

ffi = cffi.FFI()
ffi.cdef(
    """
    long syscall(long number, ...);
    struct iovec { void *base; size_t length; };
    struct sq_offsets {
        uint32_t head, tail, mask, entries, flags, dropped, array, r1; uint64_t r2;
    };
    struct cq_offsets {
        uint32_t head, tail, mask, entries, overflow, cqes, flags, r1; uint64_t r2;
    };
    struct params {
        uint32_t sq_entries, cq_entries, flags, sq_cpu, sq_idle, features, wq_fd, r[3];
        struct sq_offsets sq; struct cq_offsets cq;
    };
    struct sqe {
        uint8_t opcode, flags; uint16_t ioprio; int32_t fd; uint64_t off, addr;
        uint32_t len, rw_flags;
        uint64_t user_data; uint64_t rest[3];
    };
    struct cqe { uint64_t user_data; int32_t res; uint32_t flags; };
    """
)
libc = ffi.dlopen(None)


class Ring:
    """A ring that holds one submission at a time."""

    def __init__(self) -> None:
        params = ffi.new("struct params *")
        self.fd = int(libc.syscall(SYS_IO_URING_SETUP, ffi.cast("long", 8), params))
        if self.fd < 0:
            raise OSError(ffi.errno, os.strerror(ffi.errno), "io_uring_setup")
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        registered = ffi.new("int *", self.event_fd)
        libc.syscall(
            SYS_IO_URING_REGISTER,
            ffi.cast("long", self.fd),
            ffi.cast("long", REGISTER_EVENTFD),
            registered,
            ffi.cast("long", 1),
        )
        sq, cq = params.sq, params.cq
        self._sq_map = mmap.mmap(self.fd, sq.array + 4 * params.sq_entries, offset=OFFSET_SQ)
        self._cq_map = mmap.mmap(self.fd, cq.cqes + 16 * params.cq_entries, offset=OFFSET_CQ)
        self._sqe_map = mmap.mmap(self.fd, 64 * params.sq_entries, offset=OFFSET_SQES)
        sq_base, cq_base = ffi.from_buffer(self._sq_map), ffi.from_buffer(self._cq_map)
        self._sq_tail = ffi.cast("uint32_t *", sq_base + sq.tail)
        self._sq_array = ffi.cast("uint32_t *", sq_base + sq.array)
        self._sq_mask = int(ffi.cast("uint32_t *", sq_base + sq.mask)[0])
        self._cq_head = ffi.cast("uint32_t *", cq_base + cq.head)
        self._cq_tail = ffi.cast("uint32_t *", cq_base + cq.tail)
        self._cqes = ffi.cast("struct cqe *", cq_base + cq.cqes)
        self._cq_mask = int(ffi.cast("uint32_t *", cq_base + cq.mask)[0])
        self._sqes = ffi.cast("struct sqe *", ffi.from_buffer(self._sqe_map))
        self._kept: list[Any] = []

    def write_durably(self, fd: int, buffers: list[Buffer], offset: int) -> None:
        """Submit one vectored write; at most IOV_MAX buffers."""
        views = [ffi.from_buffer(buffer) for buffer in buffers if len(buffer)]
        vector = ffi.new("struct iovec[]", len(views))
        for index, view in enumerate(views):
            vector[index].base = view
            vector[index].length = len(view)
        self._kept = [views, vector]
        index = self._sq_tail[0] & self._sq_mask
        entry = self._sqes[index]
        ffi.memmove(ffi.addressof(entry), bytes(64), 64)
        entry.opcode, entry.fd, entry.off = OP_WRITEV, fd, offset
        entry.flags = FLAG_ASYNC
        entry.addr, entry.len = int(ffi.cast("uintptr_t", vector)), len(views)
        entry.rw_flags = os.RWF_DSYNC
        self._sq_array[index] = index
        self._sq_tail[0] += 1
        arguments = [ffi.cast("long", value) for value in (self.fd, 1, 0, 0)]
        done = int(libc.syscall(SYS_IO_URING_ENTER, *arguments, ffi.NULL, ffi.cast("long", 0)))
        if done != 1:
            raise OSError(ffi.errno, os.strerror(ffi.errno), "io_uring_enter")

    def result(self) -> int | None:
        """Return the result of the write, or None while it is under way."""
        head = self._cq_head[0]
        if head == self._cq_tail[0]:
            return None
        result = int(self._cqes[head & self._cq_mask].res)
        self._cq_head[0] = head + 1
        self._kept = []
        return result

    def close(self) -> None:
        """Close the ring."""
        os.close(self.event_fd)
        os.close(self.fd)


class UringRunner:
    """A `WriterRunner`."""

    def __init__(self) -> None:
        self._ring = Ring()
        self._woken = trio.Event()
        self._stopping = False

    def wake(self) -> None:
        """Wake the task."""
        self._woken.set()

    def stop(self) -> None:
        """Ask the task to end."""
        self._stopping = True
        self._woken.set()

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: Callable[[WrittenBatch], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Write until stopped."""
        task_status.started()
        try:
            while True:
                batch = writer.prepare()
                if batch is not None:
                    error = await self._write(batch)
                    over = writer.not_written(batch, error) if error else writer.written(batch)
                    assert over is not None, "the benchmark needs a disk that is not full"
                    on_batch(over)
                elif self._stopping:
                    break
                else:
                    await self._woken.wait()
                    self._woken = trio.Event()
            writer.mark_end(durably=True)
        finally:
            self._ring.close()

    async def _write(self, batch: PreparedBatch) -> OSError | None:
        file = batch.file.disk_file
        assert isinstance(file, LocalFile)
        buffers = list(joined_if_small(batch.encode()))
        if len(buffers) > 1000:
            buffers = [b"".join(buffers)]
        self._ring.write_durably(file._descriptor, buffers, batch.offset)
        while (result := self._ring.result()) is None:
            await trio.lowlevel.wait_readable(self._ring.event_fd)
            os.eventfd_read(self._ring.event_fd)
        if result < 0:
            return OSError(-result, os.strerror(-result))
        if result != sum(map(len, buffers)):
            return OSError(errno.EIO, "a short write")
        return None
