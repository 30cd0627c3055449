"""A writer of numbered events against a store that breaks connections, and beside another one."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

from pravega_admin.exports.numbered_writer import NumberedSession, number_of
from pravega_wire import commands as wire
from pravega_wire.connection import Append
from pravega_wire.event_framing import frame_event
from pravega_wire.sessions import append_session, long_appends
from pravega_wire.sessions.append_session import Event
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import Patience
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.errors import UnavailableError
from support.counting_store import NAME, CountingStore

WRITER_ID = bytes(range(16))
LONG = 200


def numbered(count: int, *, long_each: int = 0) -> list[Event]:
    """Return events whose numbers have gaps; some are long."""
    return [
        (0.0, b"event %d" % number + bytes(LONG if long_each and number % long_each == 0 else 0), n)
        for number, n in ((number, 3 * number + 1) for number in range(count))
    ]


def new_writer(store: CountingStore) -> SegmentWriter:
    return SegmentWriter(NAME, lambda: store.address, session=NumberedSession(WRITER_ID))


def write(writer: SegmentWriter, events: list[Event], seed: int, *, drain: bool = True) -> None:
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
    monkeypatch.setattr(long_appends, "PIECE_BYTES", 64)


@pytest.mark.parametrize("seed", range(8))
def test_another_process_goes_on_after_the_last_stored_event(seed: int) -> None:
    events = numbered(200)
    with CountingStore(seed, breaks=3).running() as store:
        for attempt in range(3):
            write(new_writer(store), events[: 60 * attempt + 40], seed + attempt, drain=False)
        store.settle()
        last = new_writer(store)
        last.connect(Patience(60.0))
        assert last.session.stored_number == store.last
        write(last, events, seed)
        assert store.events == [event[1] for event in events]
        again = new_writer(store)
        again.connect(Patience(60.0))
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


class OvertakingStore(CountingStore):
    """After each merge, stores the event ``next`` too, as for another process."""

    def __init__(self, following: Event) -> None:
        super().__init__(0)
        self._following = following

    def _merge(self, *arguments: Any) -> wire.Reply:
        reply = super()._merge(*arguments)
        self.data += frame_event(self._following[1])
        self.last = number_of(self._following)
        return reply


@pytest.mark.usefixtures("short_appends")
def test_what_another_process_stores_after_a_long_event_is_not_stored_again() -> None:
    events = numbered(3, long_each=2)
    assert [len(event[1]) > 100 for event in events] == [True, False, True]
    with OvertakingStore(events[1]).running() as store:
        writer = new_writer(store)
        for event in events[:2]:
            writer.add(event)
        writer.drive(Patience(60.0), drain=True)
        writer.disconnect()
        assert store.events == [event[1] for event in events[:2]]
        assert writer.acknowledged_events == 2


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
        assert writer.session.release() == events
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
            new_writer(store).connect(Patience(60.0))
        address = store.address
    with pytest.raises(UnavailableError):
        SegmentWriter(NAME, lambda: address).connect(Patience(0.0))
