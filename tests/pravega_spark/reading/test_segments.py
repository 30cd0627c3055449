"""Bytes of segments come in order, and say where they lie when some are lost."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.errors import DataLossError
from pravega_spark.reading.cuts import Slice
from pravega_spark.reading.event_batches import EventBatches
from pravega_spark.reading.segments import SegmentStores
from pravega_wire.commands import (
    GetStreamSegmentInfo,
    ReadSegment,
    Reply,
    SegmentIsTruncated,
    SegmentRead,
    StreamSegmentInfo,
)
from pravega_wire.event_framing import frame_events

EVENTS = [b"event %d" % number for number in range(100)]
DATA = frame_events(EVENTS)
EVENT_BYTES = 8 + len(EVENTS[10])


def answer_truncated(read_to: int, start: int) -> Any:
    """Answer reads as a segment that is truncated at ``start`` once ``read_to`` bytes are read."""

    def answer(request: object) -> Reply | None:
        assert isinstance(request, ReadSegment)
        offset, request_id = request.offset, request.request_id
        if read_to <= offset < start:
            return SegmentIsTruncated(request_id, request.segment, start, "", offset)
        data = DATA[offset : read_to if offset < read_to else None]
        return SegmentRead(request.segment, offset, False, False, data, request_id)

    return answer


@pytest.mark.parametrize("start", [EVENT_BYTES * 60 - 10, len(DATA)])
def test_events_behind_a_gap_have_their_own_offsets(server: Any, start: int) -> None:
    read_to = 500  # within an event
    with (
        server(answer_truncated(read_to, start)) as address,
        SegmentStores("s", "t", lambda _: address) as stores,
    ):
        pieces = stores.read_slice(Slice(0, 0, len(DATA)), fail_on_data_loss=False)
        batches = list(EventBatches("s", "t", 0).read(pieces, start=0, end=len(DATA)))
    found = {row["offset"]: row["event"] for batch in batches for row in batch.to_pylist()}
    offset, expected = 0, {}
    for event in EVENTS:
        end = offset + 8 + len(event)
        if end <= read_to or offset >= start:
            expected[offset] = event
        offset = end
    assert found == expected


def test_states_are_asked_again_where_a_connection_breaks(server: Any) -> None:
    broken = True
    reads: list[int] = []

    def answer(request: object, segment: int) -> Reply | None:
        nonlocal broken
        if isinstance(request, ReadSegment):
            reads.append(segment)
            return SegmentRead(request.segment, 0, False, False, b"data", request.request_id)
        assert isinstance(request, GetStreamSegmentInfo)
        if segment == 1 and broken:
            broken = False
            return None
        return StreamSegmentInfo(
            request.request_id, request.segment, True, False, False, 0, 10 + segment, 0
        )

    with (
        server(lambda request: answer(request, 0)) as first,
        server(lambda request: answer(request, 1)) as second,
        SegmentStores("s", "t", lambda segment: (first, second)[segment]) as stores,
    ):
        found = stores.states([1, 0])
        assert {segment: state.length for segment, state in found.items()} == {0: 10, 1: 11}
        assert list(stores.read_slice(Slice(0, 0, 4))) == [(0, b"data")]
    assert reads == [0], "an old answer was taken for the read's"


def test_a_gap_is_told_unless_it_is_allowed(server: Any) -> None:
    with (
        server(answer_truncated(500, 900)) as address,
        SegmentStores("s", "t", lambda _: address) as stores,
        pytest.raises(DataLossError, match=r"bytes 500 to 900 of segment s/t/0"),
    ):
        list(stores.read_slice(Slice(0, 0, len(DATA))))
