"""Memory that is lent comes back when nobody looks at it any more, and not before."""

from __future__ import annotations

import ctypes
import mmap
import threading

import pytest

from _fast.wire.lent_memory import LentMemory


def test_a_block_comes_back_when_its_last_view_has_gone() -> None:
    memory = LentMemory(block_bytes=8192, free_max=4)
    block = memory.lend()
    assert len(block) == 8192
    block[100:103] = b"abc"
    part = block[100:103].toreadonly()
    del block
    assert (memory.lent_count, memory.free_count) == (1, 0)
    assert part == b"abc"
    del part
    assert (memory.lent_count, memory.free_count) == (0, 1)


def test_the_block_that_came_back_last_is_lent_first() -> None:
    memory = LentMemory(block_bytes=4096, free_max=4)
    first, second = memory.lend(), memory.lend()
    first[:1], second[:1] = b"1", b"2"
    del first
    del second
    assert memory.lend()[0] == ord("2")


def test_no_two_loans_share_memory() -> None:
    memory = LentMemory(block_bytes=4096, free_max=2)
    for _ in range(3):
        blocks = [memory.lend() for _ in range(5)]
        for number, block in enumerate(blocks):
            block[:] = bytes([number]) * 4096
        assert all(block == bytes([n]) * 4096 for n, block in enumerate(blocks))
        del block
        blocks.clear()
        assert (memory.lent_count, memory.free_count) == (0, 2), "the others were given up"


def test_free_blocks_are_dropped_one_by_one_and_lent_ones_are_not() -> None:
    memory = LentMemory(block_bytes=4096, free_max=4)
    blocks = [memory.lend() for _ in range(3)]
    blocks[0][:] = b"x" * 4096
    del blocks[1:]
    assert memory.drop_one()
    assert (memory.lent_count, memory.free_count) == (1, 1)
    assert memory.drop_one()
    assert not memory.drop_one()
    assert blocks.pop() == b"x" * 4096
    assert memory.drop_one()
    assert (memory.lent_count, memory.free_count) == (0, 0)


def test_blocks_begin_at_pages() -> None:
    memory = LentMemory(block_bytes=3 * mmap.PAGESIZE, free_max=0)
    blocks = [memory.lend() for _ in range(3)]
    for block in blocks:
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        assert address % mmap.PAGESIZE == 0


def test_a_loan_outlives_who_lent_it() -> None:
    memory = LentMemory(block_bytes=4096, free_max=1)
    block = memory.lend()
    del memory
    block[:] = b"x" * 4096
    assert block == b"x" * 4096


def test_loans_may_end_in_any_thread() -> None:
    memory = LentMemory(block_bytes=4096, free_max=8)

    def borrow() -> None:
        for number in range(500):
            block = memory.lend()
            block[:4] = number.to_bytes(4)
            assert int.from_bytes(block[:4]) == number

    threads = [threading.Thread(target=borrow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.lent_count == 0
    assert memory.free_count <= 4


@pytest.mark.parametrize(("block_bytes", "free_max"), [(0, 1), (4096, -1)])
def test_what_makes_no_sense_is_refused(block_bytes: int, free_max: int) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        LentMemory(block_bytes=block_bytes, free_max=free_max)
