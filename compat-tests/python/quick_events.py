"""Two events written together, again and again: ``python quick_events.py CONTROLLER TRIES``.

For each try it prints 1 if the reader got them in two slices, and otherwise 0.
"""

import asyncio
import sys
import uuid
from typing import Any

import pravega_client


async def gets_two_slices(reader: Any, writer: Any) -> bool:
    """Return whether the events that are written now come in two slices."""
    coming = asyncio.ensure_future(reader.get_segment_slice_async())
    writer.write_event("first", routing_key="key")
    writer.write_event("second", routing_key="key")
    slice_count = event_count = 0
    while event_count < 2:
        slice_ = await coming
        events = list(slice_ or ())
        event_count += len(events)
        slice_count += bool(events)
        reader.release_segment(slice_)
        if event_count < 2:
            coming = asyncio.ensure_future(reader.get_segment_slice_async())
    assert event_count == 2
    return slice_count == 2


def main(controller_uri: str, tries: int) -> None:
    """Try as often as is asked for, each time with a stream and a group of its own."""
    streams = pravega_client.StreamManager(controller_uri)
    scope = f"quick-{uuid.uuid4().hex[:8]}"
    streams.create_scope(scope)
    for number in range(tries):
        stream = f"stream-{number}"
        streams.create_stream(scope, stream, 1)
        group = streams.create_reader_group(f"group-{number}", scope, stream)
        reader = group.create_reader("reader")
        writer = streams.create_writer(scope, stream)
        print(int(asyncio.run(gets_two_slices(reader, writer))), flush=True)
        reader.reader_offline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
