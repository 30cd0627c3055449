"""Queues the replies of one connection, and sends them.

Owns: the replies that are not sent yet, and the task that sends what the reactor cannot.

Invariants:
1. Replies are sent in the order of ``put``. When several are put in one step of the reactor, they
   leave in as few sends as their length allows. Held by
   ``test_what_is_put_in_one_turn_leaves_in_one_send`` and
   ``test_large_replies_are_not_copied_together``.
2. When the buffer is full, ``put`` still takes a reply at once; a producer should ``wait_for_room``
   first, which returns after enough was sent. Held by ``test_room_comes_back_when_bytes_are_sent``.
3. When a reply is longer than ``SENT_BYTES_MAX``, it is sent in pieces of that length without a
   copy, and other connections have their turn in between. Held by
   ``test_a_long_reply_is_sent_from_where_it_is_and_not_all_in_one_turn``.
4. When a reply may still change (``LateReply``), it keeps its place in the order, and its bytes are
   made when it is sent. Held by
   ``test_a_late_reply_keeps_its_place_and_tells_what_is_so_when_it_is_sent``.
5. When all connections together have reached the maximum of unsent bytes, a connection counts as
   full when it has ``REPLY_BYTES_FREE`` of them. Held by
   ``test_a_buffer_is_full_earlier_when_all_connections_have_much``.
6. When the socket takes a reply, the reactor sends it without the task. Held by
   ``test_replies_leave_in_a_step_without_the_task``. The task sends what the socket did not take.
   Held by ``test_the_task_sends_what_the_socket_does_not_take_and_all_that_comes_after``.
7. After ``finish``, ``run`` ends when everything is sent. Held by
   ``test_finishing_sends_what_is_there_and_takes_nothing_more``. After ``discard`` it ends at once.
   Held by ``test_discarding_ends_without_sending``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from segstore.network.admission.buffer_bytes import REPLY_BYTES_FREE, ReplyBytes
from segstore.runtime.reactor import DeferredWork, current_reactor
from segstore.runtime.transport import SENT_BYTES_MAX, SendNow

JOINED_BYTES_MAX: Final = 256 * 1024
_BYTES: Final = (bytes, memoryview)


class LateReply(Protocol):
    """A reply that may change until it is sent."""

    def __len__(self) -> int:
        """Return how many bytes it will have."""
        ...

    def to_bytes(self) -> bytes:
        """Return its bytes. From now on it does not change."""
        ...


class SendBuffer:
    """See the module. ``size`` is the number of unsent bytes, ``sent_bytes`` the number of sent
    ones.

    Without ``send_now`` the task sends everything.
    """

    def __init__(
        self, *, pause_bytes: int, total: ReplyBytes, send_now: SendNow | None = None
    ) -> None:
        self.size = 0
        self.sent_bytes = 0
        self._total = total
        self._send_now = send_now
        self._rest: memoryview | None = None
        self._pause_bytes = pause_bytes
        self._chunks: deque[bytes | memoryview | LateReply] = deque()
        self._sending = DeferredWork(current_reactor(), self._send_without_task)
        self._progress: trio.Event | None = None
        self._finished = False

    @property
    def is_full(self) -> bool:
        """Return whether a producer should wait now."""
        return self.size >= self._pause_bytes or (
            self.size >= REPLY_BYTES_FREE and self._total.count >= self._total.count_max
        )

    @property
    def has_room(self) -> bool:
        """Return whether the reply to a read that waited for data may be made now, at the same time
        as those of other connections."""
        return self.size < REPLY_BYTES_FREE and self._total.count < self._total.at_once_max

    def put(self, data: bytes | memoryview | LateReply) -> None:
        """Queue a reply. After ``finish`` it is dropped."""
        if self._finished:
            return
        self._chunks.append(data)
        length = len(data)
        self.size += length
        self._total.count += length
        self._sending.request()

    def _send_without_task(self) -> bool:
        """Send in a step of the reactor what the socket takes at once; return whether the task has
        to send the rest."""
        send_now = self._send_now
        if send_now is None:
            return True
        data: bytes | memoryview | LateReply
        while self._chunks and self._rest is None:
            data = self._chunks.popleft() if len(self._chunks) == 1 else self._next_chunk()
            if not isinstance(data, _BYTES):
                data = data.to_bytes()
            try:
                few = len(data) <= SENT_BYTES_MAX
                sent = send_now(data if few else memoryview(data)[:SENT_BYTES_MAX])
            except trio.BrokenResourceError:
                sent = 0  # the task gets the error, too, and reports it
            self.size -= sent
            self.sent_bytes += sent
            self._total.count -= sent
            if sent < len(data):
                self._rest = memoryview(data)[sent:]
        if self._progress is not None:
            self._wake_waiters()
        return self._rest is not None

    def finish(self) -> None:
        """Accept no more replies. Idempotent."""
        self._finished = True
        self._sending.wake()

    def discard(self) -> None:
        """Drop the unsent replies and accept no more, because the peer is gone."""
        self._chunks.clear()
        self._rest = None
        self._total.count -= self.size
        self.size = 0
        self._wake_waiters()
        self.finish()

    async def wait_for_room(self) -> None:
        """Wait until the buffer is not full."""
        while self.is_full:
            await self._wait_for_progress()

    async def wait_until_short(self) -> None:
        """Wait until less than ``REPLY_BYTES_FREE`` bytes are unsent."""
        while self.size >= REPLY_BYTES_FREE:
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    async def run(self, send: Callable[[bytes | memoryview], Awaitable[None]]) -> None:
        """Send replies until finished. Raises what ``send`` raises."""
        while True:
            if self._rest is None and not self._chunks:
                if self._finished:
                    return
                self._sending.forget_wake()
                await self._sending.wait()
                continue
            rest, self._rest = self._rest, None
            await self._send(send, self._next_chunk() if rest is None else rest)

    async def _send(
        self, send: Callable[[bytes | memoryview], Awaitable[None]], data: bytes | memoryview
    ) -> None:
        rest = data if len(data) <= SENT_BYTES_MAX else memoryview(data)
        while True:
            part = rest[:SENT_BYTES_MAX]
            await send(part)
            rest = rest[len(part) :]
            # The replies may have been discarded meanwhile.
            sent = min(len(part), self.size)
            self.size -= sent
            self.sent_bytes += sent
            self._total.count -= sent
            self._wake_waiters()
            if not rest:
                return
            await self._total.wait_for_turn()

    def _wake_waiters(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def _next_chunk(self) -> bytes | memoryview:
        chunks = self._chunks
        first = chunks.popleft()
        if not isinstance(first, _BYTES):
            first = first.to_bytes()
        if not chunks or len(first) >= JOINED_BYTES_MAX:
            return first
        joined, size = [first], len(first)
        while chunks and size + len(chunks[0]) <= JOINED_BYTES_MAX:
            chunk = chunks.popleft()
            if not isinstance(chunk, _BYTES):
                chunk = chunk.to_bytes()
            joined.append(chunk)
            size += len(chunk)
        return b"".join(joined)
