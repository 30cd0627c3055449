"""Writes the events of one segment: connects, sends, and takes the acknowledgements.

Owns: one connection at a time, the waiting for it, and one ``AppendSession``. ``EventWriter`` owns
the pumps of a stream.

A pump starts when an event comes, and connects. One task sends what is in the batch, so all events
that came while it was sending are the next block; another one takes the replies. After
``IDLE_SECONDS`` without an event it closes its connection and ends, so that a writer that waits has
neither; the next event starts it again. Held by ``test_an_idle_pump_closes_its_connection``, and
``test_an_idle_pump_may_get_an_event_at_any_moment``.

A long event waits until all before it are stored. It goes over a connection of its own, and then
the writer is set up again, which tells whether the event is stored.

Invariants:
1. When connections break at any moment, each event is stored once, in the order of ``add``. Held by
   ``test_each_event_is_stored_once_in_order_however_connections_break``.
2. When connections break while a long event is written, it is stored once, in its place. Held by
   ``test_long_events_are_stored_once_in_order_however_connections_break``.
3. When the store says why it does not answer, the writer is told, and the pump waits for as long
   as its patience lasts. Held by ``test_a_store_that_waits_says_why``.
4. When events gather, they share an acknowledgement, but none with an event that may be in another
   block: that may be lost when they are stored. Held by
   ``test_events_that_may_be_in_different_blocks_share_no_acknowledgement``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio

from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError
from pravega_wire.requests.store_connection import (
    REPLY_SECONDS,
    StoreConnection,
    run_until_one_ends,
)
from pravega_wire.sessions import append_session
from pravega_wire.sessions.append_session import AppendSession, Block
from pravega_wire.sessions.long_appends import append_long
from segstore_client.access.tokens import StoreAccess
from segstore_client.addresses import Address
from segstore_client.append_refusals import SegmentEndedError, append_refusal
from segstore_client.backoff import Patience
from segstore_client.connections.calls import call_blocking, wait_to_repeat
from segstore_client.connections.connection import open_connection
from segstore_client.controller.controller_client import RETRIED_ERRORS
from segstore_client.delays import Delays, OnDelay
from segstore_client.errors import PravegaError
from segstore_client.writing.acknowledgement import Acknowledgement

Event = tuple[float, bytes, Acknowledgement]
"""The position of an event's key in the key space, its bytes, and what its batch has in common."""
IDLE_SECONDS = 20.0
"""Time, in seconds, without an event after which a pump closes its connection. To open another one
takes a few milliseconds."""
LOOK_SECONDS = 1.0
"""Time, in seconds, without a reply after which the store is asked for the reason, each time."""


class PumpOwner(Protocol):
    """The writer, as a pump sees it: told that events are stored, or that the segment has ended."""

    def start(self, pump: SegmentPump, /) -> None:
        """Run the pump in a task of the writer."""

    def take_ready(self) -> None:
        """Take note that there is enough to be sent."""

    def take_acknowledged(self, byte_count: int, /) -> None:
        """Take note that events, of so many bytes with their headers, are stored."""

    def replace(self, pump: SegmentPump, /) -> Awaitable[None]:
        """Give the unstored events of a segment that has ended to its successors."""

    def fail(self, error: Exception, /) -> None:
        """End the writer: an event cannot be stored."""


class SegmentPump:
    """The way of events to the segment ``name``. ``run`` is one task of the writer, while there are
    events."""

    def __init__(
        self,
        segment: int,
        name: str,
        locate: Callable[[], Address],
        owner: PumpOwner,
        *,
        access: StoreAccess,
        patience: float,
        on_delay: OnDelay | None,
        session: AppendSession[Event] | None = None,
    ) -> None:
        self.segment = segment
        self.name = name
        self.session = AppendSession[Event](os.urandom(16)) if session is None else session
        self._locate = locate
        self.owner = owner
        self._access = access
        self._patience = Patience(patience)
        self._delays = Delays(on_delay, access)
        self._is_running = False
        self._gathering: Acknowledgement | None = None
        """The acknowledgement that the next event shares with those before it in the batch; None if
        it gets its own."""
        self._last_moved_number = wire.NULL_ATTRIBUTE_VALUE
        """The number of the last event that came from another segment: others that share an
        acknowledgement with it may be elsewhere."""
        self._news = anyio.Event()
        self._receiving = anyio.CancelScope()
        """Ends the wait for a reply at its deadline."""
        self._address: Address = ("", 0)
        self._request_id = 0
        self._quiet_seconds = 0.0
        """Time, in seconds, since the store has answered."""
        self._was_idle = False
        """True if the connection was closed because no event came."""

    def add(self, position: float, data: bytes) -> Acknowledgement:
        """Add an event, and return what to await for its storage. Raises ``EventTooLongError``."""
        if len(data) > append_session.EVENT_BYTES_MAX:
            self._gathering = None
        acknowledgement = self._gathering or Acknowledgement()
        is_ready = self.session.add((position, data, acknowledgement))
        acknowledgement.unstored += 1
        if self._gathering is None:
            self._begin_batch(acknowledgement)
        if is_ready:
            # What comes now may be in another block: its fate may be another one.
            self._gathering = None
            self.owner.take_ready()
        return acknowledgement

    def move(self, event: Event) -> None:
        """Add an event of another segment, which has ended."""
        self.session.add(event)
        self._last_moved_number = self.session.last_number
        self._begin_batch(event[2])

    def _begin_batch(self, acknowledgement: Acknowledgement) -> None:
        """Send the batch, when it comes to that; what is added meanwhile shares this
        acknowledgement."""
        self._gathering = acknowledgement
        self._news.set()
        if not self._is_running:
            self._is_running = True
            self.owner.start(self)

    async def run(self) -> None:
        """Write events until none comes any more, or the segment or the writer has ended."""
        try:
            while not self.session.is_idle:
                try:
                    await self._write_over_one_connection()
                except SegmentEndedError:
                    await self.owner.replace(self)
                    return
                except RETRIED_ERRORS as error:
                    if not self.session.is_idle:
                        what = f"{self.name} could not be written to"
                        await wait_to_repeat(self._patience, error, what)
        except PravegaError as error:
            self.owner.fail(error)
        # Nothing is awaited since there was no event: the next one starts the pump again.
        self._is_running = False

    async def _write_over_one_connection(self) -> None:
        """Connect and write until no event has come for a while. Raises the error that ended the
        connection."""
        self._address = await call_blocking(self._locate)
        async with open_connection(*self._address, self._access) as connection:
            self._was_idle = False
            while not self._was_idle:
                last = await self._set_up(connection)
                self._take(self.session.acknowledge(last))
                await run_until_one_ends(
                    partial(self._send, connection, last), partial(self._receive, connection)
                )

    async def _set_up(self, connection: StoreConnection) -> int:
        """Tell the store of the writer; return the number of its last event in the segment."""
        token = await call_blocking(self._access.token) if self._access.has_tokens else ""
        self._request_id = connection.next_request_id()
        reply = await connection.call(
            wire.SetupAppend(self._request_id, self.session.writer_id, self.name, token)
        )
        if not isinstance(reply, wire.AppendSetup):
            raise append_refusal(reply, self.name, self._access)
        return reply.last_event_number

    async def _send(self, connection: StoreConnection, stored_number: int) -> None:
        """Send the events that are not stored, and new ones, until a long event is stored or no
        event comes."""
        session = self.session
        for block in session.resume(stored_number):
            if block.is_long:
                await self._store_long(block)
                return
            await connection.send_bytes(session.encode(block, self._request_id))
        while True:
            while session.has_batch and not session.is_full:
                block = session.begin_block()
                if not session.has_batch:
                    self._gathering = None
                if block.is_long:
                    await self._store_long(block)
                    return
                # An idle connection expects no reply. The store may not even read the block.
                late = anyio.current_time() + LOOK_SECONDS
                self._receiving.deadline = min(self._receiving.deadline, late)
                await connection.send_bytes(session.encode(block, self._request_id))
            self._news = anyio.Event()
            with anyio.move_on_after(IDLE_SECONDS) as wait:
                await self._news.wait()
            if wait.cancelled_caught and session.is_idle:
                self._was_idle = True
                return

    async def _store_long(self, block: Block[Event]) -> None:
        """Store a long event, after all that is in flight before it."""
        while self.session.in_flight[0] is not block:
            self._news = anyio.Event()
            await self._news.wait()
        token = await call_blocking(self._access.token) if self._access.has_tokens else ""
        async with open_connection(*self._address, self._access) as connection:
            steps = append_long(
                self.name,
                self.session.writer_id,
                block,
                stored_number=self.session.stored_number,
                token=token,
                next_request_id=connection.next_request_id,
                refusal=lambda reply: append_refusal(reply, self.name, self._access),
            )
            with suppress(StopIteration):
                request = next(steps)
                while True:
                    request = steps.send(await connection.call(request))
                    self._quiet_seconds = 0.0
                    self._patience.renew()

    async def _receive(self, connection: StoreConnection) -> None:
        self._quiet_seconds = 0.0
        while True:
            seconds = LOOK_SECONDS if self.session.in_flight else math.inf
            replies: list[wire.Reply] = []
            with anyio.move_on_after(seconds) as self._receiving:
                replies = await connection.receive()
            if replies:
                self._quiet_seconds = 0.0
                self._patience.renew()
                for reply in replies:
                    self._take_reply(reply)
            elif self.session.in_flight:
                self._quiet_seconds += LOOK_SECONDS
                await call_blocking(partial(self._delays.look, *self._address, self._patience))
                if self._quiet_seconds >= REPLY_SECONDS:
                    raise ProtocolError(f"no reply of {connection.peer} in {REPLY_SECONDS:g} s")

    def _take_reply(self, reply: wire.Reply) -> None:
        if isinstance(reply, wire.DataAppended):
            self._take(self.session.acknowledge(reply.event_number))
            if self.session.has_batch or self.session.has_long_next:
                self._news.set()
        elif not isinstance(reply, wire.KeepAlive):
            raise append_refusal(reply, self.name, self._access)

    def _take(self, blocks: list[Block[Event]]) -> None:
        if blocks:
            # The answer to a setup may be the only one that says so.
            self._patience.renew()
        for block in blocks:
            first = block.events[0][2]
            number_before = block.last_event_number - len(block.events)
            has_moved = number_before < self._last_moved_number
            if block.events[-1][2] is first and not has_moved:
                first.note_stored(len(block.events))
            else:
                for event in block.events:
                    event[2].note_stored(1)
            self.owner.take_acknowledged(block.byte_count)
