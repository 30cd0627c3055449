"""Events inside segment data: each is an int32 zero, an int32 length, and the bytes.

Owns: that framing. Clients write and read it. Servers store the bytes without looking at them.
"""

from __future__ import annotations

from collections.abc import Iterator

from _fast.wire.events import frame_events
from pravega_wire.codec import HEADER, HEADER_BYTES, Buffer
from pravega_wire.errors import RemoteProtocolError

__all__ = [
    "count_missing_bytes",
    "frame_event",
    "frame_events",
    "frame_header",
    "iterate_event_spans",
]

_EVENT_CODE = 0


def frame_header(data: Buffer) -> bytes:
    """Return the header of an event."""
    return HEADER.pack(_EVENT_CODE, len(data))


def frame_event(data: Buffer) -> bytes:
    """Return one event with its header, as it is stored in a segment."""
    return frame_header(data) + bytes(data)


def iterate_event_spans(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each event's bytes, which follow its header.

    An incomplete last event is left out. Raises ``RemoteProtocolError`` for bytes that are no
    event.
    """
    while len(buffer) - position >= HEADER_BYTES:
        code, length = HEADER.unpack_from(buffer, position)
        if code != _EVENT_CODE or length < 0:
            raise RemoteProtocolError(f"no event at position {position}")
        start = position + HEADER_BYTES
        if length > len(buffer) - start:
            return
        position = start + length
        yield start, position


def count_missing_bytes(buffer: Buffer) -> int:
    """Return how many bytes an incomplete event lacks: of its header first, then of all of it."""
    if len(buffer) < HEADER_BYTES:
        return HEADER_BYTES - len(buffer)
    _, length = HEADER.unpack_from(buffer)
    return HEADER_BYTES + int(length) - len(buffer)
