"""The position of a reader in a stream, without I/O: bytes of segments in, events or bytes out.

Owns: ``SegmentCursor``, the position in one segment, of which ``EventCursor`` and ``ByteCursor``
are kinds, and ``SegmentOrder``, which segments are read.

A cursor's ``offset`` is that of the next byte to request; the ``pending`` of one of events are the
last received bytes, which begin an incomplete event. The next request begins behind them:

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from _fast.wire.events import EventError, ReadEvent, split_events
from pravega_wire import commands as wire
from pravega_wire.errors import RemoteProtocolError, TruncatedBytesError
from pravega_wire.event_framing import count_missing_bytes
from pravega_wire.sessions.routes import Successor

__all__ = ["ByteCursor", "EventCursor", "ReadEvent", "SegmentCursor", "SegmentOrder"]

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class SegmentCursor(ABC, Generic[T]):
    """The position of the reader in one segment. ``end`` is an offset at which to stop."""

    segment_id: int
    name: str
    offset: int
    end: int | None
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

    def take(self, reply: wire.Reply) -> list[T] | None:
        """Return what a reply to the request brings; None if it is of another kind.

        Raises errors as ``feed`` and ``skip_to``.
        """
        if isinstance(reply, wire.SegmentRead):
            found = self.feed(reply.data)
            self.is_sealed = reply.end_of_segment
            return found
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

    @abstractmethod
    def feed(self, data: bytes) -> list[T]:
        """Add the next bytes of the segment, and return what they complete."""

    @abstractmethod
    def skip_to(self, offset: int) -> None:
        """Continue at an offset after the bytes that a truncation deleted."""


@dataclass(slots=True, eq=False)
class EventCursor(SegmentCursor[ReadEvent[Any]]):
    """The position in a segment of events, which get their values by ``decode``."""

    decode: Callable[[ReadEvent[Any]], Any] | None = None
    _pieces: list[bytes] = field(default_factory=list)
    """The received bytes of an incomplete event."""
    _missing_bytes: int = 0
    """Number of bytes that have to come before it is complete, or more are known to be missing."""

    @property
    def pending(self) -> bytes:
        """Return the received bytes of an incomplete event."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> list[ReadEvent[Any]]:
        """Add the next bytes of the segment, and return the events that they complete.

        Raises ``RemoteProtocolError`` for bytes that are no events.
        """
        begun: list[ReadEvent[Any]] = []
        position = 0
        # Only the bytes of the event that had begun are joined with those before: of a long event,
        # which comes in many pieces, once.
        while self._pieces and position < len(data):
            taken = data[position : position + self._missing_bytes]
            position += len(taken)
            self._pieces.append(taken)
            self._missing_bytes -= len(taken)
            if not self._missing_bytes:
                joined = b"".join(self._pieces)
                begun, consumed = self._split(joined, self.offset + position - len(joined))
                self._keep(joined[consumed:])
        events, consumed = self._split(data, self.offset, position)
        if position < len(data):
            self._keep(data[consumed:])
        self.offset += len(data)
        return begun + events if begun else events

    def _split(
        self, data: bytes, offset: int, position: int = 0
    ) -> tuple[list[ReadEvent[Any]], int]:
        try:
            return split_events(
                data,
                segment_id=self.segment_id,
                offset=offset,
                segment=self.name,
                position=position,
                decode=self.decode,
            )
        except EventError as error:
            raise RemoteProtocolError(
                f"segment {self.name} does not hold events, perhaps a byte stream: {error}"
            ) from error

    def _keep(self, rest: bytes) -> None:
        """Keep the beginning of an incomplete event, if there is one."""
        self._pieces = [rest] if rest else []
        self._missing_bytes = count_missing_bytes(rest)

    def skip_to(self, offset: int) -> None:
        """Continue at an offset after the bytes that a truncation deleted."""
        self.offset = offset
        self._pieces = []
        self._missing_bytes = 0


@dataclass(slots=True, eq=False)
class ByteCursor(SegmentCursor[bytes]):
    """The position in a segment of bytes. Those that are asked for must not be missing."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the next bytes of the segment as one piece; none if there are no bytes."""
        self.offset += len(data)
        return [data] if data else []

    def skip_to(self, offset: int) -> None:
        """Raise ``TruncatedBytesError`` if bytes are missing before an offset."""
        if offset > self.offset:
            raise TruncatedBytesError(self.offset, offset)


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
