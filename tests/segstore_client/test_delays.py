"""Answers to a client that waits, of a store that knows the question and of one that does not."""

from __future__ import annotations

import socket

import pytest

from pravega_wire import blocking
from segstore_client.backoff import Patience
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.delays import Delays, ask_delays
from segstore_client.errors import StoreDelayedError
from support.full_store import FULL, FullStore


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
