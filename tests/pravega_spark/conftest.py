"""A segment store that answers as a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from pravega_wire.codec import encode
from pravega_wire.commands import HELLO, Hello, Reply
from pravega_wire.connection import Connection, Role

Answer = Callable[[object], Reply | None]


@contextmanager
def serve(answer: Answer) -> Iterator[tuple[str, int]]:
    """Serve connections; where there is no answer, the connection ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                # A client may hang up before it has read its answers.
                with peer, suppress(ConnectionError):
                    converse(peer, answer)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def converse(peer: socket.socket, answer: Answer) -> None:
    connection = Connection(Role.SERVER)
    peer.sendall(encode(HELLO))
    while data := peer.recv(65_536):
        for command in connection.receive_data(data):
            if isinstance(command, Hello):
                continue
            reply = answer(command)
            if reply is None:
                return
            peer.sendall(encode(reply))


@pytest.fixture
def server() -> Any:
    """Return what serves answers within a ``with`` block, and gives the server's address."""
    return serve
