"""Reads the events of a stream, in the order of each routing key, through restarts and scalings.

Owns: one cursor per segment, and one connection per segment store. A cursor has at most one read
request under way.

Invariants:
1. When segments are merged or split, a successor is read only after all of its predecessors were
   read to their ends. Held by ``test_a_segment_is_read_after_all_of_its_predecessors``.
2. When a connection breaks, the reader requests the missing bytes again: no event is lost, and none
   is returned twice. Held by ``test_no_event_is_lost_or_doubled_when_connections_break``.
3. When events are written after a reader that ends at the tail was opened, it does not return them.
   Held by ``test_reading_ends_at_the_tail_at_which_the_reader_was_opened``.
4. When the stream is deleted and made again while it is read, the reader raises an error: it does
   not end as at the end of a sealed stream.
   Held by ``test_a_reader_of_a_stream_that_was_made_again_is_told_so``.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError, SegmentConnection
from pravega_wire.errors import ProtocolError, RemoteProtocolError
from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent, SegmentOrder
from pravega_wire.sessions.routes import Successor
from segstore_client.backoff import PATIENCE_SECONDS, Patience
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient, Purpose
from segstore_client.cuts.bounds import At, Bounds, find_bounds
from segstore_client.errors import PravegaError, RefusedError, gave_up
from segstore_client.positions import Position

READ_BYTES = 1024 * 1024
REPLY_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 15.0
SILENCE_SECONDS_MAX = 60.0

Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Cursor(EventCursor):
    """The position of the reader in one segment, and its request."""

    address: Address | None = None
    is_requested: bool = False


@dataclass(slots=True)
class _Link:
    """A connection to a segment store, and the times of its last answer and last keep-alive."""

    connection: SegmentConnection
    heard: float
    asked: float


class BlockingEventReader:
    """Reads a stream. Use it in one thread, within a ``with`` block.

    It begins and ends at places of the stream, as ``find_bounds`` has them, or with ``bounds`` at
    these offsets, which need not be whole stream cuts. ``patience`` is the number of seconds for
    which servers may be unreachable.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        start: At = Position.HEAD,
        end: At | None = None,
        bounds: Bounds | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._patience = Patience(patience)
        self._events: deque[ReadEvent] = deque()
        self._links: dict[Address, _Link] = {}
        self._order = SegmentOrder()
        self._cursors: dict[int, _Cursor] = {}
        self._access = controller.store_access(scope, stream, Purpose.READ)
        if bounds is None:
            bounds = find_bounds(controller, scope, stream, start=start, end=end)
        self._ends = bounds.ends
        for segment, offset in bounds.offsets.items():
            self._open_cursor(segment, offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for address in list(self._links):
            self._drop(address)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReadEvent:
        """Return the next event; it ends where reading was to stop, or at the end of a sealed
        stream. Raises errors as ``next_event``."""
        event = self.next_event()
        if event is None:
            raise StopIteration
        return event

    @property
    def is_finished(self) -> bool:
        """Return whether every event has been returned and the reader has reached its end."""
        return not self._events and not self._cursors

    @property
    def has_event(self) -> bool:
        """Return whether ``next_event`` can return an event without asking a server."""
        return bool(self._events)

    def next_event(self, *, timeout: float | None = None) -> ReadEvent | None:
        """Return the next event; None after ``timeout`` seconds without one, or at the end.

        Raises ``PravegaError`` if the stream's bytes are not events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._events and self._cursors:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._attempt(left)
        return self._events.popleft() if self._events else None

    def _attempt(self, timeout: float | None) -> None:
        """Request data, and process the replies within ``timeout`` seconds."""
        try:
            # The successors of a completed segment may be at their ends already, hence the loop.
            while ended := [cursor for cursor in self._cursors.values() if cursor.is_at_end]:
                for cursor in ended:
                    self._complete(cursor)
            for cursor in self._cursors.values():
                if not cursor.is_requested:
                    self._request_read(cursor)
            if self._cursors:
                self._receive(timeout)
        except RETRIED_ERRORS as error:
            if not self._patience.wait():
                name = scoped_name(self._scope, self._stream)
                what = f"{name} could not be read for {self._patience.seconds:g} s"
                raise gave_up(what, error) from error

    # ---- Segments --------------------------------------------------------------------------------

    def _open_cursor(self, segment: int, offset: int) -> None:
        name = segment_name(self._scope, self._stream, segment)
        self._order.begin(segment)
        self._cursors[segment] = _Cursor(segment, name, offset, self._ends.get(segment))

    def _complete(self, cursor: _Cursor) -> None:
        """End a segment, and begin those successors all of whose predecessors have ended."""
        if cursor.pending:
            raise PravegaError(f"segment {cursor.name} ends within an event")
        successors: tuple[Successor, ...] = ()
        if cursor.is_gone:
            # A truncation deleted the whole segment, or the stream is another one now.
            successors = self._controller.successors_of_gone(
                self._scope, self._stream, cursor.segment_id
            )
        elif cursor.end is None:
            successors = self._controller.successors(self._scope, self._stream, cursor.segment_id)
        del self._cursors[cursor.segment_id]
        if cursor.end is not None:
            successors = ()
        for segment in self._order.complete(cursor.segment_id, successors):
            self._open_cursor(segment, 0)

    # ---- Requests and replies --------------------------------------------------------------------

    def _request_read(self, cursor: _Cursor) -> None:
        if cursor.address is None:
            cursor.address = self._controller.segment_address(
                self._scope, self._stream, cursor.segment_id
            )
        connection = self._linked(cursor.address).connection
        request = wire.ReadSegment(
            cursor.name,
            cursor.offset,
            cursor.bytes_wanted(READ_BYTES),
            self._access.token(),
            connection.next_request_id(),
        )
        with self._dropping(cursor.address):
            connection.send(request)
        cursor.is_requested = True

    def _receive(self, timeout: float | None) -> None:
        """Wait for replies of any segment store, at most ``timeout`` seconds, and process them."""
        seconds = KEEP_ALIVE_SECONDS if timeout is None else min(timeout, KEEP_ALIVE_SECONDS)
        by_fileno = {link.connection.fileno(): key for key, link in self._links.items()}
        readable, _, _ = select.select(list(by_fileno), [], [], seconds)
        for fileno in readable:
            address = by_fileno[fileno]
            link = self._links[address]
            with self._dropping(address):
                replies = link.connection.receive_some(waits=False)
            link.heard = time.monotonic()
            self._patience.renew()
            for reply in replies:
                self._process_reply(reply, address)
        self._keep_alive()

    def _process_reply(self, reply: wire.Reply, address: Address) -> None:
        if isinstance(reply, wire.AuthTokenCheckFailed):
            # The reply does not name its segment, so everything is requested again.
            self._drop(address)
            name = scoped_name(self._scope, self._stream)
            raise self._access.refusal(reply, f"no permission to read {name}")
        cursor = self._cursor_of(reply)
        if cursor is None:
            return
        cursor.is_requested = False
        try:
            events = cursor.take(reply)
        except RemoteProtocolError as error:
            raise PravegaError(str(error)) from error
        if events is None:
            if isinstance(reply, wire.ErrorMessage):
                raise RefusedError(f"the segment store refused a read: {reply.message}")
            # The reply is WrongHost, or unknown: ask the controller again which store to use.
            self._drop(address)
            raise ProtocolError(f"unexpected {type(reply).__name__}")
        self._events.extend(events)

    def _cursor_of(self, reply: wire.Reply) -> _Cursor | None:
        """Return the cursor that waits for this reply; None if its request was dropped."""
        name = getattr(reply, "segment", "")
        for cursor in self._cursors.values():
            if cursor.name == name and cursor.is_requested:
                offset = reply.offset if isinstance(reply, wire.SegmentRead) else cursor.offset
                return cursor if offset == cursor.offset else None
        return None

    # ---- Connections -----------------------------------------------------------------------------

    def _linked(self, address: Address) -> _Link:
        link = self._links.get(address)
        if link is None:
            with self._dropping(address):
                connection = self._access.connect(*address, timeout=REPLY_SECONDS)
            now = time.monotonic()
            link = self._links[address] = _Link(connection, now, now)
        return link

    def _keep_alive(self) -> None:
        """Send KeepAlive on idle connections; close those on which the answer does not come."""
        now = time.monotonic()
        for address, link in list(self._links.items()):
            if now - link.heard > SILENCE_SECONDS_MAX:
                self._drop(address)
                raise ConnectionLostError(f"{address[0]}:{address[1]} has fallen silent")
            if now - max(link.heard, link.asked) >= KEEP_ALIVE_SECONDS:
                link.asked = now
                with self._dropping(address):
                    link.connection.send(wire.KeepAlive())

    @contextmanager
    def _dropping(self, address: Address) -> Iterator[None]:
        """Close the connection to a store if the block raises a connection error."""
        try:
            yield
        except (ProtocolError, OSError):
            self._drop(address)
            raise

    def _drop(self, address: Address) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.connection.close()
        for cursor in self._cursors.values():
            if cursor.address == address:
                cursor.address = None
                cursor.is_requested = False
