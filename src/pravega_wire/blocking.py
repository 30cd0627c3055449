"""A blocking client of the segment store's protocol, for tools and tests.

Owns: one socket.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from pravega_wire.commands import (
    HELLO,
    Hello,
    KeepAlive,
    Reply,
    Request,
)
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import ProtocolError
from pravega_wire.sessions.time_limits import bound_attempt

if TYPE_CHECKING:
    # Clients without TLS start faster without this import.
    import ssl

WAIT_SECONDS = 1.0
_RECEIVE_BYTES = 256 * 1024
_TLS_SEND_BYTES = 64 * 1024
"""Maximum number of bytes of one call that sends by TLS, which accepts all of them or none."""

T = TypeVar("T")


class ConnectionLostError(ProtocolError, ConnectionError):
    """The server closed the connection or cannot be reached."""


class ReplyTimeoutError(ProtocolError, TimeoutError):
    """No reply came in time.

    Close the connection: a late reply could be taken for the reply to a later request.
    """


class SegmentConnection:
    """A connection to a segment store. Use it in one thread, within a ``with`` block.

    ``timeout`` is the maximum time, in seconds, to connect and to wait for one reply; None waits
    for ever. The limit of ``call_within`` holds, too. ``receive`` never returns replies to
    KeepAlive. ``on_wait`` is called after each ``WAIT_SECONDS`` in which the server neither
    accepted nor sent bytes; an error that it raises ends the call. With ``tls`` the connection is
    secured, and the server's certificate must be for
    ``host``; a ``ConnectionLostError`` has the error of the handshake as its cause.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: float | None = 30.0,
        on_wait: Callable[[], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = (host, port)
        self.timeout = timeout
        self._on_wait = on_wait
        self.server_hello: Hello | None = None
        self._connection = Connection(Role.CLIENT)
        self._replies: deque[Reply] = deque()
        self._request_ids = itertools.count(1)
        seconds = None if timeout is None else bound_attempt(timeout)
        deadline = _find_deadline(seconds)
        try:
            self._socket: socket.socket = socket.create_connection(self.address, timeout=seconds)
        except OSError as error:
            _raise_if_foreign(error, deadline)
            raise ConnectionLostError(f"cannot connect to {host}:{port}: {error}") from error
        self._secured: ssl.SSLSocket | None = None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._secure(tls)
            self._say_hello()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's file descriptor, by which a caller waits for several connections."""
        return self._socket.fileno()

    def next_request_id(self) -> int:
        """Return a request id that this connection has not returned before."""
        return next(self._request_ids)

    def send(self, command: Request) -> None:
        """Send a command, without waiting for an answer."""
        self.send_bytes(self._connection.send(command))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are, such as those of ``append_block``."""
        left = memoryview(data)
        while left:
            too_late = f"{self._peer} takes no data for {self.timeout} s"
            part = left if self._secured is None else left[:_TLS_SEND_BYTES]
            left = left[self._wait(partial(self._socket.send, part), self.timeout, too_late) :]

    def receive(self, *, timeout: float | None = None) -> Reply:
        """Return the next reply, to any request; ``timeout`` replaces the connection's."""
        seconds = self.timeout if timeout is None else timeout
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._replies:
            self._receive_more(seconds, deadline)
        return self._replies.popleft()

    def receive_some(self, *, waits: bool = True) -> list[Reply]:
        """Return the replies that have arrived. If there is none, read once from the socket first.

        That read may complete no reply: then the list is empty. It waits for bytes, unless
        ``waits`` is false: then the caller knows that the socket is readable.
        """
        if not self._replies and (waits or self._secured is None):
            self._receive_more(self.timeout)
        elif not self._replies and self._secured is not None:
            # What has arrived may be a part of a TLS record, or a message of TLS itself.
            self._receive_arrived(self._secured)
        replies = list(self._replies)
        self._replies.clear()
        return replies

    def receive_arrived(self) -> list[Reply]:
        """Return the replies that have arrived, without waiting."""
        if select.select([self._socket], [], [], 0)[0]:
            if self._secured is None:
                self._receive_more(self.timeout)
            else:
                self._receive_arrived(self._secured)
        replies = list(self._replies)
        self._replies.clear()
        return replies

    def call(self, request: Request) -> Reply:
        """Send a request and return its reply as ``receive_reply`` does."""
        request_id = getattr(request, "request_id", None)
        if request_id is None:
            raise ValueError(f"{type(request).__name__} carries no request id")
        self.send(request)
        return self.receive_reply(request_id)

    def receive_reply(self, request_id: int) -> Reply:
        """Return the reply with this request id, which may be one that reports an error.

        Other replies that arrive meanwhile stay queued for ``receive``.
        """
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        others: deque[Reply] = deque()
        while True:
            while self._replies:
                reply = self._replies.popleft()
                if getattr(reply, "request_id", None) == request_id:
                    self._replies.extendleft(reversed(others))
                    return reply
                others.append(reply)
            try:
                self._receive_more(self.timeout, deadline)
            except ProtocolError:
                self._replies = others
                raise

    @property
    def _peer(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _secure(self, tls: ssl.SSLContext) -> None:
        deadline = _find_deadline(self._socket.gettimeout())
        try:
            self._secured = tls.wrap_socket(self._socket, server_hostname=self.address[0])
        except OSError as error:
            _raise_if_foreign(error, deadline)
            text = f"no TLS connection with {self._peer}: {error}"
            raise ConnectionLostError(text) from error
        self._socket = self._secured

    def _say_hello(self) -> None:
        self.send(HELLO)
        hello = self.receive()
        if not isinstance(hello, Hello):
            raise ConnectionLostError(f"{self._peer} answered Hello with {type(hello).__name__}")
        if not hello.suits_us:
            raise ConnectionLostError(f"{self._peer} speaks other versions: {hello}")
        self.server_hello = hello

    def _receive_more(self, seconds: float | None, deadline: float | None = None) -> None:
        """Wait for bytes, at most until ``deadline``, and queue the replies that they complete.

        Without a deadline, wait for ``seconds`` from now on.
        """
        left = seconds if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise ReplyTimeoutError(f"no reply of {self._peer} within {seconds} s")
        too_late = f"no reply of {self._peer} within {seconds} s"
        data = self._wait(partial(self._socket.recv, _RECEIVE_BYTES), left, too_late)
        # Bytes inside the TLS object would not make the socket readable.
        while self._secured is not None and self._secured.pending():
            data += self._secured.recv(_RECEIVE_BYTES)
        self._queue(data)

    def _receive_arrived(self, secured: ssl.SSLSocket) -> None:
        """Queue the replies that the arrived bytes of a secured connection complete."""
        import ssl

        secured.settimeout(0.0)
        try:
            data = secured.recv(_RECEIVE_BYTES)
            while secured.pending():
                data += secured.recv(_RECEIVE_BYTES)
        except ssl.SSLWantReadError:
            return
        except OSError as error:
            _raise_if_foreign(error, None)
            raise ConnectionLostError(f"{self._peer} is gone: {error}") from error
        self._queue(data)

    def _queue(self, data: bytes) -> None:
        """Queue the replies that bytes complete; none means that the server has closed."""
        if not data:
            raise ConnectionLostError(f"{self._peer} closed the connection")
        for reply in self._connection.receive_data(data):
            assert isinstance(reply, Reply)
            assert not isinstance(reply, Append)
            if not isinstance(reply, KeepAlive):
                self._replies.append(reply)

    def _wait(self, use_socket: Callable[[], T], seconds: float | None, too_late: str) -> T:
        """Call ``use_socket``, which sends or receives, and return its result.

        Raises ``ReplyTimeoutError`` with the text ``too_late`` after ``seconds``.
        """
        if seconds is not None:
            seconds = bound_attempt(seconds)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
            pauses = self._on_wait is not None and (left is None or left > WAIT_SECONDS)
            seconds = WAIT_SECONDS if pauses else left
            late = _find_deadline(seconds)
            self._socket.settimeout(seconds)
            try:
                return use_socket()
            except TimeoutError as error:
                _raise_if_foreign(error, late)
                if not pauses:
                    raise ReplyTimeoutError(too_late) from error
            except OSError as error:
                raise ConnectionLostError(f"{self._peer} is gone: {error}") from error
            assert self._on_wait is not None
            self._on_wait()


def _find_deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _raise_if_foreign(error: OSError, deadline: float | None) -> None:
    """Raise a ``TimeoutError`` again that is not the socket's: a handler of signals, which ends a
    wait of the program's own, may raise it at any moment.

    The socket raises its own, which has no number, after the deadline.
    """
    is_early = deadline is None or time.monotonic() < deadline
    if isinstance(error, TimeoutError) and error.errno is None and is_early:
        raise error


def is_segment_store(
    host: str, port: int, *, seconds_max: float, tls: ssl.SSLContext | None = None
) -> bool:
    """Return whether a segment store listens there, which answers Hello within the seconds."""
    try:
        with SegmentConnection(host, port, timeout=seconds_max, tls=tls):
            return True
    except ProtocolError:
        return False
