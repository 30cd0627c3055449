"""A store that acknowledges nothing before it has room, and says why.

Owns: ``FullStore``, in threads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

from pravega_wire.commands import (
    HELLO,
    AppendSetup,
    AskDelays,
    Command,
    DataAppended,
    DelaysTold,
    Hello,
    Reply,
    SetupAppend,
)
from pravega_wire.connection import Append, Connection, Role

FULL = "the disk of /data is full"


class FullStore:
    """Serves connections side by side; acknowledges no append before ``has_room`` is set."""

    def __init__(self, reasons: Sequence[str] | None = (FULL,)) -> None:
        self.has_room = threading.Event()
        self.question_count = 0
        self._reasons = reasons
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()

    @contextlib.contextmanager
    def running(self) -> Iterator[FullStore]:
        acceptor = threading.Thread(target=self._accept)
        acceptor.start()
        try:
            yield self
        finally:
            self.has_room.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(10)
            self._listener.close()

    def _accept(self) -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threads.append(threading.Thread(target=self._serve, args=(peer,)))
                threads[-1].start()
        for thread in threads:
            thread.join(10)

    def _serve(self, peer: socket.socket) -> None:
        connection = Connection(Role.SERVER)
        with peer, contextlib.suppress(EOFError, ConnectionError):
            while data := peer.recv(65536):
                for command in connection.receive_data(data):
                    peer.sendall(connection.send(self._answer(command)))

    def _answer(self, command: Command | Append) -> Reply:
        match command:
            case Hello():
                return HELLO
            case AskDelays(request_id):
                self.question_count += 1
                if self._reasons is None:
                    raise EOFError
                return DelaysTold(request_id, tuple(self._reasons))
            case SetupAppend(request_id, writer_id, segment, _):
                return AppendSetup(request_id, segment, writer_id, -(2**63))
            case Append():
                self.has_room.wait(10)
                number = command.last_event_number
                return DataAppended(command.writer_id, number, 0, command.request_id, 9)
            case _:
                raise AssertionError(command)
