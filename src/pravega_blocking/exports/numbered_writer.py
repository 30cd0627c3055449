"""Appends events that have numbers to one segment, each once, also when another process goes on.

Owns: the way from an event's number to the state of the segment, and appends of long events.

The writer's id and the numbers come from the file that is imported, so each process that imports
it is the same writer to the store. The store knows the number of the last event that a segment has
of this writer. Events up to that number are stored, and are not sent.

An event that is too long for one append goes to a segment of its own first, as in the Java client;
that is merged on the condition that the number of the last event has not changed.

Invariants:
1. When a process is killed at any moment and another one writes the same events, each is stored
   once, in the order of its number. Held by
   ``test_another_process_goes_on_after_the_last_stored_event``.
2. When two processes write the same events at the same time, each event is stored once. Held by
   ``test_two_processes_with_the_same_events_store_each_once``.
3. When the connection breaks before or after a long event is merged, it is stored once. Held by
   ``test_a_long_event_is_stored_once_however_connections_break``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from pravega_blocking.access.tokens import PLAIN, StoreAccess
from pravega_blocking.backoff import Patience
from pravega_blocking.delays import OnDelay
from pravega_blocking.segment_writer import Address, SegmentWriter
from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.codec import HEADER_BYTES
from pravega_wire.errors import ProtocolError
from pravega_wire.event_framing import frame_event
from pravega_wire.sessions import append_session
from pravega_wire.sessions.append_session import AppendSession, Block, Event

PIECE_BYTES = 8 * 1024 * 1024
"""Length, in bytes, of the appends of a long event."""
_REPLACE_IF_EQUALS = 4


class NumberedSession(AppendSession[Event]):
    """Events, each ``(position, data, number)``, for one segment. Numbers grow."""

    def __init__(self, writer_id: bytes) -> None:
        super().__init__(writer_id)
        self.stored_number = wire.NULL_ATTRIBUTE_VALUE
        """The number of the last event that the segment is known to have; it may have more."""
        self._has_long = False

    def add(self, event: Event) -> bool:
        """Add an event to the batch, unless it is stored; return whether to send the batch."""
        if number_of(event) <= self.stored_number:
            return False
        if not is_long(event):
            return super().add(event)
        self._has_long = True
        self._batch.append(event)
        self._batch_bytes += len(event[1]) + HEADER_BYTES
        return True

    def release(self) -> list[Event]:
        """Remove and return every event that was not acknowledged, in order."""
        self._has_long = False
        return super().release()

    def acknowledge(self, event_number: int) -> list[Block[Event]]:
        """Remove and return the blocks whose events are stored, by the number of the last one."""
        self.stored_number = max(self.stored_number, event_number)
        return super().acknowledge(event_number)

    def resume(self, event_number: int) -> list[Block[Event]]:
        """Forget the events that are stored, and put the others into the batch again.

        Another process may have sent the same events in other blocks, so the last stored event may
        be in the middle of one.
        """
        self.acknowledge(event_number)
        waiting = self.release()
        for event in waiting:
            # What is stored is not added.
            self.add(event)
        self.acknowledged_events += len(waiting) - len(self._batch)
        return []

    def _next_block(self) -> Block[Event]:
        if not self._has_long:
            return super()._next_block()
        # A long event is a block of its own.
        long = [index for index, event in enumerate(self._batch) if is_long(event)]
        rest = self._batch[max(long[0], 1) :]
        rest_bytes = sum(len(event[1]) + HEADER_BYTES for event in rest)
        del self._batch[len(self._batch) - len(rest) :]
        self._batch_bytes -= rest_bytes
        block = super()._next_block()
        self._batch += rest
        self._batch_bytes += rest_bytes
        self._has_long = any(map(is_long, self._batch))
        return block

    def _number_after(self, events: tuple[Event, ...]) -> int:
        return number_of(events[-1])


class NumberedWriter(SegmentWriter):
    """Sends events, each ``(position, data, number)``, to a segment. Numbers grow."""

    def __init__(
        self,
        name: str,
        locate: Callable[[], Address],
        *,
        writer_id: bytes,
        access: StoreAccess = PLAIN,
        on_delay: OnDelay | None = None,
    ) -> None:
        self._numbered = NumberedSession(writer_id)
        super().__init__(name, locate, access=access, on_delay=on_delay, session=self._numbered)

    @property
    def stored_number(self) -> int:
        """Return the number of the last event that the segment is known to have."""
        return self._numbered.stored_number

    def look(self, patience: Patience) -> None:
        """Ask the store which events it has: ``stored_number`` is up to date after that.

        Raises errors as ``drive`` does.
        """
        self._patience = patience
        while self._connection is None:
            with self._trying(patience):
                self._connected()

    def _send(self, connection: SegmentConnection, block: Block[Event]) -> None:
        if not is_long(block.events[0]):
            super()._send(connection, block)
            return
        while len(self._session.in_flight) > 1:
            self._receive_reply()
        self._append_long(connection, block)
        # The store has counted on with this writer, which it does not know of this connection.
        self._session.acknowledge(self._set_up(connection))

    # ---- Long events -----------------------------------------------------------------------------

    def _append_long(self, connection: SegmentConnection, block: Block[Event]) -> None:
        """Write an event to a segment of its own, and merge that into the segment."""
        token = self._access.token()
        made = connection.call(
            wire.CreateTransientSegment(
                connection.next_request_id(), self._session.writer_id, self.name, token
            )
        )
        if not isinstance(made, wire.SegmentCreated):
            raise self._refusal(made)
        self._fill(connection, made.segment, frame_event(block.events[0][1]))
        update = wire.AttributeUpdate(
            self._session.writer_id,
            _REPLACE_IF_EQUALS,
            block.last_event_number,
            self.stored_number,
        )
        merged = connection.call(
            wire.MergeSegments(
                connection.next_request_id(), self.name, made.segment, token, (update,)
            )
        )
        if isinstance(merged, wire.NoSuchSegment) and merged.segment == made.segment:
            raise ProtocolError(f"segment {made.segment} is gone")
        if not isinstance(merged, wire.SegmentsMerged):
            # Another process may have stored the event: then the next connection tells so.
            raise self._refusal(merged)

    def _fill(self, connection: SegmentConnection, segment: str, data: bytes) -> None:
        writer, request_id = os.urandom(16), connection.next_request_id()
        ready = connection.call(wire.SetupAppend(request_id, writer, segment, self._access.token()))
        if not isinstance(ready, wire.AppendSetup):
            raise ProtocolError(f"segment {segment} answers with {type(ready).__name__}")
        for number, offset in enumerate(range(0, len(data), PIECE_BYTES)):
            piece = data[offset : offset + PIECE_BYTES]
            request_id = connection.next_request_id()
            reply = connection.call(
                wire.ConditionalBlockEnd(writer, number, offset, piece, request_id)
            )
            if not isinstance(reply, wire.DataAppended):
                raise ProtocolError(f"segment {segment} answers with {type(reply).__name__}")


def number_of(event: Event) -> int:
    """Return the number of an event that has one."""
    numbered: Sequence[float | bytes | int] = event
    number = numbered[2]
    assert isinstance(number, int)
    return number


def is_long(event: Event) -> bool:
    """Return whether an event is too long for one append."""
    return len(event[1]) > append_session.EVENT_BYTES_MAX
