"""A minimal server of history: readers measure with it how much the machine can give at most.

A process of its own: `python -m benchmarks.least_server DIRECTORY` writes its port, and goes on
until it is killed.

1. It knows nothing but the files below the directory: no segments, no appends, no event loop. Each
   connection has a process, which reads past the page cache into memory that it uses again, and
   sends from there: nobody waits for an interpreter.
2. Its readers see that all bytes are those written, as they do of a store.
"""

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foreign_servers.tied_processes import tied

from benchmarks.history import HOST, READ_BYTES, forget_pages, segment_name
from pravega_wire.codec import encode
from pravega_wire.commands import HELLO, ReadSegment, SegmentRead
from pravega_wire.connection import Connection, Role
from segstore.network.replies import around_data

PAGE_BYTES = 4096
REQUEST_BYTES_MAX = 4096


class ServedSegment:
    """The files of one segment, in any order: it has the same byte everywhere."""

    def __init__(self, paths: list[Path]) -> None:
        self._files = [(_open(path), path.stat().st_size) for path in paths]

    def _place(self, offset: int) -> tuple[int, int, int]:
        """Return the file that has a byte, the byte's offset in it, and the number of bytes from
        there."""
        for descriptor, length in self._files:
            if offset < length:
                return descriptor, offset, length - offset
            offset -= length
        raise ValueError(f"{offset} bytes behind the end nothing is stored")

    def read(self, memory: mmap.mmap, offset: int, length_max: int) -> memoryview:
        """Read bytes from ``offset`` on, of one file."""
        descriptor, offset, length = self._place(offset)
        skipped = offset % PAGE_BYTES
        end = skipped + min(length_max, length, READ_BYTES)
        rounded = -(-end // PAGE_BYTES) * PAGE_BYTES
        with memoryview(memory) as whole:
            os.preadv(descriptor, [whole[:rounded]], offset - skipped)
        return memoryview(memory)[skipped:end]


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return os.open(path, os.O_RDONLY)  # this file system knows no other way


def serve(connection: socket.socket, segments: dict[str, ServedSegment]) -> None:
    """Answer one reader until it has gone."""
    memory = mmap.mmap(-1, READ_BYTES + 2 * PAGE_BYTES)
    protocol = Connection(Role.SERVER)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while received := connection.recv(REQUEST_BYTES_MAX):
            for request in protocol.receive_data(received):
                if not isinstance(request, ReadSegment):
                    connection.sendall(encode(HELLO))
                    continue
                data = segments[request.segment].read(
                    memory, request.offset, request.suggested_length
                )
                reply = SegmentRead(
                    request.segment, request.offset, False, False, b"", request.request_id
                )
                head, tail = around_data(reply, len(data))
                sent = connection.sendmsg([head, data, tail])
                for part in (head, data, tail):
                    if sent < len(part):
                        connection.sendall(memoryview(part)[sent:])
                    sent = max(0, sent - len(part))


def main(directory: Path) -> None:
    """Serve until killed."""
    by_segment: dict[str, list[Path]] = {}
    for path in sorted(directory.rglob("*")):
        stream = next((part for part in path.parts if part.startswith("stream")), "")
        # The tail's segments and what belongs to no bytes of a stream are small.
        if path.is_file() and path.stat().st_size >= READ_BYTES and stream:
            number = int(stream.removeprefix("stream"))
            by_segment.setdefault(segment_name(number), []).append(path)
    segments = {name: ServedSegment(paths) for name, paths in by_segment.items()}
    with socket.create_server((HOST, 0), backlog=64) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                serve(connection, segments)
                os._exit(0)
            connection.close()


@contextmanager
def serving(directory: Path) -> Iterator[int]:
    """Run the least server for the files that a store left below a directory; yield its port."""
    forget_pages(directory)
    command = [sys.executable, "-m", "benchmarks.least_server", str(directory)]
    with subprocess.Popen(tied(command), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
