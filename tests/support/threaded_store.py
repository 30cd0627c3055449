"""A store of a test that serves many connections, each in a thread.

Owns: ``ThreadedStore``: listening, the threads, and their end.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from pravega_wire.commands import Command
from pravega_wire.connection import Append, Connection, Role

END_SECONDS_MAX = 60.0


class ThreadedStore(ABC):
    """Answers each command by ``answer``; ``EOFError`` breaks the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()

    @abstractmethod
    def answer(self, command: Command | Append) -> bytes:
        """Return the bytes of the reply to a command."""

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Serve within the block."""
        acceptor = threading.Thread(target=self._accept)
        acceptor.start()
        try:
            yield self
        finally:
            # A thread that waits for a connection is not woken by closing what it listens on.
            self._listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(END_SECONDS_MAX)
            self._listener.close()
        assert not acceptor.is_alive()

    def _accept(self) -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threads.append(threading.Thread(target=self._serve, args=(peer,)))
                threads[-1].start()
        for thread in threads:
            thread.join(END_SECONDS_MAX)

    def _serve(self, peer: socket.socket) -> None:
        connection = Connection(Role.SERVER)
        with peer, contextlib.suppress(EOFError, ConnectionError):
            while data := peer.recv(65536):
                for command in connection.receive_data(data):
                    peer.sendall(self.answer(command))
