"""A segment writer against a server that breaks connections before and after it stores."""

from __future__ import annotations

import socket
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import (
    ErrorMessage,
    NoSuchSegment,
    Reply,
)
from pravega_wire.sessions import append_session, long_appends
from pravega_wire.sessions.append_session import (
    BATCH_EVENTS_MAX,
    BLOCKS_MAX,
    EVENT_BYTES_MAX,
    AppendSession,
    Event,
)
from pravega_wire.sessions.routes import SegmentRange
from segstore_client import backoff
from segstore_client.addresses import Address
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import Patience
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.blocking.transaction_writer import TransactionWriter
from segstore_client.controller.controller_client import BegunTransaction
from segstore_client.errors import RefusedError, UnavailableError, UsageError
from support.breaking_store import BreakingStore
from support.counting_store import NAME, CountingStore


def events_of(count: int) -> list[bytes]:
    return [b"event %d" % number for number in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_every_event_is_stored_once_in_order_however_connections_break(seed: int) -> None:
    with BreakingStore(seed, breaks=6).running() as store:
        writer = SegmentWriter("s/a/0", lambda: store.address)
        patience = Patience(30.0)
        events = events_of(3 * BATCH_EVENTS_MAX + 7)
        for event in events:
            if writer.add((0.0, event)):
                writer.drive(patience, drain=False)
        writer.drive(patience, drain=True)
        assert writer.is_idle
        assert writer.acknowledged_events == len(events)
        writer.disconnect()
    assert store.stored == events
    assert store.connections > 1


@pytest.mark.parametrize("seed", range(4))
def test_every_event_is_stored_once_in_order_however_calls_are_interrupted(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that was sent in part got its rest from the next one, and one that was not sent got
    the reply to the next one."""
    draw, interrupts = Random(seed), 0
    send, receive = SegmentConnection.send_bytes, SegmentConnection.receive

    def interrupt(probability: float) -> None:
        nonlocal interrupts
        if draw.random() < probability:
            interrupts += 1
            raise KeyboardInterrupt

    def send_interrupted(self: SegmentConnection, data: bytes) -> None:
        interrupt(0.05)
        half = len(data) // 2
        send(self, data[:half])
        interrupt(0.05)
        send(self, data[half:])
        interrupt(0.05)

    def receive_interrupted(self: SegmentConnection, **how: Any) -> Reply:
        reply = receive(self, **how)
        interrupt(0.05)
        return reply

    def drive(writer: SegmentWriter, *, drain: bool) -> None:
        while True:
            try:
                return writer.drive(Patience(30.0), drain=drain)
            except KeyboardInterrupt:
                pass

    with BreakingStore(seed, breaks=0).running() as store, monkeypatch.context() as patch:
        patch.setattr(SegmentConnection, "send_bytes", send_interrupted)
        patch.setattr(SegmentConnection, "receive", receive_interrupted)
        writer = SegmentWriter("s/a/0", lambda: store.address)
        events = events_of(200)
        for event in events:
            writer.add((0.0, event))
            drive(writer, drain=draw.random() < 0.2)
        drive(writer, drain=True)
        assert writer.acknowledged_events == len(events)
        writer.disconnect()
    assert store.stored == events
    assert interrupts > 20


def test_its_patience_is_whole_after_a_connection_that_tells_of_stored_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time since the earlier break counted: the next break ended the writer at once."""
    now, attempts = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))

    def count(locate: Callable[[], Address]) -> Address:
        nonlocal attempts
        attempts += 1
        return locate()

    # With this seed it stores the event, and breaks the connection.
    with BreakingStore(4, breaks=1).running() as store:
        writer = SegmentWriter("s/a/0", lambda: count(lambda: store.address))
        patience = Patience(30.0)
        writer.add((0.0, b"event"))
        writer.drive(patience, drain=True)
        assert (store.stored, store.connections) == ([b"event"], 2)
        writer.disconnect()
    now += 1000.0
    attempts = 0
    writer.add((0.0, b"another"))
    with pytest.raises(UnavailableError):
        writer.drive(patience, drain=True)
    assert attempts > 10


def test_a_writer_waits_for_replies_when_too_many_blocks_have_none() -> None:
    with BreakingStore(0, breaks=0).running() as store:
        writer = SegmentWriter("s/a/0", lambda: store.address)
        unacknowledged = []
        for event in events_of(BLOCKS_MAX + 20):
            writer.add((0.0, event))
            writer.drive(Patience(30.0), drain=False)
            unacknowledged.append(writer.sent_events - writer.acknowledged_events)
        writer.disconnect()
    assert max(unacknowledged) == BLOCKS_MAX


@pytest.mark.parametrize("seed", range(6))
def test_long_events_have_their_places_however_connections_break(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 100)
    monkeypatch.setattr(long_appends, "PIECE_BYTES", 64)
    events = [b"event %d" % number + bytes(200 * (number % 3 == 0)) for number in range(40)]
    with CountingStore(seed, breaks=8).running() as store:
        session = AppendSession[Event](bytes(range(16)), takes_long=True)
        writer = SegmentWriter(NAME, lambda: store.address, session=session)
        patience = Patience(30.0)
        for number, event in enumerate(events):
            writer.add((0.0, event))
            if number % 7 == seed:
                writer.drive(patience, drain=number % 2 == 0)
        writer.drive(patience, drain=True)
        assert writer.acknowledged_events == len(events)
        writer.disconnect()
    assert store.events == events
    assert store.merges == 14


@pytest.mark.parametrize("seed", range(4))
def test_a_flush_of_a_transaction_returns_when_all_its_events_are_stored(seed: int) -> None:
    with BreakingStore(seed, breaks=3).running() as store:
        begun = BegunTransaction(bytes(16), (SegmentRange(0, 0.0, 1.0),))
        writer = TransactionWriter("s", "a", begun, lambda _: store.address)
        events = events_of(BATCH_EVENTS_MAX + 7)
        writer.write(events, ["one key"] * len(events))
        writer.flush()
        assert store.stored == events
        writer.close()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (NoSuchSegment(1, "s/a/0"), SegmentEndedError),
        (ErrorMessage(1, "s/a/0", "no", 0), RefusedError),
    ],
)
def test_a_refusal_ends_it_with_its_meaning(reply: Reply, error: type[Exception]) -> None:
    with BreakingStore(0, breaks=0, refusal=reply).running() as store:
        writer = SegmentWriter("s/a/0", lambda: store.address)
        writer.add((0.5, b"event"))
        with pytest.raises(error):
            writer.drive(Patience(30.0), drain=True)
        assert writer.session.unacknowledged_events == [(0.5, b"event")]
        writer.disconnect()


def test_a_store_that_stays_away_is_named_with_its_segment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: Address = listener.getsockname()
    writer = SegmentWriter("s/a/0", lambda: address)
    writer.add((0.0, b"event"))
    with pytest.raises(UnavailableError, match="s/a/0 could not be written to for 0 s"):
        writer.drive(Patience(0.0), drain=True)


def test_an_event_that_is_too_long_is_refused_before_it_is_sent() -> None:
    writer = SegmentWriter("s/a/0", lambda: ("", 0))
    with pytest.raises(UsageError, match="at most"):
        writer.add((0.0, bytes(EVENT_BYTES_MAX + 1)))
    assert writer.is_idle
