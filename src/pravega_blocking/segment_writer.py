"""Appends events to one segment, each once, through restarts of its segment store.

Owns: a connection, the batch to fill, and the blocks that were sent and have no reply yet.

A writer keeps its id and its event numbers when it connects again. The store answers with the
number of the last event that it has of this writer. The writer sends the events after that number
again.

Invariants:
1. When a connection breaks before or after the store has stored a block, each event is stored once,
   in the order of ``add``.
   Held by ``test_every_event_is_stored_once_in_order_however_connections_break``.
2. When more than ``BLOCKS_MAX`` blocks, or more than ``IN_FLIGHT_BYTES_MAX`` bytes, have no reply,
   ``drive`` waits for replies. This bounds the memory of both sides, and the replies in the socket.
   Held by ``test_a_writer_waits_for_replies_when_too_many_blocks_have_none``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pravega_blocking.access.tokens import PLAIN, StoreAccess
from pravega_blocking.backoff import Patience
from pravega_blocking.controller_client import RETRIED_ERRORS
from pravega_blocking.delays import Delays, OnDelay
from pravega_blocking.errors import RefusedError, UsageError, gave_up
from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.connection import append_block
from pravega_wire.errors import ProtocolError

EVENT_BYTES_MAX = 8 * 1024 * 1024
BATCH_BYTES = 512 * 1024
BATCH_EVENTS_MAX = 8192
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
BLOCKS_MAX = 256
REPLY_SECONDS = 30.0
PATIENCE_SECONDS = 60.0

_HEADER_BYTES = 8

Address: TypeAlias = tuple[str, int]
Event: TypeAlias = tuple[float, bytes]
"""The position of an event's key in the key space, and the event's bytes."""


class SegmentEndedError(Exception):
    """The segment accepts no more events: it is sealed, or was deleted.

    A truncation of the stream, or the end of the transaction, deletes segments.
    """


@dataclass(frozen=True, slots=True)
class _Block:
    """Events that were sent together."""

    events: tuple[Event, ...]
    last_event_number: int
    byte_count: int


class SegmentWriter:
    """Sends events to the segment ``name``. Use it in one thread.

    ``locate`` returns the address of the segment's store; it is called before each connection.
    ``access`` is the way to it, with a token to write.
    ``on_delay`` is called once a second with the reason, if a store gives one for its silence.
    """

    def __init__(
        self,
        name: str,
        locate: Callable[[], Address],
        *,
        access: StoreAccess = PLAIN,
        on_delay: OnDelay | None = None,
    ) -> None:
        self.name = name
        self.acknowledged_events = 0
        self._locate = locate
        self._access = access
        self._writer_id = os.urandom(16)
        self._event_number = 0
        self._batch: list[Event] = []
        self._batch_bytes = 0
        self._in_flight: deque[_Block] = deque()
        self._in_flight_bytes = 0
        self._connection: SegmentConnection | None = None
        self._request_id = 0
        self._delays = Delays(on_delay, access)
        self._patience = Patience(PATIENCE_SECONDS)

    def add(self, event: Event) -> bool:
        """Add an event to the batch, and return whether the batch is ready to be sent.

        Raises ``UsageError`` for one over ``EVENT_BYTES_MAX``.
        """
        length = len(event[1])
        if length > EVENT_BYTES_MAX:
            raise UsageError(f"an event of {length} bytes: at most {EVENT_BYTES_MAX} fit")
        self._batch.append(event)
        self._batch_bytes += length + _HEADER_BYTES
        return self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_EVENTS_MAX

    @property
    def is_idle(self) -> bool:
        """Return whether every event that was added has been acknowledged."""
        return not self._batch and not self._in_flight

    @property
    def sent_events(self) -> int:
        """Return the number of events that were acknowledged, or sent and not answered yet."""
        return self.acknowledged_events + sum(len(block.events) for block in self._in_flight)

    def drive(self, patience: Patience, *, drain: bool) -> None:
        """Send the batch, and wait for replies until few enough blocks have none.

        With ``drain`` wait until every block has its reply. Raises ``SegmentEndedError`` when the
        segment accepts no more events, ``UnavailableError`` when servers are unreachable for longer
        than ``patience``, and ``StoreDelayedError`` when the store delays requests for that long.
        """
        self._patience = patience
        while not self.is_idle:
            try:
                self._send_batch()
                while self._must_wait(drain=drain):
                    self._receive_reply()
                    patience.renew()
                return
            except SegmentEndedError:
                self.disconnect()
                raise
            except RETRIED_ERRORS as error:
                self.disconnect()
                if not patience.wait():
                    what = f"{self.name} could not be written to for {patience.seconds:g} s"
                    raise gave_up(what, error) from error

    def release(self) -> list[Event]:
        """Remove and return every event that was not acknowledged, in order."""
        events = [event for block in self._in_flight for event in block.events] + self._batch
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._batch = []
        self._batch_bytes = 0
        return events

    def disconnect(self) -> None:
        """Close the connection. The next one sends the unacknowledged events again. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ---- Sending and receiving -------------------------------------------------------------------

    def _must_wait(self, *, drain: bool) -> bool:
        """Return whether to wait for a reply: with ``drain`` while any block has none.

        Otherwise, wait while more blocks or bytes than the bounds have none.
        """
        if drain:
            return bool(self._in_flight)
        return self._in_flight_bytes > IN_FLIGHT_BYTES_MAX or len(self._in_flight) > BLOCKS_MAX

    def _send_batch(self) -> None:
        """Send the batch; connect first if there is no connection."""
        connection = self._connected()
        while self._batch:
            block = self._next_block()
            # Count the block as sent before it is sent: if the call fails, the store may have it.
            self._in_flight.append(block)
            self._in_flight_bytes += block.byte_count
            self._send(connection, block)

    def _next_block(self) -> _Block:
        """Remove the next events from the batch: all of them, or as many as fit one command."""
        count, byte_count = len(self._batch), self._batch_bytes
        if byte_count > BATCH_BYTES + EVENT_BYTES_MAX:
            count = byte_count = 0
            while byte_count < BATCH_BYTES:
                byte_count += len(self._batch[count][1]) + _HEADER_BYTES
                count += 1
        events = tuple(self._batch[:count])
        del self._batch[:count]
        self._batch_bytes -= byte_count
        self._event_number += count
        return _Block(events, self._event_number, byte_count)

    def _receive_reply(self) -> None:
        """Wait for one reply and process it."""
        assert self._connection is not None
        reply = self._connection.receive(timeout=REPLY_SECONDS)
        if not isinstance(reply, wire.DataAppended):
            raise self._refusal(reply)
        self._acknowledge(reply.event_number)

    def _connected(self) -> SegmentConnection:
        """Return the connection; without one, connect, and send all unacknowledged blocks again."""
        if self._connection is not None:
            return self._connection
        host, port = self._locate()
        token = self._access.token()
        connection = self._access.connect(
            host,
            port,
            timeout=REPLY_SECONDS,
            on_wait=lambda: self._delays.look(host, port, self._patience),
        )
        try:
            self._request_id = connection.next_request_id()
            reply = connection.call(
                wire.SetupAppend(self._request_id, self._writer_id, self.name, token)
            )
            if not isinstance(reply, wire.AppendSetup):
                raise self._refusal(reply)
            self._acknowledge(reply.last_event_number)
            for block in self._in_flight:
                self._send(connection, block)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _send(self, connection: SegmentConnection, block: _Block) -> None:
        connection.send_bytes(
            append_block(
                self._writer_id,
                [data for _, data in block.events],
                last_event_number=block.last_event_number,
                request_id=self._request_id,
            )
        )

    def _acknowledge(self, event_number: int) -> None:
        while self._in_flight and self._in_flight[0].last_event_number <= event_number:
            # If an interrupt comes between these lines, a block counts as sent and as stored: it
            # must not be missing from both counts.
            block = self._in_flight[0]
            self.acknowledged_events += len(block.events)
            self._in_flight_bytes -= block.byte_count
            self._in_flight.popleft()

    def _refusal(self, reply: wire.Reply) -> Exception:
        """Return the error for a reply that is not an acknowledgement."""
        if isinstance(reply, wire.SegmentIsSealed | wire.NoSuchSegment):
            return SegmentEndedError()
        if isinstance(reply, wire.AuthTokenCheckFailed):
            return self._access.refusal(reply, f"no permission to write to segment {self.name}")
        if isinstance(reply, wire.ErrorMessage):
            return RefusedError(
                f"the segment store refused an append to {self.name}: {reply.message}"
            )
        # After WrongHost, InvalidEventNumber and unknown replies, the writer connects again.
        return ProtocolError(f"unexpected {type(reply).__name__}")
