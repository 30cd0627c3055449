"""Replies of one connection on their way out.

Owns: the bytes that were replied and not yet sent, and the one task that sends them.

Invariants:
1. Bytes leave in the order of ``put``; everything put within a turn of the event loop leaves in as
   few sends as its size allows.
2. ``put`` never waits. Whoever produces more than ``pause_bytes`` is expected to ``wait_for_room``.
3. Long replies are sent from where they are. One turn of the event loop sends at most
   ``SENT_BYTES_MAX`` of a connection, so that others have their turn.
4. A late reply has its place in that order, and its bytes are made when it is its turn.
5. What is unsent counts in ``total``, which all connections share: a connection is full earlier
   when that is.
6. ``run`` ends when ``finish`` was called and everything is sent, or at once after ``discard``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from segstore.network.buffer_bytes import REPLY_BYTES_FREE, ReplyBytes
from segstore.network.transport import SENT_BYTES_MAX, Flusher

JOINED_BYTES_MAX: Final = 256 * 1024


class LateReply(Protocol):
    """A reply that goes on changing until it is sent."""

    def __len__(self) -> int:
        """How many bytes it will have."""
        ...

    def take(self) -> bytes:
        """Its bytes, at last."""
        ...


class SendBuffer:
    """See the module. ``size`` is the number of unsent bytes, ``sent_bytes`` that of sent ones."""

    def __init__(
        self, *, pause_bytes: int, total: ReplyBytes, flusher: Flusher | None = None
    ) -> None:
        self.size = 0
        self.sent_bytes = 0
        self._total = total
        self._flusher = flusher
        self._flushing = False
        self._rest: memoryview | None = None
        self._pause_bytes = pause_bytes
        self._chunks: deque[bytes | memoryview | LateReply] = deque()
        self._wake: trio.Event | None = None
        self._progress: trio.Event | None = None
        self._finished = False

    @property
    def is_full(self) -> bool:
        """Whether a well-behaved producer would wait now."""
        return self.size >= self._pause_bytes or (
            self.size >= REPLY_BYTES_FREE and self._total.count >= self._total.count_max
        )

    @property
    def has_room(self) -> bool:
        """Whether a reply to a read that waited may be made now, with those of others."""
        return self.size < REPLY_BYTES_FREE and self._total.count < self._total.at_once_max

    def put(self, data: bytes | memoryview | LateReply) -> None:
        """Queue a reply; after ``finish`` it is dropped."""
        if self._finished:
            return
        self._chunks.append(data)
        length = len(data)
        self.size += length
        self._total.count += length
        if self._wake is not None:
            if self._flusher is None:
                self._wake_up()
            elif not self._flushing:
                self._flushing = True
                self._flusher.flush_soon(self._flush)

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def _flush(self) -> None:
        """Send without a task what the socket takes at once; the task gets the rest."""
        self._flushing = False
        flusher = self._flusher
        assert flusher is not None
        while self._wake is not None and self._chunks:
            data = self._next_chunk()
            try:
                few = len(data) <= SENT_BYTES_MAX
                sent = flusher.send_now(data if few else memoryview(data)[:SENT_BYTES_MAX])
            except trio.BrokenResourceError:
                sent = 0  # the task will find out and tell
            self.size -= sent
            self.sent_bytes += sent
            self._total.count -= sent
            if sent < len(data):
                self._rest = memoryview(data)[sent:]
                self._wake_up()
        self._note_progress()

    def finish(self) -> None:
        """Take nothing more. Idempotent."""
        self._finished = True
        self._wake_up()

    def discard(self) -> None:
        """Drop what is unsent and take nothing more: there is nobody to send it to."""
        self._chunks.clear()
        self._rest = None
        self._total.count -= self.size
        self.size = 0
        self._note_progress()
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
        """Send what comes, until finished."""
        while True:
            if self._rest is None and not self._chunks:
                if self._finished:
                    return
                self._wake = trio.Event()
                await self._wake.wait()
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
            self._note_progress()
            if not rest:
                return
            await self._total.take_turn()

    def _note_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None

    def _next_chunk(self) -> bytes | memoryview:
        chunks = self._chunks
        first = _bytes_of(chunks.popleft())
        if not chunks or len(first) >= JOINED_BYTES_MAX:
            return first
        joined, size = [first], len(first)
        while chunks and size + len(chunks[0]) <= JOINED_BYTES_MAX:
            chunk = _bytes_of(chunks.popleft())
            joined.append(chunk)
            size += len(chunk)
        return b"".join(joined)


def _bytes_of(reply: bytes | memoryview | LateReply) -> bytes | memoryview:
    return reply if isinstance(reply, bytes | memoryview) else reply.take()
