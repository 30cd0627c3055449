"""Records and changes of chunk metadata, and their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.chunks.checksums import BLOCK_BYTES, Checksums, sum_count, whole_blocks
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.records import (
    FRAME,
    AddChunk,
    Change,
    Checked,
    Chunk,
    ChunkRecordError,
    Collected,
    Condemn,
    Forget,
    MoveChunks,
    StoredSegment,
    Truncate,
    decode_change,
    decode_frames,
    decode_record,
    encode_change,
    encode_frame,
    encode_record,
)

JOURNAL, SNAPSHOT = "a journal", "a snapshot"

names = st.text(max_size=30)
offsets = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**32 - 1)
phases = st.integers(0, BLOCK_BYTES - 1)
lengths = st.integers(0, 4 * BLOCK_BYTES)
many_names = st.lists(names, max_size=4).map(tuple)
changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(AddChunk, names, offsets, epochs, names),
    st.builds(MoveChunks, names, offsets, names, offsets),
    st.builds(Truncate, names, offsets, offsets),
    st.builds(Forget, names),
    st.builds(Condemn, many_names),
    st.builds(Collected, many_names),
    st.tuples(names, offsets, phases, lengths, lengths).map(
        lambda each: Checked(
            each[0],
            each[1],
            each[2],
            min(each[3:]),
            max(each[3:]),
            bytes(4 * (sum_count(each[2], max(each[3:])) - whole_blocks(each[2], min(each[3:])))),
        )
    ),
)
checksums = st.tuples(phases, lengths).map(
    lambda each: Checksums(each[0], each[1], bytes(4 * sum_count(*each)))
)
chunks = st.builds(Chunk, offsets, offsets, names, epochs, st.booleans(), checksums, st.booleans())
records = st.builds(StoredSegment, st.lists(chunks, max_size=4).map(tuple), offsets, st.booleans())


@given(changes)
def test_a_change_is_read_as_it_was_written(change: Change) -> None:
    assert decode_change(encode_change(change)) == change


@given(changes, st.data())
def test_damaged_bytes_of_a_change_are_another_change_or_an_error(
    change: Change, data: st.DataObject
) -> None:
    encoded = encode_change(change)
    position = data.draw(st.integers(1, len(encoded)))
    strange = data.draw(st.binary(max_size=3))
    for rest in (b"", encoded[position + len(strange) :]):
        damaged = encoded[:position] + strange + rest
        try:
            found = decode_change(damaged)
        except ChunkRecordError:
            continue
        assert encode_change(found) == damaged


def test_bytes_behind_a_change_or_missing_from_it_are_an_error() -> None:
    encoded = encode_change(AddChunk("s", 0, 1, "s$0.E1.1"))
    for damaged in (encoded + b"x", *(encoded[:end] for end in range(1, len(encoded)))):
        with pytest.raises(ChunkRecordError):
            decode_change(damaged)


@given(names, records)
def test_a_record_is_read_as_it_was_written(segment: str, record: StoredSegment) -> None:
    assert decode_record(segment, encode_record(segment, record)) == record


def test_names_of_a_segments_own_chunks_are_kept_short() -> None:
    record = StoredSegment((Chunk(0, 5, "s$0.E1.1", 1), Chunk(5, 5, "t$0.E1.2", 1)))
    data = encode_record("s", record)
    assert b"s$0" not in data
    assert b"t$0.E1.2" in data
    assert decode_record("s", data) == record


def test_the_documented_example() -> None:
    data = bytes.fromhex(
        "01 00 01 73 0000000000000000 00000001 00 08 73 24 30 2e 45 31 2e 31".replace(" ", "")
    )
    assert decode_change(data) == AddChunk("s", 0, 1, "s$0.E1.1")


@given(st.lists(changes, min_size=1, max_size=5), st.data())
def test_a_journal_may_end_anywhere(written: list[Change], data: st.DataObject) -> None:
    frames = [
        encode_frame(number, change, journal=JOURNAL)
        for number, change in enumerate(written, start=1)
    ]
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    expected, position = [], 0
    for number, (frame, change) in enumerate(zip(frames, written, strict=True), start=1):
        position += len(frame)
        if position <= cut:
            expected.append((number, change))
    assert decode_frames(whole[:cut], journal=JOURNAL)[0] == expected
    if cut == len(whole):  # a file system may leave zeros behind what was synced
        assert decode_frames(whole + bytes(50), journal=JOURNAL)[0] == expected


@given(st.data())
def test_a_wrong_bit_before_the_last_frame_is_damage(data: st.DataObject) -> None:
    frames = [encode_frame(number, Forget("segment"), journal=JOURNAL) for number in (1, 2)]
    damaged = bytearray(b"".join(frames))
    damaged[data.draw(st.integers(0, len(frames[0]) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ChunkRecordError):
        decode_frames(bytes(damaged), journal=JOURNAL)


def test_zeros_are_no_frame() -> None:
    assert decode_frames(bytes(FRAME.size * 3), journal=JOURNAL) == ([], 0)


def some_metadata() -> ChunkMetadata:
    metadata = ChunkMetadata()
    metadata.apply(AddChunk("s", 0, 1, "s$0.E1.1"))
    metadata.apply(AddChunk("s", 7, 2, "s$7.E2.1"))
    metadata.apply(AddChunk("t", 100, 2, "t$100.E2.2"))
    metadata.apply(MoveChunks("t", 120, "s", 9))
    metadata.apply(Condemn(("x",)))
    return metadata


def test_a_snapshot_has_all() -> None:
    metadata = some_metadata()
    data = metadata.encode(epoch=2, sequence=5, name=SNAPSHOT)
    assert metadata.encode(epoch=2, sequence=5, name=SNAPSHOT) == data
    read, sequence = ChunkMetadata.decode(data, name=SNAPSHOT)
    assert sequence == 5
    assert read.segment_names() == ["s", "t"]
    assert read.get("t") == StoredSegment(
        (
            Chunk(100, 20, "t$100.E2.2", 2),
            Chunk(120, 7, "s$0.E1.1", 1),
            Chunk(127, 2, "s$7.E2.1", 2),
        )
    )
    assert read.get("s") == metadata.get("s")
    assert list(read.condemned) == ["x"]
    assert set(read.chunk_names()) == {"s$0.E1.1", "s$7.E2.1", "t$100.E2.2"}
    for each in (metadata, read):
        each.apply(Forget("s"))
        assert list(each.condemned) == ["x"], "they are the other segment's"
        each.apply(Forget("t"))
        assert list(each.condemned) == ["x", "t$100.E2.2", "s$0.E1.1", "s$7.E2.1"]


def test_no_bit_of_a_snapshot_can_be_wrong() -> None:
    data = some_metadata().encode(epoch=2, sequence=5, name=SNAPSHOT)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(ChunkRecordError):
            ChunkMetadata.decode(bytes(damaged), name=SNAPSHOT)
        with pytest.raises(ChunkRecordError):
            ChunkMetadata.decode(data[:position], name=SNAPSHOT)


@pytest.mark.parametrize(
    "change",
    [
        AddChunk("s", 5, 1, "s$5.E1.2"),
        MoveChunks("t", 110, "missing", 5),
        MoveChunks("t", 110, "s", 5),
        Truncate("missing", 5, 5),
    ],
)
def test_changes_that_do_not_fit_are_damage(change: Change) -> None:
    with pytest.raises(ChunkRecordError):
        some_metadata().apply(change)


def test_records_that_are_not_in_use_are_kept_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.chunks.chunk_metadata.RECORDS_IN_USE_MAX", 2)
    metadata = ChunkMetadata()
    for number in range(10):
        metadata.apply(AddChunk(f"s{number}", number, 1, f"s{number}$0.E1.{number}"))
    assert len(metadata._in_use) == 2
    for number in range(10):
        record = metadata.get(f"s{number}")
        assert record is not None
        assert record.chunks == (Chunk(number, 0, f"s{number}$0.E1.{number}", 1, is_open=True),)
    assert len(metadata) == 10


def test_a_system_chunk_counts_only_under_its_name() -> None:
    data = some_metadata().encode(epoch=2, sequence=5, name=SNAPSHOT)
    with pytest.raises(ChunkRecordError, match="does not match its checksum"):
        ChunkMetadata.decode(data, name="another snapshot")
    frame = encode_frame(1, Forget("segment"), journal=JOURNAL)
    assert decode_frames(frame, journal="another journal") == ([], 0)
