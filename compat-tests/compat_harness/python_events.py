"""Events, written and read with the official Python client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from foreign_servers.deadlines import scale

READ_SECONDS_MAX = scale(60.0)


def write(writer: Any, events: Iterable[str]) -> None:
    """Write events, each with itself as its routing key; return when they are acknowledged."""
    for event in events:
        writer.write_event(event, routing_key=event)
    writer.flush()


def read(
    streams: Any, count: int, *, group: str = "g", scope: str = "s", stream: str = "a"
) -> list[bytes]:
    """Read so many events with a new reader of a group, which is made if it is not there."""

    async def take() -> list[bytes]:
        readers = streams.create_reader_group(group, scope, stream)
        reader = readers.create_reader(f"r-{time.time_ns()}")
        events: list[bytes] = []
        while len(events) < count:
            slice_ = await reader.get_segment_slice_async()
            events += [bytes(event.data()) for event in slice_]
            reader.release_segment(slice_)
        reader.reader_offline()
        return events

    return asyncio.run(asyncio.wait_for(take(), READ_SECONDS_MAX))
