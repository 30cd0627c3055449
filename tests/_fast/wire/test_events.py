"""Events found in segment bytes, against the plain reading of the same framing."""

from __future__ import annotations

import array
import contextlib
import importlib.util
import itertools
import pickle
import struct
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.wire.events import (
    EventError,
    ReadEvent,
    compact_events,
    gather_columns,
    scan_events,
    split_events,
)
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import frame_events, iterate_event_spans

HEADER = struct.Struct(">ii")

# Events, broken headers and cut tails, so that every way to end comes up.
PIECES = st.one_of(
    st.binary(max_size=40).map(lambda data: HEADER.pack(0, len(data)) + data),
    st.binary(max_size=12),
    st.builds(HEADER.pack, st.sampled_from([0, 0, 0, 1, -1]), st.integers(-(2**31), 2**31 - 1)),
)
BYTES = st.lists(PIECES, max_size=12).map(b"".join)


def plain_reading(data: bytes, position: int) -> tuple[list[tuple[int, int]], int, int | None]:
    """Return the events' (position, length), the position behind them, and where something else
    stands."""
    spans = []
    try:
        for start, end in iterate_event_spans(data, position):
            spans.append((start, end - start))
            position = end
    except RemoteProtocolError:
        return spans, position, position
    return spans, position, None


def pairs(numbers: memoryview | array.array[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@given(data=BYTES, skipped=st.integers(0, 20))
def test_events_are_found_where_the_plain_reading_finds_them(data: bytes, skipped: int) -> None:
    position = min(skipped, len(data))
    spans, end, bad = plain_reading(data, position)
    if bad is not None:
        for function in (scan_events, compact_events):
            with pytest.raises(EventError, match=f"position {bad}$") as caught:
                function(data, position=position)
            assert caught.value.position == bad
        with pytest.raises(EventError, match=f"position {bad}$") as caught:
            split_events(data, segment_id=7, offset=50, segment="s/t/7", position=position)
        assert caught.value.position == bad
        data = data[:bad]
    found, consumed = scan_events(data, position=position)
    assert (found.format, pairs(found), consumed) == ("q", spans, end)
    for wide in (False, True):
        values, offsets, consumed = compact_events(data, position=position, wide=wide)
        events = [data[start : start + length] for start, length in spans]
        assert consumed == end
        assert bytes(values) == b"".join(events)
        assert offsets.format == ("q" if wide else "i")
        assert offsets[0] == 0
        assert [
            bytes(values[offsets[i] : offsets[i + 1]]) for i in range(len(offsets) - 1)
        ] == events
    objects, consumed = split_events(
        data, segment_id=7, offset=50, segment="s/t/7", position=position
    )
    assert consumed == end
    assert objects == [
        ReadEvent(data[start : start + length], 7, 50 + start - HEADER.size, "s/t/7")
        for start, length in spans
    ]


def test_an_event_is_a_value() -> None:
    event = ReadEvent(b"ab", 2**40, 30, "s/t/0.#epoch.256")
    assert (event.data, event.segment_id, event.offset) == (b"ab", 2**40, 30)
    assert (event.segment, event.stream, event.end_offset) == ("s/t/0.#epoch.256", "s/t", 40)
    for other in (
        ReadEvent(b"aB", 2**40, 30, event.segment),
        ReadEvent(b"ab", 2**41, 30, event.segment),
        ReadEvent(b"ab", 2**40, 31, event.segment),
        ReadEvent(b"ab", 2**40, 30, "s/u/0.#epoch.256"),
        b"ab",
    ):
        assert event != other
    same = pickle.loads(pickle.dumps(event))
    assert same == event
    assert len({same, event}) == 1
    assert "data=b'ab', segment_id=1099511627776, offset=30" in repr(event)
    with pytest.raises(AttributeError):
        event.offset = 31  # type: ignore[misc]
    with pytest.raises(TypeError):
        ReadEvent("ab", 0, 0, "")  # type: ignore[arg-type]


def test_the_value_of_an_event_is_made_when_it_is_asked_for_and_once() -> None:
    asked: list[int] = []

    def decode(event: ReadEvent[int]) -> int:
        asked.append(event.offset)
        return int(event.data)

    [first, second], _ = split_events(
        frame_events([b"1", b"x"]), segment_id=0, offset=0, segment="s/t/0", decode=decode
    )
    assert asked == []
    assert (first.value, first.value, asked) == (1, 1, [0])
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            assert second.value
    assert second == ReadEvent(b"x", 0, 9, "s/t/0")
    assert second.data == b"x"
    assert pickle.loads(pickle.dumps(first)).value == b"1"
    [plain], _ = split_events(frame_events([b"1"]), segment_id=0, offset=0, segment="s/t/0")
    assert plain.value is plain.data


EVENTS = st.builds(
    ReadEvent,
    st.binary(max_size=9),
    st.just(0),
    st.integers(0, 2**62),
    # Equal texts that are not the same object, too.
    st.sampled_from(["s/t/0", "s/t/1"]).map(lambda name: "".join(list(name))),
)


@given(st.lists(EVENTS, max_size=9))
def test_columns_have_what_the_events_have(events: list[ReadEvent]) -> None:
    values, ends, offsets, runs = gather_columns(events)
    assert (values.format, ends.format, offsets.format) == ("B", "i", "q")
    assert [bytes(values[a:b]) for a, b in itertools.pairwise(ends)] == [e.data for e in events]
    assert (ends[0], ends[-1], len(values)) == (0, len(values), sum(len(e.data) for e in events))
    assert offsets.tolist() == [event.offset for event in events]
    named = itertools.groupby(event.segment for event in events)
    assert runs == [(name, len(list(group))) for name, group in named]


def test_events_of_more_bytes_than_a_column_has_are_refused() -> None:
    long = ReadEvent(bytes(2**20), 0, 0, "s/t/0")
    with pytest.raises(
        OverflowError, match="2048 events have 2147483648 bytes, more than 2147483647"
    ):
        gather_columns([long] * 2048)


@given(data=BYTES, room=st.integers(0, 5))
def test_a_buffer_of_the_callers_is_filled_as_far_as_it_has_room(data: bytes, room: int) -> None:
    spans, end, bad = plain_reading(data, 0)
    target = array.array("q", [-7] * (2 * room + 1))
    if bad is not None and len(spans) <= room:
        with pytest.raises(EventError):
            scan_events(data, target)
        return
    count, consumed = scan_events(data, target)
    assert count == min(room, len(spans))
    assert pairs(target[: 2 * count]) == spans[:count]
    assert list(target[2 * count :]) == [-7] * (len(target) - 2 * count)
    assert consumed == (end if count == len(spans) else spans[count][0] - HEADER.size)


@given(events=st.lists(st.binary(max_size=30), max_size=30), lengths=st.lists(st.integers(1, 90)))
def test_a_stream_of_pieces_gives_the_events_of_the_whole(
    events: list[bytes], lengths: list[int]
) -> None:
    data = frame_events(events)
    found: list[bytes] = []
    rest, start = b"", 0
    for length in [*lengths, len(data)]:
        rest += data[start : start + length]
        start += length
        values, offsets, consumed = compact_events(rest)
        found += [bytes(values[offsets[i] : offsets[i + 1]]) for i in range(len(offsets) - 1)]
        rest = rest[consumed:]
    assert (found, rest) == (events, b"")


@pytest.mark.parametrize("sizes", [[3] + [0] * 2000, [0] + [3000] * 70, list(range(300))])
def test_room_grows_when_the_first_event_was_no_measure(sizes: list[int]) -> None:
    data = frame_events([bytes(size) for size in sizes])
    spans, consumed = scan_events(data)
    assert (list(spans[1::2]), consumed) == (sizes, len(data))


def test_no_bytes_are_no_events() -> None:
    spans, consumed = scan_events(b"")
    assert (spans.nbytes, consumed) == (0, 0)
    assert split_events(b"", segment_id=0, offset=0, segment="") == ([], 0)
    values, offsets, consumed = compact_events(b"")
    assert (values.nbytes, list(offsets), consumed) == (0, [0], 0)


@pytest.mark.parametrize(
    "data",
    [bytearray, memoryview, lambda data: memoryview(bytearray(b"x" + data))[1:]],
    ids=["bytearray", "memoryview", "misaligned"],
)
def test_any_contiguous_buffer_is_read(data: type[bytearray]) -> None:
    buffer = data(frame_events([b"ab", b"", b"c"]))
    assert pairs(scan_events(buffer)[0]) == [(8, 2), (18, 0), (26, 1)]
    assert bytes(compact_events(buffer)[0]) == b"abc"
    with pytest.raises(BufferError):
        scan_events(memoryview(buffer)[::2])


def test_a_buffer_that_cannot_take_offsets_is_refused() -> None:
    data = frame_events([b"ab"])
    with pytest.raises(ValueError, match="int64"):
        scan_events(data, array.array("i", [0, 0]))
    with pytest.raises(ValueError, match="int64"):
        scan_events(data, array.array("d", [0, 0]))
    with pytest.raises(ValueError, match="multiple of 8"):
        scan_events(data, memoryview(bytearray(25))[1:].cast("q"))
    with pytest.raises(BufferError):
        scan_events(data, bytes(16))  # cannot be written to


@pytest.mark.parametrize("position", [-1, 11])
def test_a_position_outside_the_buffer_is_refused(position: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        scan_events(frame_events([b"ab"]), position=position)
    with pytest.raises(ValueError, match="outside"):
        compact_events(frame_events([b"ab"]), position=position)
    with pytest.raises(ValueError, match="outside"):
        split_events(frame_events([b"ab"]), segment_id=0, offset=0, segment="", position=position)


def test_a_length_that_is_not_there_asks_for_no_memory() -> None:
    data = frame_events([b"ab"]) + HEADER.pack(0, 2**31 - 1)
    tracemalloc.start()
    try:
        assert scan_events(data)[1] == compact_events(data, wide=True)[2] == 10
        assert scan_events(data, position=10)[1] == 10
        assert split_events(data, segment_id=0, offset=0, segment="")[1] == 10
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_results_outlive_what_they_were_found_in() -> None:
    data = bytearray(frame_events([b"ab", b"cde"]))
    spans, _ = scan_events(data)
    values, offsets, _ = compact_events(data)
    data.clear()  # nothing holds it
    assert list(spans) == [8, 2, 18, 3]
    assert (bytes(values), list(offsets)) == (b"abcde", [0, 2, 5])


def test_bytes_that_change_meanwhile_lead_nowhere_outside() -> None:
    data = bytearray(frame_events([bytes(100)] * 5000))
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            for position in range(4, len(data), 108 * 50):
                data[position : position + 4] = struct.pack(">i", 2000)
                data[position : position + 4] = struct.pack(">i", 100)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(50):
            for function in (scan_events, compact_events):
                with contextlib.suppress(EventError):
                    assert function(data)[-1] <= len(data)
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_a_column_is_an_arrow_array_as_it_is() -> None:
    import pyarrow

    events = [b"ab", b"", b"cde"]
    for wide, kind in ((False, pyarrow.binary()), (True, pyarrow.large_binary())):
        values, offsets, _ = compact_events(frame_events(events), wide=wide)
        buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(values)]
        column = pyarrow.Array.from_buffers(kind, len(offsets) - 1, buffers)
        column.validate(full=True)
        assert column.to_pylist() == events
