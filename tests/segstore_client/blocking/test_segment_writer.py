"""A segment writer against a server that breaks connections before and after it stores."""

from __future__ import annotations

import socket

import pytest

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
        assert writer.release() == [(0.5, b"event")]
        assert writer.is_idle
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
