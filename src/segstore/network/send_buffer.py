"""Replies of one connection on their way out.

Owns: the bytes that were replied and not yet sent, and the one task that sends them.

Invariants:
1. Bytes leave in the order of ``put``; everything put within a step of the reactor leaves in as few
   sends as its size allows.
2. ``put`` never waits. Whoever produces more than ``pause_bytes`` is expected to ``wait_for_room``.
3. Long replies are sent from where they are, ``SENT_BYTES_MAX`` at a time, so that others have
   their turn.
4. A late reply has its place in that order, and its bytes are made when they are sent.
5. What is unsent counts in ``total``, which all connections share: a connection is full earlier
   when that is.
6. The reactor sends what the socket takes at once, the task in ``run`` what it does not. ``run``
   ends when ``finish`` was called and everything is sent, or at once after ``discard``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from segstore.network.buffer_bytes import REPLY_BYTES_FREE, ReplyBytes
from segstore.runtime.reactor import DeferredWork, current_reactor
from segstore.runtime.transport import SENT_BYTES_MAX, SendNow

JOINED_BYTES_MAX: Final = 256 * 1024
_BYTES: Final = (bytes, memoryview)


class LateReply(Protocol):
    """A reply that goes on changing until it is sent."""

    def __len__(self) -> int:
        """Return how many bytes the vector will have."""
        ...

    def to_bytes(self) -> bytes:
        """Return its bytes; from now on it does not change."""
        ...


class SendBuffer:
    """See the module. ``size`` is the number of unsent bytes, ``sent_bytes`` that of sent ones.

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
        """Return whether a well-behaved producer would wait now."""
        return self.size >= self._pause_bytes or (
            self.size >= REPLY_BYTES_FREE and self._total.count >= self._total.count_max
        )

    @property
    def has_room(self) -> bool:
        """Return whether a reply to a read that waited may be made now, with those of others."""
        return self.size < REPLY_BYTES_FREE and self._total.count < self._total.at_once_max

    def put(self, data: bytes | memoryview | LateReply) -> None:
        """Queue a reply; after ``finish`` it is dropped."""
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
        while self._chunks and self._rest is None:
            data = self._next_chunk()
            try:
                few = len(data) <= SENT_BYTES_MAX
                sent = send_now(data if few else memoryview(data)[:SENT_BYTES_MAX])
            except trio.BrokenResourceError:
                sent = 0  # the task will find out and tell
            self.size -= sent
            self.sent_bytes += sent
            self._total.count -= sent
            if sent < len(data):
                self._rest = memoryview(data)[sent:]
        if self._progress is not None:
            self._wake_waiters()
        return self._rest is not None

    def finish(self) -> None:
        """Accept nothing more. Idempotent."""
        self._finished = True
        self._sending.wake()

    def discard(self) -> None:
        """Drop what is unsent and accept nothing more: the peer is gone."""
        self._chunks.clear()
        self._rest = None
        self._total.count -= self.size
        self.size = 0
        self._wake_waiters()
        self.finish()

    async def wait_for_room(self) -> None:
        """Return when it is not full."""
        while self.is_full:
            await self._wait_for_progress()

    async def wait_until_short(self) -> None:
        """Return when less than ``REPLY_BYTES_FREE`` are unsent."""
        while self.size >= REPLY_BYTES_FREE:
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    async def run(self, send: Callable[[bytes | memoryview], Awaitable[None]]) -> None:
        """Send what comes, until finished. Raises what ``send`` raises."""
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
            # Unless it was discarded meanwhile.
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
