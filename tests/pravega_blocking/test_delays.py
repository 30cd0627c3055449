"""Answers to a client that waits, of a store that knows the question and of one that does not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from pravega_blocking.backoff import Patience
from pravega_blocking.delays import Delays, ask_delays
from pravega_blocking.errors import StoreDelayedError
from pravega_blocking.segment_writer import SegmentWriter
from pravega_wire import blocking
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


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "WAIT_SECONDS", 0.02)


def test_a_store_tells_what_it_waits_for() -> None:
    with FullStore([FULL, "another"]).running() as store:
        assert ask_delays(*store.address) == f"{FULL}; another"


def test_a_store_that_does_not_know_the_question_is_asked_once() -> None:
    told: list[str] = []
    with FullStore(None).running() as store:
        assert ask_delays(*store.address) is None
        delays = Delays(told.append)
        for _ in range(3):
            delays.look(*store.address, Patience(0.0))
        assert store.question_count == 2
    assert told == []


def test_a_store_that_is_away_tells_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    assert ask_delays(*address) == ""


def test_a_writer_that_waits_for_room_says_so_until_there_is_some() -> None:
    told: list[str] = []
    with FullStore().running() as store:

        def note(sentence: str) -> None:
            told.append(sentence)
            if len(told) == 3:
                store.has_room.set()

        writer = SegmentWriter("s/a/0", lambda: store.address, on_delay=note)
        writer.add((0.0, b"event"))
        writer.drive(Patience(60.0), drain=True)
        writer.disconnect()
    assert writer.acknowledged_events == 1
    assert set(told) == {FULL}
    assert len(told) >= 3


def test_a_writer_that_waits_too_long_ends_with_the_reason() -> None:
    told: list[str] = []
    with FullStore().running() as store:
        writer = SegmentWriter("s/a/0", lambda: store.address, on_delay=told.append)
        writer.add((0.0, b"event"))
        with pytest.raises(StoreDelayedError, match=f"written to for 0.2 s: {FULL}"):
            writer.drive(Patience(0.2), drain=True)
        assert not writer.is_idle
    assert told
