"""Writes one transaction of a stream: what a task of the sink does.

Owns: ``TransactionWriter``, with a connection and the unacknowledged blocks of each segment.

Invariants:
1. A block is kept until it is acknowledged; after a reconnect exactly those that the server does
   not have are sent again.
2. Events of one routing key keep their order: they go to one segment, over one connection.
3. ``flush`` returns when every event is durable. Nothing becomes visible before the driver commits.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pravega_spark.errors import PravegaError, RefusedError, UnavailableError
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
from pravega_wire.names import segment_name, transaction_segment_name

EVENT_BYTES_MAX = 8 * 1024 * 1024
BLOCK_BYTES = 512 * 1024
BLOCK_EVENTS_MAX = 8192
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
REPLY_SECONDS = 30.0
PATIENCE_SECONDS = 60.0
RETRY_SECONDS = 0.2
REQUEST_ID = 1
"""Blocks name the request id of their set-up: with the same one on every connection of a segment,
they can be sent again as they are."""

_HEADER_BYTES = 8

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment of a transaction and the part of the key space, [low, high), that it takes."""

    segment_id: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A transaction as the controller answered its begin."""

    transaction_id: bytes
    ranges: tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """The bytes of one append, and the number of its last event."""

    data: bytes
    last_event_number: int


class _SegmentAppender:
    """The events on their way to one segment of a transaction."""

    def __init__(self, name: str, locate: Callable[[], Address]) -> None:
        self._name = name
        self._locate = locate
        self._writer_id = os.urandom(16)
        self._events: list[bytes] = []
        self._event_bytes = 0
        self._event_number = 0
        self._unacknowledged: deque[_Block] = deque()
        self._in_flight_bytes = 0
        self._connection: SegmentConnection | None = None

    def add(self, event: bytes) -> None:
        """Take an event, and send a block when enough have gathered."""
        self._events.append(event)
        self._event_bytes += len(event) + _HEADER_BYTES
        if self._event_bytes >= BLOCK_BYTES or len(self._events) >= BLOCK_EVENTS_MAX:
            self.send()

    def send(self) -> None:
        """Send what has gathered; wait while too much is unacknowledged."""
        if not self._events:
            return
        self._event_number += len(self._events)
        data = append_block(
            self._writer_id,
            self._events,
            last_event_number=self._event_number,
            request_id=REQUEST_ID,
        )
        self._events, self._event_bytes = [], 0
        block = _Block(data, self._event_number)
        self._unacknowledged.append(block)
        self._in_flight_bytes += len(data)
        is_new = self._connection is None
        self._attempt(lambda connection: None if is_new else connection.send_bytes(data))
        while self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
            self._attempt(self._take_reply)

    def flush(self) -> None:
        """Return when every event is durable."""
        self.send()
        while self._unacknowledged:
            self._attempt(self._take_reply)

    def close(self) -> None:
        """Drop the connection. Idempotent."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None

    def _attempt(self, action: Callable[[SegmentConnection], object]) -> None:
        """Do something with the connection; on a new one all that is missing was sent already."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if self._connection is not None:
                    action(self._connection)
                else:
                    self._connect()
                return
            except PravegaError:
                raise
            except (ProtocolError, OSError) as error:
                self.close()
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"{self._name} could not be written to for {PATIENCE_SECONDS:g} s: {error}"
                    ) from error
                time.sleep(RETRY_SECONDS)

    def _connect(self) -> None:
        connection = SegmentConnection(*self._locate(), timeout=REPLY_SECONDS)
        try:
            reply = connection.call(SetupAppend(REQUEST_ID, self._writer_id, self._name, ""))
            if not isinstance(reply, AppendSetup):
                raise _refusal(reply, self._name)
            self._acknowledge(reply.last_event_number)
            for block in self._unacknowledged:
                connection.send_bytes(block.data)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _take_reply(self, connection: SegmentConnection) -> None:
        reply = connection.receive(timeout=REPLY_SECONDS)
        if not isinstance(reply, DataAppended):
            raise _refusal(reply, self._name)
        self._acknowledge(reply.event_number)

    def _acknowledge(self, event_number: int) -> None:
        unacknowledged = self._unacknowledged
        while unacknowledged and unacknowledged[0].last_event_number <= event_number:
            self._in_flight_bytes -= len(unacknowledged.popleft().data)


class TransactionWriter:
    """Writes events to the segments of a transaction. Use it in one thread."""

    def __init__(
        self,
        scope: str,
        stream: str,
        transaction: BegunTransaction,
        locate: Callable[[int], Address],
    ) -> None:
        self._ranges = sorted(transaction.ranges, key=lambda item: item.low)
        self._lows = [item.low for item in self._ranges]
        self._appenders = [
            _SegmentAppender(
                transaction_segment_name(
                    segment_name(scope, stream, item.segment_id), transaction.transaction_id
                ),
                lambda segment_id=item.segment_id: locate(segment_id),  # type: ignore[misc]
            )
            for item in self._ranges
        ]
        self._next = int.from_bytes(os.urandom(2), "big") % len(self._appenders)

    def write(self, events: Sequence[bytes | str], keys: Sequence[str | None] | None) -> None:
        """Write events, each with its routing key; those without one go wherever there is room."""
        if keys is None:
            # All in a row to one segment: their order is kept, and the next go to another.
            appender = self._appenders[self._next]
            self._next = (self._next + 1) % len(self._appenders)
            for event in events:
                appender.add(_event_bytes(event))
            return
        for event, key in zip(events, keys, strict=True):
            if key is None:
                appender = self._appenders[self._next]
                self._next = (self._next + 1) % len(self._appenders)
            else:
                appender = self._appenders[bisect_right(self._lows, routing_key_hash(key)) - 1]
            appender.add(_event_bytes(event))

    def flush(self) -> None:
        """Return when every event is durable."""
        for appender in self._appenders:
            appender.send()
        for appender in self._appenders:
            appender.flush()

    def close(self) -> None:
        """Drop all connections. Idempotent."""
        for appender in self._appenders:
            appender.close()


def _event_bytes(event: bytes | str | None) -> bytes:
    if event is None:
        raise RefusedError("a row has no event: the column event is null")
    data = event.encode() if isinstance(event, str) else event
    if len(data) > EVENT_BYTES_MAX:
        raise RefusedError(f"an event of {len(data)} bytes: at most {EVENT_BYTES_MAX} fit")
    return data


def _refusal(reply: Reply, segment: str) -> Exception:
    """Return what a reply other than an acknowledgement means."""
    if isinstance(reply, NoSuchSegment | SegmentIsSealed):
        return RefusedError(
            f"transaction segment {segment} is gone: the transaction has ended, by its lease"
            " (transaction_timeout_ms) or with its stream"
        )
    if isinstance(reply, AuthTokenCheckFailed):
        return RefusedError(f"no permission to write to segment {segment}")
    if isinstance(reply, ErrorMessage):
        return RefusedError(f"the segment store refused to write {segment}: {reply.message}")
    return ProtocolError(f"unexpected {type(reply).__name__}")
