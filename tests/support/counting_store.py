"""A store of one segment with long events, which breaks connections before and after it stores.

Owns: ``CountingStore``, in threads, the appends and merges of one writer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random

from pravega_wire import commands as wire
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.event_framing import iterate_event_spans
from segstore_client.addresses import Address

NAME = "s/a/0.#epoch.0"


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
        self._writer_id = b""
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
                if segment == NAME:
                    self._writer_id = writer_id
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
            case wire.AskDelays(request_id):
                # On a machine at work a reply may take a second, after which the client asks.
                return wire.DelaysTold(request_id, ())
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
        assert update.attribute_id == self._writer_id
        assert update.update_type == 4
        if update.expected != self.last:
            return wire.SegmentAttributeUpdated(request_id, False)
        self.data += self._transients.pop(source)
        self.last = update.value
        self.merges += 1
        return wire.SegmentsMerged(request_id, target, source, len(self.data))
