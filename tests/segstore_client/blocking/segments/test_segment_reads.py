"""Segments that are read for a program that blocks, from connections in memory."""

from __future__ import annotations

import itertools
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.names import segment_name
from pravega_wire.sessions.read_cursor import ByteCursor
from segstore_client.access.tokens import TokenExpiredError
from segstore_client.blocking.segments import segment_reads
from segstore_client.blocking.segments.segment_reads import SegmentReads
from segstore_client.errors import UnavailableError

NAME = segment_name("demo", "a", 0)
BYTES = bytes(range(100))


class FakeStore:
    """A connection to a store that answers when the test lets it, and what it was asked."""

    def __init__(self) -> None:
        self.requests: list[wire.Request] = []
        self.replies: list[wire.Reply] = []
        self.connections = 0
        self._ids = itertools.count(1)
        self._always_readable, self._peer = socket.socketpair()
        self._peer.send(b"x")

    @property
    def access(self) -> Any:
        return SimpleNamespace(connect=self._connect, token=str, refusal=_expire)

    def _connect(self, *_: Any, **__: Any) -> FakeStore:
        self.connections += 1
        return self

    def answer(self, request: wire.Request, end: int, *, is_sealed: bool = False) -> None:
        """Answer a request by the bytes up to an offset, or say that there are no more."""
        assert isinstance(request, wire.ReadSegment)
        if is_sealed:
            reply: wire.Reply = wire.SegmentIsSealed(request.request_id, NAME, "", request.offset)
        else:
            data = BYTES[request.offset : end]
            reply = wire.SegmentRead(NAME, request.offset, False, False, data, request.request_id)
        self.replies.append(reply)

    def fileno(self) -> int:
        return self._always_readable.fileno()

    def close(self) -> None:
        pass

    def next_request_id(self) -> int:
        return next(self._ids)

    def send(self, command: wire.Request) -> None:
        self.requests.append(command)

    def receive_some(self, *, waits: bool) -> list[wire.Reply]:
        taken, self.replies = self.replies, []
        return taken

    def end(self) -> None:
        self._always_readable.close()
        self._peer.close()


def _expire(*_: object) -> Exception:
    return TokenExpiredError("the token has expired")


@pytest.fixture
def store() -> Any:
    found = FakeStore()
    yield found
    found.end()


def open_reads(*, patience: float = 60.0) -> SegmentReads[bytes]:
    controller: Any = SimpleNamespace(segment_address=lambda *_: ("127.0.0.1", 1))
    return SegmentReads(controller, patience=patience)


def add(reads: SegmentReads[bytes], store: FakeStore, offset: int) -> ByteCursor:
    cursor = ByteCursor(0, NAME, offset, None)
    reads.add(cursor, "demo", "a", access=store.access)
    return cursor


def test_a_late_reply_is_not_taken_for_another_one(store: FakeStore) -> None:
    reads = open_reads()
    first = add(reads, store, 50)
    assert reads.receive(0.0) == []
    reads.remove(NAME)
    second = add(reads, store, 0)
    assert reads.receive(0.0) == []
    early, late = store.requests
    # What the first request waited for is no end of what is read now.
    store.answer(early, 50, is_sealed=True)
    assert reads.receive(0.0) == []
    assert not second.is_sealed
    store.answer(late, 10)
    assert reads.receive(0.0) == [(second, [BYTES[:10]])]
    assert (first.offset, second.offset) == (50, 10)


def test_what_has_come_is_handed_over_before_an_error(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = open_reads(patience=0.0)
    cursor = add(reads, store, 0)
    assert reads.receive(0.0) == []

    def fail() -> None:
        raise ConnectionLostError("it broke")

    monkeypatch.setattr(reads, "_keep_alive", fail)
    store.answer(store.requests[0], 10)
    assert reads.receive(0.0) == [(cursor, [BYTES[:10]])]
    with pytest.raises(UnavailableError, match="demo/a could not be read for 0 s: it broke"):
        reads.receive(0.0)


def test_a_segment_that_is_read_no_more_gives_nothing_more(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = open_reads()
    add(reads, store, 0)
    assert reads.receive(0.0) == []
    store.answer(store.requests[0], 10)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reads, "_keep_alive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reads.receive(0.0)
    reads.remove(NAME)
    assert reads.receive(0.0) == []


def test_a_pause_of_the_program_is_no_silence_of_the_store(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice was too long for its patience: it gave up at the tail of a stream."""
    now = 0.0
    monkeypatch.setattr(segment_reads, "time", SimpleNamespace(monotonic=lambda: now))
    reads = open_reads(patience=0.0)
    add(reads, store, 0)
    for _ in range(3):
        assert reads.receive(0.0) == []
        now += 10 * segment_reads.SILENCE_SECONDS_MAX
    assert store.connections == 1
    assert len(store.requests) == 1


def test_a_store_that_falls_silent_while_the_program_waits_is_left(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(segment_reads, "time", SimpleNamespace(monotonic=lambda: now))

    def wait(*_: object) -> tuple[list[int], list[int], list[int]]:
        nonlocal now
        now += segment_reads.KEEP_ALIVE_SECONDS
        return [], [], []

    monkeypatch.setattr(segment_reads, "select", SimpleNamespace(select=wait))
    reads = open_reads()
    add(reads, store, 0)
    while store.connections < 2:
        assert reads.receive(None) == []
    asked = [type(each) for each in store.requests]
    assert asked[:6] == [wire.ReadSegment, *[wire.KeepAlive] * 4, wire.ReadSegment]


def test_a_token_that_expires_stops_no_segment(store: FakeStore) -> None:
    """The reply to one was the last that was taken; the others were never asked for again."""
    reads = open_reads()
    first = add(reads, store, 0)
    other = ByteCursor(1, segment_name("demo", "a", 1), 0, None)
    reads.add(other, "demo", "a", access=store.access)
    assert reads.receive(0.0) == []
    for request in store.requests:
        assert isinstance(request, wire.ReadSegment)
        store.replies.append(wire.AuthTokenCheckFailed(request.request_id, "", 1))
    assert reads.receive(0.0) == []
    assert reads.receive(0.0) == []
    for request in store.requests[2:]:
        store.answer(request, 10)
    assert reads.receive(0.0) == [(first, [BYTES[:10]]), (other, [BYTES[:10]])]
