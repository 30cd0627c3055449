"""Segments' bytes become rows, however they are cut into pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.reading import event_batches
from pravega_spark.reading.event_batches import EventBatches
from pravega_spark.reading.segments import Piece
from pravega_wire.event_framing import frame_event, frame_events
from segstore_client.errors import PravegaError

Row = tuple[bytes, str, str, int, int]
EVENTS = st.lists(st.binary(max_size=60), max_size=40)


def rows(pieces: list[bytes], *, start: int) -> list[Row]:
    end = start + sum(map(len, pieces))
    offsets = itertools.accumulate(map(len, pieces), initial=start)
    return rows_of(list(zip(offsets, pieces, strict=False)), start=start, end=end)


def rows_of(pieces: list[Piece], *, start: int, end: int) -> list[Row]:
    found = []
    for batch in EventBatches("s", "t", 7).read(pieces, start=start, end=end):
        found += list(zip(*[column.to_pylist() for column in batch.columns], strict=True))
    return found


@given(EVENTS, st.lists(st.integers(0, 3000), max_size=6), st.integers(0, 2**40))
def test_rows_are_the_events_and_where_they_begin(
    events: list[bytes], cuts: list[int], start: int
) -> None:
    data = frame_events(events)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[low:high] for low, high in itertools.pairwise(bounds)]
    expected, offset = [], start
    for event in events:
        expected.append((event, "s", "t", 7, offset))
        offset += len(frame_event(event))
    assert rows(pieces, start=start) == expected


@given(EVENTS.filter(bool), st.integers(1, 200))
def test_many_small_batches_give_the_same_rows(events: list[bytes], batch_bytes: int) -> None:
    data = frame_events(events)
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    whole = rows([data], start=3)
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(event_batches, "BATCH_BYTES", batch_bytes)
        assert rows(pieces, start=3) == whole


def test_a_byte_stream_is_told_with_its_offset() -> None:
    data = frame_event(b"one") + b"no event at all"
    with pytest.raises(PravegaError, match=r"s/t/7 holds no event at offset 111"):
        rows([data], start=100)


def test_an_end_within_an_event_is_told() -> None:
    data = frame_event(b"one") + frame_event(b"two")[:-1]
    with pytest.raises(PravegaError, match=r"event at offset 11 .* not between two events"):
        rows([data], start=0)
