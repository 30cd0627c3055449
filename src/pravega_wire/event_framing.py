"""Events inside segment data: each is an int32 zero, an int32 length, and the bytes.

Owns: that framing. Servers never look at it; it is what clients write and read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pravega_wire.codec import HEADER, HEADER_BYTES, Buffer
from pravega_wire.errors import RemoteProtocolError

_EVENT_CODE = 0


def frame_event(data: Buffer) -> bytes:
    """One event as it lies in a segment."""
    return HEADER.pack(_EVENT_CODE, len(data)) + bytes(data)


def frame_events(events: Iterable[Buffer]) -> bytes:
    """Many events as they lie in a segment, one behind the other."""
    return b"".join([frame_event(event) for event in events])


def iterate_events(buffer: Buffer) -> Iterator[bytes]:
    """The complete events at the start of ``buffer``; an incomplete one at its end is left out.

    Raises ``RemoteProtocolError`` where something else than an event stands.
    """
    for start, end in iterate_event_spans(buffer):
        yield bytes(buffer[start:end])


def iterate_event_spans(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, int]]:
    """Like ``iterate_events``, but only where each event's bytes start and end.

    The next event's frame begins where the last one's bytes end.
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
