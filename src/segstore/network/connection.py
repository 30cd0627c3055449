"""One client connection: requests in, replies out, nothing waits for anything else.

Owns: the life of a connection, the dispatch of its requests, and what it may hold.

Invariants:
1. Requests are dispatched in the order in which they came. Appends and reads are begun at once;
   every other request runs in a task. Those about one segment keep the order of ``RequestLanes``.
2. Nothing waits for a read: ``ConnectionReads`` has those that are not answered.
3. What a connection holds is bounded: requests, parked reads, unsent replies, outstanding bytes.
   Up to a bound is taken from the socket; beyond it, the bytes stay there. What all of them have in
   buffers is bounded too (``BufferBytes``), and goes with the connection.
4. A connection ends alone: what its peer did wrong is logged with the peer's address and how many
   bytes came before, and no other connection notices.
5. Requests that were dispatched before the peer's end are answered before the connection closes,
   unless the peer is gone or does not read, or ``ANSWER_SECONDS`` have passed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
import trio

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import LocalProtocolError, RemoteProtocolError
from segstore.errors import NoSuchSegmentError, SegmentStoreError
from segstore.network.append_processor import AppendProcessor
from segstore.network.buffer_bytes import COMMAND_BYTES_FREE, BufferBytes, ReplyPlaces, Reservation
from segstore.network.bulk_turns import BulkTurns
from segstore.network.handler_table import Handler, RequestContext, Store
from segstore.network.handlers import SEGMENT_HANDLERS
from segstore.network.outstanding_bytes import OutstandingBytes, OutstandingTotal, Share
from segstore.network.read_pacing import HeldReads
from segstore.network.reads import ConnectionReads
from segstore.network.replies import ILLEGAL_ARGUMENT, NO_OFFSET, Asked, refusal
from segstore.network.request_lanes import RequestLanes, Ticket
from segstore.network.scan_handlers import SCAN_HANDLERS
from segstore.network.send_buffer import SendBuffer
from segstore.network.table_handlers import TABLE_HANDLERS
from segstore.process.config import ConnectionSettings
from segstore.runtime.transport import Transport

_HANDLERS: Final[Mapping[type, Handler]] = {
    **SEGMENT_HANDLERS,
    **TABLE_HANDLERS,
    **SCAN_HANDLERS,
}

LINGER_SECONDS: Final = 2.0
"""Maximum time, in seconds, in which a closing connection may send its last replies and see the
peer's end."""
CLEANUP_SECONDS: Final = 10.0
IN_THE_WAY_SECONDS: Final = 1.0
"""Maximum time, in seconds, in which a long command may make no progress while others wait for its
memory."""
PROGRESS_BYTES_MIN: Final = 64 * 1024
"""Minimum number of received bytes that counts as progress of such a command."""
ANSWER_SECONDS: Final = 10.0
"""Maximum seconds for the answers to requests of a peer that has ended."""

_KEEP_ALIVE: Final = encode(wire.KeepAlive())

logger = structlog.get_logger(__name__)


class ServerConnection:
    """Serves what comes over one transport."""

    def __init__(
        self,
        transport: Transport,
        *,
        store: Store,
        settings: ConnectionSettings,
        outstanding_total: OutstandingTotal,
        buffers: BufferBytes,
        held_reads: HeldReads,
        bulk_turns: BulkTurns,
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._log = logger.bind(peer=transport.peer)
        self._protocol = Connection(Role.SERVER)
        self._context = RequestContext(store)
        self._buffers = buffers
        self._reserved = Reservation(buffers.commands, self.end_if_stalled)
        self._replies = SendBuffer(
            pause_bytes=settings.send_bytes_pause,
            total=buffers.replies,
            send_now=transport.send_now,
        )
        self._outstanding_total = outstanding_total
        self._outstanding = OutstandingBytes(outstanding_total)
        self._appends = AppendProcessor(
            store.registry,
            self._outstanding,
            send=self.send,
            send_late=self._replies.put,
            close=self.close,
            on_completed=self._wake_waiting,
        )
        self._lanes = RequestLanes()
        self._reads = ConnectionReads(
            self._context,
            self._replies,
            buffers.replies,
            held_reads,
            bulk_turns,
            parked_max=settings.parked_reads_max,
            refuse=self._refuse,
            close=self.close,
            start_task=self._start_task,
        )
        self._reply_places = ReplyPlaces(settings.large_replies_max)
        self._request_count = 0
        self._request_bytes: dict[Share, int] = {}
        self._received_bytes = 0
        self._is_receiving = False
        self._progress = (0, 0)
        self._progress_time = trio.current_time()
        self._closing = False
        self._peer_has_ended = False
        self._undispatched: list[wire.Command | Append] = []
        self._changed: trio.Event | None = None
        self._receiving = trio.CancelScope()
        self._sent = trio.Event()
        self._set_up_append = Handler(
            self._set_up,
            exclusive=False,
            segments=lambda request: (request.segment,),
            offset=lambda request: NO_OFFSET,
        )
        self._nursery: trio.Nursery

    # ---- Life ------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve the connection until the peer is gone, ``close`` or ``drain`` is called. Closes the
        transport."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._send_replies)
                with self._receiving:
                    await self._dispatch_requests()
                await self._finish()
                nursery.cancel_scope.cancel()
        finally:
            self._reads.forget()
            self._replies.finish()
            # Requests that have not begun will not begin any more.
            for share, count in self._request_bytes.items():
                self._outstanding.release(count, share)
            self._drop_buffers()
            await self._transport.aclose()
            await self._delete_transient_segments()

    def _drop_buffers(self) -> None:
        """Drop what is in buffers, and what keeps this connection in memory."""
        self._protocol.close()
        self._reserved.release()
        self._reserved = Reservation(self._buffers.commands)
        self._replies.discard()
        self._undispatched = []
        self._lanes = RequestLanes()
        self._appends.detach()
        del self._set_up_append, self._reads

    def close(self, reason: str) -> None:
        """Dispatch nothing more, send what was replied, and end."""
        if not self._closing:
            self._closing = True
            self._log.warning(
                "connection closed", reason=reason, received_bytes=self._received_bytes
            )
            self._replies.finish()
            self._receiving.cancel()

    def drain(self) -> None:
        """Dispatch nothing more, answer what was dispatched, and end.

        Writers of containers that others have by now are told so: one whose connection just ends
        would come back to where it was.
        """
        self._appends.tell_of_stops()
        self._receiving.cancel()

    def end_if_stalled(self, now: float) -> None:
        """End when the peer keeps memory that others need; to be called from time to time.

        It does so by a command of which nothing more comes, or by replies that it does not take.
        """
        received, sent = self._progress
        is_held_up = self._transport.waits_for_turn
        waits_for_peer = self._is_receiving and self._protocol.needed_bytes > 0 and not is_held_up
        is_in_the_way = self._reserved.is_in_the_way and not is_held_up
        progress_min = PROGRESS_BYTES_MIN if is_in_the_way else 1
        command_stalls = (waits_for_peer or is_in_the_way) and (
            self._received_bytes < received + progress_min
        )
        replies = self._buffers.replies
        replies_stall = (
            self._replies.size > 0
            and self._replies.sent_bytes == sent
            and replies.count > replies.count_max // 2
        )
        seconds_max = self._settings.stalled_seconds_max
        if is_in_the_way and waits_for_peer:
            seconds_max = min(seconds_max, IN_THE_WAY_SECONDS)
        if not command_stalls and not replies_stall:
            self._progress = (self._received_bytes, self._replies.sent_bytes)
            self._progress_time = now
        elif now - self._progress_time >= seconds_max:
            if replies_stall:
                self._replies.discard()
                what = "the peer took none of its replies, and others need the room,"
            elif waits_for_peer:
                what = "a command made no progress"
            else:
                what = "a long command could not be received, and others waited,"
            self.close(f"{what} for {seconds_max} s")

    async def _finish(self) -> None:
        """Close the connection; first send replies and wait for the peer's end where it can still
        listen."""
        self._reads.finish()
        self._protocol.close()
        self._reserved.release()
        # A peer that sends nothing more may still read; one that has gone is found out by a reply.
        with trio.move_on_after(ANSWER_SECONDS if self._peer_has_ended else math.inf):
            while not self._closing and (self._request_count or self._appends.in_flight_count):
                self._changed = trio.Event()
                await self._changed.wait()
        self._replies.finish()
        with trio.move_on_after(LINGER_SECONDS):
            await self._sent.wait()
            if self._peer_has_ended:
                return
            # Closing at once could overtake the replies: see the peer's end first.
            try:
                await self._transport.send_eof()
                while await self._transport.receive():
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    def _peer_is_gone(self) -> None:
        self._closing = True
        self._replies.discard()
        self._receiving.cancel()

    def _start_task(self, function: Callable[[], Awaitable[None]]) -> None:
        if not self._closing:
            self._nursery.start_soon(function)

    async def _send_replies(self) -> None:
        try:
            await self._replies.run(self._transport.send)
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

    async def _dispatch_requests(self) -> None:
        """Dispatch what the peer sends, until it has ended or the connection closes."""
        with trio.move_on_after(self._settings.first_command_seconds_max) as patience:
            commands = await self._next_commands()
        if patience.cancelled_caught:
            self.close("no command came in time")
            return
        turn = self._settings.commands_per_turn
        while commands:
            for count, command in enumerate(commands):
                if self._is_full:
                    await self._wait_for_room()
                if self._outstanding.is_tight:
                    await self._wait_for_share(command)
                if self._closing:
                    return
                self._dispatch(command)
                if count % turn == turn - 1:
                    await trio.lowlevel.checkpoint()
            if self._reserved.count:
                self._release_reserved()
            await self._wait_for_room()
            commands = await self._dispatch_in_steps() or await self._next_commands()

    async def _dispatch_in_steps(self) -> list[wire.Command | Append]:
        """Dispatch received commands in steps of the reactor until something has to wait; return
        the commands that are left to this task."""
        if self._protocol.needed_bytes > COMMAND_BYTES_FREE:
            return []
        self._is_receiving = True
        try:
            await self._transport.receive_with(self._data_received)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return []  # the next read tells
        finally:
            self._is_receiving = False
        left, self._undispatched = self._undispatched, []
        return left

    def _data_received(self, data: bytes) -> bool:
        """Dispatch the commands in what came; returns False when something has to wait."""
        if not data:
            self._peer_has_ended = True
            return False
        commands = self._decode(data)
        for count, command in enumerate(commands):
            if self._closing:
                return False
            if self._must_wait() or count == self._settings.commands_per_turn:
                self._undispatched = commands[count:]
                return False
            self._dispatch(command)
        if self._reserved.count and commands:
            self._release_reserved()
        return (
            self._protocol.needed_bytes <= COMMAND_BYTES_FREE
            and not self._closing
            and not self._must_wait()
        )

    async def _next_commands(self) -> list[wire.Command | Append]:
        """Return the next commands; none when the peer has ended or broken the protocol."""
        commands: list[wire.Command | Append] = []
        while not commands and not (self._closing or self._peer_has_ended):
            if self._protocol.needed_bytes > COMMAND_BYTES_FREE:
                await self._reserve(self._protocol.needed_bytes)
            self._is_receiving = True
            try:
                data = await self._transport.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._peer_is_gone()
                break
            finally:
                self._is_receiving = False
            if not data:
                self._peer_has_ended = True
                break
            commands = self._decode(data)
        return commands

    def _decode(self, data: bytes) -> list[wire.Command | Append]:
        self._received_bytes += len(data)
        try:
            commands = self._protocol.receive_data(data)
        except RemoteProtocolError as error:
            self.close(f"protocol broken: {error}")
            return []
        needed = self._protocol.needed_bytes
        if needed > COMMAND_BYTES_FREE and needed > self._reserved.count:
            # At once, if that is possible: others are received from in the same step.
            self._progress_time = trio.current_time()
            self._reserved.try_grow(needed)
        return commands

    def _release_reserved(self) -> None:
        """Release what commands had reserved that are complete.

        A writer that sends one command after the other has a part of the next one by then: that
        one has to get in line behind those who wait.
        """
        self._reserved.release()
        needed = self._protocol.needed_bytes
        if needed > COMMAND_BYTES_FREE:
            self._reserved.try_grow(needed)

    async def _reserve(self, count: int) -> None:
        if not self._reserved.try_grow(count):
            await self._reserved.grow(count)
            self._progress_time = trio.current_time()

    def _must_wait(self) -> bool:
        """Return whether the next command has to wait, for room or for a share."""
        replies, outstanding, total = self._replies, self._outstanding, self._outstanding_total
        return (
            # Most of the time these two need not be asked.
            (replies.size > 0 and replies.is_full)
            or (outstanding.count >= outstanding.free and outstanding.is_full)
            or total.total >= total.tight_from
            or self._request_count >= self._settings.requests_max
        )

    @property
    def _is_full(self) -> bool:
        return (
            self._replies.is_full
            or self._request_count >= self._settings.requests_max
            or self._outstanding.is_full
        )

    async def _wait_for_room(self) -> None:
        while self._is_full:
            await self._replies.wait_for_room()
            await self._outstanding.wait_for_room()
            while self._request_count >= self._settings.requests_max:
                self._changed = trio.Event()
                await self._changed.wait()

    async def _wait_for_share(self, command: wire.Command | Append) -> None:
        """Wait while the container that a command's payload is for stands still."""
        if length := _payload_bytes(command):
            await self._share_of(command).wait_for_room(length)

    def _share_of(self, command: Any) -> Share:
        if type(command) is Append:
            return self._appends.share_of(command)
        return self._outstanding.share_of(command.segment)

    def _wake_waiting(self) -> None:
        """Wake who waits until requests or appends are completed."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _dispatch(self, command: Any) -> None:
        kind = type(command)
        if kind is Append:
            if self._lanes.by_segment:
                self._dispatch_in_order(command, self._appends.append)
            else:
                self._appends.append(command)
        elif kind is wire.ReadSegment:
            self._dispatch_in_order(command, self._reads.start)
        elif kind is wire.KeepAlive:
            self._replies.put(_KEEP_ALIVE)
        elif kind is wire.Hello:
            self._greet(command)
        elif kind is wire.SetupAppend:
            self._dispatch_task(command, self._set_up_append)
        elif (handler := _HANDLERS.get(kind)) is not None:
            self._dispatch_task(command, handler)
        else:
            self.close(f"{kind.__name__} is not served")

    def _dispatch_in_order(self, command: Any, start: Callable[[Any], None]) -> None:
        """Run a short action now, or when the requests before it are done."""
        if not self._lanes.is_held_up(command.segment):
            start(command)
            return

        def start_late(ticket: Ticket) -> None:
            self._release(command)
            if not self._closing:
                start(command)
            self._lanes.leave(ticket)

        self._hold(command)
        self._lanes.enter((command.segment,), start_late, exclusive=False)

    def _dispatch_task(self, request: Any, handler: Handler) -> None:
        def start(ticket: Ticket) -> None:
            self._nursery.start_soon(self._handle, request, handler, ticket)

        self._hold(request)
        self._lanes.enter(handler.segments(request), start, exclusive=handler.exclusive)

    def _hold(self, request: Any) -> None:
        """Count a request that waits or is being served, and its payload."""
        self._request_count += 1
        if count := _payload_bytes(request):
            share = self._share_of(request)
            self._request_bytes[share] = self._request_bytes.get(share, 0) + count
            self._outstanding.add(count, share)

    def _release(self, request: Any) -> None:
        self._request_count -= 1
        if count := _payload_bytes(request):
            share = self._share_of(request)
            self._request_bytes[share] -= count
            self._outstanding.release(count, share)
        self._wake_waiting()

    async def _handle(self, request: Any, handler: Handler, ticket: Ticket) -> None:
        try:
            if handler.reply_bytes_max is not None:
                await self._reply_at_length(request, handler, handler.reply_bytes_max(request))
            else:
                self.send(await handler.handle(self._context, request))
        except SegmentStoreError as error:
            self._refuse(error, handler.asked(request))
        except LocalProtocolError as error:
            asked = handler.asked(request)
            self.send(
                wire.ErrorMessage(asked.request_id, asked.segment, str(error), ILLEGAL_ARGUMENT)
            )
        # A defect must end this connection alone, not the process with all others.
        except Exception:
            self._log.exception("request failed", request=type(request).__name__)
            self.close("internal error")
        finally:
            self._release(request)
            self._lanes.leave(ticket)

    async def _reply_at_length(self, request: Any, handler: Handler, bytes_max: int) -> None:
        share = self._share_of(request)
        reserved = Reservation(self._buffers.large_replies.of(share))
        async with self._reply_places.reserve(share):
            await self._replies.wait_for_room()
            await self._buffers.replies.wait_for_large()
            await reserved.grow(bytes_max)
            try:
                self.send(await handler.handle(self._context, request))
            finally:
                reserved.release()

    def _refuse(self, error: SegmentStoreError, asked: Asked) -> None:
        reply = refusal(error, asked)
        if reply is None:
            self.close(f"{asked.operation} failed: {error!r}")
        else:
            self.send(reply)

    def send(self, reply: wire.Reply) -> None:
        """Queue a reply; raises ``LocalProtocolError`` when it cannot be sent."""
        self._replies.put(encode(reply))

    def _greet(self, hello: Any) -> None:
        self.send(wire.HELLO)
        if (
            hello.low_version > wire.WIRE_VERSION
            or hello.high_version < wire.OLDEST_COMPATIBLE_VERSION
        ):
            self.close(f"the peer speaks versions {hello.low_version}..{hello.high_version}")

    async def _set_up(self, context: RequestContext, request: wire.SetupAppend) -> wire.Reply:
        return await self._appends.set_up(request)


def _payload_bytes(request: Any) -> int:
    """Return how many bytes of payload a request keeps in memory until it is durable."""
    kind = type(request)
    if kind is Append:
        return len(request.data)
    if kind is wire.UpdateTableEntries:
        return sum(len(entry.key.key) + len(entry.value) for entry in request.table_entries)
    if kind is wire.RemoveTableKeys:
        return sum(len(key.key) for key in request.keys)
    return 0
