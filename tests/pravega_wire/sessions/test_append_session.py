"""The events of one writer against a model of a store that loses connections at any moment."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.codec import encode
from pravega_wire.commands import SetupAppend
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import EventTooLongError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.sessions import append_session
from pravega_wire.sessions.append_session import (
    BATCH_BYTES,
    BATCH_EVENTS_MAX,
    BLOCKS_MAX,
    EVENT_BYTES_MAX,
    AppendSession,
    Event,
)

WRITER = bytes(range(16))
ADD, SEND, REPLY, BREAK = "add", "send", "reply", "break"


class Store:
    """Keeps the events of blocks, none whose number it has, and answers in their order."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.last = -(2**63)
        self.answers: list[int] = []

    def take(self, frames: bytes) -> None:
        (append,) = (
            each
            for each in Connection(Role.SERVER).receive_data(SETUP + frames)
            if isinstance(each, Append)
        )
        assert append.last_event_number > self.last
        data = bytes(append.data)
        self.events += [data[start:end] for start, end in iterate_event_spans(data)]
        self.last = append.last_event_number
        self.answers.append(self.last)


SETUP = encode(SetupAppend(1, WRITER, "s/a/0", ""))


def count(session: AppendSession[Event]) -> tuple[int, int]:
    """Return the numbers of events that are acknowledged, and that are in the session."""
    flying = sum(len(block.events) for block in session.in_flight)
    return session.acknowledged_events, flying + len(session._batch)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just(ADD), st.integers(1, 5)),
            st.tuples(st.just(SEND), st.just(0)),
            st.tuples(st.just(REPLY), st.just(0)),
            # So many of the blocks that were sent last never reach the store.
            st.tuples(st.just(BREAK), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
def test_each_event_is_stored_once_in_order_however_connections_break(
    steps: list[tuple[str, int]],
) -> None:
    session, store = AppendSession[Event](WRITER), Store()
    added: list[bytes] = []
    on_the_way: list[bytes] = []

    def arrive(lost: int) -> None:
        for frames in on_the_way[: len(on_the_way) - lost]:
            store.take(frames)
        on_the_way.clear()

    for step, number in [*steps, (BREAK, 0), (SEND, 0), (BREAK, 0)]:
        if step == ADD:
            for _ in range(number):
                added.append(b"event %d" % len(added))
                session.add((0.5, added[-1]))
        elif step == SEND and session.has_batch:
            on_the_way.append(session.encode(session.begin_block(), 1))
        elif step == REPLY:
            arrive(0)
            for event_number in store.answers:
                session.acknowledge(event_number)
            store.answers.clear()
        elif step == BREAK:
            arrive(min(number, len(on_the_way)))
            store.answers.clear()
            on_the_way += [session.encode(block, 1) for block in session.resume(store.last)]
        acknowledged, held = count(session)
        assert acknowledged + held == len(added)
        assert acknowledged <= len(store.events)
    assert store.events == added
    assert session.is_idle
    assert session.acknowledged_events == session.sent_events == len(added)


def test_each_event_is_in_one_place() -> None:
    session = AppendSession[Event](WRITER)
    for number in range(5):
        session.add((0.0, b"%d" % number))
    first = session.begin_block()
    session.add((0.0, b"5"))
    second = session.begin_block()
    session.add((0.0, b"6"))
    assert (first.last_event_number, second.last_event_number) == (5, 6)
    assert session.unacknowledged_bytes == 7 * 9
    assert session.acknowledge(4) == []
    assert session.acknowledge(5) == [first]
    assert count(session) == (5, 2)
    assert session.unacknowledged_bytes == 2 * 9
    assert session.release() == [(0.0, b"5"), (0.0, b"6")]
    assert session.is_idle
    assert session.unacknowledged_bytes == 0
    assert session.acknowledged_events == session.sent_events == 5


def test_each_event_is_in_one_place_when_a_block_is_interrupted() -> None:
    """Python runs what interrupts a program at the begin of a function, and behind a call."""
    interrupted_at = 0
    while interrupted_at >= 0:
        session = AppendSession[Event](WRITER, takes_long=True)
        for number in range(5):
            session.add((0.0, b"%d" % number))
        left = interrupted_at

        def interrupt(_frame: object, kind: str, _about: object) -> None:
            nonlocal left
            if kind in ("call", "c_return"):
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            session.begin_block()
        except KeyboardInterrupt:
            interrupted_at += 1
        else:
            sys.setprofile(None)
            assert interrupted_at > 5
            interrupted_at = -1
        finally:
            sys.setprofile(None)
        assert count(session) == (0, 5)
        assert session.unacknowledged_bytes == 5 * 9
        while session.has_batch:
            session.begin_block()
        assert session.in_flight[-1].last_event_number == 5


def test_a_batch_is_ready_when_it_is_long_or_has_many_events() -> None:
    session = AppendSession[Event](WRITER)
    assert not session.add((0.0, bytes(BATCH_BYTES // 2)))
    assert session.add((0.0, bytes(BATCH_BYTES // 2)))
    session.begin_block()
    ready = [session.add((0.0, b"")) for _ in range(BATCH_EVENTS_MAX)]
    assert ready.index(True) == BATCH_EVENTS_MAX - 1


def test_a_long_batch_is_sent_in_blocks_that_fit_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 1000)
    monkeypatch.setattr(append_session, "BATCH_BYTES", 100)
    session = AppendSession[Event](WRITER)
    for _ in range(12):
        session.add((0.0, bytes(92)))
    blocks = []
    while session.has_batch:
        blocks.append(session.begin_block())
    assert [len(block.events) for block in blocks] == [1, 11]
    assert [block.last_event_number for block in blocks] == [1, 12]
    assert sum(block.byte_count for block in blocks) == session.unacknowledged_bytes == 1200


def test_an_event_that_no_append_can_have_is_refused() -> None:
    session = AppendSession[Event](WRITER)
    session.add((0.0, bytes(EVENT_BYTES_MAX)))
    with pytest.raises(EventTooLongError, match="an event of 8388609 bytes: at most 8388608 fit"):
        session.add((0.0, bytes(EVENT_BYTES_MAX + 1)))
    assert len(session.release()) == 1


def test_a_long_event_is_a_block_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 10)
    monkeypatch.setattr(append_session, "LONG_EVENT_BYTES_MAX", 50)
    session = AppendSession[Event](WRITER, takes_long=True)
    with pytest.raises(EventTooLongError, match="an event of 51 bytes: at most 50 fit"):
        session.add((0.0, bytes(51)))
    lengths = (1, 2, 50, 11, 3)
    for length in lengths:
        session.add((0.0, bytes(length)))
    blocks = []
    while session.has_batch:
        assert not session.has_long_next
        blocks.append(session.begin_block())
    assert [[len(each[1]) for each in block.events] for block in blocks] == [
        [1, 2],
        [50],
        [11],
        [3],
    ]
    assert [block.is_long for block in blocks] == [False, True, True, False]
    assert session.unacknowledged_bytes == sum(lengths) + 8 * len(lengths)
    session.acknowledge(2)
    assert session.has_long_next
    assert session.stored_number == 2
    assert [len(event[1]) for event in session.release()] == [50, 11, 3]
    session.add((0.0, b"x"))
    assert not session.begin_block().is_long


def test_pieces_of_a_byte_stream_have_no_headers_and_may_grow() -> None:
    session = AppendSession[Event](WRITER, framed=False)
    assert not session.extend(b"a", 5)
    session.add((0.0, b"a"))
    assert session.extend(b"bcd", 5)
    assert not session.extend(b"ef", 5)
    session.add((0.0, b"ef"))
    assert session.unacknowledged_bytes == 6 + 2 * 8
    frames = session.encode(session.begin_block(), 1)
    (append,) = (
        each
        for each in Connection(Role.SERVER).receive_data(SETUP + frames)
        if isinstance(each, Append)
    )
    assert (append.data, append.event_count, append.last_event_number) == (b"abcdef", 2, 2)
    assert not session.extend(b"g", 5)


def test_a_session_is_full_while_too_many_blocks_have_no_reply() -> None:
    session = AppendSession[Event](WRITER)
    for _ in range(BLOCKS_MAX):
        session.add((0.0, b"x"))
        session.begin_block()
    assert not session.is_full
    session.add((0.0, b"x"))
    session.begin_block()
    assert session.is_full
    session.acknowledge(1)
    assert not session.is_full
    session.release()
    for _ in range(2):
        session.add((0.0, bytes(append_session.IN_FLIGHT_BYTES_MAX // 2)))
        session.begin_block()
    assert session.is_full
