"""Transports: the classes that receive and send the bytes of a connection.

Owns: ``SocketTransport``, which uses a TCP socket directly, and ``StreamTransport``, which uses any
stream of trio.

One task receives from a transport, and one sends.

Invariants:
1. When a peer reads slowly, ``send`` waits for it. Held by
   ``test_sending_waits_for_a_peer_that_reads_slowly``. When bytes are there already, receiving does
   not wait. Held by ``test_bytes_come_as_they_are_there``.
2. While a connection waits for bytes, it needs no memory: all sockets of a process receive into one
   buffer. Received bytes are copied before the next receive, so that it does not change them. Held
   by ``test_what_was_received_is_not_overwritten_by_what_comes_next``.
3. When the peer has ended, receiving returns no bytes. Held by
   ``test_the_end_of_the_peer_is_no_bytes``. When the connection is broken in any way, receiving and
   sending raise ``trio.BrokenResourceError``. Held by
   ``test_a_peer_that_reset_the_connection_is_broken``.
4. When the reactor has reported that bytes came, the transport remembers it until a read finds the
   socket empty, because the reactor reports it once. Held by
   ``test_what_comes_after_a_cancelled_receive_is_not_lost``. It remembers an end or an error for
   ever. Held by ``test_an_end_that_came_with_the_last_bytes_is_received_after_them`` and
   ``test_a_peer_that_breaks_off_is_told_from_one_that_ends``.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

import trio

from segstore.runtime.reactor import DeferredWork, Reactor

OnReceived = Callable[[bytes], bool]
"""Receives bytes, or no bytes at the end. Returns whether to call it again with the next ones."""

BULK_BYTES_MIN: Final = 64 * 1024
"""Minimum number of bytes, received at once, with which a connection counts as one that sends much.
"""
_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_KEEP_ALIVE_IDLE_SECONDS: Final = 60
_KEEP_ALIVE_INTERVAL_SECONDS: Final = 15
_KEEP_ALIVE_COUNT: Final = 4
_RECEIVE_BYTES: Final = 64 * 1024
NARROW_BYTES: Final = 16 * 1024
"""Maximum number of bytes that are received at once while connections wait for memory."""
SENT_BYTES_MAX: Final = 256 * 1024
"""Maximum number of bytes of one connection that are sent at once. Other connections are served
before the next ones."""


class ReceiveBuffer:
    """The memory that all sockets of an event loop receive into. ``view`` is the part in use."""

    __slots__ = ("_narrow", "_wide", "view")

    def __init__(self, byte_count: int) -> None:
        self._wide = memoryview(bytearray(byte_count))
        self._narrow = self._wide[:NARROW_BYTES]
        self.view = self._wide

    def narrow(self, is_narrow: bool) -> None:
        """Receive at most ``NARROW_BYTES`` at a time, or again as much as there is room for."""
        self.view = self._narrow if is_narrow else self._wide


OpenStream: TypeAlias = Callable[[str, int], Awaitable[trio.abc.HalfCloseableStream]]
"""Connects to a host and port. Raises ``OSError``."""
SendNow = Callable[[bytes | memoryview], int]
"""Sends what the socket accepts at once and returns how many bytes that is."""


class Transport(Protocol):
    """The methods with which a connection receives and sends bytes."""

    @property
    def peer(self) -> str:
        """Return the address of the peer, for log lines."""
        ...

    @property
    def waits_for_turn(self) -> bool:
        """Return whether ``receive`` waits for its turn, although the peer may have sent bytes."""
        ...

    async def receive(self) -> bytes:
        """Wait for bytes and return them; return no bytes when the peer has finished."""
        ...

    async def receive_with(self, on_received: OnReceived) -> None:
        """Call ``on_received`` with bytes that come, without resuming the caller if that is
        possible.

        Return when ``on_received`` returned False, or when the caller has to call ``receive``
        because there are more bytes than one call takes. Raises what ``receive`` and
        ``on_received`` raise.
        """
        ...

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of ``data``."""
        ...

    @property
    def send_now(self) -> SendNow | None:
        """Return a function that sends as much as the socket takes without waiting; None when only
        ``send`` can be used."""
        ...

    async def send_eof(self) -> None:
        """Signal to the peer that no more bytes come."""
        ...

    async def aclose(self) -> None:
        """Close at once. Idempotent."""
        ...


class Turns(Protocol):
    """Lets connections that send much take turns."""

    @property
    def are_needed(self) -> bool:
        """Return whether a connection that sends much has to wait for its turn now."""
        ...

    async def wait_for_turn(self, count: int) -> None:
        """Return when about ``count`` bytes may be received."""
        ...


class SocketTransport:
    """A TCP socket. All transports of an event loop may share ``buffer`` and ``bulk_turns``. The
    ``reactor`` of the loop must run until the transport is closed.

    Without ``bulk_turns`` the transport waits for no turn.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        buffer: ReceiveBuffer,
        reactor: Reactor,
        bulk_turns: Turns | None = None,
    ) -> None:
        self._stream = stream
        self._reactor = reactor
        self._buffer = buffer
        self._bulk_turns = bulk_turns
        self._bulk_bytes = 0
        self._waits_for_turn = False
        self._descriptor = stream.socket.fileno()
        self._peer = _peer_name(stream)
        self._is_ready = False
        self._has_ended = False
        self._error: OSError | None = None
        self._on_received: OnReceived = _receive_nothing
        self._receiving = DeferredWork(reactor, self._receive_now)
        _keep_alive(stream.socket)
        reactor.watch(self._descriptor, self._something_came)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def waits_for_turn(self) -> bool:
        return self._waits_for_turn

    async def receive(self) -> bytes:
        while True:
            await self._wait_until_ready()
            if self._error is not None:
                raise trio.BrokenResourceError(str(self._error)) from self._error
            if self._bulk_bytes and self._bulk_turns is not None:
                self._waits_for_turn = True
                try:
                    await self._bulk_turns.wait_for_turn(self._bulk_bytes)
                finally:
                    self._waits_for_turn = False
            data = self._read()
            if data is not None:
                return data

    async def receive_with(self, on_received: OnReceived) -> None:
        if self._is_ready:
            return
        self._on_received = on_received
        self._check_open()
        self._receiving.forget_wake()
        await self._receiving.wait()
        self._check_open()

    async def _wait_until_ready(self) -> None:
        """Wait until there may be something to read. A checkpoint in any case."""
        self._check_open()
        if self._is_ready:
            await trio.lowlevel.checkpoint()
        else:
            self._receiving.forget_wake()
            await self._receiving.wait_for_request()
        self._check_open()

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise trio.ClosedResourceError("the socket was closed here")

    def _something_came(self, flags: int) -> None:
        self._is_ready = True
        if flags & _ENDED:
            self._has_ended = True
        self._receiving.run()

    def _receive_now(self) -> bool:
        """Receive in a step of the reactor; return whether the task has to continue."""
        turns = self._bulk_turns
        if self._bulk_bytes and turns is not None and turns.are_needed:
            return True  # ``receive`` waits for its turn
        data = self._read()
        if data is None:
            return self._is_ready
        # If the socket is still ready, there are more bytes, or an end that no later event reports.
        return not self._on_received(data) or self._is_ready

    def _read(self) -> bytes | None:
        """Read what the socket has, at most one buffer. Return None when it has nothing, or after
        an error, which the next ``receive`` raises: the kernel reports it only once."""
        buffer = self._buffer.view
        try:
            count = os.readv(self._descriptor, (buffer,))
        except BlockingIOError:
            self._is_ready = self._has_ended
            return None
        except OSError as error:
            self._error = error
            self._is_ready = True
            return None
        self._bulk_bytes = count if count >= BULK_BYTES_MIN else 0
        self._is_ready = self._has_ended or count == len(buffer)
        return bytes(buffer[:count])

    async def send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while True:
            part = rest[:SENT_BYTES_MAX]
            sent = self.send_now(part)
            rest = rest[sent:]
            if not rest:
                return
            if sent == len(part):
                await trio.lowlevel.checkpoint()  # let other connections run
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
        if self._descriptor >= 0:
            self._reactor.unwatch(self._descriptor)
            # From now on, the number may belong to another file.
            self._descriptor = -1
            self._on_received = _receive_nothing
            self._receiving.wake()
        await trio.aclose_forcefully(self._stream)


class StreamTransport:
    """Any stream of trio, such as those in memory."""

    peer = "memory"
    send_now = None
    waits_for_turn = False

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream

    async def send(self, data: bytes | memoryview) -> None:
        await self._stream.send_all(data)

    async def receive_with(self, on_received: OnReceived) -> None:
        while on_received(await self.receive()):
            pass

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(_RECEIVE_BYTES))

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


def _receive_nothing(_: bytes) -> bool:
    return False


def _keep_alive(connection: trio.socket.SocketType) -> None:
    """Configure the kernel to detect peers that vanished without ending the connection."""
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
