"""Digests give the same operations as the frames that they were made of, without the bulk."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.crc import crc32c
from _fast.log.data_frame import DataFrame, FrameDamagedError, FrameReader
from _fast.log.logged_pieces import Piece
from _fast.log.operations import AppendOperation, OperationDamagedError, decode_append
from _fast.log.replay import (
    LOGGED_BYTES_MIN,
    AppendBatch,
    DigestReader,
    EntryNeededError,
    digest_frame,
    logged_pieces,
)

LIMIT = 20_000


def attribute_values(number: int, count: int) -> dict[bytes, int]:
    """Return values for the usual ids, and sometimes for an id of the maximum length."""
    return {
        place.to_bytes(2) * (128 if place % 7 == 1 else 8): number * (-1) ** place
        for place in range(count)
    }


def append(number: int, segment_id: int, offset: int, data: bytes, attributes: int = 1) -> bytes:
    operation = AppendOperation("", data)
    operation.sequence_number, operation.segment_id, operation.offset = number, segment_id, offset
    operation.attribute_values = attribute_values(number, attributes)
    head, body = operation.encode()
    return head + bytes(body)


def frames_of(records: list[bytes]) -> list[bytes]:
    frames, frame = [], DataFrame(LIMIT)
    for record in records:
        position = 0
        while (position := frame.put_part(record, b"", position)) < len(record):
            frames.append(bytes(frame.seal()))
            frame = DataFrame(LIMIT)
    frames.append(bytes(frame.seal()))
    return frames


@dataclass
class Replayed:
    """The result of a replay: the bytes and attributes of segments, and other records in order."""

    segments: dict[int, dict[int, bytes]] = field(default_factory=dict)
    attributes: dict[int, dict[bytes, int]] = field(default_factory=dict)
    others: list[tuple[int, bytes]] = field(default_factory=list)
    last_number: int = 0
    logged_bytes: int = 0

    def bytes_of(self, segment_id: int) -> bytes:
        pieces = sorted(self.segments.get(segment_id, {}).items())
        content = b""
        for offset, data in pieces:
            assert offset == len(content)
            content += data
        return content


def replay(frames: list[bytes], *, whole: bool = False) -> Replayed:
    reader, result = DigestReader(), Replayed()
    for position, frame in enumerate(frames):
        try:
            items = reader.feed(digest_frame(frame, whole), position)
        except EntryNeededError:
            assert not whole
            items = reader.feed(digest_frame(frame, whole=True), position)
        for item in items:
            if not isinstance(item, AppendBatch):
                result.others.append(item)
                continue
            result.last_number = item.last_sequence_number
            for run in item.runs:
                segment = result.segments.setdefault(run.last.segment_id, {})
                result.attributes.setdefault(run.last.segment_id, {}).update(
                    run.last.attribute_values
                )
                for piece in run.pieces:
                    if len(piece) == 3:
                        segment[piece[0]] = piece[1]
                        found = read_pieces(frames, logged_pieces(*piece))
                        assert b"".join(found.values()) == piece[1]
                        assert min(found) == piece[0]
                    else:
                        segment |= read_pieces(frames, [piece])
                        result.logged_bytes += piece[1]
    return result


def read_pieces(frames: list[bytes], pieces: list[Piece]) -> dict[int, bytes]:
    """Return the bytes of pieces that follow each other, by offset."""
    found = {}
    end = pieces[0][0]
    for offset, length, entry, start, sum_ in pieces:
        assert offset == end
        found[offset] = frames[entry][start : start + length]
        assert crc32c(found[offset]) == sum_
        end += length
    return found


records = st.lists(
    st.one_of(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from([0, 1, 100, LOGGED_BYTES_MIN - 1, LOGGED_BYTES_MIN, 9000, 45_000]),
            st.sampled_from([0, 1, 2, 300]),
        ),
        st.binary(min_size=1, max_size=50).map(lambda data: b"\x08" + data),
        st.sampled_from([b"\x08" + bytes(30_000), b"\x02"]),
    ),
    max_size=12,
)


@given(records, st.booleans())
def test_a_replay_of_digests_is_one_of_the_frames(
    drawn: list[tuple[int, int, int] | bytes], whole: bool
) -> None:
    encoded, lengths = [], {1: 0, 2: 0, 3: 0}
    expected, attributes = {1: b"", 2: b"", 3: b""}, dict[int, dict[bytes, int]]()
    for number, item in enumerate(drawn, 1):
        if isinstance(item, bytes):
            encoded.append(item)
            continue
        segment_id, length, count = item
        data = bytes([number]) * length
        encoded.append(append(number, segment_id, lengths[segment_id], data, count))
        lengths[segment_id] += length
        expected[segment_id] += data
        attributes.setdefault(segment_id, {}).update(attribute_values(number, count))
    frames = frames_of_any(encoded)
    found = replay(frames, whole=whole)
    assert {segment: found.bytes_of(segment) for segment in expected} == expected
    assert found.attributes == attributes
    assert [record for _, record in found.others] == [
        item for item in drawn if isinstance(item, bytes)
    ]
    plain = FrameReader()
    in_frames = [pair for place, frame in enumerate(frames) for pair in plain.feed(frame, place)]
    assert found.others == [
        (began, bytes(record)) for began, record in in_frames if bytes(record)[0] != 1
    ]
    if whole:
        assert found.logged_bytes == 0


def frames_of_any(encoded: list[bytes]) -> list[bytes]:
    return frames_of(encoded) if encoded else []


def test_a_digest_is_small() -> None:
    frame = DataFrame(1_000_000)
    frame.put_whole(append(1, 1, 0, bytes(400_000)), b"")
    frame.put_whole(append(2, 1, 400_000, bytes(400_000)), b"")
    assert len(digest_frame(bytes(frame.seal()))) < 300


def test_appends_that_follow_each_other_are_one_run_a_segment() -> None:
    frames = frames_of([append(number, number % 2, number // 2, b"x") for number in range(2, 12)])
    [batch] = DigestReader().feed(digest_frame(frames[0]), 0)
    assert isinstance(batch, AppendBatch)
    assert (batch.first_sequence_number, batch.last_sequence_number) == (2, 11)
    assert [(run.first_offset, run.first_sequence_number) for run in batch.runs] == [(1, 2), (1, 3)]
    assert [run.last.sequence_number for run in batch.runs] == [10, 11]
    assert [[piece[:2] for piece in run.pieces] for run in batch.runs] == [[(1, b"xxxxx")]] * 2


def test_places_of_more_bytes_than_there_are_are_refused() -> None:
    [batch] = DigestReader().feed(digest_frame(frames_of([append(1, 1, 0, b"four")])[0]), 0)
    assert isinstance(batch, AppendBatch)
    [(offset, data, places)] = batch.runs[0].pieces
    with pytest.raises(ValueError, match="more than 3 bytes"):
        logged_pieces(offset, data[:3], places)


@pytest.mark.parametrize(
    "second",
    [append(3, 1, 1, b"b"), append(2, 1, 5, b"b")],
    ids=["a number is left out", "an offset is left out"],
)
def test_what_does_not_follow_is_for_the_replay_to_judge(second: bytes) -> None:
    [frame] = frames_of([append(1, 1, 0, b"a"), second])
    batches = DigestReader().feed(digest_frame(frame), 0)
    assert len(batches) == 2


def test_other_operations_keep_their_place_between_appends() -> None:
    [frame] = frames_of([append(1, 1, 0, b"a"), b"\x02seal", append(3, 1, 1, b"b")])
    first, seal, second = DigestReader().feed(digest_frame(frame), 7)
    assert isinstance(first, AppendBatch)
    assert seal == (7, b"\x02seal")
    assert isinstance(second, AppendBatch)


def test_an_append_that_a_crash_cut_off_is_dropped() -> None:
    cut_off = frames_of([append(1, 1, 0, bytes(50_000))])[0]
    [frame] = frames_of([append(1, 1, 0, b"again")])
    assert replay([cut_off, frame]).bytes_of(1) == b"again"


@pytest.mark.parametrize(
    "record",
    [
        append(1, 1, 0, b"four")[:-1],
        append(1, 1, 0, b"four") + b"!",
        append(1, 1, 0, b"four")[:20],
        append(1, 1, 0, bytes(9000)) + b"!",
    ],
)
def test_an_append_of_another_length_is_damage(record: bytes) -> None:
    [frame] = frames_of([record])
    with pytest.raises(FrameDamagedError):
        replay([frame])


def test_a_part_without_its_beginning_is_damage() -> None:
    second = frames_of([append(1, 1, 0, bytes(50_000))])[1]
    with pytest.raises(FrameDamagedError, match="a part without a head"):
        replay([second])


def test_a_flipped_bit_is_damage() -> None:
    frame = bytearray(frames_of([append(1, 1, 0, bytes(9000))])[0])
    frame[5000] ^= 1
    with pytest.raises(FrameDamagedError, match="checksum"):
        digest_frame(frame)


@given(st.binary(max_size=200))
def test_any_record_is_an_append_or_damage(body: bytes) -> None:
    record = b"\x01" + body
    [frame] = frames_of([record])
    try:
        decode_append(record)
    except OperationDamagedError:
        with pytest.raises((FrameDamagedError, OperationDamagedError)):
            replay([frame])
    else:
        replay([frame])


@given(st.binary(max_size=120))
def test_any_bytes_are_a_frame_or_damage(data: bytes) -> None:
    with contextlib.suppress(FrameDamagedError, OperationDamagedError):
        replay([data])
