"""Reads segments for a program that blocks, through restarts of their stores.

Owns: one connection to each segment store, and the requests: a segment has at most one under way.
The positions are those of cursors, which make events or bytes of what comes.

Stores are asked only while the program waits. Silence of a store counts for the same time.

Invariants:
1. When a segment is read no more, and soon again, no reply to an earlier request is taken for one
   to a later request. Held by ``test_a_late_reply_is_not_taken_for_another_one``.
2. When the program asks for nothing for a long time, no store counts as silent. Held by
   ``test_a_pause_of_the_program_is_no_silence_of_the_store``.
3. When a reply cannot be taken, the replies that came with it are asked for anew. Held by
   ``test_a_token_that_expires_stops_no_segment``.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError, SegmentConnection
from pravega_wire.errors import ProtocolError, RemoteProtocolError
from pravega_wire.names import scoped_name
from pravega_wire.sessions.read_cursor import EventCursor, SegmentCursor
from pravega_wire.sessions.routes import Successor
from pravega_wire.sessions.time_limits import call_within, find_wait_left
from segstore_client.access.tokens import StoreAccess
from segstore_client.backoff import Patience
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient
from segstore_client.controller.repeats import repeat_calls
from segstore_client.errors import OutOfTimeError, PravegaError, RefusedError, gave_up

T = TypeVar("T")

READ_BYTES = 1024 * 1024
REPLY_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 15.0
SILENCE_SECONDS_MAX = 60.0

Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Reading(Generic[T]):
    """A segment that is read, the stream that it is of, and its request."""

    cursor: SegmentCursor[T]
    scope: str
    stream: str
    access: StoreAccess
    address: Address | None = None
    is_requested: bool = False


@dataclass(slots=True, eq=False)
class _Link(Generic[T]):
    """A connection to a segment store, and the times of its last answer and last keep-alive."""

    connection: SegmentConnection
    heard: float
    asked: float
    requests: dict[int, _Reading[T]] = field(default_factory=dict)
    """The readings that wait for a reply, by the id of the request."""


class SegmentReads(Generic[T]):
    """The segments that a program reads. Use it in one thread, and close it.

    ``patience`` is the number of seconds for which servers may be unreachable.
    """

    def __init__(self, controller: ControllerClient, *, patience: float) -> None:
        self._controller = controller
        self._patience = Patience(patience)
        self._readings: dict[str, _Reading[T]] = {}
        self._links: dict[Address, _Link[T]] = {}
        self._found: list[tuple[SegmentCursor[T], list[T]]] = []
        """The pieces that were not handed over yet: the cursors are behind them, so that they would
        not come again after an error."""
        self._left_at = time.monotonic()
        """The time at which the program was given something last."""

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for address in list(self._links):
            self._drop(address)

    def add(
        self, cursor: SegmentCursor[T], scope: str, stream: str, *, access: StoreAccess
    ) -> None:
        """Read the segment of a cursor, which is of the given stream, from now on."""
        self._readings[cursor.name] = _Reading(cursor, scope, stream, access)

    def remove(self, name: str) -> None:
        """Read a segment no more, if it is read now."""
        reading = self._readings.get(name)
        self._found = [each for each in self._found if each[0].name != name]
        for link in self._links.values():
            for request_id in [key for key, each in link.requests.items() if each is reading]:
                del link.requests[request_id]
        # It is the last step: if this is interrupted, it can be done again.
        self._readings.pop(name, None)

    def receive(self, timeout: float | None) -> list[tuple[SegmentCursor[T], list[T]]]:
        """Return what has come of segments, after at most ``timeout`` seconds, or a failure.

        A cursor may be at its end then: it is asked for no more. Raises ``PravegaError`` for what
        cannot be read, ``UnavailableError`` when servers are unreachable for too long, and errors
        of cursors.
        """
        self._skip_pause()
        try:
            call_within(timeout, self._try)
        except OutOfTimeError:
            # Nothing has come in time: the next call goes on.
            pass
        finally:
            self._left_at = time.monotonic()
        found, self._found = self._found, []
        return found

    def find_successors(
        self, cursor: EventCursor, scope: str, stream: str
    ) -> tuple[Successor, ...]:
        """Return the segments that follow one of a stream which was read to its end; none where
        reading ends in it.

        Raises ``PravegaError`` if it ends within an event, and errors as ``repeat_calls``.
        """
        if cursor.pending:
            raise PravegaError(f"segment {cursor.name} ends within an event")
        if cursor.end is not None and not cursor.is_gone:
            return ()
        # The controller tells of a segment that is gone whether the stream is another one now.
        controller = self._controller
        ask = controller.successors_of_gone if cursor.is_gone else controller.successors
        self._skip_pause()
        try:
            found = repeat_calls(
                partial(ask, scope, stream, cursor.segment_id),
                self._patience,
                f"{scoped_name(scope, stream)} could not be read",
            )
        finally:
            self._left_at = time.monotonic()
        return found if cursor.end is None else ()

    # ---- Requests and replies --------------------------------------------------------------------

    def _try(self) -> None:
        """Send the requests that are due, and process replies; wait after a failure."""
        try:
            if not self._found:
                self._request_all()
                self._receive_some()
        except RETRIED_ERRORS as error:
            if not self._found and not self._patience.wait():
                names = {scoped_name(each.scope, each.stream) for each in self._readings.values()}
                what = f"{', '.join(sorted(names))} could not be read"
                raise gave_up(f"{what} for {self._patience.seconds:g} s", error) from error

    def _request_all(self) -> None:
        """Request the next bytes of each segment of which none are under way."""
        for reading in self._readings.values():
            if not reading.is_requested and not reading.cursor.is_at_end:
                self._request(reading)

    def _request(self, reading: _Reading[T]) -> None:
        if reading.address is None:
            reading.address = self._controller.segment_address(
                reading.scope, reading.stream, reading.cursor.segment_id
            )
        link = self._linked(reading.address, reading.access)
        request_id = link.connection.next_request_id()
        request = wire.ReadSegment(
            reading.cursor.name,
            reading.cursor.offset,
            reading.cursor.bytes_wanted(READ_BYTES),
            reading.access.token(),
            request_id,
        )
        with self._dropping(reading.address):
            link.connection.send(request)
        link.requests[request_id] = reading
        reading.is_requested = True

    def _receive_some(self) -> None:
        """Wait for replies of any segment store, as long as the limit allows, and process them."""
        seconds = max(0.0, min(find_wait_left(), KEEP_ALIVE_SECONDS))
        by_fileno = {link.connection.fileno(): key for key, link in self._links.items()}
        readable, _, _ = select.select(list(by_fileno), [], [], seconds)
        for fileno in readable:
            address = by_fileno[fileno]
            link = self._links[address]
            # After an error the replies behind it are not taken: they are asked for anew.
            with self._dropping(address):
                replies = link.connection.receive_some(waits=False)
                link.heard = time.monotonic()
                self._patience.renew()
                for reply in replies:
                    self._take(reply, link)
        self._keep_alive()

    def _take(self, reply: wire.Reply, link: _Link[T]) -> None:
        """Process a reply, unless its request was dropped."""
        reading = link.requests.pop(getattr(reply, "request_id", -1), None)
        if reading is None:
            return
        reading.is_requested = False
        if isinstance(reply, wire.AuthTokenCheckFailed):
            name = scoped_name(reading.scope, reading.stream)
            raise reading.access.refusal(reply, f"no permission to read {name}")
        try:
            pieces = reading.cursor.take(reply)
        except RemoteProtocolError as error:
            raise PravegaError(str(error)) from error
        if pieces is None:
            if isinstance(reply, wire.ErrorMessage):
                raise RefusedError(f"the segment store refused a read: {reply.message}")
            # The reply is WrongHost, or unknown: ask the controller again which store to use.
            raise ProtocolError(f"unexpected {type(reply).__name__}")
        if pieces:
            self._found.append((reading.cursor, pieces))

    # ---- Connections -----------------------------------------------------------------------------

    def _skip_pause(self) -> None:
        """Leave the time out in which the program did not wait."""
        paused = time.monotonic() - self._left_at
        for link in self._links.values():
            link.heard += paused
            link.asked += paused
        self._patience.skip_pause(paused)

    def _linked(self, address: Address, access: StoreAccess) -> _Link[T]:
        link = self._links.get(address)
        if link is None:
            with self._dropping(address):
                connection = access.connect(*address, timeout=REPLY_SECONDS)
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
        """Close the connection to a store if the block fails or is interrupted; what was asked over
        it is asked again."""
        try:
            yield
        except BaseException:
            self._drop(address)
            raise

    def _drop(self, address: Address) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.connection.close()
        for reading in self._readings.values():
            if reading.address == address:
                reading.address = None
                reading.is_requested = False
