"""The mechanisms of the streaming cache's design, one by one, seen in its memory.

The examples are those of the article that describes the design: its figures, which show eight
blocks a buffer, are replayed here with the real 512.
"""

import ctypes
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from _fast.cache.streaming_cache import (
    BLOCK_LENGTH,
    BUFFER_LENGTH,
    CacheCorruptedError,
    CacheFullError,
    StreamingCache,
)

BLOCKS = 511
"""Blocks of a buffer that can hold data."""

USED, LAST = 0x8000, 0x4000


class PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def memory_address(view: memoryview) -> int:
    buffer = PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    assert isinstance(address, int)
    return address


class Memory:
    """A cache and the metadata in its memory, which tests may read and break."""

    def __init__(self, buffers: int = 4) -> None:
        self.cache = StreamingCache(buffers * BUFFER_LENGTH)
        probe = self.cache.insert(b"\x77")
        (view,) = self.cache.views(probe)
        self.start = memory_address(view) - BLOCK_LENGTH
        view.release()
        self.cache.delete(probe)

    def place(self, buffer: int, number: int) -> int:
        return self.start + buffer * BUFFER_LENGTH + 8 * number

    def block(self, buffer: int, number: int) -> tuple[int, int, int]:
        """Return the block's `previous`, `length` and `state`."""
        previous, length, state = struct.unpack(
            "<IHH", ctypes.string_at(self.place(buffer, number), 8)
        )
        return previous, length, state

    def poke(self, buffer: int, number: int, *block: int) -> None:
        ctypes.memmove(self.place(buffer, number), struct.pack("<IHH", *block), 8)

    def data(self, buffer: int, number: int, length: int) -> bytes:
        return ctypes.string_at(self.start + buffer * BUFFER_LENGTH + number * BLOCK_LENGTH, length)

    def free_list(self, buffer: int) -> list[int]:
        numbers = []
        number = self.block(buffer, 0)[1]
        while number:
            numbers.append(number)
            number = self.block(buffer, number)[1]
        return numbers

    def chain(self, entry: int) -> list[str]:
        """Return the entry's blocks as the article writes them, buffer-block, from first to
        last."""
        blocks = []
        while True:
            blocks.append(f"{entry >> 10}-{entry & 1023}")
            previous, _, state = self.block(entry >> 10, entry & 1023)
            if state & 0x3FFF == 0:
                return blocks[::-1]
            entry = previous

    def fill(self, *, blocks: int) -> int:
        return self.cache.insert(bytes(blocks * BLOCK_LENGTH))


def address(buffer: int, number: int) -> int:
    return buffer << 10 | number


@pytest.fixture
def memory() -> Memory:
    return Memory()


# ---- blocks, buffers, addresses ------------------------------------------------------------------


def test_blocks_have_4_kib_and_buffers_512_of_them() -> None:
    assert BLOCK_LENGTH == 4096
    assert BUFFER_LENGTH == 512 * BLOCK_LENGTH == 2 * 1024**2


def test_an_address_is_buffer_and_block_and_fits_32_bits(memory: Memory) -> None:
    addresses = [memory.fill(blocks=1) for _ in range(BLOCKS + 2)]
    assert addresses[:3] == [address(0, 1), address(0, 2), address(0, 3)]
    assert addresses[-3:] == [address(0, 511), address(1, 1), address(1, 2)]
    assert address(256 * 1024**3 // BUFFER_LENGTH - 1, 511) < 2**32


def test_block_0_of_a_buffer_holds_the_metadata_of_its_blocks(memory: Memory) -> None:
    assert memory.cache.insert(b"some bytes") == address(0, 1)
    assert memory.block(0, 1) == (0, 10, USED | LAST)
    assert memory.data(0, 1, 10) == b"some bytes"
    assert memory.block(0, 0) == (0, 2, 0)
    assert memory.block(0, 2) == (0, 3, 0)


def test_figure_4_an_empty_buffer_chains_each_block_to_the_next(memory: Memory) -> None:
    assert memory.free_list(0) == list(range(1, 512))


def test_figure_4_an_empty_entry_takes_one_block(memory: Memory) -> None:
    before = memory.cache.used_bytes
    entry = memory.cache.insert(b"")
    assert memory.cache.used_bytes - before == BLOCK_LENGTH
    assert memory.chain(entry) == ["0-1"]
    assert memory.block(0, 1) == (0, 0, USED | LAST)
    assert memory.cache.get(entry) == b""
    memory.cache.delete(entry)
    assert memory.cache.used_bytes == before


def test_metadata_takes_one_512th(memory: Memory) -> None:
    """That is two tenths of a percent: 8 MB of a cache of 4 GB."""
    for _ in range(4 * BLOCKS):
        memory.fill(blocks=1)
    assert memory.cache.used_bytes == memory.cache.capacity_bytes
    overhead = memory.cache.capacity_bytes - memory.cache.stored_bytes
    assert overhead * 512 == memory.cache.capacity_bytes
    assert StreamingCache(4 * 1024**3).capacity_bytes // 512 == 8 * 1024**2


def test_data_and_metadata_never_exceed_the_bound(memory: Memory) -> None:
    entry = memory.fill(blocks=4 * BLOCKS)
    assert memory.cache.used_bytes == memory.cache.reserved_bytes == 4 * BUFFER_LENGTH
    for call in (lambda: memory.cache.insert(b""), lambda: memory.cache.append(entry, b"1")):
        with pytest.raises(CacheFullError):
            call()
    memory.cache.check()


# ---- chains --------------------------------------------------------------------------------------


def test_figure_2_an_entry_is_chained_back_and_known_by_its_last_block(memory: Memory) -> None:
    entry = memory.cache.insert(bytes(2 * BLOCK_LENGTH + 5))
    assert entry == address(0, 3)
    assert memory.block(0, 1) == (0, BLOCK_LENGTH, USED | 0)
    assert memory.block(0, 2) == (address(0, 1), BLOCK_LENGTH, USED | 1)
    assert memory.block(0, 3) == (address(0, 2), 5, USED | LAST | 2)


def test_figure_2_a_new_entry_goes_where_the_free_list_leads(memory: Memory) -> None:
    """The figure's entry E3 has five blocks: 1, 4, 6, 7 and 14."""
    entries = [memory.fill(blocks=1) for _ in range(15)]
    for number in (6, 14, 1, 7, 4):
        memory.cache.delete(entries[number - 1])
    assert memory.free_list(0)[:6] == [1, 4, 6, 7, 14, 16]
    data = b"".join(bytes([number]) * BLOCK_LENGTH for number in range(5))
    entry = memory.cache.insert(data)
    assert memory.chain(entry) == ["0-1", "0-4", "0-6", "0-7", "0-14"]
    assert entry == address(0, 14)
    assert memory.cache.get(entry) == data
    assert [len(view) // BLOCK_LENGTH for view in memory.cache.views(entry)] == [1, 1, 2, 1]
    memory.cache.check()


def test_an_append_writes_into_the_last_block_while_it_has_room(memory: Memory) -> None:
    entry = memory.cache.insert(b"E")
    for length in range(2, 50):
        assert memory.cache.append(entry, b"E") == entry
        assert memory.block(0, 1) == (0, length, USED | LAST)
    assert memory.cache.used_bytes == 2 * BLOCK_LENGTH


def test_an_append_beyond_the_last_block_chains_a_free_one(memory: Memory) -> None:
    entry = memory.cache.insert(b"a" * 4000)
    memory.fill(blocks=1)
    longer = memory.cache.append(entry, b"b" * 200)
    assert (entry, longer) == (address(0, 1), address(0, 3))
    assert memory.block(0, 1) == (0, BLOCK_LENGTH, USED | 0)
    assert memory.block(0, 3) == (address(0, 1), 104, USED | LAST | 1)
    assert memory.data(0, 1, 4096)[-96:] + memory.data(0, 3, 104) == b"b" * 200


def test_deleting_returns_the_blocks_to_their_places_in_the_free_list(memory: Memory) -> None:
    memory.fill(blocks=2)
    entry = memory.fill(blocks=3)
    memory.fill(blocks=1)
    assert memory.free_list(0)[0] == 7
    memory.cache.delete(entry)
    assert memory.free_list(0)[:4] == [3, 4, 5, 7]
    assert memory.chain(memory.fill(blocks=3)) == ["0-3", "0-4", "0-5"]


def test_free_lists_ascend_whatever_was_deleted_first(memory: Memory) -> None:
    chance = random.Random(1)
    entries = [memory.fill(blocks=chance.choice([1, 1, 2, 5, 30])) for _ in range(200)]
    chance.shuffle(entries)
    for entry in entries[:100]:
        memory.cache.delete(entry)
        free = memory.free_list(entry >> 10)
        assert free == sorted(free)
    for _ in range(100):
        memory.fill(blocks=chance.choice([1, 1, 2, 5, 30]))
        memory.cache.check()


def test_entries_that_come_and_go_in_turn_stay_in_one_piece(memory: Memory) -> None:
    """As in a cache that evicts the oldest entries, the free blocks lie together."""
    entries = [memory.fill(blocks=3) for _ in range(600)]
    for _ in range(2000):
        memory.cache.delete(entries.pop(0))
        entries.append(memory.fill(blocks=3))
    pieces = [len(memory.cache.views(entry)) for entry in entries]
    assert sum(pieces) < 1.05 * len(entries)


# ---- buffers -------------------------------------------------------------------------------------


def test_figure_4_entries_span_buffers_and_leave_others_their_blocks(memory: Memory) -> None:
    """The layout is the figure's. E1 fills buffer 0 but for one block, E2 crosses from 1 to 2."""
    e1 = memory.fill(blocks=BLOCKS - 1)
    hole = memory.fill(blocks=1)
    other = memory.fill(blocks=3)
    large_hole = memory.fill(blocks=BLOCKS - 6)
    e2 = memory.fill(blocks=5)
    e3 = memory.cache.insert(b"")
    assert e1 == address(0, 510)
    assert memory.chain(e2) == ["1-509", "1-510", "1-511", "2-1", "2-2"]
    assert memory.chain(e3) == ["2-3"]
    memory.cache.delete(hole)
    memory.cache.delete(large_hole)
    rest = memory.fill(blocks=BLOCKS - 3)
    e4 = memory.fill(blocks=2)
    assert memory.chain(e4) == ["0-511", "1-4"]
    assert memory.block(1, 4)[0] == address(0, 511)
    assert memory.free_list(0) == []
    assert memory.free_list(1)[0] == 5
    assert memory.cache.reserved_bytes == 3 * BUFFER_LENGTH
    memory.cache.check()
    for entry in (e1, e2, e3, e4, other, rest):
        memory.cache.delete(entry)
    assert [len(memory.free_list(buffer)) for buffer in range(3)] == [BLOCKS] * 3
    memory.cache.check()


def test_figure_3_full_buffers_leave_the_queue_and_return_to_its_end(memory: Memory) -> None:
    entries = [memory.fill(blocks=1) for _ in range(4 * BLOCKS)]
    for buffer in (2, 0, 3):
        for number in (7, 8):
            memory.cache.delete(entries[buffer * BLOCKS + number - 1])
    taken = [memory.chain(memory.fill(blocks=1))[0] for _ in range(6)]
    assert taken == ["2-7", "2-8", "0-7", "0-8", "3-7", "3-8"]
    with pytest.raises(CacheFullError):
        memory.fill(blocks=1)
    memory.cache.check()


def test_the_queue_goes_round_and_round(memory: Memory) -> None:
    entries = [memory.fill(blocks=1) for _ in range(4 * BLOCKS)]
    for turn in range(9):
        order = [(turn + step) % 4 for step in (0, 2, 1, 3)]
        for buffer in order:
            memory.cache.delete(entries[buffer * BLOCKS + turn])
            memory.cache.check()
        for buffer in order:
            assert memory.fill(blocks=1) == entries[buffer * BLOCKS + turn]
        memory.cache.delete(entries[turn])
        assert memory.fill(blocks=1) == entries[turn]
        memory.cache.check()


def test_figure_3_the_queues_first_buffer_is_used_until_it_is_full(memory: Memory) -> None:
    first, second = memory.fill(blocks=BLOCKS), memory.fill(blocks=BLOCKS)
    memory.cache.delete(second)
    memory.cache.delete(first)
    for _ in range(BLOCKS):
        assert memory.fill(blocks=1) >> 10 == 1
    assert memory.fill(blocks=1) >> 10 == 0


def test_a_buffer_is_touched_only_when_the_others_are_full(memory: Memory) -> None:
    entry = memory.fill(blocks=BLOCKS)
    assert memory.cache.reserved_bytes == BUFFER_LENGTH
    memory.cache.delete(entry)
    memory.fill(blocks=BLOCKS)
    assert memory.cache.reserved_bytes == BUFFER_LENGTH
    memory.fill(blocks=1)
    assert memory.cache.reserved_bytes == 2 * BUFFER_LENGTH


def test_buffers_begin_where_huge_pages_can_and_ask_for_them(memory: Memory) -> None:
    assert memory.start % BUFFER_LENGTH == 0
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        return
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            low, high = (int(end, 16) for end in words[0].split("-"))
            inside = low <= memory.start < high
        elif inside and words[0] == "VmFlags:":
            assert "hg" in words
            return
    pytest.fail("the cache's memory is not mapped")


# ---- metadata that something has overwritten -----------------------------------------------------


def every_operation(cache: StreamingCache, entry: int) -> list[Callable[[], object]]:
    return [
        lambda: cache.get(entry),
        lambda: cache.get_into(entry, bytearray(20_000)),
        lambda: cache.views(entry),
        lambda: cache.append(entry, bytes(10_000)),
        lambda: cache.replace(entry, bytes(10_000)),
        lambda: cache.insert(bytes(10_000)),
        lambda: cache.delete(entry),
        cache.check,
    ]


ENTRY_DAMAGE = {
    "a ring of one": (0, 2, address(0, 2), BLOCK_LENGTH, USED | 1),
    "a ring of two": (0, 1, address(0, 2), BLOCK_LENGTH, USED | 1),
    "a predecessor out of the mapping": (0, 2, 0xFFFFFFFF, BLOCK_LENGTH, USED | 1),
    "a predecessor in an untouched buffer": (0, 2, address(3, 1), BLOCK_LENGTH, USED | 1),
    "a predecessor in block 0": (0, 2, 0, BLOCK_LENGTH, USED | 1),
    "a predecessor behind the buffer's blocks": (0, 2, 512, BLOCK_LENGTH, USED | 1),
    "a free predecessor": (0, 2, address(0, 9), BLOCK_LENGTH, USED | 1),
    "a predecessor that is not full": (0, 1, 0, 77, USED),
    "a predecessor with another index": (0, 2, address(0, 1), BLOCK_LENGTH, USED | 9),
    "a last block that is too long": (0, 3, address(0, 2), 0xFFFF, USED | LAST | 2),
    "an index beyond the chain": (0, 3, address(0, 2), 5, USED | LAST | 0x3FFF),
}


@pytest.mark.parametrize("damage", ENTRY_DAMAGE.values(), ids=ENTRY_DAMAGE.keys())
@pytest.mark.parametrize("operation", range(8))
def test_a_corrupted_chain_is_an_error(damage: tuple[int, ...], operation: int) -> None:
    memory = Memory()
    entry = memory.cache.insert(bytes(2 * BLOCK_LENGTH + 5))
    memory.poke(*damage)
    call = every_operation(memory.cache, entry)[operation]
    does_not_follow_the_chain = operation in (3, 5)
    if does_not_follow_the_chain:
        try:
            call()
        except (CacheCorruptedError, ValueError):
            return
        call = memory.cache.check
    with pytest.raises(CacheCorruptedError):
        call()
    for call in every_operation(memory.cache, entry):
        with pytest.raises(CacheCorruptedError):
            call()


FREE_LIST_DAMAGE = {
    "out of the buffer": (0, 4, 0, 512, 0),
    "far out of the buffer": (0, 4, 0, 0xFFFF, 0),
    "to its end too early": (0, 4, 0, 0, 0),
    "into an entry": (0, 4, 0, 2, 0),
    "in a ring": (0, 5, 0, 4, 0),
    "to itself": (0, 4, 0, 4, 0),
    "to a block that is used": (0, 5, 0, 6, USED),
}


@pytest.mark.parametrize("damage", FREE_LIST_DAMAGE.values(), ids=FREE_LIST_DAMAGE.keys())
def test_a_corrupted_free_list_is_an_error_that_changes_nothing(damage: tuple[int, ...]) -> None:
    """The content of the cache before the error stays as it is."""
    memory = Memory()
    memory.cache.insert(bytes(2 * BLOCK_LENGTH + 5))
    memory.poke(*damage)
    before = [memory.block(0, number) for number in range(512)]
    counters = (memory.cache.stored_bytes, memory.cache.used_bytes)
    with pytest.raises(CacheCorruptedError):
        memory.cache.insert(bytes(20 * BLOCK_LENGTH))
    assert [memory.block(0, number) for number in range(512)] == before
    assert (memory.cache.stored_bytes, memory.cache.used_bytes) == counters
    with pytest.raises(CacheCorruptedError):
        memory.cache.check()


@pytest.mark.parametrize("damage", FREE_LIST_DAMAGE.values(), ids=FREE_LIST_DAMAGE.keys())
def test_the_check_finds_a_corrupted_free_list(damage: tuple[int, ...]) -> None:
    memory = Memory()
    memory.cache.insert(bytes(2 * BLOCK_LENGTH + 5))
    memory.cache.check()
    memory.poke(*damage)
    with pytest.raises(CacheCorruptedError):
        memory.cache.check()


@pytest.mark.parametrize("pin", [2, 63, 64, 2**32 - 1])
def test_a_corrupted_pin_is_an_error(memory: Memory, pin: int) -> None:
    entry = memory.cache.insert(b"entry")
    views = memory.cache.views(entry)
    assert memory.block(0, 1) == (1, 5, USED | LAST)
    memory.poke(0, 1, pin, 5, USED | LAST)
    for call in (lambda: memory.cache.views(entry), lambda: memory.cache.delete(entry)):
        with pytest.raises(CacheCorruptedError):
            call()
    assert views == [b"entry"]


def test_damage_found_when_a_view_goes_away_is_reported_by_the_next_call(memory: Memory) -> None:
    entry = memory.cache.insert(bytes(3 * BLOCK_LENGTH))
    views = memory.cache.views(entry)
    memory.cache.delete(entry)
    memory.poke(0, 2, address(0, 2), BLOCK_LENGTH, USED | 1)
    views.clear()
    with pytest.raises(CacheCorruptedError):
        memory.cache.insert(b"x")


def test_any_damage_ends_in_an_answer_or_an_error() -> None:
    """With random bytes all over the metadata nothing hangs, and nothing leaves the mapping."""
    for seed in range(300):
        chance = random.Random(seed)
        memory = Memory(2)
        entries = [memory.cache.insert(bytes(chance.randrange(30_000))) for _ in range(60)]
        views = [memory.cache.views(entry) for entry in entries[::7]]
        for entry in entries[::3]:
            memory.cache.delete(entry)
        for _ in range(chance.choice([1, 3, 50])):
            place = memory.place(0, chance.randrange(512))
            ctypes.memmove(place, chance.randbytes(8), chance.choice([1, 4, 8]))
        for entry in entries:
            for call in every_operation(memory.cache, entry)[:-1]:
                try:
                    call()
                except (CacheCorruptedError, CacheFullError, ValueError):
                    continue
        views.clear()


def test_the_example_of_the_layout_document_is_what_lies_in_memory(memory: Memory) -> None:
    a = memory.cache.insert(bytes(10_000))
    b = memory.cache.insert(b"")
    c = memory.cache.insert(bytes(4096))
    d = memory.fill(blocks=507)
    memory.cache.delete(b)
    c = memory.cache.append(c, bytes(5000))
    assert (a, c, d) == (0x003, 0x403, 0x401)
    assert memory.chain(c) == ["0-5", "1-2", "1-3"]
    assert memory.chain(d) == [*(f"0-{number}" for number in range(6, 512)), "1-1"]
    assert [memory.block(0, number) for number in range(6)] == [
        (0, 4, 0),
        (0, 4096, USED | 0),
        (0x001, 4096, USED | 1),
        (0x002, 1808, USED | LAST | 2),
        (0, 0, 0),
        (0, 4096, USED | 0),
    ]
    assert [memory.block(1, number) for number in (0, 1, 2, 3, 4, 511)] == [
        (0, 4, 0),
        (0x1FF, 4096, USED | LAST | 506),
        (0x005, 4096, USED | 1),
        (0x402, 904, USED | LAST | 2),
        (0, 5, 0),
        (0, 0, 0),
    ]
    assert memory.cache.used_bytes == 515 * 4096 == 2_109_440
    assert memory.cache.stored_bytes == 2_095_768
    assert memory.cache.reserved_bytes == 4 * 1024**2
    memory.cache.check()
