"""A store of one segment that breaks connections before and after it stores.

Owns: ``BreakingStore``, in a thread.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from random import Random

from pravega_wire.commands import (
    HELLO,
    AppendSetup,
    AskDelays,
    Command,
    DataAppended,
    DelaysTold,
    Hello,
    KeepAlive,
    Reply,
    SetupAppend,
)
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.event_framing import iterate_event_spans
from segstore_client.addresses import Address

NEVER = -(2**63)


class BreakingStore:
    """Serves one segment, one connection after the other; breaks each for ``breaks`` times."""

    def __init__(self, seed: int, breaks: int, refusal: Reply | None = None) -> None:
        self.stored: list[bytes] = []
        self.connections = 0
        self._ended = threading.Semaphore(0)
        self._random = Random(seed)
        self._breaks = breaks
        self._refusal = refusal
        self._last_event_number = NEVER
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)

    @contextlib.contextmanager
    def running(self) -> Iterator[BreakingStore]:
        self._thread.start()
        try:
            yield self
        finally:
            # A thread that waits for a connection is not woken by closing what it listens on.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join(10)
            self._listener.close()
        assert not self._thread.is_alive()

    def wait_for_end(self) -> None:
        """Wait until one more connection has ended."""
        assert self._ended.acquire(timeout=60)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection = Connection(Role.SERVER)
            with peer, contextlib.suppress(EOFError, ConnectionError):
                while data := peer.recv(65536):
                    for command in connection.receive_data(data):
                        for reply in self._answer(command):
                            peer.sendall(connection.send(reply))
            self._ended.release()

    def _answer(self, command: Command | Append) -> list[Reply]:
        match command:
            case Hello():
                return [HELLO]
            case SetupAppend(request_id, writer_id, segment, _):
                if self._refusal is not None:
                    return [self._refusal]
                return [AppendSetup(request_id, segment, writer_id, self._last_event_number)]
            case Append():
                return self._store(command)
            case KeepAlive():
                return [command]
            case AskDelays(request_id):
                # On a machine at work a reply may take a second, after which the client asks.
                return [DelaysTold(request_id, ())]
            case _:
                raise AssertionError(command)

    def _store(self, append: Append) -> list[Reply]:
        breaks = self._breaks > 0 and self._random.random() < 0.5
        stores_first = self._random.random() < 0.5
        self._breaks -= breaks
        if breaks and not stores_first:
            raise EOFError
        data = bytes(append.data)
        previous, self._last_event_number = self._last_event_number, append.last_event_number
        self.stored += [data[start:end] for start, end in iterate_event_spans(data)]
        if breaks:
            raise EOFError
        number = append.last_event_number
        return [DataAppended(append.writer_id, number, previous, append.request_id, 9)]
