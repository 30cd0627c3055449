from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from segstore.tiers.s3.keys import Piece, Tombstone
from segstore.tiers.s3.pieces import (
    MIB,
    ChunkMap,
    PieceSizes,
    RecentObjects,
    chunk_map,
    to_join,
    to_rewrite,
)

pieces = st.lists(
    st.builds(Piece, st.integers(1, 3), st.integers(1, 50), st.integers(0, 30), st.integers(0, 20)),
    max_size=12,
    unique_by=lambda piece: (piece.epoch, piece.sequence),
)


def painted(parts: list[Piece]) -> list[Piece]:
    """Apply the rule byte by byte: return the piece of each byte up to the first byte without
    one."""
    owners: dict[int, Piece] = {}
    for piece in sorted(parts):
        owners.update(dict.fromkeys(range(piece.start, piece.end), piece))
    visible = []
    while (piece := owners.get(len(visible))) is not None:  # type: ignore[assignment]
        visible.append(piece)
    return visible


@given(pieces)
def test_the_greatest_piece_has_each_byte(parts: list[Piece]) -> None:
    chunk = chunk_map(parts)
    bytes_of = [extent.piece for extent in chunk.extents for _ in range(extent.start, extent.end)]
    assert bytes_of == painted(parts)
    assert chunk.length == len(bytes_of)
    assert all(
        extent.piece.start <= extent.start <= extent.end <= extent.piece.end
        for extent in chunk.extents
    )


@given(pieces)
def test_hidden_pieces_can_go(parts: list[Piece]) -> None:
    chunk = chunk_map(parts)
    left = [piece for piece in parts if piece not in chunk.hidden]
    assert chunk_map(left).extents == chunk.extents


@given(pieces, st.integers(0, 30), st.integers(1, 20))
def test_a_map_grows_as_a_listing_would_say(parts: list[Piece], start: int, length: int) -> None:
    before = chunk_map(parts)
    piece = Piece(9, 1, min(start, before.length), length)
    after = before.with_piece(piece)
    visible = [extent.piece for extent in before.extents]
    again = chunk_map([*visible, *before.hidden, piece])
    assert after.extents == again.extents
    assert set(after.hidden) == set(again.hidden)
    assert after.without_hidden(after.hidden).hidden == ()


@given(pieces, st.integers(1, 3), st.integers(0, 50))
def test_a_tombstone_ends_what_is_less(parts: list[Piece], epoch: int, sequence: int) -> None:
    left = [piece for piece in parts if (piece.epoch, piece.sequence) > (epoch, sequence)]
    assert chunk_map([*parts, Tombstone(epoch, sequence)]).extents == chunk_map(left).extents


def test_an_empty_piece_makes_an_empty_chunk() -> None:
    empty = chunk_map([Piece(1, 1, 0, 0)])
    assert empty.exists
    assert empty.length == 0
    assert not chunk_map([Piece(1, 1, 5, 3)]).exists
    assert not chunk_map([]).exists


def grown(lengths: list[int], sizes: PieceSizes) -> tuple[ChunkMap, int, int]:
    """Return a chunk after appends: its map, the bytes written, and the most pieces it ever had."""
    chunk, written, count_max = ChunkMap(), 0, 0
    for sequence, length in enumerate(lengths, 1):
        rewritten = to_rewrite(chunk.extents, length, sizes)
        start = rewritten[0].start if rewritten else chunk.length
        piece = Piece(1, 2 * sequence, start, chunk.length + length - start)
        written += piece.length
        chunk = chunk.with_piece(piece)
        if joined := to_join(chunk.extents, sizes):
            whole = joined[-1].end - joined[0].start
            chunk = chunk.with_piece(Piece(1, 2 * sequence + 1, joined[0].start, whole))
        chunk = chunk.without_hidden(chunk.hidden)
        count_max = max(count_max, len(chunk.extents))
    return chunk, written, count_max


@given(st.lists(st.integers(1, 6 * MIB), min_size=1, max_size=80))
def test_appends_leave_few_pieces(lengths: list[int]) -> None:
    sizes = PieceSizes()
    chunk, written, count_max = grown(lengths, sizes)
    assert chunk.length == sum(lengths)
    longest = math.ceil(chunk.length / sizes.joined_bytes) + 1
    assert count_max <= longest + sizes.joined_bytes // sizes.small_bytes + 24
    assert written <= 16 * chunk.length


def test_full_flushes_are_written_one_and_a_half_times() -> None:
    chunk, written, _ = grown([4 * MIB] * 32, PieceSizes())
    assert [extent.length for extent in chunk.extents] == [64 * MIB, 64 * MIB]
    assert written == 192 * MIB


def test_small_appends_are_written_a_few_times() -> None:
    chunk, written, count_max = grown([1024] * 8192, PieceSizes())
    assert chunk.length == 8 * MIB
    assert count_max <= 14
    assert written / chunk.length < 14


def test_recent_objects_are_bounded() -> None:
    recent = RecentObjects(100)
    recent.add("large", b"x" * 26)
    assert recent.get("large") is None
    for number in range(10):
        recent.add(str(number), b"x" * 20)
    assert [number for number in range(10) if recent.get(str(number))] == [5, 6, 7, 8, 9]
    recent.discard("7")
    recent.add("9", b"y" * 20)
    recent.add("a", b"x" * 20)
    assert recent.get("5")
    assert recent.get("9") == b"y" * 20
