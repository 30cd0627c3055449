"""The bytes of a connection: sockets the short way, any other stream the usual way.

Owns: how received bytes come in and replies go out.

Invariants:
1. ``receive`` and ``send`` wait only when the socket makes them; one task receives, one sends.
2. No memory is held for a connection that waits: all sockets of a process share one buffer, filled
   and copied out without a pause in between.
3. A peer that is gone, however, is ``trio.BrokenResourceError`` or (receiving) no bytes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final, Protocol

import trio

from segstore.network.bulk_turns import BULK_BYTES_MIN, BulkTurns
from segstore.runtime.readiness import ReadySockets

Take = Callable[[bytes], bool]
"""Is given what was received, or nothing at the end; returns whether it takes what comes next."""

_KEEP_ALIVE_IDLE_SECONDS: Final = 60
_KEEP_ALIVE_INTERVAL_SECONDS: Final = 15
_KEEP_ALIVE_COUNT: Final = 4
_RECEIVE_BYTES: Final = 64 * 1024
NARROW_BYTES: Final = 16 * 1024
"""Received at a time while connections wait for memory."""
SENT_BYTES_MAX: Final = 256 * 1024
"""At a time of one connection, so that others have their turn."""


class ReceiveBuffer:
    """The memory that all sockets of an event loop receive into; ``view`` is how much at a time."""

    __slots__ = ("_narrow", "_wide", "view")

    def __init__(self, byte_count: int) -> None:
        self._wide = memoryview(bytearray(byte_count))
        self._narrow = self._wide[:NARROW_BYTES]
        self.view = self._wide

    def narrow(self, is_narrow: bool) -> None:
        """Receive little at a time, or as much as there is room for."""
        self.view = self._narrow if is_narrow else self._wide


class Flusher(Protocol):
    """Sends without waiting."""

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call ``flush`` at the end of this step, or in the next turn of the event loop."""
        ...

    def send_now(self, data: bytes | memoryview) -> int:
        """Send what the socket takes at once, and return how many bytes that was."""
        ...


class Transport(Protocol):
    """What a connection needs of whatever carries its bytes."""

    @property
    def peer(self) -> str:
        """The other side, for log lines."""
        ...

    @property
    def waits_for_turn(self) -> bool:
        """Whether ``receive`` lets others go first, whatever the peer has sent."""
        ...

    async def receive(self) -> bytes:
        """Some bytes, or none when the peer has finished."""
        ...

    async def pass_on(self, take: Take) -> None:
        """Call ``take`` with what comes, if possible without resuming the caller for it.

        Until ``take`` returns False, or at once or soon when more is there than one ``receive``
        takes. Raises like ``receive``.
        """
        ...

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of ``data``."""
        ...

    @property
    def flusher(self) -> Flusher | None:
        """How replies leave without a task of their own; None when only ``send`` can be used."""
        ...

    async def send_eof(self) -> None:
        """Tell the peer that nothing more comes."""
        ...

    async def aclose(self) -> None:
        """Close at once. Idempotent."""
        ...


class SocketTransport:
    """A TCP socket. ``buffer`` and ``bulk_turns`` may be shared by all transports of a loop."""

    def __init__(
        self,
        stream: trio.SocketStream,
        buffer: ReceiveBuffer,
        ready_sockets: ReadySockets | None = None,
        bulk_turns: BulkTurns | None = None,
    ) -> None:
        self._stream = stream
        self._bulk_turns = BulkTurns(0) if bulk_turns is None else bulk_turns
        self._bulk_bytes = 0
        self._waits_for_turn = False
        self._ready_sockets = ready_sockets
        self._buffer = buffer
        self._descriptor = stream.socket.fileno()
        self._peer = _peer_name(stream)
        _keep_alive(stream.socket)
        self._readiness = None if ready_sockets is None else ready_sockets.watch(self._descriptor)
        self._take: Take = _take_nothing
        self._error: OSError | None = None

    @property
    def flusher(self) -> Flusher | None:
        return None if self._ready_sockets is None else self

    def flush_soon(self, flush: Callable[[], None]) -> None:
        assert self._ready_sockets is not None
        self._ready_sockets.flush_soon(flush)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def waits_for_turn(self) -> bool:
        return self._waits_for_turn

    async def receive(self) -> bytes:
        readiness = self._readiness
        if self._error is not None:
            raise trio.BrokenResourceError(str(self._error)) from self._error
        while True:
            if readiness is None:
                await trio.lowlevel.wait_readable(self._descriptor)
            else:
                await readiness.wait()
            if self._bulk_bytes:
                self._waits_for_turn = True
                try:
                    await self._bulk_turns.take(self._bulk_bytes)
                finally:
                    self._waits_for_turn = False
            buffer = self._buffer.view
            try:
                count = os.readv(self._descriptor, (buffer,))
            except BlockingIOError:
                if readiness is not None:
                    readiness.note_read(emptied=True)
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            self._bulk_bytes = count if count >= BULK_BYTES_MIN else 0
            if readiness is not None:
                readiness.note_read(emptied=count < len(buffer))
            return bytes(buffer[:count])

    async def pass_on(self, take: Take) -> None:
        if self._readiness is not None:
            self._take = take
            await self._readiness.pass_on(self._receive_now)

    def _receive_now(self) -> bool:
        buffer, readiness = self._buffer.view, self._readiness
        assert readiness is not None
        if self._bulk_bytes and self._bulk_turns.are_needed:
            return False  # ``receive`` takes its turn
        try:
            count = os.readv(self._descriptor, (buffer,))
        except BlockingIOError:
            readiness.note_read(emptied=True)
            return not readiness.ready
        except OSError as error:
            self._error = error  # the kernel tells it once: ``receive`` raises it
            return False
        self._bulk_bytes = count if count >= BULK_BYTES_MIN else 0
        readiness.note_read(emptied=count < len(buffer))
        # Still ready: there is more, or an end that no other edge will tell of.
        return self._take(bytes(buffer[:count])) and not readiness.ready

    async def send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while True:
            part = rest[:SENT_BYTES_MAX]
            sent = self.send_now(part)
            rest = rest[sent:]
            if not rest:
                return
            if sent == len(part):
                await trio.lowlevel.checkpoint()  # others have their turn
            else:
                await trio.lowlevel.wait_writable(self._descriptor)

    def send_now(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        if self._ready_sockets is not None:
            self._ready_sockets.forget(self._descriptor)
        # Somebody else's from now on.
        self._descriptor = -1
        self._take = _take_nothing
        await trio.aclose_forcefully(self._stream)


class StreamTransport:
    """Any stream of trio, such as those in memory."""

    peer = "memory"
    flusher = None
    waits_for_turn = False

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream

    async def send(self, data: bytes | memoryview) -> None:
        await self._stream.send_all(data)

    async def pass_on(self, take: Take) -> None:
        while take(await self.receive()):
            pass

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(_RECEIVE_BYTES))

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


def _take_nothing(_: bytes) -> bool:
    return False


def _keep_alive(connection: trio.socket.SocketType) -> None:
    """Let the kernel find out about peers that vanished without a word."""
    options = {
        socket.TCP_KEEPIDLE: _KEEP_ALIVE_IDLE_SECONDS,
        socket.TCP_KEEPINTVL: _KEEP_ALIVE_INTERVAL_SECONDS,
        socket.TCP_KEEPCNT: _KEEP_ALIVE_COUNT,
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _peer_name(stream: trio.SocketStream) -> str:
    try:
        address = stream.socket.getpeername()
    except OSError:
        return "gone"
    return f"{address[0]}:{address[1]}"
