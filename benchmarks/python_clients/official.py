"""The official client: ``python -m benchmarks.python_clients.official ADDRESS WORK ...``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from benchmarks.python_clients.works import SCOPE, Taken, Watch, Work, list_keys, run_works


async def write(manager: Any, work: Work) -> Taken:
    """Write events, and wait until all are acknowledged."""
    data = bytes(work.event_bytes)
    writer = manager.create_writer(SCOPE, work.stream)
    watch = Watch()
    for _ in range(work.count):
        writer.write_event_bytes(data)
    writer.flush()
    return watch.stop()


async def write_keys(manager: Any, work: Work) -> Taken:
    """Write the same with keys."""
    data, keys = bytes(work.event_bytes), list_keys()
    writer = manager.create_writer(SCOPE, work.stream)
    watch = Watch()
    for number in range(work.count):
        writer.write_event_bytes(data, routing_key=keys[number % len(keys)])
    writer.flush()
    return watch.stop()


async def read(manager: Any, work: Work) -> Taken:
    """Read event by event, out of the slices of a segment that the client gives."""
    group = manager.create_reader_group(work.group, SCOPE, work.stream)
    reader = group.create_reader("reader")
    watch = Watch()
    left, total_bytes = work.count, 0
    while left > 0:
        found = await reader.get_segment_slice_async()
        for event in found:
            total_bytes += len(event.data())
            left -= 1
        reader.release_segment(found)
    taken = watch.stop()
    reader.reader_offline()
    work.check(total_bytes)
    return taken


async def main() -> None:
    """Connect, and do the work."""
    import pravega_client

    manager = pravega_client.StreamManager(sys.argv[1])
    await run_works(
        {
            "write": lambda work: write(manager, work),
            "write-keys": lambda work: write_keys(manager, work),
            "read": lambda work: read(manager, work),
        }
    )


if __name__ == "__main__":
    asyncio.run(main())
