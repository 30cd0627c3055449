"""The events by which a segment store tells controllers about the load of segments.

Owns: ``AutoScaleEvent`` and its bytes, which are the original's, so that either side understands
the other's. It is the payload of an event of the stream ``_system/_requeststream``, written under
the routing key ``scope/stream``.

    payload = [ byte 0 | byte 2 | record of version 0 with one revision ]
    revision 0 = scope, stream, int64 segment id, byte direction, int64 time, splits, silent,
                 int64 request id

The first two bytes are the kind of an event between controllers; this is number 2.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from pravega_wire import names
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.versioned import (
    COMPACT_INT_MAX,
    FORMAT,
    VersionedReader,
    write_compact_int,
    write_text,
    write_versioned,
)

REQUEST_STREAM = "_requeststream"
"""Name of the stream, in the internal scope, to which the events are written."""

EVENT_TYPE = 2
_INT64 = struct.Struct(">q")


class ScaleDirection(enum.IntEnum):
    """Direction in which the load of a segment requires its stream to scale."""

    UP = 0
    DOWN = 1


@dataclass(frozen=True, slots=True)
class AutoScaleEvent:
    """A report that a segment's load is above or below the rate of its stream's scaling policy."""

    scope: str
    stream: str
    segment_id: int
    direction: ScaleDirection
    time_ms: int
    """Time of the observation, in milliseconds since 1970."""
    splits: int = 0
    """Number of segments that the load needs; meaningless for ``DOWN``."""
    silent: bool = False
    """True if nobody has written for so long that the store sends no further event about it."""
    request_id: int = 0

    @property
    def routing_key(self) -> str:
        return names.scoped_name(self.scope, self.stream)


def encode_auto_scale(event: AutoScaleEvent) -> bytes:
    """Return the payload of an event."""
    data = (
        write_text(event.scope)
        + write_text(event.stream)
        + _INT64.pack(event.segment_id)
        + bytes([event.direction])
        + _INT64.pack(event.time_ms)
        + write_compact_int(min(event.splits, COMPACT_INT_MAX))
        + bytes([event.silent])
        + _INT64.pack(event.request_id)
    )
    record = write_versioned([data])
    # The second byte, the version of other records, is the number of the kind of event here.
    return bytes([FORMAT, EVENT_TYPE]) + record[1:]


def decode_auto_scale(payload: bytes) -> AutoScaleEvent | None:
    """Return the event in a payload; None for another kind of event between controllers.

    Raises ``RemoteProtocolError`` for other bytes.
    """
    if len(payload) < 2 or payload[0] != FORMAT:
        raise RemoteProtocolError("a request event does not begin with a zero and its number")
    if payload[1] != EVENT_TYPE:
        return None
    reader = VersionedReader(payload[:1] + payload[2:]).read_revision()
    scope, stream = reader.read_text(), reader.read_text()
    segment_id = reader.read_long()
    direction = reader.read_byte()
    if direction not in (ScaleDirection.UP, ScaleDirection.DOWN):
        raise RemoteProtocolError(f"a segment cannot be scaled in direction {direction}")
    return AutoScaleEvent(
        scope,
        stream,
        segment_id,
        ScaleDirection(direction),
        reader.read_long(),
        reader.read_compact_int(),
        bool(reader.read_byte()),
        reader.read_long(),
    )
