"""Events inside segment data."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import (
    count_missing_bytes,
    frame_event,
    frame_events,
    iterate_event_spans,
)


def events_in(buffer: bytes | bytearray | memoryview) -> list[bytes]:
    return [bytes(buffer[start:end]) for start, end in iterate_event_spans(buffer)]


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(0, 60))
def test_complete_events_read_back_and_an_incomplete_one_waits(
    events: list[bytes], kept: int
) -> None:
    data = frame_events(events)
    assert data == b"".join(map(frame_event, events))
    for buffer in (data, bytearray(data), memoryview(data)):
        assert events_in(buffer) == events
    cut = data[: max(0, len(data) - kept)]
    read = events_in(cut)
    assert read == events[: len(read)]
    assert (
        len(cut) - sum(len(frame_event(event)) for event in read)
        < len(data) - len(frame_events(read))
        or cut == data
    )


def test_events_of_any_buffer_are_framed() -> None:
    events = (kind(b"abc") for kind in (bytes, bytearray, memoryview))
    assert frame_events(events) == 3 * frame_event(b"abc")
    assert frame_events([]) == b""


def test_spans_tell_where_each_event_lies() -> None:
    data = frame_events([b"a", b"", b"bcd"])
    assert list(iterate_event_spans(data)) == [(8, 9), (17, 17), (25, 28)]
    assert list(iterate_event_spans(data, 9)) == [(17, 17), (25, 28)]


def test_the_missing_bytes_are_those_of_the_header_and_then_of_the_event() -> None:
    data = frame_event(b"abc")
    missing = [count_missing_bytes(data[:length]) for length in range(len(data) + 1)]
    assert missing == [8, 7, 6, 5, 4, 3, 2, 1, 3, 2, 1, 0]


@pytest.mark.parametrize("header", [(1, 0), (0, -1), (-1, 3)])
def test_what_is_no_event_is_refused(header: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="position 9"):
        list(iterate_event_spans(frame_event(b"x") + struct.pack(">ii", *header)))
