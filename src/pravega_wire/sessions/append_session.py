"""The events of one writer for one segment, without I/O: events in, append blocks out.

Owns: the batch to fill, the blocks that were sent and have no reply yet, and the events' numbers.

A session outlives its connections. On each new one, the store answers ``SetupAppend`` with the
number of the last event that it has of this writer; ``resume`` returns the blocks after it, which
are to be sent again. A writer that fills blocks sees this:

    add(a), add(b)           the batch has two events
    begin_block()            block 1: events 1 and 2
    add(c)
    begin_block()            block 2: event 3
    the connection breaks; on the next one the store has event 2
    resume(2)                block 1 is acknowledged, block 2 is to be sent again
    acknowledge(3)           the session is idle

A session of a byte stream sends its events without headers: they are the pieces in which the bytes
were written. A long event, for which one append has no room, is a block of its own; it is sent by
the steps of ``long_appends``.

Invariants:
1. When a store takes the blocks of ``begin_block`` and ``resume`` in the order of these calls, but
   none whose number it has already, each event is stored once, in the order of ``add``. Held by
   ``test_each_event_is_stored_once_in_order_however_connections_break``.
2. Each event is in the batch, in a block in flight, or counted as acknowledged, also if an
   interrupt comes between two lines; never in two of them at the end of a call. Held by
   ``test_each_event_is_in_one_place`` and
   ``test_each_event_is_in_one_place_when_a_block_is_interrupted``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from pravega_wire.codec import HEADER_BYTES
from pravega_wire.commands import NULL_ATTRIBUTE_VALUE
from pravega_wire.connection import append_block
from pravega_wire.errors import EventTooLongError

EVENT_BYTES_MAX = 8 * 1024 * 1024
"""Maximum length, in bytes, of an event in an append block, as official clients have it."""
LONG_EVENT_BYTES_MAX = 2**31 - 1
"""Maximum length, in bytes, of a long event: the event's header has an int32 for it."""
BATCH_BYTES = 512 * 1024
BATCH_EVENTS_MAX = 8192
BUFFER_BYTES = 16 * 1024 * 1024
"""Number of bytes that may wait to be stored by all sessions of one writer, unless it is told."""
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
BLOCKS_MAX = 256

Event: TypeAlias = tuple[float, bytes] | tuple[float, bytes, Any]
"""The position of an event's key in the key space, the event's bytes, and what the caller adds."""
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Block(Generic[E]):
    """Events that are sent together."""

    events: tuple[E, ...]
    last_event_number: int
    byte_count: int

    @property
    def is_long(self) -> bool:
        """Return whether the block is one event for which an append has no room."""
        return is_long(self.events[0])


class AppendSession(Generic[E]):
    """The events of the writer ``writer_id``, 16 bytes, for one segment.

    ``framed=False`` is for byte streams. With ``takes_long`` there may be long events.
    """

    def __init__(self, writer_id: bytes, *, framed: bool = True, takes_long: bool = False) -> None:
        self.writer_id = writer_id
        self._framed = framed
        self._takes_long = takes_long
        self.acknowledged_events = 0
        self.stored_number = NULL_ATTRIBUTE_VALUE
        """The number of the last event that the segment is known to have; it may have more."""
        self.in_flight: deque[Block[E]] = deque()
        """The blocks that were sent and have no reply yet, in the order of their numbers."""
        self._in_flight_bytes = 0
        self._batch: list[E] = []
        self._batch_bytes = 0
        self._long_count = 0
        """Number of long events in the batch."""
        self._event_number = 0

    # ---- Events ----------------------------------------------------------------------------------

    def add(self, event: E) -> bool:
        """Add an event to the batch, and return whether the batch is ready to be sent.

        Raises ``EventTooLongError`` for one over ``EVENT_BYTES_MAX``, or if the session takes long
        events, over ``LONG_EVENT_BYTES_MAX``.
        """
        length = len(event[1])
        if length > EVENT_BYTES_MAX:
            bytes_max = LONG_EVENT_BYTES_MAX if self._takes_long else EVENT_BYTES_MAX
            if length > bytes_max:
                raise EventTooLongError(f"an event of {length} bytes: at most {bytes_max} fit")
            self._long_count += 1
        self._batch.append(event)
        self._batch_bytes += length + HEADER_BYTES
        return self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_EVENTS_MAX

    def extend(self, data: bytes, bytes_max: int) -> bool:
        """Add bytes to the last event of the batch; return False if there is none, or if it would
        have more than ``bytes_max`` bytes."""
        if not self._batch or len(self._batch[-1][1]) + len(data) > bytes_max:
            return False
        position, present, *others = self._batch[-1]
        self._batch[-1] = cast("E", (position, present + data, *others))
        self._batch_bytes += len(data)
        return True

    def release(self) -> list[E]:
        """Remove and return every event that was not acknowledged, in order."""
        events = self.unacknowledged_events
        self.in_flight.clear()
        self._in_flight_bytes = 0
        self._batch = []
        self._batch_bytes = 0
        self._long_count = 0
        return events

    @property
    def unacknowledged_events(self) -> list[E]:
        """Return every event that was not acknowledged, in order."""
        return [event for block in self.in_flight for event in block.events] + self._batch

    @property
    def last_number(self) -> int:
        """Return the number that the last event has, or will get."""
        return self._event_number + len(self._batch)

    @property
    def last_event(self) -> E | None:
        """Return the last event that was added, unless it has been acknowledged."""
        if self._batch:
            return self._batch[-1]
        return self.in_flight[-1].events[-1] if self.in_flight else None

    @property
    def has_batch(self) -> bool:
        """Return whether events wait to be sent for the first time."""
        return bool(self._batch)

    @property
    def has_long_next(self) -> bool:
        """Return whether all events are stored that were sent before a long one."""
        return bool(self.in_flight) and self.in_flight[0].is_long

    @property
    def is_idle(self) -> bool:
        """Return whether every event that was added has been acknowledged."""
        return not self._batch and not self.in_flight

    @property
    def sent_events(self) -> int:
        """Return the number of events that were acknowledged, or sent and not answered yet."""
        return self.acknowledged_events + sum(len(block.events) for block in self.in_flight)

    @property
    def unacknowledged_bytes(self) -> int:
        """Return the number of bytes of the events, with their headers, that may not be stored."""
        return self._batch_bytes + self._in_flight_bytes

    @property
    def is_full(self) -> bool:
        """Return whether so much is in flight that a reply must come before the next block.

        This bounds the memory of both sides, and the replies in the socket.
        """
        return self._in_flight_bytes > IN_FLIGHT_BYTES_MAX or len(self.in_flight) > BLOCKS_MAX

    # ---- Blocks ----------------------------------------------------------------------------------

    def begin_block(self) -> Block[E]:
        """Remove the next events from the batch, and return them as a block that is in flight.

        It counts as sent from now on: if sending it fails, the store may have it.
        """
        count, byte_count = self._measure_next()
        events = tuple(self._batch[:count])
        block = Block(events, self.number_after(events), byte_count)
        long_count = self._long_count - block.is_long
        # Python interrupts calls, and these lines have none before the last one.
        self._event_number = block.last_event_number
        self._long_count = long_count
        self._batch_bytes -= byte_count
        self._in_flight_bytes += byte_count
        del self._batch[:count]
        self.in_flight.append(block)
        return block

    def encode(self, block: Block[E], request_id: int) -> bytes:
        """Return the frames of a block that is not long; ``request_id`` is that of the connection's
        setup."""
        return append_block(
            self.writer_id,
            [event[1] for event in block.events],
            last_event_number=block.last_event_number,
            request_id=request_id,
            framed=self._framed,
        )

    def acknowledge(self, event_number: int) -> list[Block[E]]:
        """Remove and return the blocks whose events are stored, by the number of the last one."""
        self.stored_number = max(self.stored_number, event_number)
        acknowledged = []
        while self.in_flight and self.in_flight[0].last_event_number <= event_number:
            # If an interrupt comes between these lines, a block counts as sent and as stored: it
            # must not be missing from both counts.
            block = self.in_flight[0]
            self.acknowledged_events += len(block.events)
            self._in_flight_bytes -= block.byte_count
            self.in_flight.popleft()
            acknowledged.append(block)
        return acknowledged

    def resume(self, event_number: int) -> list[Block[E]]:
        """Return the blocks to send again on a new connection, before any other.

        ``event_number`` is that of the last event that the store has of this writer. The blocks
        that are stored have to be taken by ``acknowledge`` before, if their events matter.
        """
        self.acknowledge(event_number)
        return list(self.in_flight)

    def _measure_next(self) -> tuple[int, int]:
        """Return the number of the events of the next block, and of their bytes with the headers:
        all of the batch, or as many as fit one command, or a long one."""
        count, byte_count = len(self._batch), self._batch_bytes
        if self._long_count:
            long = next(index for index, event in enumerate(self._batch) if is_long(event))
            count = long or 1
            byte_count = sum(len(event[1]) + HEADER_BYTES for event in self._batch[:count])
        if byte_count > BATCH_BYTES + EVENT_BYTES_MAX and count > 1:
            count = byte_count = 0
            while byte_count < BATCH_BYTES:
                byte_count += len(self._batch[count][1]) + HEADER_BYTES
                count += 1
        return count, byte_count

    def number_after(self, events: tuple[E, ...]) -> int:
        """Return the number of the last of the next events."""
        return self._event_number + len(events)


def is_long(event: Event) -> bool:
    """Return whether an event is too long for one append."""
    return len(event[1]) > EVENT_BYTES_MAX
