"""Events inside segment data: each is an int32 zero, an int32 length, and the bytes.

Owns: that framing. Clients write and read it; servers never look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pravega_wire.codec import HEADER, HEADER_BYTES, Buffer
from pravega_wire.errors import RemoteProtocolError

_EVENT_CODE = 0


def frame_event(data: Buffer) -> bytes:
    """Return one event in the form that it has in a segment."""
    return HEADER.pack(_EVENT_CODE, len(data)) + bytes(data)


def frame_events(events: Iterable[Buffer]) -> bytes:
    """Return many events, one after the other, in the form that they have in a segment."""
    return b"".join([frame_event(event) for event in events])


def iterate_event_spans(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of the bytes of each event, without an incomplete last one.

    The next event's frame begins where the last one's bytes end. Raises ``RemoteProtocolError`` for
    bytes that are no event.
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
