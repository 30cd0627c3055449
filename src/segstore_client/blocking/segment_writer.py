"""Appends events to one segment, each once, through restarts of its segment store.

Owns: a connection, and the waiting for it and for replies. What is sent, and again after a break,
is that of an ``AppendSession``. A long event waits until all before it are stored.

Invariants:
1. When a connection breaks before or after the store has stored a block, each event is stored once,
   in the order of ``add``.
   Held by ``test_every_event_is_stored_once_in_order_however_connections_break``.
2. When more than ``BLOCKS_MAX`` blocks, or more than ``IN_FLIGHT_BYTES_MAX`` bytes, have no reply,
   ``drive`` waits for replies. This bounds the memory of both sides, and the replies in the socket.
   Held by ``test_a_writer_waits_for_replies_when_too_many_blocks_have_none``.
3. When a connection breaks while a long event is written, it is stored once, in its place. Held by
   ``test_long_events_have_their_places_however_connections_break``.
4. When ``drive`` is interrupted, and called again, each event is stored once, in the order of
   ``add``. Held by ``test_every_event_is_stored_once_in_order_however_calls_are_interrupted``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.errors import EventTooLongError
from pravega_wire.sessions.append_session import AppendSession, Block, Event
from pravega_wire.sessions.long_appends import append_long
from pravega_wire.sessions.steps import run_steps
from segstore_client.access.tokens import PLAIN, StoreAccess
from segstore_client.addresses import Address
from segstore_client.append_refusals import append_refusal
from segstore_client.backoff import PATIENCE_SECONDS, Patience
from segstore_client.controller.controller_client import RETRIED_ERRORS
from segstore_client.delays import Delays, OnDelay
from segstore_client.errors import UsageError, gave_up

REPLY_SECONDS = 30.0


class SegmentWriter:
    """Sends events to the segment ``name``. Use it in one thread.

    ``locate`` returns the address of the segment's store; it is called before each connection.
    ``access`` is the way to it, with a token to write.
    ``on_delay`` is called once a second with the reason, if a store gives one for its silence.
    ``session`` is one of a random writer id by default.
    """

    def __init__(
        self,
        name: str,
        locate: Callable[[], Address],
        *,
        access: StoreAccess = PLAIN,
        on_delay: OnDelay | None = None,
        session: AppendSession[Event] | None = None,
    ) -> None:
        self.name = name
        self._locate = locate
        self._access = access
        self.session = AppendSession[Event](os.urandom(16)) if session is None else session
        self._connection: SegmentConnection | None = None
        self._request_id = 0
        self._delays = Delays(on_delay, access)
        self._patience = Patience(PATIENCE_SECONDS)

    def add(self, event: Event) -> bool:
        """Add an event to the batch, and return whether the batch is ready to be sent.

        Raises ``UsageError`` for one that is too long for the session.
        """
        try:
            return self.session.add(event)
        except EventTooLongError as error:
            raise UsageError(str(error)) from None

    def connect(self, patience: Patience) -> None:
        """Connect, unless there is a connection: ``session.stored_number`` is what the store has
        then. Raises errors as ``drive``."""
        self._patience = patience
        while self._connection is None:
            with self._trying(patience):
                self._connected()

    def send(self, patience: Patience) -> None:
        """Send the batch, without waiting for replies; a long event waits for its own. Raises
        errors as ``drive``."""
        self._patience = patience
        while self.session.has_batch:
            with self._trying(patience):
                self._send_batch()

    def take_arrived(self) -> None:
        """Take the replies that have arrived, without waiting. What fails is tried by ``drive``."""
        if self._connection is None:
            return
        try:
            for reply in self._connection.receive_arrived():
                self._take_reply(reply)
        except BaseException as error:
            self.disconnect()
            if not isinstance(error, RETRIED_ERRORS):
                raise

    @property
    def is_idle(self) -> bool:
        """Return whether every event that was added has been acknowledged."""
        return self.session.is_idle

    @property
    def acknowledged_events(self) -> int:
        """Return the number of events that were acknowledged."""
        return self.session.acknowledged_events

    @property
    def sent_events(self) -> int:
        """Return the number of events that were acknowledged, or sent and not answered yet."""
        return self.session.sent_events

    def drive(self, patience: Patience, *, drain: bool) -> None:
        """Send the batch, and wait for replies until few enough blocks have none.

        With ``drain`` wait until every block has its reply. Raises ``SegmentEndedError`` when the
        segment accepts no more events, ``UnavailableError`` when servers are unreachable for longer
        than ``patience``, and ``StoreDelayedError`` when the store delays requests for that long.
        """
        self._patience = patience
        while not self.is_idle:
            with self._trying(patience):
                self._send_batch()
                while self._must_wait(drain=drain):
                    self._receive_reply(self._connected())
                return

    def disconnect(self) -> None:
        """Close the connection. The next one sends the unacknowledged events again. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ---- Sending and receiving -------------------------------------------------------------------

    @contextmanager
    def _trying(self, patience: Patience) -> Iterator[None]:
        """Close the connection if the block fails; wait if it may succeed the next time."""
        try:
            yield
        except BaseException as error:
            # A frame may be sent in part. The store would take the bytes of the next frame for the
            # rest of it.
            self.disconnect()
            if not isinstance(error, RETRIED_ERRORS):
                raise
            if not patience.wait():
                what = f"{self.name} could not be written to for {patience.seconds:g} s"
                raise gave_up(what, error) from error

    def _must_wait(self, *, drain: bool) -> bool:
        """Return whether to wait for a reply: with ``drain`` while any block has none.

        Otherwise, wait while more blocks or bytes than the bounds have none.
        """
        return bool(self.session.in_flight) if drain else self.session.is_full

    def _send_batch(self) -> None:
        """Send the batch; connect first if there is no connection."""
        connection = self._connected()
        while self.session.has_batch:
            self._send(connection, self.session.begin_block())

    def _receive_reply(self, connection: SegmentConnection) -> None:
        """Wait for one reply and process it."""
        self._take_reply(connection.receive(timeout=REPLY_SECONDS))

    def _take_reply(self, reply: wire.Reply) -> None:
        if not isinstance(reply, wire.DataAppended):
            raise self._refusal(reply)
        self.session.acknowledge(reply.event_number)
        self._patience.renew()

    def _connected(self) -> SegmentConnection:
        """Return the connection; without one, connect, and send all unacknowledged blocks again."""
        if self._connection is not None:
            return self._connection
        host, port = self._locate()
        connection = self._access.connect(
            host,
            port,
            timeout=REPLY_SECONDS,
            on_wait=lambda: self._delays.look(host, port, self._patience),
        )
        try:
            acknowledged = self.session.acknowledged_events
            blocks = self.session.resume(self._set_up(connection))
            if self.session.acknowledged_events > acknowledged:
                # No reply may come that would renew it.
                self._patience.renew()
            for block in blocks:
                self._send(connection, block)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _set_up(self, connection: SegmentConnection) -> int:
        """Tell the store of the writer; return the number of its last event in the segment."""
        token = self._access.token()
        self._request_id = connection.next_request_id()
        reply = connection.call(
            wire.SetupAppend(self._request_id, self.session.writer_id, self.name, token)
        )
        if not isinstance(reply, wire.AppendSetup):
            raise self._refusal(reply)
        return reply.last_event_number

    def _send(self, connection: SegmentConnection, block: Block[Event]) -> None:
        if block.is_long:
            self._store_long(connection, block)
        else:
            connection.send_bytes(self.session.encode(block, self._request_id))

    def _store_long(self, connection: SegmentConnection, block: Block[Event]) -> None:
        """Store a long event, after all that was sent before it."""
        while self.session.in_flight[0] is not block:
            self._receive_reply(connection)
        steps = append_long(
            self.name,
            self.session.writer_id,
            block,
            stored_number=self.session.stored_number,
            token=self._access.token(),
            next_request_id=connection.next_request_id,
            refusal=self._refusal,
        )

        def call(request: wire.Request) -> wire.Reply:
            reply = connection.call(request)
            self._patience.renew()
            return reply

        run_steps(steps, call)
        # The store has counted on with this writer, which it does not know of this connection. If
        # other processes write with the same numbers, they may have stored what is in the batch.
        self.session.resume(self._set_up(connection))

    def _refusal(self, reply: wire.Reply) -> Exception:
        """Return the error for a reply that is not an acknowledgement."""
        return append_refusal(reply, self.name, self._access)
