"""The places of a segment's bytes in a log, beside a plain list of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.log.logged_pieces import LoggedPieces, Piece

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 9)),
        st.tuples(st.just("drop"), st.integers(0, 200), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 220), st.integers(0, 60))
def test_pieces_are_found_as_in_a_list(
    drawn: list[tuple[str, int, int]], offset: int, length: int
) -> None:
    pieces, model, end = LoggedPieces(), list[Piece](), 0
    for number, (step, first, second) in enumerate(drawn):
        if step == "add":
            piece = (end + first, second, number, 7 * number, 0xFFFF_FFFF - number)
            pieces.add(*piece)
            model.append(piece)
            end = piece[0] + piece[1]
        else:
            pieces.drop_before(first)
            model = [piece for piece in model if piece[0] + piece[1] > first]
    assert len(pieces) == len(model)
    assert pieces.end == (model[-1][0] + model[-1][1] if model else 0)
    found, reached = [], offset
    for piece in model:
        if piece[0] <= reached < piece[0] + piece[1] and reached < offset + length:
            found.append(piece)
            reached = piece[0] + piece[1]
    assert pieces.find(offset, offset + length) == found
    whole = offset
    for piece in model:
        if piece[0] <= whole < piece[0] + piece[1]:
            whole = piece[0] + piece[1]
    assert pieces.contiguous_end(offset) == whole


def test_pieces_come_in_order() -> None:
    pieces = LoggedPieces()
    pieces.add(10, 5, 1, 0, 0)
    with pytest.raises(ValueError, match="a piece at 14 is not behind those up to 15"):
        pieces.add(14, 5, 1, 0, 0)
    with pytest.raises(ValueError, match="a piece at 20"):
        pieces.add(20, 0, 1, 0, 0)
