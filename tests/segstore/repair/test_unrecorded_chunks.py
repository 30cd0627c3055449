"""Chunks are found by their names when the metadata that have them are damaged."""

from __future__ import annotations

from dataclasses import replace

from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.records import AddChunk, Chunk, Condemn, StoredSegment, new_chunk_name
from segstore.chunks.system_journal import StoredState
from segstore.repair.unrecorded_chunks import add_unrecorded_chunks

SEGMENT = "scope/stream/0.#epoch.0.S-1"


def name(start: int, epoch: int, number: int = 1, *, segment: str = SEGMENT) -> str:
    return new_chunk_name(segment, start=start, epoch=epoch, number=number)


def add(metadata: ChunkMetadata, lengths: dict[str, int]) -> StoredState:
    return add_unrecorded_chunks(StoredState(1, metadata, None, 0, ()), 0, 1, lengths)[0]


def ranges(state: StoredState, segment: str = SEGMENT) -> list[tuple[int, int, int]]:
    """Return where the chunks of a segment begin and end, and their epochs."""
    record = state.metadata.get(segment)
    assert record is not None
    return [(each.start, each.end, each.epoch) for each in record.chunks]


def test_chunks_without_metadata_make_their_segments() -> None:
    other = name(0, 2, segment=f"{SEGMENT}$attributes.index")
    lengths = {name(0, 1): 10, name(10, 2): 5, name(30, 3): 4, other: 7}
    found = add(ChunkMetadata(), lengths)
    assert ranges(found) == [(0, 10, 1), (10, 15, 2), (30, 34, 3)]
    assert ranges(found, f"{SEGMENT}$attributes.index") == [(0, 7, 2)]
    assert found.epoch == 3, "no later epoch may be used again"


def test_names_of_other_things_and_of_other_containers_count_not() -> None:
    lengths = {
        "_system/chunks-0$journal-0000000002-0000000002": 100,
        "_system/store$identity-0123": 1,
        name(0, 5, segment="_system/containers/metadata_1.S-1"): 10,
        name(0, 6, segment="no-segment"): 10,
    }
    found = add(ChunkMetadata(), lengths)
    assert found.metadata.segment_names() == []
    assert found.epoch == 1


def test_segments_whose_first_chunk_has_no_record_are_told() -> None:
    metadata = ChunkMetadata()
    metadata.apply(AddChunk(SEGMENT, 0, 1, name(0, 1)))
    metadata.apply(AddChunk("a.S-2", 20, 1, name(20, 1, segment="a.S-2")))
    lengths = {name(0, 1): 20, name(20, 2): 3}
    lengths |= {name(start, 1, segment="a.S-2"): 10 for start in (10, 20)}
    lengths[name(7, 1, segment="b.S-3")] = 1
    _, headless = add_unrecorded_chunks(StoredState(1, metadata, None, 0, ()), 0, 1, lengths)
    assert headless == {"a.S-2", "b.S-3"}


def test_a_later_owner_knew_how_far_an_earlier_chunk_was_good() -> None:
    assert ranges(add(ChunkMetadata(), {name(0, 1): 100, name(60, 2): 5})) == [
        (0, 60, 1),
        (60, 65, 2),
    ]
    # The same owner wrote the later chunk behind the end of the earlier one, or for nothing.
    assert ranges(add(ChunkMetadata(), {name(0, 1): 100, name(60, 1, 2): 5})) == [(0, 100, 1)]
    assert ranges(add(ChunkMetadata(), {name(0, 1): 100, name(0, 2): 40})) == [(0, 40, 2)]


def test_bytes_that_a_later_chunk_lost_are_not_those_of_an_earlier_one() -> None:
    """Seed 250955: after a loss, a segment was written anew over a chunk that no record had."""
    metadata = ChunkMetadata()
    chunks = (Chunk(0, 513, name(0, 3), 3), Chunk(513, 147, name(513, 3, 2), 3))
    metadata.put(SEGMENT, StoredSegment(chunks, 660))
    lengths = {name(0, 3): 196, name(513, 3, 2): 147}
    stray = {name(150, 1): 446, name(200, 1, 2): 10}
    assert ranges(add(metadata, lengths | stray)) == [(0, 513, 3), (513, 660, 3)]


def test_a_recorded_chunk_that_is_missing_keeps_its_range() -> None:
    """Seed 4410580: a stray chunk made a truncation of what was lost, and nobody told of it."""
    chunks = tuple(Chunk(start, 10, name(start, 3, start + 1), 3) for start in (20, 30, 40))
    metadata = ChunkMetadata()
    metadata.put(SEGMENT, StoredSegment(chunks, 50))
    lengths = {name(30, 3, 31): 10, name(30, 1): 4}
    assert ranges(add(metadata, lengths)) == [(20, 30, 3), (30, 40, 3), (40, 50, 3)]


def test_what_the_metadata_have_stays_and_what_they_gave_up_counts_not() -> None:
    metadata = ChunkMetadata()
    metadata.apply(AddChunk(SEGMENT, 0, 1, name(0, 1)))
    metadata.apply(Condemn((name(20, 1, 3),)))
    moved = replace(StoredSegment((Chunk(0, 5, name(0, 1, segment="a.S-2"), 1),)), is_moved=True)
    metadata.put("a.S-2", moved)
    lengths = {
        name(0, 1): 20,  # open: it grew
        name(20, 1, 3): 7,
        name(20, 2): 3,
        name(0, 1, segment="a.S-2"): 5,
        name(5, 1, segment="a.S-2"): 5,
    }
    found = add(metadata, lengths)
    assert ranges(found) == [(0, 20, 1), (20, 23, 2)]
    assert found.metadata.get("a.S-2") == moved
