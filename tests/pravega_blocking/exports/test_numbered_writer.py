"""A writer of numbered events against a store that breaks connections, and beside another one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from pravega_blocking.backoff import Patience
from pravega_blocking.errors import UnavailableError
from pravega_blocking.exports import numbered_writer
from pravega_blocking.exports.numbered_writer import NumberedWriter
from pravega_blocking.segment_writer import Address, SegmentEndedError
from pravega_wire import commands as wire
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.sessions import append_session
from pravega_wire.sessions.append_session import Event

NAME = "s/a/0.#epoch.0"
WRITER_ID = bytes(range(16))
LONG = 200


class CountingStore:
    """Serves one segment to many connections, and breaks ``breaks`` of them.

    Like a real store, it stores an append only if the number of the last event is the one that it
    has told the connection, or that of the connection's last append.
    """

    def __init__(self, seed: int, breaks: int = 0) -> None:
        self.data = b""
        self.last = wire.NULL_ATTRIBUTE_VALUE
        self.merges = 0
        self._transients: dict[str, bytes] = {}
        self._made = 0
        self._random = Random(seed)
        self._breaks = breaks
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def events(self) -> list[bytes]:
        return [self.data[start:end] for start, end in iterate_event_spans(self.data)]

    @contextlib.contextmanager
    def running(self) -> Iterator[CountingStore]:
        self._threads[0].start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join(60)
            self._listener.close()
        assert not any(thread.is_alive() for thread in self._threads)

    def settle(self) -> None:
        """Wait until what was sent on connections that are closed is stored."""
        for thread in self._threads[1:]:
            thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(peer,)))
            self._threads[-1].start()

    def _serve(self, peer: socket.socket) -> None:
        connection, writers = Connection(Role.SERVER), dict[bytes, tuple[str, int]]()
        with peer, contextlib.suppress(EOFError, ConnectionError):
            while data := peer.recv(65536):
                for command in connection.receive_data(data):
                    with self._lock:
                        reply = self._answer(command, writers)
                    peer.sendall(connection.send(reply))
                    if isinstance(reply, wire.InvalidEventNumber):
                        return

    def _answer(
        self, command: wire.Command | Append, writers: dict[bytes, tuple[str, int]]
    ) -> wire.Reply:
        match command:
            case wire.Hello():
                return wire.HELLO
            case wire.SetupAppend(request_id, writer_id, segment, _):
                last = self.last if segment == NAME else wire.NULL_ATTRIBUTE_VALUE
                writers[writer_id] = (segment, last)
                return wire.AppendSetup(request_id, segment, writer_id, last)
            case wire.CreateTransientSegment(request_id, _, parent, _):
                self._made += 1
                name = f"{parent}#transient.{self._made}"
                self._transients[name] = b""
                return wire.SegmentCreated(request_id, name)
            case wire.MergeSegments(request_id, target, source, _, updates):
                return self._breaking(lambda: self._merge(request_id, target, source, updates))
            case Append():
                return self._breaking(lambda: self._append(command, writers))
            case _:
                raise AssertionError(command)

    def _breaking(self, store: Callable[[], wire.Reply]) -> wire.Reply:
        breaks = self._breaks > 0 and self._random.random() < 0.5
        stores_first = self._random.random() < 0.5
        self._breaks -= breaks
        if breaks and not stores_first:
            raise EOFError
        reply = store()
        if breaks:
            raise EOFError
        return reply

    def _append(self, append: Append, writers: dict[bytes, tuple[str, int]]) -> wire.Reply:
        segment, previous = writers[append.writer_id]
        number = append.last_event_number
        if segment == NAME:
            if previous != self.last:
                return wire.InvalidEventNumber(append.writer_id, append.request_id)
            self.data += bytes(append.data)
            self.last = number
        else:
            assert append.expected_offset == len(self._transients[segment])
            self._transients[segment] += bytes(append.data)
        writers[append.writer_id] = (segment, number)
        return wire.DataAppended(append.writer_id, number, previous, append.request_id, 9)

    def _merge(
        self,
        request_id: int,
        target: str,
        source: str,
        updates: Sequence[wire.AttributeUpdate],
    ) -> wire.Reply:
        assert target == NAME
        (update,) = updates
        assert update.attribute_id == WRITER_ID
        assert update.update_type == 4
        if update.expected != self.last:
            return wire.SegmentAttributeUpdated(request_id, False)
        self.data += self._transients.pop(source)
        self.last = update.value
        self.merges += 1
        return wire.SegmentsMerged(request_id, target, source, len(self.data))


def numbered(count: int, *, long_each: int = 0) -> list[Event]:
    """Return events whose numbers have gaps; some are long."""
    return [
        (0.0, b"event %d" % number + bytes(LONG if long_each and number % long_each == 0 else 0), n)
        for number, n in ((number, 3 * number + 1) for number in range(count))
    ]


def new_writer(store: CountingStore) -> NumberedWriter:
    return NumberedWriter(NAME, lambda: store.address, writer_id=WRITER_ID)


def write(writer: NumberedWriter, events: list[Event], seed: int, *, drain: bool = True) -> None:
    draw, patience = Random(seed), Patience(60.0)
    for event in events:
        if writer.add(event) or draw.random() < 0.2:
            writer.drive(patience, drain=draw.random() < 0.3)
    if drain:
        writer.drive(patience, drain=True)
    writer.disconnect()


@pytest.fixture
def short_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of more than 100 bytes count as long."""
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 100)
    monkeypatch.setattr(numbered_writer, "PIECE_BYTES", 64)


@pytest.mark.parametrize("seed", range(8))
def test_another_process_goes_on_after_the_last_stored_event(seed: int) -> None:
    events = numbered(200)
    with CountingStore(seed, breaks=3).running() as store:
        for attempt in range(3):
            write(new_writer(store), events[: 60 * attempt + 40], seed + attempt, drain=False)
        store.settle()
        last = new_writer(store)
        last.look(Patience(60.0))
        assert last.stored_number == store.last
        write(last, events, seed)
        assert store.events == [event[1] for event in events]
        again = new_writer(store)
        again.look(Patience(60.0))
        write(again, events, seed)
        assert again.acknowledged_events == 0
        assert store.events == [event[1] for event in events]


@pytest.mark.usefixtures("short_appends")
@pytest.mark.parametrize("seed", range(8))
def test_two_processes_with_the_same_events_store_each_once(seed: int) -> None:
    events = numbered(150, long_each=20)
    with CountingStore(seed, breaks=4).running() as store:
        threads = [
            threading.Thread(target=write, args=(new_writer(store), events, seed + number))
            for number in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert store.events == [event[1] for event in events]


@pytest.mark.usefixtures("short_appends")
@pytest.mark.parametrize("seed", range(8))
def test_a_long_event_is_stored_once_however_connections_break(seed: int) -> None:
    events = numbered(40, long_each=3)
    with CountingStore(seed, breaks=8).running() as store:
        writer = new_writer(store)
        write(writer, events, seed)
        assert store.events == [event[1] for event in events]
        assert store.merges == 14
        assert writer.acknowledged_events == 40


@pytest.mark.usefixtures("short_appends")
def test_what_was_not_stored_can_be_taken_away_with_long_events() -> None:
    events = numbered(9, long_each=2)
    with CountingStore(3).running() as store:
        writer = new_writer(store)
        for event in events:
            writer.add(event)
        assert writer.release() == events
        assert writer.is_idle
        for event in events:
            writer.add(event)
        writer.drive(Patience(60.0), drain=True)
        writer.disconnect()
        assert store.events == [event[1] for event in events]


class RefusingStore(CountingStore):
    """Says that there is no segment."""

    def _answer(
        self, command: wire.Command | Append, writers: dict[bytes, tuple[str, int]]
    ) -> wire.Reply:
        if isinstance(command, wire.SetupAppend):
            return wire.NoSuchSegment(command.request_id, command.segment)
        return super()._answer(command, writers)


def test_looking_tells_of_segments_that_are_gone_and_of_stores_that_are() -> None:
    with RefusingStore(0).running() as store:
        with pytest.raises(SegmentEndedError):
            new_writer(store).look(Patience(60.0))
        address = store.address
    with pytest.raises(UnavailableError):
        NumberedWriter(NAME, lambda: address, writer_id=WRITER_ID).look(Patience(0.0))
