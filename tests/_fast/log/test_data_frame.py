"""Data frames beside a plain writer and reader, and whatever damage can come to their bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.crc import crc32c_portable
from _fast.log.data_frame import (
    FRAME_HEADER_BYTES,
    PART_BYTES_MIN,
    DataFrame,
    FrameDamagedError,
    FrameReader,
)

LIMIT = 300
Record = tuple[bytes, bytes]
RECORDS = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=1200)))


# ---- The oracle: docs/formats/data-frame.md in plain Python --------------------------------------


def plain_frame(content: bytes, record_count: int) -> bytes:
    header = struct.pack(">BBHI", 2, 0, record_count, len(content))
    return header + struct.pack(">I", crc32c_portable(content + header)) + content


def plain_frames(records: list[bytes], limit: int) -> list[bytes]:
    room = limit - 12
    frames: list[bytes] = []
    content, count = b"", 0
    for record in records:
        start, flags = 0, 1
        while True:
            left, here = len(record) - start, room - len(content) - 5
            if (left <= here and flags) or here >= 64:
                part = record[start : start + here]
                start += len(part)
                flags |= 2 if start == len(record) else 0
                content += struct.pack(">IB", len(part), flags) + part
                count += flags >> 1
                if flags & 2:
                    break
                flags = 0
            frames.append(plain_frame(content, count))
            content, count = b"", 0
    return [*frames, plain_frame(content, count)] if content else frames


def plain_records(frames: list[bytes]) -> list[tuple[int, bytes]]:
    records = []
    began, whole = 0, b""
    for number, frame in enumerate(frames):
        position = 8 if frame[0] == 1 else 12
        while position < len(frame):
            length, flags = struct.unpack_from(">IB", frame, position)
            position += 5
            if flags & 1:
                began, whole = number, b""
            whole += frame[position : position + length]
            position += length
            if flags & 2:
                records.append((began, whole))
    return records


# ---- Ours ----------------------------------------------------------------------------------------


def write(records: list[Record], limit: int = LIMIT, frame: DataFrame | None = None) -> list[bytes]:
    """Write frames as the operation processor makes them, all of them in the same memory."""
    frame = frame or DataFrame(limit)
    frames = []
    for head, body in records:
        if len(head) + len(body) <= frame.room:
            frame.put_whole(head, body)
            continue
        position = frame.put_part(head, body, 0)
        while position < len(head) + len(body):
            frames.append(bytes(frame.seal()))
            frame.clear()
            position = frame.put_part(head, body, position)
    if not frame.is_empty:
        frames.append(bytes(frame.seal()))
        frame.clear()
    return frames


def read(frames: list[bytes]) -> list[tuple[int, bytes]]:
    reader = FrameReader()
    return [
        (number, bytes(record))
        for frame_number, frame in enumerate(frames)
        for number, record in reader.feed(frame, frame_number)
    ]


@given(RECORDS, st.integers(12 + 5 + 64, 2000))
def test_frames_are_those_of_the_plain_writer(records: list[Record], limit: int) -> None:
    assert write(records, limit) == plain_frames([head + body for head, body in records], limit)


@given(RECORDS, st.integers(12 + 5 + 64, 5000))
def test_records_are_read_as_the_plain_reader_reads_them(records: list[Record], limit: int) -> None:
    whole = [head + body for head, body in records]
    frames = plain_frames(whole, limit)
    assert read(frames) == plain_records(frames)
    assert [record for _, record in read(frames)] == whole


@given(st.lists(st.integers(1, 200_000), max_size=30))
def test_long_records_are_read_as_views(lengths: list[int]) -> None:
    records = [(b"h" * 31, bytes([n % 251]) * length) for n, length in enumerate(lengths)]
    whole = [head + body for head, body in records]
    frames = write(records, 1024 * 1023)
    assert frames == plain_frames(whole, 1024 * 1023)
    assert [record for _, record in read(frames)] == whole


@given(RECORDS, RECORDS)
def test_a_frame_that_was_cleared_keeps_nothing(first: list[Record], second: list[Record]) -> None:
    frame = DataFrame(LIMIT)
    write(first, frame=frame)
    assert write(second, frame=frame) == write(second)


def test_a_frame_counts_the_records_that_end_in_it() -> None:
    frame = DataFrame(LIMIT)
    frame.put_whole(b"ab", b"cd")
    assert frame.put_part(b"x" * 400, b"", 0) < 400
    assert (frame.record_count, frame.length, frame.room) == (1, LIMIT, -5)
    assert struct.unpack_from(">H", frame.seal(), 2) == (1,)


@pytest.mark.parametrize("count", [65_534, 65_535, 65_536, 70_000])
def test_more_records_than_the_count_can_tell_are_told_as_the_most(count: int) -> None:
    frame = DataFrame(1024 * 1023)
    for _ in range(count):
        frame.put_whole(b"", b"x")
    sealed = bytes(frame.seal())
    assert struct.unpack_from(">H", sealed, 2) == (min(count, 65_535),)
    assert len(read([sealed])) == count


def test_bytes_that_somebody_looks_at_do_not_change() -> None:
    frame = DataFrame(LIMIT)
    frame.put_whole(b"head", b"body")
    view = frame.seal()
    assert frame.seal() == view
    assert not frame.is_free
    with pytest.raises(BufferError):
        frame.clear()
    with pytest.raises(ValueError, match="sealed"):
        frame.put_whole(b"", b"x")
    with pytest.raises(TypeError):
        view[0] = 0
    again = memoryview(frame)
    view.release()
    assert not frame.is_free
    again.release()
    assert frame.is_free
    frame.clear()
    assert frame.is_empty
    with pytest.raises(BufferError):
        memoryview(frame)


def test_what_does_not_fit_is_refused() -> None:
    frame = DataFrame(LIMIT)
    with pytest.raises(ValueError, match="do not fit"):
        frame.put_whole(b"x" * 200, b"y" * 84)
    assert frame.is_empty
    frame.put_whole(b"x" * 200, b"y" * 83)
    assert (frame.length, frame.room) == (LIMIT, -5)
    frame = DataFrame(LIMIT)
    frame.put_whole(b"", b"x" * (LIMIT - 12 - 10 - PART_BYTES_MIN + 1))
    assert frame.put_part(b"", b"y" * 200, 0) == 0
    for start in (-1, 200, 201):
        with pytest.raises(ValueError, match="no part"):
            frame.put_part(b"", b"y" * 200, start)
    for limit in (-1, 0, 80, 2**31):
        with pytest.raises(ValueError, match="limit"):
            DataFrame(limit)


# ---- Damage --------------------------------------------------------------------------------------

SAMPLE = write([(b"head", b"body"), (b"", b"x" * 100), (b"", b"y" * 400)])


@pytest.mark.parametrize("number", range(len(SAMPLE)))
def test_every_changed_byte_is_found(number: int) -> None:
    reader = FrameReader()
    for before in SAMPLE[:number]:
        reader.feed(before, 0)
    sound = SAMPLE[number]
    for position in range(len(sound)):
        for value in range(256):
            if value == sound[position]:
                continue
            damaged = bytearray(sound)
            damaged[position] = value
            with pytest.raises(FrameDamagedError):
                reader.feed(damaged, number)
    reader.feed(sound, number)


@pytest.mark.parametrize("frame", SAMPLE)
def test_every_truncation_and_every_addition_is_found(frame: bytes) -> None:
    for length in range(len(frame)):
        with pytest.raises(FrameDamagedError):
            FrameReader().feed(frame[:length], 0)
    for more in (b"\0", bytes(5), bytes(512)):
        with pytest.raises(FrameDamagedError):
            FrameReader().feed(frame + more, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\0\0", "ends in a part's header"),
        (b"\0\0\0\5\3abcd", "ends in a record"),
        (b"\xff\xff\xff\xff\3abcd", "ends in a record"),
        (b"\0\0\0\1\7a", "flags are 7"),
        (b"\0\0\0\1\2a", "part without a head"),
        (b"\0\0\0\1\0a", "part without a head"),
    ],
)
def test_frames_with_a_right_sum_and_wrong_parts_are_damage(content: bytes, message: str) -> None:
    with pytest.raises(FrameDamagedError, match=message):
        read([plain_frame(content, 0)])


def test_flags_of_a_later_version_are_damage() -> None:
    header = struct.pack(">BBHI", 2, 1, 0, 0)
    with pytest.raises(FrameDamagedError, match="flags 1"):
        read([header + struct.pack(">I", crc32c_portable(header))])


@given(st.binary(max_size=80))
def test_any_content_is_records_or_damage(content: bytes) -> None:
    frame = plain_frame(content, 0)
    try:
        records = read([frame])
    except FrameDamagedError:
        return
    assert records == plain_records([frame])


def test_a_part_before_the_beginning_and_one_that_begins_anew() -> None:
    first, *rest = write([(b"", b"x" * 700)])
    with pytest.raises(FrameDamagedError, match="without a head"):
        read(rest)
    assert read([first, *write([(b"head", b"body")])]) == [(1, b"headbody")]
    assert read([first, first, *rest]) == [(1, b"x" * 700)]


def test_the_example_of_the_format_page() -> None:
    [frame] = write([(b"head", b"body")])
    assert FRAME_HEADER_BYTES == 12
    assert frame.hex(" ") == (
        "02 00 00 01 00 00 00 0d d3 7e dc a0 00 00 00 08 03 68 65 61 64 62 6f 64 79"
    )
