"""Blocks of history are bounded, and what goes first is what nobody will miss."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.wire.lent_memory import LentMemory
from segstore.cache.history import (
    HISTORY_SECONDS_MAX,
    HistoryBlock,
    HistoryBlocks,
    block_at,
    next_block_offset,
)

LENGTH = 1000


def keep(blocks: HistoryBlocks, *offsets: int) -> list[HistoryBlock]:
    place: list[HistoryBlock] = []
    for offset in offsets:
        assert blocks.keep(offset, memoryview(bytes(LENGTH)), place) is not None
    return place


def offsets_of(place: list[HistoryBlock]) -> list[int]:
    return [block.offset for block in place]


def test_a_block_shows_its_bytes_by_their_offset_in_the_segment() -> None:
    data = Random(1).randbytes(LENGTH)
    block = HistoryBlocks(LENGTH).keep(500, memoryview(data), [])
    assert block is not None
    assert block.end == 500 + LENGTH
    assert block.view(600, 10) == data[100:110]
    assert block.view(1490, 100) == data[990:]


def test_the_least_recently_used_goes_for_a_new_one() -> None:
    blocks = HistoryBlocks(3 * LENGTH)
    place = keep(blocks, 0, LENGTH, 2 * LENGTH)
    blocks.use(place[0], 10)
    place += keep(blocks, 3 * LENGTH)
    assert offsets_of(place) == [0, 2 * LENGTH, 3 * LENGTH]
    assert blocks.kept_bytes == 3 * LENGTH


def test_what_was_read_to_its_end_goes_first() -> None:
    blocks = HistoryBlocks(3 * LENGTH)
    place = keep(blocks, 0, LENGTH, 2 * LENGTH)
    blocks.use(place[2], place[2].end)
    blocks.use(place[2], 2 * LENGTH + 1)
    place += keep(blocks, 3 * LENGTH)
    assert offsets_of(place) == [0, LENGTH, 3 * LENGTH]


def test_for_a_promise_only_what_was_read_to_its_end_goes() -> None:
    blocks = HistoryBlocks(2 * LENGTH)
    place = keep(blocks, 0, LENGTH)
    assert not blocks.promise(LENGTH)
    blocks.use(place[0], LENGTH)
    assert blocks.promise(LENGTH)
    assert offsets_of(place) == [LENGTH]
    assert not blocks.promise(1)
    assert blocks.keep(5 * LENGTH, memoryview(bytes(2 * LENGTH)), place) is None
    blocks.redeem(LENGTH)
    assert keep(blocks, 2 * LENGTH)


def test_what_nobody_uses_goes_after_a_while() -> None:
    blocks = HistoryBlocks(10 * LENGTH)
    place = keep(blocks, 0, LENGTH, 2 * LENGTH)
    blocks.advance(HISTORY_SECONDS_MAX)
    blocks.use(place[1], LENGTH + 5)
    blocks.advance(HISTORY_SECONDS_MAX + 1)
    assert offsets_of(place) == [LENGTH]
    blocks.advance(3 * HISTORY_SECONDS_MAX)
    assert (place, blocks.kept_bytes) == ([], 0)


def test_whatever_comes_the_bound_holds() -> None:
    random = Random(7)
    blocks = HistoryBlocks(10 * LENGTH)
    place: list[HistoryBlock] = []
    promised: list[int] = []
    for step in range(5000):
        match random.randrange(5):
            case 0:
                length = random.randrange(1, 3 * LENGTH)
                blocks.keep(step * 10_000, memoryview(bytes(length)), place)
            case 1:
                length = random.randrange(1, 3 * LENGTH)
                if blocks.promise(length):
                    promised.append(length)
            case 2 if promised:
                blocks.redeem(promised.pop())
            case 3 if place:
                block = random.choice(place)
                blocks.use(block, random.choice([block.end, block.offset + 1]))
            case 4 if place and random.random() < 0.1:
                blocks.forget(random.choice(place))
        assert blocks.kept_bytes == sum(len(block.data) for block in place)
        assert blocks.kept_bytes + sum(promised) <= blocks.bytes_max


def test_a_block_that_was_let_go_may_be_read_on() -> None:
    blocks = HistoryBlocks(LENGTH)
    [block] = keep(blocks, 0)
    blocks.use(block, block.end)
    assert blocks.promise(LENGTH)
    blocks.use(block, 10)
    blocks.use(block, block.end)
    assert blocks.kept_bytes == 0


@pytest.mark.parametrize(("length", "lent"), [(LENGTH, 0), (2 * LENGTH, 1)])
def test_a_block_holds_at_most_twice_its_bytes(length: int, lent: int) -> None:
    memory = LentMemory(block_bytes=4 * LENGTH, free_max=0)
    data = memory.lend()[:length]
    data[:] = content = Random(1).randbytes(length)
    block = HistoryBlocks(4 * LENGTH).keep(0, data.toreadonly(), [])
    del data
    assert block is not None
    assert block.data == content
    assert memory.lent_count == lent


@given(
    st.permutations(range(8)),
    st.lists(st.integers(0, 7), unique=True),
    st.integers(-1, 9 * LENGTH),
)
def test_blocks_are_found_as_by_a_look_at_all_of_them(
    order: list[int], dropped: list[int], offset: int
) -> None:
    blocks = HistoryBlocks(8 * LENGTH)
    place: list[HistoryBlock] = []
    kept = {}
    for index in order:
        data = memoryview(bytes(LENGTH // 2 if index % 2 else LENGTH))
        kept[index] = blocks.keep(index * LENGTH, data, place)
    for index in dropped:
        blocks.forget(kept.pop(index))
    assert sorted(offsets_of(place)) == offsets_of(place)
    assert set(place) == set(kept.values())
    with_it = [block for block in place if block.offset <= offset < block.end]
    assert block_at(place, offset) == (with_it[0] if with_it else None)
    behind = [block.offset for block in place if block.offset > offset]
    assert next_block_offset(place, offset) == min(behind, default=None)
