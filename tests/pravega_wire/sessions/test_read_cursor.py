"""Events out of bytes that come in any pieces, and segments that follow each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire import commands as wire
from pravega_wire.errors import RemoteProtocolError, TruncatedBytesError
from pravega_wire.event_framing import frame_events, iterate_event_spans
from pravega_wire.sessions.read_cursor import ByteCursor, EventCursor, ReadEvent, SegmentOrder
from pravega_wire.sessions.routes import SegmentRange, Successor

NAME = "s/a/0.#epoch.0"


def read(offset: int, data: bytes, *, end: bool = False) -> wire.SegmentRead:
    return wire.SegmentRead(NAME, offset, False, end, data, 1)


@given(st.lists(st.binary(max_size=20), max_size=8), st.data())
def test_events_come_out_alike_however_their_bytes_come(
    events: list[bytes], data: st.DataObject
) -> None:
    stored = frame_events(events)
    cursor, found = EventCursor(7, NAME, 0, len(stored)), list[ReadEvent]()
    while not cursor.is_at_end:
        wanted = cursor.bytes_wanted(30)
        assert 0 < wanted <= 30
        length = data.draw(st.integers(0, wanted))
        taken = cursor.take(read(cursor.offset, stored[cursor.offset : cursor.offset + length]))
        assert taken is not None
        found += taken
    assert cursor.pending == b""
    assert [each.data for each in found] == events
    position = 0
    for each in found:
        assert (each.segment_id, each.offset) == (7, position)
        position += 8 + len(each.data)


def read_plainly(data: bytes) -> tuple[list[tuple[bytes, int]], bytes, bool]:
    """Return all events with their offsets, the incomplete one, and whether other bytes follow."""
    found, consumed = [], 0
    try:
        for start, end in iterate_event_spans(data):
            found.append((data[start:end], start - 8))
            consumed = end
    except RemoteProtocolError:
        return found, b"", True
    return found, data[consumed:], False


# Events, whole and cut, and bytes that are none.
STORED = st.lists(
    st.one_of(
        st.binary(max_size=30).map(lambda data: frame_events([data])),
        st.binary(max_size=3).map(lambda data: b"\0" * 4 + data),
        st.binary(max_size=9),
    ),
    max_size=8,
).map(b"".join)


@given(STORED, st.lists(st.integers(0, 25)))
def test_pieces_of_any_bytes_bring_what_the_whole_brings(data: bytes, lengths: list[int]) -> None:
    events, rest, is_broken = read_plainly(data)
    cursor, found, start = EventCursor(7, NAME, 100, None), list[ReadEvent](), 0
    try:
        for length in [*lengths, len(data)]:
            found += cursor.feed(data[start : start + length])
            start = min(start + length, len(data))
            assert cursor.offset == 100 + start
    except RemoteProtocolError:
        assert is_broken
    else:
        assert not is_broken
        assert cursor.pending == rest
    # Bytes that are no events take those of their own piece along.
    assert [(each.data, each.offset - 100) for each in found] == events[: len(found)]
    assert is_broken or len(found) == len(events)


def test_a_reply_tells_the_end_of_a_segment_a_truncation_or_that_it_is_gone() -> None:
    cursor = EventCursor(0, NAME, 0, None)
    assert cursor.bytes_wanted(1000) == 1000
    assert cursor.take(read(0, frame_events([b"a"])[:5])) == []
    assert (cursor.offset, cursor.pending) == (5, frame_events([b"a"])[:5])
    assert cursor.take(wire.SegmentIsTruncated(1, NAME, 90, "", 5)) == []
    assert (cursor.offset, cursor.pending, cursor.is_at_end) == (90, b"", False)
    # A reader that is behind its own cut stays there.
    cursor.take(wire.SegmentIsTruncated(1, NAME, 80, "", 90))
    assert cursor.offset == 90
    assert cursor.take(wire.WrongHost(1, NAME, "", "")) is None
    assert not cursor.is_at_end
    assert cursor.take(read(90, frame_events([b"b"]), end=True)) == [
        ReadEvent(b"b", 0, 90, cursor.name)
    ]
    assert cursor.is_at_end
    assert not cursor.is_gone
    sealed, gone = EventCursor(0, NAME, 0, None), EventCursor(0, NAME, 0, None)
    assert gone.take(read(0, frame_events([b"a"])[:5])) == []
    assert sealed.take(wire.SegmentIsSealed(1, NAME, "", 0)) == []
    assert gone.take(wire.NoSuchSegment(1, NAME, "", 5)) == []
    assert (sealed.is_at_end, sealed.is_gone) == (True, False)
    assert (gone.is_at_end, gone.is_gone, gone.pending) == (True, True, b"")


def test_bytes_that_are_no_events_are_refused_with_the_segment() -> None:
    cursor = EventCursor(0, NAME, 0, None)
    with pytest.raises(RemoteProtocolError, match=f"segment {NAME} does not hold events, perhaps"):
        cursor.take(read(0, b"\x01" * 20))


def test_bytes_come_out_as_they_are_until_some_are_missing() -> None:
    cursor = ByteCursor(0, NAME, 10, None)
    assert cursor.take(read(10, b"abc")) == [b"abc"]
    assert cursor.take(read(13, b"")) == []
    # A truncation before the position is none of its concern.
    assert cursor.take(wire.SegmentIsTruncated(1, NAME, 13, "", 13)) == []
    assert cursor.offset == 13
    with pytest.raises(TruncatedBytesError) as raised:
        cursor.take(wire.SegmentIsTruncated(1, NAME, 20, "", 13))
    assert (raised.value.offset, raised.value.head) == (13, 20)
    assert cursor.take(read(13, b"d", end=True)) == [b"d"]
    assert (cursor.offset, cursor.is_at_end) == (14, True)


def follow(segment: int, *predecessors: int) -> Successor:
    return Successor(SegmentRange(segment, 0.0, 1.0), frozenset(predecessors))


def test_a_segment_is_read_after_all_of_its_predecessors() -> None:
    order = SegmentOrder()
    for segment in (0, 1, 2):
        order.begin(segment)
    merged, split = follow(3, 0, 1), follow(4, 2)
    assert order.complete(0, [merged]) == []
    assert order.complete(2, [split, follow(5, 2)]) == [4, 5]
    order.begin(4)
    assert order.complete(1, [merged]) == [3]
    order.begin(3)
    # Each predecessor tells of the same successor: it begins once.
    assert order.complete(3, [follow(6, 3, 4)]) == []
    assert order.complete(4, [follow(6, 3, 4)]) == [6]
    order.begin(6)
    assert order.complete(6, []) == []
    assert order.complete(5, [follow(6, 5)]) == []
