"""The steps at a log, against the answers of a store that is a list of bytes."""

from __future__ import annotations

from typing import TypeVar

import pytest

from pravega_wire import commands as wire
from pravega_wire.event_framing import frame_event
from pravega_wire.sessions import segment_log
from pravega_wire.sessions.segment_log import (
    NO_MARK,
    LogMovedError,
    LogSession,
    LogTooLongError,
    Steps,
)

T = TypeVar("T")


class Store:
    """Has one log, and answers its clients."""

    def __init__(self) -> None:
        self.data = b""
        self.start = 0
        self.mark = NO_MARK
        self._numbers: dict[bytes, int] = {}

    def answer(self, request: wire.Request) -> wire.Reply:
        match request:
            case wire.GetStreamSegmentInfo(i, segment):
                return wire.StreamSegmentInfo(
                    i, segment, True, False, False, 0, len(self.data), self.start
                )
            case wire.GetSegmentAttribute(i):
                return wire.SegmentAttribute(i, self.mark)
            case wire.ReadSegment(segment, offset, length, _, i):
                # More than was asked for.
                data = self.data[offset : offset + length + 1]
                return wire.SegmentRead(segment, offset, True, False, data, i)
            case wire.SetupAppend(i, writer, segment):
                return wire.AppendSetup(i, segment, writer, self._numbers.get(writer, NO_MARK))
            case wire.ConditionalAppend(writer, number, offset, event, i):
                if offset != len(self.data):
                    return wire.ConditionalCheckFailed(writer, number, i)
                self.data += frame_event(event)
                self._numbers[writer] = number
                return wire.DataAppended(writer, number, number - 1, i, len(self.data))
            case _:
                raise AssertionError(request)

    def take(self, steps: Steps[T], *, lost: type[wire.Request] | None = None) -> T | None:
        """Return the result of steps; None when the answer to a request of a kind is lost."""
        try:
            request = next(steps)(1, "")
            while True:
                answer = self.answer(request)
                if isinstance(request, lost or ()):
                    return None
                request = steps.send(answer)(1, "")
        except StopIteration as end:
            result: T = end.value
            return result


@pytest.fixture
def session() -> LogSession:
    return LogSession("s/a/0", AssertionError)


def test_each_append_has_a_number_of_its_own(session: LogSession) -> None:
    store = Store()
    assert store.take(session.read()) == (True, [])
    append = session.append(b"one")
    assert store.take(append(), lost=wire.ConditionalAppend) is None
    session.is_set_up = False
    assert store.take(append())
    append = session.append(b"two")
    assert store.take(append(), lost=wire.ConditionalAppend) is None
    session.is_set_up = False
    # The client was cancelled, and does not know of the second one.
    assert not store.take(session.append(b"three")())
    assert store.take(session.read()) == (False, [b"two"])
    assert store.take(session.append(b"three")())
    assert store.data == b"".join(map(frame_event, (b"one", b"two", b"three")))


def test_a_log_is_read_from_its_mark_or_where_it_was_read_to(
    session: LogSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_log, "READ_BYTES", 5)
    store = Store()
    store.data = b"".join(map(frame_event, (b"one", b"two", b"three")))
    store.mark = len(frame_event(b"one"))
    assert store.take(session.read()) == (True, [b"two", b"three"])
    assert session.bytes_since_mark == len(store.data) - store.mark
    store.data += frame_event(b"four")
    assert store.take(session.read()) == (False, [b"four"])
    session.offset = None
    assert store.take(session.read(whole=True)) == (True, [b"one", b"two", b"three", b"four"])


def test_a_log_that_cannot_be_read_now_or_ever_is_told(
    session: LogSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    store.data, store.mark = frame_event(b"one"), 100
    with pytest.raises(LogMovedError, match="s/a/0 was compacted meanwhile"):
        store.take(session.read())
    store.mark = NO_MARK
    monkeypatch.setattr(segment_log, "LOG_BYTES_MAX", len(store.data) - 1)
    with pytest.raises(LogTooLongError, match="has 11 bytes: it is not compacted"):
        store.take(session.read())
