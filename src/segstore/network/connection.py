"""Serves one client connection: receives requests, dispatches them and sends replies.

Owns: the life of a connection, and the dispatch of its requests.

``_data_received`` receives, decodes and dispatches all commands. Steps of the reactor call it, and
so does the connection's task, which waits when a command needs room, memory or its turn. Appends
and reads begin at once, and every other request runs in a task. ``ConnectionReads`` has the reads
that are not answered yet.

Invariants:
1. When requests about one segment come one after another, each takes effect after those before it
   that it conflicts with (``admission.request_lanes``). Held by
   ``test_append_seal_and_info_in_one_packet`` and ``test_a_whole_life_in_one_packet``.
2. While reads wait for data, no other request waits for them. Held by
   ``test_parked_reads_block_nothing``.
3. When a connection reaches a bound of ``ConnectionAdmission``, it dispatches nothing more, and
   later bytes stay in its socket. Held by ``test_appends_beyond_the_bound_stay_in_the_socket``.
4. When a connection ends, none of its requests and bytes count any more, and its buffers are freed.
   Held by ``test_nothing_stays_counted_for_a_connection_that_is_gone`` and
   ``test_a_connection_that_ends_inside_a_command_leaves_nothing_in_memory``.
5. When a peer breaks the protocol, only its connection ends, and a log line has the peer's address
   and the number of bytes that it had sent. Held by
   ``test_a_broken_frame_closes_its_connection_with_a_logged_reason``.
6. When many commands come at once, the connection dispatches at most ``commands_per_turn`` of them
   before other connections have their turn. Held by
   ``test_a_flood_on_one_connection_lets_the_others_have_their_turn``.
7. While tokens are checked, no request except ``Hello`` and ``KeepAlive`` is dispatched before its
   token was checked. Held by ``test_what_a_token_does_not_allow_is_refused``.
8. When the peer has ended its sending, requests that were dispatched before are answered before the
   connection closes. Held by ``test_a_peer_that_has_shut_down_its_sending_gets_the_replies``. After
   ``ANSWER_SECONDS`` it closes without the missing answers. Held by
   ``test_a_peer_that_has_ended_is_not_answered_for_ever``.

A packet has four commands about one segment (``test_append_seal_and_info_in_one_packet``):

    append of 4 bytes       begins at once
    SealSegment             runs in a task, after the append; the commands behind it wait for it
    GetStreamSegmentInfo    runs when the segment is sealed, and tells a length of 4
    append                  begins then, too, and is refused with SegmentIsSealed
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
import trio

from _fast.metrics.recorders import now_ns
from pravega_metrics.store_metrics import REFUSALS, REQUEST_SECONDS
from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import LocalProtocolError, RemoteProtocolError
from segstore.errors import NoSuchSegmentError, SegmentStoreError
from segstore.network.admission.buffer_bytes import COMMAND_BYTES_FREE
from segstore.network.admission.policy import Admission, ConnectionAdmission
from segstore.network.admission.request_lanes import Ticket
from segstore.network.append_processor import AppendProcessor
from segstore.network.handler_table import Handler, RequestContext, Store
from segstore.network.handlers import SEGMENT_HANDLERS
from segstore.network.reads import ConnectionReads
from segstore.network.replies import Asked, refusal
from segstore.network.scan_handlers import SCAN_HANDLERS
from segstore.network.table_handlers import TABLE_HANDLERS
from segstore.network.token_checks import TokenChecks
from segstore.runtime.transport import Transport

HANDLERS: Final[Mapping[type, Handler]] = {
    **SEGMENT_HANDLERS,
    **TABLE_HANDLERS,
    **SCAN_HANDLERS,
}

LINGER_SECONDS: Final = 2.0
"""Maximum time, in seconds, for which a closing connection sends its last replies and waits for the
peer's end."""
CLEANUP_SECONDS: Final = 10.0
IN_THE_WAY_SECONDS: Final = 1.0
"""Maximum time, in seconds, for which a long command may make no progress while others wait for its
memory."""
PROGRESS_BYTES_MIN: Final = 64 * 1024
"""Minimum number of received bytes that counts as progress of such a command."""
ANSWER_SECONDS: Final = 10.0
"""Maximum time, in seconds, for answering the requests of a peer that has ended its sending."""

_KEEP_ALIVE: Final = encode(wire.KeepAlive())

logger = structlog.get_logger(__name__)


class ServerConnection:
    """Serves the requests that come over one transport."""

    def __init__(self, transport: Transport, *, store: Store, admission: Admission) -> None:
        self._transport = transport
        self._log = logger.bind(peer=transport.peer)
        self.protocol = Connection(Role.SERVER)
        self._context = RequestContext(store)
        self._admission = ConnectionAdmission(admission, transport.send_now, self.end_if_stalled)
        self.replies = self._admission.replies
        self._appends = AppendProcessor(
            store.registry,
            self._admission.outstanding,
            send=self.send,
            send_late=self.replies.put,
            close=self.close,
        )
        self._context.set_up_append = self._appends.set_up
        self._tokens: TokenChecks | None = None
        if store.tokens is not None:
            self._tokens = TokenChecks(
                store.tokens,
                log=self._log,
                send=self.send,
                close=self.close,
                start_task=self._start_task,
            )
            self._context.set_up_append = self._tokens.watch_setups(self._appends.set_up)
        self._reads = ConnectionReads(
            self._context,
            self.replies,
            admission,
            refuse=self._refuse,
            close=self.close,
            start_task=self._start_task,
        )
        self._received_bytes = 0
        self._is_receiving = False
        self._progress = (0, 0)
        self._progress_time = trio.current_time()
        self._batch_count = 0
        self._closing = False
        self._peer_has_ended = False
        self._undispatched: list[wire.Command | Append] = []
        self._receiving = trio.CancelScope()
        self._sent = trio.Event()
        self._nursery: trio.Nursery

    # ---- Life ------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve the connection until its peer has ended or is gone, or until ``close`` or ``drain``
        is called. Closes the transport."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._send_replies)
                with self._receiving:
                    await self._receive_requests()
                await self._finish()
                nursery.cancel_scope.cancel()
        finally:
            self._reads.forget()
            self.replies.finish()
            # Requests that have not begun will never begin.
            self._admission.outstanding.release_requests()
            self._drop_buffers()
            await self._transport.aclose()
            await self._delete_transient_segments()

    def _drop_buffers(self) -> None:
        """Drop what is in buffers, and references that would keep this connection in memory."""
        self.protocol.close()
        self._admission.drop()
        self._undispatched = []
        self._appends.detach()
        if self._tokens is not None:
            self._tokens.detach()
        del self._reads

    def close(self, reason: str) -> None:
        """Stop dispatching, send the queued replies, and end the connection."""
        if not self._closing:
            self._closing = True
            self._log.warning(
                "connection closed", reason=reason, received_bytes=self._received_bytes
            )
            self.replies.finish()
            self._receiving.cancel()

    def drain(self) -> None:
        """Stop dispatching, answer what was dispatched, and end the connection.

        Writers whose containers have moved to other stores are told so. Otherwise they would only
        see the end of the connection, and connect to this store again.
        """
        self._appends.tell_of_stops()
        self._receiving.cancel()

    def end_if_stalled(self, now: float) -> None:
        """End the connection if its peer keeps memory that others need. Call this from time to
        time.

        A peer keeps memory when it does not send the rest of a command, or does not take its
        replies.
        """
        received, sent = self._progress
        is_held_up = self._transport.waits_for_turn
        waits_for_peer = self._is_receiving and self.protocol.needed_bytes > 0 and not is_held_up
        is_in_the_way = self._admission.reserved.is_in_the_way and not is_held_up
        progress_min = PROGRESS_BYTES_MIN if is_in_the_way else 1
        command_stalls = (waits_for_peer or is_in_the_way) and (
            self._received_bytes < received + progress_min
        )
        replies_stall = self._admission.peer_takes_no_replies and self.replies.sent_bytes == sent
        seconds_max = self._admission.settings.stalled_seconds_max
        if is_in_the_way and waits_for_peer:
            seconds_max = min(seconds_max, IN_THE_WAY_SECONDS)
        if not command_stalls and not replies_stall:
            self._progress = (self._received_bytes, self.replies.sent_bytes)
            self._progress_time = now
        elif now - self._progress_time >= seconds_max:
            if replies_stall:
                self.replies.discard()
                what = "the peer took none of its replies, and others need the room,"
            elif waits_for_peer:
                what = "a command made no progress"
            else:
                what = "a long command could not be received, and others waited,"
            self.close(f"{what} for {seconds_max} s")

    async def _finish(self) -> None:
        """Send the last replies, and wait for the peer's end if the peer may still read."""
        self._reads.finish()
        self.protocol.close()
        self._admission.reserved.release()
        # A peer that has ended its sending may still read. If it is gone, sending a reply fails.
        with trio.move_on_after(ANSWER_SECONDS if self._peer_has_ended else math.inf):
            outstanding = self._admission.outstanding
            while not self._closing and not outstanding.is_empty:
                await outstanding.wait_for_change()
        self.replies.finish()
        with trio.move_on_after(LINGER_SECONDS):
            await self._sent.wait()
            if self._peer_has_ended:
                return
            # A close could discard replies that the peer has not read, so wait for its end first.
            try:
                await self._transport.send_eof()
                while await self._transport.receive():
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    def _peer_is_gone(self) -> None:
        self._closing = True
        self.replies.discard()
        self._receiving.cancel()

    def _start_task(self, function: Callable[[], Awaitable[None]]) -> None:
        if not self._closing:
            self._nursery.start_soon(function)

    async def _send_replies(self) -> None:
        try:
            await self.replies.run(self._transport.send)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._peer_is_gone()
        finally:
            self._sent.set()

    async def _delete_transient_segments(self) -> None:
        names = self._context.transient_segments
        if not names:
            return
        with trio.move_on_after(CLEANUP_SECONDS, shield=True):
            for name in names:
                try:
                    await self._context.container_for(name).delete_segment(name)
                except NoSuchSegmentError:
                    continue
                except SegmentStoreError as error:
                    self._log.warning("transient segment left", segment=name, error=str(error))

    # ---- Requests --------------------------------------------------------------------------------

    async def _receive_requests(self) -> None:
        """Receive and dispatch commands until the peer has ended or the connection closes."""
        with trio.move_on_after(self._admission.settings.first_command_seconds_max) as patience:
            while not self._batch_count and not self._is_over:
                await self._receive()
        if patience.cancelled_caught:
            self.close("no command came in time")
        while not self._is_over:
            await self._dispatch_rest()
            if not self._is_over:
                await self._receive()

    @property
    def _is_over(self) -> bool:
        return self._closing or (self._peer_has_ended and not self._undispatched)

    async def _receive(self) -> None:
        """Receive in steps of the reactor until something has to wait. Without a reactor, or for a
        long command, receive in this task until a command has come."""
        before = self._batch_count
        try:
            if before and self.protocol.needed_bytes <= COMMAND_BYTES_FREE:
                self._is_receiving = True
                await self._transport.receive_with(self._data_received)
                self._is_receiving = False
            while self._batch_count == before and not self._is_over:
                if self.protocol.needed_bytes > COMMAND_BYTES_FREE:
                    await self._reserve(self.protocol.needed_bytes)
                self._is_receiving = True
                self._data_received(await self._transport.receive())
                self._is_receiving = False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._peer_is_gone()
        finally:
            self._is_receiving = False

    def _data_received(self, data: bytes) -> bool:
        """Dispatch the commands in ``data``; return False when something has to wait."""
        if not data:
            self._peer_has_ended = True
            return False
        self._received_bytes += len(data)
        protocol = self.protocol
        try:
            commands = protocol.receive_data(data)
        except RemoteProtocolError as error:
            self.close(f"protocol broken: {error}")
            return False
        needed = protocol.needed_bytes
        if needed > COMMAND_BYTES_FREE and needed > self._admission.reserved.count:
            # Reserve now if there is room: this step also receives from other connections.
            self._progress_time = trio.current_time()
            self._admission.reserved.try_grow(needed)
        if commands and not self._dispatch_all(commands):
            return False
        return (
            protocol.needed_bytes <= COMMAND_BYTES_FREE
            and not self._closing
            and not self._admission.is_full
        )

    def _dispatch_all(self, commands: list[wire.Command | Append]) -> bool:
        """Dispatch commands up to the first that has to wait, at most ``commands_per_turn``; keep
        the rest for this connection's task. Returns whether all were dispatched."""
        self._batch_count += 1
        admission, turn = self._admission, self._admission.settings.commands_per_turn
        for count, command in enumerate(commands):
            if self._closing:
                return False
            if count == turn or admission.must_wait(command):
                self._undispatched = commands[count:]
                return False
            # Most appends come while no earlier request is under way.
            if type(command) is Append and not admission.lanes.by_segment:
                self._appends.append(command)
            else:
                self._dispatch(command)
        if admission.reserved.count:
            admission.renew_reserved(self.protocol.needed_bytes)
        return True

    async def _dispatch_rest(self) -> None:
        """Dispatch the received commands that had to wait; return when more may be received."""
        while self._undispatched and not self._closing:
            left, self._undispatched = self._undispatched, []
            await self._admission.wait_for(left[0])
            if not self._dispatch_all(left):
                await trio.lowlevel.checkpoint()  # let other connections run
        await self._admission.wait_for_room()

    async def _reserve(self, count: int) -> None:
        if not self._admission.reserved.try_grow(count):
            await self._admission.reserved.grow(count)
            self._progress_time = trio.current_time()

    def _dispatch(self, command: Any) -> None:
        kind = type(command)
        if kind is Append:
            self._dispatch_in_order(command, self._appends.append)
        elif kind is wire.ReadSegment:
            if self._tokens is None or self._tokens.allows_read(command):
                self._dispatch_in_order(command, self._reads.start)
        elif kind is wire.KeepAlive:
            self.replies.put(_KEEP_ALIVE)
        elif kind is wire.Hello:
            self._greet(command)
        elif (handler := HANDLERS.get(kind)) is not None:
            if self._tokens is None or self._tokens.allows(command, handler):
                self._dispatch_task(command, handler)
        else:
            self.close(f"{kind.__name__} is not served")

    def _dispatch_in_order(self, command: Any, start: Callable[[Any], None]) -> None:
        """Run a short action now, or when the requests before it are done."""
        admission = self._admission
        if not admission.lanes.is_held_up(command.segment):
            start(command)
            return

        def start_late(ticket: Ticket) -> None:
            admission.release(command)
            if not self._closing:
                start(command)
            admission.lanes.leave(ticket)

        admission.hold(command)
        admission.lanes.enter((command.segment,), start_late, exclusive=False)

    def _dispatch_task(self, request: Any, handler: Handler) -> None:
        def start(ticket: Ticket) -> None:
            self._nursery.start_soon(self._handle, request, handler, ticket)

        self._admission.hold(request)
        self._admission.lanes.enter(handler.segments(request), start, exclusive=handler.exclusive)

    async def _handle(self, request: Any, handler: Handler, ticket: Ticket) -> None:
        began, result = now_ns(), "failed"
        try:
            if handler.reply_bytes_max is not None:
                async with self._admission.long_reply(request, handler.reply_bytes_max(request)):
                    self.send(await handler.handle(self._context, request))
            else:
                self.send(await handler.handle(self._context, request))
            result = "served"
        except SegmentStoreError as error:
            result = "refused"
            self._refuse(error, handler.asked(request))
        except LocalProtocolError as error:
            result = "refused"
            asked = handler.asked(request)
            self.send(
                wire.ErrorMessage(
                    asked.request_id, asked.segment, str(error), wire.ILLEGAL_ARGUMENT
                )
            )
        # A defect must end only this connection, not the process with all others.
        except Exception:
            self._log.exception("request failed", request=type(request).__name__)
            self.close("internal error")
        finally:
            REQUEST_SECONDS.of(type(request).__name__, result).record_since(began)
            self._admission.release(request)
            self._admission.lanes.leave(ticket)

    def _refuse(self, error: SegmentStoreError, asked: Asked) -> None:
        REFUSALS.of(type(error).__name__).add(1)
        reply = refusal(error, asked)
        if reply is None:
            self.close(f"{asked.operation} failed: {error!r}")
        else:
            self.send(reply)

    def send(self, reply: wire.Reply) -> None:
        """Queue a reply. Raises ``LocalProtocolError`` when the reply is too long for a frame."""
        self.replies.put(encode(reply))

    def _greet(self, hello: Any) -> None:
        self.send(wire.HELLO)
        if not hello.suits_us:
            self.close(f"the peer speaks versions {hello.low_version}..{hello.high_version}")
