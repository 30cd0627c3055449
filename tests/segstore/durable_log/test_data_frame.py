"""Records go through data frames whole, in order, whatever their sizes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.durable_log.data_frame import (
    FRAME_HEADER,
    PART_HEADER,
    DataFrame,
    DataFrameReader,
    split_record,
)
from segstore.errors import DataLogCorruptError
from segstore.tiers.api import LogAddress

LIMIT = 300


def write(records: list[tuple[bytes, bytes]], limit: int = LIMIT) -> list[bytes]:
    """Frames as the operation processor makes them from (head, body) pairs."""
    frames = []
    frame = DataFrame(limit)
    for head, body in records:
        if len(head) + len(body) <= frame.room:
            frame.put_whole(head, body)
            continue
        *full, frame = split_record(frame, head, body)
        frames += [bytes(done.seal()) for done in full]
    if not frame.is_empty:
        frames.append(bytes(frame.seal()))
    return frames


def read(frames: list[bytes]) -> list[tuple[int, bytes]]:
    reader = DataFrameReader()
    return [
        (address.position, record)
        for number, frame in enumerate(frames)
        for address, record in reader.feed(frame, LogAddress(number))
    ]


RECORDS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=1200)), max_size=12)


@given(RECORDS)
def test_records_read_back_whole_and_in_order(records: list[tuple[bytes, bytes]]) -> None:
    frames = write(records)
    assert [record for _, record in read(frames)] == [head + body for head, body in records]
    assert all(len(frame) <= LIMIT for frame in frames)


@given(RECORDS, st.data())
def test_a_log_cut_between_frames_loses_only_records_that_end_later(
    records: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    frames = write(records)
    kept = data.draw(st.integers(0, len(frames)))
    whole = [head + body for head, body in records]
    assert [record for _, record in read(frames[:kept])] == whole[: len(read(frames[:kept]))]


def test_a_record_that_was_cut_off_by_a_crash_is_dropped_when_the_next_run_begins() -> None:
    lost = write([(b"", b"x" * 1000)])[:-1]
    again = write([(b"head", b"body")])
    assert [record for _, record in read(lost + again)] == [b"headbody"]


def test_a_record_is_told_with_the_frame_it_began_in() -> None:
    frames = write([(b"", b"a" * 10), (b"", b"b" * 700), (b"", b"c" * 10)])
    assert len(frames) == 3
    assert [address for address, _ in read(frames)] == [0, 0, 2]


def test_a_part_without_its_head_is_damage() -> None:
    frames = write([(b"", b"x" * 1000)])
    with pytest.raises(DataLogCorruptError, match="without a head"):
        read(frames[1:])


@pytest.mark.parametrize("position", [0, 4, 7])
def test_a_damaged_frame_header_is_reported(position: int) -> None:
    frame = bytearray(write([(b"head", b"body")])[0])
    frame[position] ^= 0x40
    with pytest.raises(DataLogCorruptError, match="damaged header"):
        read([bytes(frame)])


def test_a_record_longer_than_its_frame_is_reported() -> None:
    frame = bytearray(write([(b"head", b"body")])[0])
    PART_HEADER.pack_into(frame, FRAME_HEADER.size, 9, 3)
    with pytest.raises(DataLogCorruptError, match="ends in a record"):
        read([bytes(frame)])


@given(st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_damage(data: bytes) -> None:
    with contextlib.suppress(DataLogCorruptError):
        read([data])
