"""Batches with limits end between two events, and their bytes are read once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.reading.event_scans import EventScan, scan_starts
from pravega_spark.reading.segments import Piece
from pravega_wire.event_framing import frame_event, frame_events
from segstore_client.errors import PravegaError

EVENTS = st.lists(st.binary(max_size=30), min_size=1, max_size=60)


class Segment:
    """Bytes that begin at an offset, handed out in pieces; counts what is read."""

    def __init__(self, events: list[bytes], start: int, piece_bytes: int) -> None:
        self.start = start
        self.read_bytes = 0
        self.piece_bytes = piece_bytes
        self.ends = list(itertools.accumulate((8 + len(each) for each in events), initial=start))
        self.data = frame_events(events)

    def read(self, start: int, end: int) -> Iterator[Piece]:
        for offset in range(start, end, self.piece_bytes):
            piece = self.data[
                offset - self.start : min(end, offset + self.piece_bytes) - self.start
            ]
            self.read_bytes += len(piece)
            yield offset, piece


@given(
    EVENTS,
    st.integers(0, 2**40),
    st.integers(1, 100),
    st.integers(1, 300),
    st.integers(1, 20),
    st.data(),
)
def test_batches_are_as_long_as_their_limits_allow(
    events: list[bytes],
    start: int,
    piece_bytes: int,
    bytes_max: int,
    rows_max: int,
    data: st.DataObject,
) -> None:
    segment = Segment(events, start, piece_bytes)
    scan = EventScan("s/t/0", segment.read, start)
    stored = 0
    number = 0
    while number < len(events):
        # More is stored from time to time.
        stored = data.draw(st.integers(max(stored, number + 1), len(events)))
        at_least_one = data.draw(st.booleans())
        wanted = number
        while (
            wanted < stored
            and wanted - number < rows_max
            and segment.ends[wanted + 1] - segment.ends[number] <= bytes_max
        ):
            wanted += 1
        if wanted == number and at_least_one:
            wanted += 1
        found = scan.advance(
            segment.ends[stored], bytes_max=bytes_max, rows_max=rows_max, at_least_one=at_least_one
        )
        assert found == (segment.ends[wanted], wanted - number)
        assert scan.position == segment.ends[wanted]
        if wanted == number:
            bytes_max += 40
        number = wanted
    assert segment.read_bytes == len(segment.data)


def test_a_short_batch_reads_one_piece_of_a_long_segment() -> None:
    events = [b"x" * 92] * 1_000
    segment = Segment(events, 0, 1_000)
    scan = EventScan("s/t/0", segment.read, 0)
    for batch in range(1, 6):
        found = scan.advance(100_000, bytes_max=100_000, rows_max=2, at_least_one=True)
        assert found == (200 * batch, 2)
    assert segment.read_bytes == 1_000


def test_events_behind_a_gap_have_their_own_offsets() -> None:
    event = frame_event(b"event")
    pieces = [(0, event + event[:5]), (100, event), (113, event)]
    found = [
        starts.offset(number)
        for starts in scan_starts("s/t/0", pieces, 0)
        for number in range(len(starts))
    ]
    assert found == [0, 100, 113]


def test_a_byte_stream_is_told_with_its_offset() -> None:
    with pytest.raises(PravegaError, match=r"segment s/t/0 holds no event at offset 111"):
        list(scan_starts("s/t/0", [(100, frame_event(b"one") + b"no event at all")], 100))
