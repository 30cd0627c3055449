"""Long history: many readers of segments that were written long ago, straight over the wire.

Readers of their own process: `python -m benchmarks.history PORT READERS BYTES`.

1. Whoever reads has asked for READ_BYTES at a time and sees that all bytes are those written.
2. What the client does costs as little as can be: it receives into memory that it uses again.
3. The disk is read in the same sizes, by as many threads, past the page cache.
4. The tail's latency is from the sending of a block to when a parked read at another connection
   has it.
"""

import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from benchmarks.block_load import BlockLoadFailedError, BlockSender, expect, wait_until_served
from pravega_wire.blocking import SegmentConnection
from pravega_wire.codec import decode, encode
from pravega_wire.commands import HELLO, ReadSegment, SegmentRead

HOST = "127.0.0.1"
MIB = 1 << 20
READ_BYTES = MIB
HEAD_BYTES_MAX = 4096
EXPECTED_BYTES = 32 * 1024
BLOCK_BYTES = 256 * 1024
OUTSTANDING_BLOCKS = 8
TAIL_INTERVAL_SECONDS = 0.004
TAIL_BLOCK = bytes(1000)
FRAME = struct.Struct(">ii")
SETTLED_SECONDS = 2.0


def segment_name(number: int) -> str:
    """Return the name of the one segment of a stream."""
    return f"scale/stream{number}/0.#epoch.0"


def byte_of(number: int) -> bytes:
    """Return the byte that a segment consists of."""
    return bytes([65 + number % 26])


def length_of(history_bytes: int, readers: int) -> int:
    """Return the length of each reader's segment: whole blocks."""
    return max(1, history_bytes // readers // BLOCK_BYTES) * BLOCK_BYTES


def write_history(port: int, *, readers: int, length: int) -> float:
    """Write a segment for each reader, side by side; return the seconds it took."""

    def write(number: int) -> None:
        wait_until_served(HOST, port, segment_name(number))
        with SegmentConnection(HOST, port) as connection:
            sender = BlockSender(
                connection,
                data=byte_of(number) * BLOCK_BYTES,
                segment=segment_name(number),
                writer_id=b"history%09d" % number,
            )
            sender.send_all(length // BLOCK_BYTES, outstanding_max=OUTSTANDING_BLOCKS)

    begun = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(write, range(readers)))
    return time.perf_counter() - begun


def wait_until_stored(directory: Path, *, bytes_min: int, seconds_max: float) -> None:
    """Wait until the files below a directory have this many bytes, or until the time is over."""
    deadline = time.perf_counter() + seconds_max
    while time.perf_counter() < deadline:
        length = 0
        for path in _files_of(directory):
            # A running server also removes files.
            with suppress(FileNotFoundError):
                length += path.stat().st_size
        if length >= bytes_min:
            return
        time.sleep(SETTLED_SECONDS)


def forget_pages(directory: Path) -> list[Path]:
    """Remove the files below a directory from the page cache; return them.

    A server that runs may remove files meanwhile.
    """
    files: list[Path] = []
    for path in _files_of(directory):
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            files.append(path)
    return files


def _files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def disk_bytes_per_second(files: Sequence[Path], *, threads: int) -> float:
    """Measure the rate at which the disk serves this many readers, past the page cache."""
    buffers = threading.local()

    def read(path: Path) -> int:
        total = 0
        buffer = getattr(buffers, "buffer", None)
        if buffer is None:
            buffer = buffers.buffer = mmap.mmap(-1, READ_BYTES)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            descriptor = os.open(path, os.O_RDONLY)  # this file system knows no other way
        while taken := os.preadv(descriptor, [buffer], total):
            total += taken
            if taken % 4096:
                break
        os.close(descriptor)
        return total

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, files))
    return total / (time.perf_counter() - begun)


class HistoryReader:
    """One connection that reads one segment from its beginning to ``length``."""

    def __init__(self, port: int, number: int, length: int) -> None:
        self._segment = segment_name(number)
        self._expected = byte_of(number) * EXPECTED_BYTES
        self._length = length
        self._buffer = bytearray(READ_BYTES + HEAD_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._greeted = False
        self.offset = 0
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(encode(HELLO))
        self._ask()
        self.socket.setblocking(False)

    @property
    def is_done(self) -> bool:
        """Return whether it has read everything."""
        return self.offset >= self._length

    def receive(self) -> None:
        """Take what is there."""
        taken = self.socket.recv_into(self._view[self._filled :])
        if not taken:
            raise BlockLoadFailedError("the server closed the connection")
        self._filled += taken
        while self._filled >= FRAME.size:
            code, length = FRAME.unpack_from(self._buffer)
            end = FRAME.size + length
            if self._filled < end:
                return
            if self._greeted:
                self._take(code, end)
            self._greeted = True
            rest = self._filled - end
            self._buffer[:rest] = self._buffer[end : self._filled]
            self._filled = rest

    def _take(self, code: int, end: int) -> None:
        """Take one whole reply, of which all but the data is decoded."""
        head_end = FRAME.size + 2 + len(self._segment) + 8 + 1 + 1 + 4
        data_end = end - 8
        tail = bytes(self._buffer[data_end:end])
        head = bytes(self._buffer[FRAME.size : head_end - 4]) + bytes(4)
        reply = decode(code, head + tail)
        expect(reply, SegmentRead)
        assert isinstance(reply, SegmentRead)
        if reply.offset != self.offset or not self._is_as_written(head_end, data_end):
            raise BlockLoadFailedError(f"{reply.segment} has other bytes than were written")
        self.offset += data_end - head_end
        if not self.is_done:
            self._ask()

    def _is_as_written(self, start: int, end: int) -> bool:
        expected = self._expected
        for place in range(start, end, len(expected)):
            if end - place < len(expected):
                expected = expected[: end - place]
            if not self._buffer.startswith(expected, place):
                return False
        return True

    def _ask(self) -> None:
        wanted = min(READ_BYTES, self._length - self.offset)
        request = ReadSegment(self._segment, self.offset, wanted, "", self.offset // READ_BYTES)
        self.socket.send(encode(request))


def read_history(port: int, readers: int, length: int) -> dict[str, float]:
    """Read all segments from their beginnings at once; for a process of its own."""
    selector = DefaultSelector()
    begun = time.perf_counter()
    all_readers = [HistoryReader(port, number, length) for number in range(readers)]
    for reader in all_readers:
        selector.register(reader.socket, EVENT_READ, reader)
    while selector.get_map():
        for key, _ in selector.select():
            key.data.receive()
            if key.data.is_done:
                selector.unregister(key.data.socket)
    seconds = time.perf_counter() - begun
    for reader in all_readers:
        reader.socket.close()
    return {
        "seconds": seconds,
        "bytes": float(sum(reader.offset for reader in all_readers)),
        "cpu_seconds": time.process_time(),
    }


def readers_of_history(port: int, *, readers: int, length: int) -> dict[str, float]:
    """Return what ``read_history`` found in a process of its own. Raises BlockLoadFailedError."""
    command = [sys.executable, "-m", "benchmarks.history", *map(str, (port, readers, length))]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BlockLoadFailedError(f"the readers of history ended with {done.returncode}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def tail_latencies(port: int, number: int, until: threading.Event) -> list[float]:
    """Return latencies in ms, ascending: from sending a block to reading it at the tail, until
    the event."""
    found = []
    with SegmentConnection(HOST, port) as writing, SegmentConnection(HOST, port) as reading:
        sender = BlockSender(
            writing,
            data=TAIL_BLOCK,
            segment=segment_name(number),
            writer_id=b"history%09d" % number,
        )
        offset = 0
        while not until.wait(TAIL_INTERVAL_SECONDS):
            request_id = reading.next_request_id()
            reading.send(ReadSegment(segment_name(number), offset, READ_BYTES, "", request_id))
            begun = time.perf_counter()
            sender.send_all(1, outstanding_max=1)
            reply = reading.receive()
            found.append((time.perf_counter() - begun) * 1000)
            expect(reply, SegmentRead)
            assert isinstance(reply, SegmentRead)
            offset += len(reply.data)
    return sorted(found)


if __name__ == "__main__":
    print(json.dumps(read_history(*map(int, sys.argv[1:4]))))
