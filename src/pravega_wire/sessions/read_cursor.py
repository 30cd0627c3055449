"""The position of a reader in a stream, without I/O: bytes of segments in, events out.

Owns: ``SegmentCursor``, the position in one segment, and ``SegmentOrder``, which segments are read.

A cursor's ``offset`` is that of the next byte to request; its ``pending`` are the last received
bytes, which begin an incomplete event. The next request begins behind them:

    offset 0: 25 bytes come, an event of 20 bytes with its header and 5 bytes of the next one
    feed(...) returns the first event; offset 25, pending 5 bytes
    offset 25: 15 bytes come; feed(...) returns the second event; offset 40, nothing pending

Invariants:
1. When the bytes of a segment come in other pieces, the same events come out. Held by
   ``test_events_come_out_alike_however_their_bytes_come``.
2. When segments are merged or split, a successor is read only after all of its predecessors were
   read to their ends. Held by ``test_a_segment_is_read_after_all_of_its_predecessors``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pravega_wire import commands as wire
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.sessions.routes import Successor


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """An event, and the offset of its header in its segment, which has this id and this name."""

    data: bytes
    segment_id: int
    offset: int
    segment: str

    @property
    def stream(self) -> str:
        """Return the stream of the event, ``SCOPE/STREAM``."""
        return self.segment.rpartition("/")[0]


@dataclass(slots=True, eq=False)
class SegmentCursor:
    """The position of the reader in one segment. ``end`` is an offset at which to stop."""

    segment_id: int
    name: str
    offset: int
    end: int | None
    pending: bytes = b""
    is_sealed: bool = False
    is_gone: bool = False
    """True when the segment stores do not have the segment any more."""

    @property
    def is_at_end(self) -> bool:
        """Return whether nothing is left to request."""
        return self.is_sealed or (self.end is not None and self.offset >= self.end)

    def bytes_wanted(self, bytes_max: int) -> int:
        """Return how many bytes to request next."""
        return bytes_max if self.end is None else min(bytes_max, self.end - self.offset)

    def take(self, reply: wire.Reply) -> list[ReadEvent] | None:
        """Return the events that a reply to the request completes; None if it is of another kind.

        Raises ``RemoteProtocolError`` for bytes that are no events.
        """
        if isinstance(reply, wire.SegmentRead):
            events = self.feed(reply.data)
            self.is_sealed = reply.end_of_segment
            return events
        if isinstance(reply, wire.SegmentIsSealed):
            self.is_sealed = True
        elif isinstance(reply, wire.NoSuchSegment):
            self.skip_to(self.offset)
            self.is_sealed = self.is_gone = True
        elif isinstance(reply, wire.SegmentIsTruncated):
            self.skip_to(max(reply.start_offset, self.offset))
        else:
            return None
        return []

    def feed(self, data: bytes) -> list[ReadEvent]:
        """Add the next bytes of the segment, and return the events that they complete.

        Raises ``RemoteProtocolError`` for bytes that are no events.
        """
        first = self.offset - len(self.pending)
        buffer = self.pending + data if self.pending else data
        consumed = 0
        events = []
        try:
            for start, end in iterate_event_spans(buffer):
                offset = first + consumed
                events.append(ReadEvent(buffer[start:end], self.segment_id, offset, self.name))
                consumed = end
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"segment {self.name} does not hold events, perhaps a byte stream: {error}"
            ) from error
        self.pending = buffer[consumed:]
        self.offset += len(data)
        return events

    def skip_to(self, offset: int) -> None:
        """Continue at an offset after the bytes that a truncation deleted."""
        self.offset = offset
        self.pending = b""


class SegmentOrder:
    """The segments of a stream that are read, from the first ones on."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._completed: set[int] = set()

    def begin(self, segment: int) -> None:
        """Note that a segment is read from now on."""
        self._open.add(segment)

    def complete(self, segment: int, successors: Iterable[Successor]) -> list[int]:
        """Note that a segment was read to its end; return those that are to be read now."""
        self._open.discard(segment)
        self._completed.add(segment)
        found = [
            each.range.segment_id for each in successors if each.predecessors <= self._completed
        ]
        return [each for each in found if each not in self._open and each not in self._completed]
