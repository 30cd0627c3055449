"""Replies of one connection on their way out.

Owns: the bytes that were replied and not yet sent, and the one task that sends them.

Invariants:
1. Bytes leave in the order of ``put``; everything put within a turn of the event loop leaves in as
   few sends as its size allows.
2. ``put`` never waits. Whoever produces more than ``pause_bytes`` is expected to ``wait_for_room``.
3. Long replies are sent from where they are. One turn of the event loop sends at most
   ``SENT_BYTES_MAX`` of a connection, so that others have their turn.
4. A late reply has its place in that order, and its bytes are made when it is its turn.
5. ``run`` ends when ``finish`` was called and everything is sent, or at once after ``discard``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from segstore.transport import SENT_BYTES_MAX, Flusher

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
    """See the module. ``size`` is the number of unsent bytes."""

    def __init__(self, *, pause_bytes: int, flusher: Flusher | None = None) -> None:
        self.size = 0
        self._flusher = flusher
        self._flushing = False
        self._rest: memoryview | None = None
        self._pause_bytes = pause_bytes
        self._chunks: deque[bytes | memoryview | LateReply] = deque()
        self._wake: trio.Event | None = None
        self._room: trio.Event | None = None
        self._finished = False

    @property
    def is_full(self) -> bool:
        """Whether a well-behaved producer would wait now."""
        return self.size >= self._pause_bytes

    def put(self, data: bytes | memoryview | LateReply) -> None:
        """Queue a reply; after ``finish`` it is dropped."""
        if self._finished:
            return
        self._chunks.append(data)
        self.size += len(data)
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
            if sent < len(data):
                self._rest = memoryview(data)[sent:]
                self._wake_up()
        self._note_room()

    def finish(self) -> None:
        """Take nothing more. Idempotent."""
        self._finished = True
        self._wake_up()

    def discard(self) -> None:
        """Drop what is unsent and take nothing more: there is nobody to send it to."""
        self._chunks.clear()
        self._rest = None
        self.size = 0
        self._note_room()
        self.finish()

    async def wait_for_room(self) -> None:
        """Return when less than ``pause_bytes`` are unsent."""
        while self.is_full:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

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
            data = self._next_chunk() if rest is None else rest
            await send(data)
            self.size = max(0, self.size - len(data))
            self._note_room()

    def _note_room(self) -> None:
        if self._room is not None and not self.is_full:
            self._room.set()
            self._room = None

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
