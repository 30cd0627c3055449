"""A blocking client of the segment store's protocol, for tools and tests.

Owns: one socket. The only module of the package that does I/O.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from typing import Self

from pravega_wire.commands import (
    HELLO,
    OLDEST_COMPATIBLE_VERSION,
    WIRE_VERSION,
    Hello,
    KeepAlive,
    Reply,
    Request,
)
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import ProtocolError

_RECEIVE_BYTES = 256 * 1024


class ConnectionLostError(ProtocolError, ConnectionError):
    """The server closed the connection or cannot be reached."""


class ReplyTimeoutError(ProtocolError, TimeoutError):
    """No reply came in time. Close the connection, because a late reply would look like another."""


class SegmentConnection:
    """A connection to a segment store. Use it in one thread, within a ``with`` block.

    ``timeout`` is in seconds, for connecting and for each reply; None waits for ever. ``receive``
    never returns replies to KeepAlive.
    """

    def __init__(self, host: str, port: int, *, timeout: float | None = 30.0) -> None:
        self.address = (host, port)
        self.timeout = timeout
        self.server_hello: Hello | None = None
        self._connection = Connection(Role.CLIENT)
        self._replies: deque[Reply] = deque()
        self._request_ids = itertools.count(1)
        try:
            self._socket = socket.create_connection(self.address, timeout=timeout)
        except OSError as error:
            raise ConnectionLostError(f"cannot connect to {host}:{port}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        self._socket.settimeout(self.timeout)
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise ReplyTimeoutError(f"{self._peer} takes no data for {self.timeout} s") from error
        except OSError as error:
            raise ConnectionLostError(f"{self._peer} is gone: {error}") from error

    def receive(self, *, timeout: float | None = None) -> Reply:
        """Return the next reply, to any request; ``timeout`` replaces the connection's."""
        seconds = self.timeout if timeout is None else timeout
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._replies:
            self._receive_more(seconds, deadline)
        return self._replies.popleft()

    def receive_some(self) -> list[Reply]:
        """Return every reply that has arrived, or those of one read, which may be none.

        It waits only for that read, so it returns at once if ``fileno`` is readable.
        """
        if not self._replies:
            self._receive_more(self.timeout)
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
        """Return the reply that carries a request id, errors included.

        Other replies that come meanwhile stay queued for ``receive``.
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

    def _say_hello(self) -> None:
        self.send(HELLO)
        hello = self.receive()
        if not isinstance(hello, Hello):
            raise ConnectionLostError(f"{self._peer} answered Hello with {type(hello).__name__}")
        if hello.low_version > WIRE_VERSION or hello.high_version < OLDEST_COMPATIBLE_VERSION:
            raise ConnectionLostError(f"{self._peer} speaks other versions: {hello}")
        self.server_hello = hello

    def _receive_more(self, seconds: float | None, deadline: float | None = None) -> None:
        """Wait for bytes and queue the replies that they complete.

        Without a deadline the seconds begin now.
        """
        left = seconds if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise ReplyTimeoutError(f"no reply of {self._peer} within {seconds} s")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise ReplyTimeoutError(f"no reply of {self._peer} within {seconds} s") from error
        except OSError as error:
            raise ConnectionLostError(f"{self._peer} is gone: {error}") from error
        if not data:
            raise ConnectionLostError(f"{self._peer} closed the connection")
        for reply in self._connection.receive_data(data):
            assert isinstance(reply, Reply)
            assert not isinstance(reply, Append)
            if not isinstance(reply, KeepAlive):
                self._replies.append(reply)
