"""Writes events to a stream, each exactly once, through restarts and scalings.

Owns: one writer per segment (a connection, the batch being filled, the blocks in flight) and the
map from routing keys to them.

Invariants:
1. An event is kept until it is acknowledged. Events of one routing key are stored in the order of
   ``write``.
2. A segment writer keeps its id and its event numbers over reconnects: what AppendSetup says is
   stored is never sent again.
3. When a segment is sealed, its unacknowledged events go to its successors before any later event
   of the same keys.
4. More than ``IN_FLIGHT_BYTES_MAX`` or ``BLOCKS_MAX`` unacknowledged of a segment make ``write``
   wait, so that neither side's memory nor the socket of the replies fills up.
"""

from __future__ import annotations

import os
import random
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pravega_admin.backoff import Patience
from pravega_admin.controller_client import RETRIED_ERRORS, ControllerClient, SegmentRange
from pravega_admin.errors import (
    AdminError,
    StreamSealedError,
    UnavailableError,
    UsageError,
)
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import (
    AppendSetup,
    AuthTokenCheckFailed,
    DataAppended,
    ErrorMessage,
    NoSuchSegment,
    Reply,
    SegmentIsSealed,
    SetupAppend,
)
from pravega_wire.connection import append_block
from pravega_wire.errors import ProtocolError
from pravega_wire.hashing import routing_key_hash
from pravega_wire.names import scoped_name, segment_name

EVENT_BYTES_MAX = 8 * 1024 * 1024
BATCH_BYTES = 256 * 1024
BATCH_EVENTS_MAX = 4096
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
BLOCKS_MAX = 256
REPLY_SECONDS = 30.0
PATIENCE_SECONDS = 60.0

_HEADER_BYTES = 8


class _SegmentEndedError(Exception):
    """The segment is sealed, or gone with its stream's truncated past."""


@dataclass(frozen=True, slots=True)
class _Event:
    """An event and where in the key space it falls."""

    position: float
    data: bytes


@dataclass(frozen=True, slots=True)
class _Block:
    """Events that were sent together."""

    events: tuple[_Event, ...]
    last_event_number: int
    byte_count: int


class _SegmentWriter:
    """The events on their way to one segment."""

    def __init__(self, controller: ControllerClient, scope: str, stream: str, segment: int) -> None:
        self.segment_id = segment
        self.name = segment_name(scope, stream, segment)
        self.acknowledged_events = 0
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._writer_id = os.urandom(16)
        self._event_number = 0
        self._batch: list[_Event] = []
        self._batch_bytes = 0
        self._in_flight: deque[_Block] = deque()
        self._in_flight_bytes = 0
        self._connection: SegmentConnection | None = None
        self._request_id = 0

    def add(self, event: _Event) -> None:
        self._batch.append(event)
        self._batch_bytes += len(event.data) + _HEADER_BYTES

    @property
    def batch_is_full(self) -> bool:
        return self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_EVENTS_MAX

    @property
    def is_idle(self) -> bool:
        return not self._batch and not self._in_flight

    def must_wait(self, *, drain: bool) -> bool:
        """Whether replies must be taken: any that is due to ``drain``, else those beyond bounds."""
        if drain:
            return bool(self._in_flight)
        return self._in_flight_bytes > IN_FLIGHT_BYTES_MAX or len(self._in_flight) > BLOCKS_MAX

    def release(self) -> list[_Event]:
        """Give up everything that is not known to be stored, in order."""
        events = [event for block in self._in_flight for event in block.events] + self._batch
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._batch = []
        self._batch_bytes = 0
        return events

    def disconnect(self) -> None:
        """Drop the connection; what is in flight is sent again on the next one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send_batch(self, delegation_token: str) -> None:
        """Send what has gathered, connecting first if need be."""
        connection = self._connected(delegation_token)
        while self._batch:
            block = self._take_block()
            # In flight before it is sent: a send that fails half-way may have reached the server.
            self._in_flight.append(block)
            self._in_flight_bytes += block.byte_count
            self._send(connection, block)

    def _take_block(self) -> _Block:
        """The next events to send together: all, or as many as surely fit into one command."""
        count, byte_count = len(self._batch), self._batch_bytes
        if byte_count > BATCH_BYTES + EVENT_BYTES_MAX:
            count = byte_count = 0
            while byte_count < BATCH_BYTES:
                byte_count += len(self._batch[count].data) + _HEADER_BYTES
                count += 1
        events = tuple(self._batch[:count])
        del self._batch[:count]
        self._batch_bytes -= byte_count
        self._event_number += count
        return _Block(events, self._event_number, byte_count)

    def take_reply(self) -> None:
        """Wait for one reply and act on it; ``_SegmentEndedError`` when the segment has ended."""
        assert self._connection is not None
        reply = self._connection.receive(timeout=REPLY_SECONDS)
        if isinstance(reply, DataAppended):
            self._acknowledge(reply.event_number)
        else:
            raise _refusal(reply, self.name)

    def _connected(self, delegation_token: str) -> SegmentConnection:
        """The connection; a new one has been set up and holds everything in flight."""
        if self._connection is not None:
            return self._connection
        host, port = self._controller.segment_address(self._scope, self._stream, self.segment_id)
        connection = SegmentConnection(host, port, timeout=REPLY_SECONDS)
        try:
            self._request_id = connection.next_request_id()
            setup = SetupAppend(self._request_id, self._writer_id, self.name, delegation_token)
            reply = connection.call(setup)
            if not isinstance(reply, AppendSetup):
                raise _refusal(reply, self.name)
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
                [event.data for event in block.events],
                last_event_number=block.last_event_number,
                request_id=self._request_id,
            )
        )

    def _acknowledge(self, event_number: int) -> None:
        while self._in_flight and self._in_flight[0].last_event_number <= event_number:
            block = self._in_flight.popleft()
            self._in_flight_bytes -= block.byte_count
            self.acknowledged_events += len(block.events)


def _refusal(reply: Reply, segment: str) -> Exception:
    """What a reply other than an acknowledgement means."""
    if isinstance(reply, SegmentIsSealed | NoSuchSegment):
        return _SegmentEndedError()
    if isinstance(reply, AuthTokenCheckFailed):
        return AdminError(f"no permission to write to segment {segment}")
    if isinstance(reply, ErrorMessage):
        return AdminError(f"the segment store refused an append to {segment}: {reply.message}")
    # WrongHost, InvalidEventNumber and what a future server may say: connect again.
    return ProtocolError(f"unexpected {type(reply).__name__}")


class EventWriter:
    """Writes events to a stream. Use it in one thread, within a ``with`` block.

    ``write`` returns before the event is stored; ``flush`` returns when all are. Leaving the block
    without an error flushes. ``patience`` is how many seconds servers may stay away.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._patience = Patience(patience)
        self._retired_events = 0
        self._random = random.Random()
        current = controller.current_segments(scope, stream)
        self._delegation_token = current.delegation_token
        if not current.ranges:
            raise StreamSealedError(f"stream {scoped_name(scope, stream)} is sealed")
        self._routes: list[tuple[SegmentRange, _SegmentWriter]] = [
            (item, self._new_writer(item.segment_id)) for item in current.ranges
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_type is None:
                self.flush()
        finally:
            self.close()

    @property
    def acknowledged_events(self) -> int:
        """How many events are known to be stored."""
        return self._retired_events + sum(w.acknowledged_events for w in self._writers())

    def close(self) -> None:
        """Drop the connections, without waiting for anything."""
        for writer in self._writers():
            writer.disconnect()

    def write(self, data: bytes, *, routing_key: str | None = None) -> None:
        """Add an event; without a routing key it goes to any segment.

        Raises ``UsageError`` for an event over 8 MiB, ``StreamSealedError`` when the stream has
        been sealed, ``UnavailableError`` when servers stay away.
        """
        if len(data) > EVENT_BYTES_MAX:
            raise UsageError(f"an event of {len(data)} bytes: at most {EVENT_BYTES_MAX} fit")
        position = self._random.random() if routing_key is None else routing_key_hash(routing_key)
        writer = self._route(position)
        writer.add(_Event(position, data))
        if writer.batch_is_full:
            self._drive(writer, drain=False)

    def send(self) -> None:
        """Send every event that waits for its batch to fill, without waiting for their storing."""
        for writer in self._writers():
            self._drive(writer, drain=False)

    def flush(self) -> None:
        """Return when every event written so far is stored."""
        # Successors of a segment that ended meanwhile have work again, hence the loop.
        while busy := [writer for writer in self._writers() if not writer.is_idle]:
            for writer in busy:
                self._drive(writer, drain=False)
            for writer in busy:
                self._drive(writer, drain=True)

    def _writers(self) -> list[_SegmentWriter]:
        """Each segment writer once: a successor by merge serves several ranges."""
        return list({writer.segment_id: writer for _, writer in self._routes}.values())

    def _new_writer(self, segment: int) -> _SegmentWriter:
        return _SegmentWriter(self._controller, self._scope, self._stream, segment)

    def _route(self, position: float) -> _SegmentWriter:
        for item, writer in self._routes:
            if position < item.high:
                return writer
        return self._routes[-1][1]

    def _drive(self, writer: _SegmentWriter, *, drain: bool) -> None:
        """Send the batch and take the replies that must be; ``drain`` takes all that are due."""
        ended = False
        while not writer.is_idle:
            try:
                if ended:
                    self._replace(writer)
                    return
                writer.send_batch(self._delegation_token)
                while writer.must_wait(drain=drain):
                    writer.take_reply()
                    self._patience.renew()
                return
            except _SegmentEndedError:
                ended = True
                writer.disconnect()
            except RETRIED_ERRORS as error:
                writer.disconnect()
                if not self._patience.wait():
                    raise UnavailableError(
                        f"{scoped_name(self._scope, self._stream)} could not be written to for"
                        f" {self._patience.seconds:g} s: {error}"
                    ) from error

    def _replace(self, ended: _SegmentWriter) -> None:
        """Put the successors in the place of a segment that has ended, and give them its events."""
        successors = self._controller.successors(self._scope, self._stream, ended.segment_id)
        events = ended.release()
        if not successors:
            raise StreamSealedError(
                f"stream {scoped_name(self._scope, self._stream)} is sealed;"
                f" {len(events)} events were not stored"
            )
        self._retired_events += ended.acknowledged_events
        heirs = {writer.segment_id: writer for writer in self._writers()}
        routes = []
        for item, writer in self._routes:
            if writer is not ended:
                routes.append((item, writer))
                continue
            for successor in successors:
                segment = successor.range.segment_id
                low, high = max(item.low, successor.range.low), min(item.high, successor.range.high)
                if low < high:
                    heir = heirs.setdefault(segment, self._new_writer(segment))
                    routes.append((SegmentRange(segment, low, high), heir))
        self._routes = sorted(routes, key=lambda route: route[0].low)
        for event in events:
            self._route(event.position).add(event)
