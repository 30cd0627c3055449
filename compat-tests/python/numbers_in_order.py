"""Writes numbers with the official client, or reads them: ``write|read URI FIRST LAST``.

Events of a key are in the order of their numbers, and each number is there once.
"""

import asyncio
import sys
import time

import pravega_client

SCOPE, STREAM = "backup", "numbers"
SEGMENTS = 3
KEYS = 7
READ_SECONDS_MAX = 60.0


def connect(uri: str) -> pravega_client.StreamManager:
    """Connect to a controller; over TLS as the user of the environment."""
    is_secure = uri.startswith("tls:")
    return pravega_client.StreamManager(uri, is_secure, is_secure)


def write(uri: str, first: int, last: int) -> None:
    """Write the numbers from first to before last."""
    streams = connect(uri)
    if first == 0:
        streams.create_scope(SCOPE)
        streams.create_stream(SCOPE, STREAM, SEGMENTS)
    writer = streams.create_writer(SCOPE, STREAM)
    for number in range(first, last):
        writer.write_event(str(number), routing_key=f"key-{number % KEYS}")
    writer.flush()


async def read(uri: str, count: int) -> list[int]:
    """Read as many numbers as there should be."""
    streams = connect(uri)
    group = streams.create_reader_group(f"group-{time.time_ns()}", SCOPE, STREAM)
    reader = group.create_reader("reader")
    found: list[int] = []
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        segment_slice = await reader.get_segment_slice_async()
        if segment_slice is None:
            continue
        found += [int(event.data().decode()) for event in segment_slice]
        reader.release_segment(segment_slice)
    reader.reader_offline()
    return found


def main() -> None:
    """See the module."""
    what, uri, first, last = sys.argv[1:]
    if what == "write":
        write(uri, int(first), int(last))
        return
    found = asyncio.run(read(uri, int(last)))
    assert sorted(found) == list(range(int(first), int(last))), f"{len(found)} events"
    for key in range(KEYS):
        of_key = [number for number in found if number % KEYS == key]
        assert of_key == sorted(of_key), f"key {key} is out of order"


main()
