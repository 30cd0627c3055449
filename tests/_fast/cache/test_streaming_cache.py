"""The operations of the streaming cache: results and refusals."""

import array
import ctypes
import gc
import mmap
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable

import pytest

from _fast.cache.streaming_cache import (
    BLOCK_LENGTH,
    BUFFER_LENGTH,
    CAPACITY_BYTES_MAX,
    ENTRY_BYTES_MAX,
    CacheFullError,
    EntryMissingError,
    StreamingCache,
)

BLOCKS_PER_BUFFER = BUFFER_LENGTH // BLOCK_LENGTH - 1
LENGTHS = (0, 1, 4095, 4096, 4097, 8192, 100_000)
BAD_ADDRESSES = (0, 2, 512, 1023, 1 << 10, 5 << 10 | 3, 2**32 - 1, 2**32, 2**32 + 1, -1, -(2**63))


def some_bytes(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


@pytest.fixture
def cache() -> StreamingCache:
    return StreamingCache(2 * BUFFER_LENGTH)


@pytest.mark.parametrize("length", LENGTHS)
def test_what_is_inserted_is_got(cache: StreamingCache, length: int) -> None:
    data = some_bytes(length)
    address = cache.insert(data)
    cache.check()
    assert cache.length(address) == length
    assert cache.get(address) == data
    assert b"".join(cache.views(address)) == data
    assert cache.stored_bytes == length
    assert cache.delete(address) == length
    cache.check()
    assert cache.stored_bytes == 0


@pytest.mark.parametrize("first", LENGTHS)
@pytest.mark.parametrize("second", LENGTHS)
def test_an_append_goes_behind_what_is_there(
    cache: StreamingCache, first: int, second: int
) -> None:
    data = some_bytes(first + second)
    before = cache.insert(data[:first])
    address = cache.append(before, data[first:])
    cache.check()
    assert cache.get(address) == data
    in_place = first + second <= max(1, -(-first // BLOCK_LENGTH)) * BLOCK_LENGTH
    assert (address == before) == in_place
    if not in_place:
        with pytest.raises(EntryMissingError):
            cache.get(before)


def test_many_small_appends_make_one_entry(cache: StreamingCache) -> None:
    address = cache.insert(b"")
    expected = b""
    for number in range(300):
        piece = some_bytes(number, number)
        address = cache.append(address, piece)
        expected += piece
    cache.check()
    assert cache.get(address) == expected


def test_a_replaced_entry_has_the_new_bytes_alone(cache: StreamingCache) -> None:
    old = cache.insert(some_bytes(10_000))
    new = cache.replace(old, b"new")
    cache.check()
    assert cache.get(new) == b"new"
    assert cache.stored_bytes == 3
    with pytest.raises(EntryMissingError):
        cache.get(old)


def test_a_range_of_an_entry_can_be_read(cache: StreamingCache) -> None:
    data = some_bytes(20_000)
    address = cache.insert(data)
    points = (0, 1, 4095, 4096, 4097, 8191, 8192, 19_999, 20_000)
    for start in points:
        for end in (point for point in points if point >= start):
            assert cache.get(address, start, end - start) == data[start:end]
            assert b"".join(cache.views(address, start, end - start)) == data[start:end]
        assert cache.get(address, start) == data[start:]
        target = bytearray(5000)
        count = cache.get_into(address, target, start)
        assert count == min(5000, 20_000 - start)
        assert target == data[start : start + count] + bytes(5000 - count)


@pytest.mark.parametrize(
    ("position", "length"),
    [(-1, 1), (0, 101), (100, 1), (101, 0), (101, -1), (0, -2), (2**62, 2**62), (2**63 - 1, -1)],
)
def test_a_range_outside_the_entry_is_refused(
    cache: StreamingCache, position: int, length: int
) -> None:
    address = cache.insert(bytes(100))
    with pytest.raises(IndexError):
        cache.get(address, position, length)
    with pytest.raises(IndexError):
        cache.views(address, position, length)
    if length == -1:
        with pytest.raises(IndexError):
            cache.get_into(address, bytearray(1), position)
    assert cache.pinned_count == 0


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_an_address_without_an_entry_is_an_error(cache: StreamingCache, address: int) -> None:
    assert cache.insert(b"one") == 1
    calls: list[Callable[[], object]] = [
        lambda: cache.append(address, b"x"),
        lambda: cache.replace(address, b"x"),
        lambda: cache.delete(address),
        lambda: cache.length(address),
        lambda: cache.get(address),
        lambda: cache.get_into(address, bytearray(1)),
        lambda: cache.views(address),
    ]
    for call in calls:
        with pytest.raises(EntryMissingError):
            call()
    cache.check()
    assert cache.stored_bytes == 3


def test_a_block_inside_an_entry_is_no_address(cache: StreamingCache) -> None:
    address = cache.insert(bytes(3 * BLOCK_LENGTH))
    for inside in (address - 1, address - 2):
        with pytest.raises(EntryMissingError):
            cache.delete(inside)
    assert cache.delete(address) == 3 * BLOCK_LENGTH


def test_an_entry_is_deleted_once(cache: StreamingCache) -> None:
    address = cache.insert(b"x")
    cache.delete(address)
    with pytest.raises(EntryMissingError):
        cache.delete(address)
    cache.check()


@pytest.mark.parametrize(
    "data",
    [
        b"eight by",
        bytearray(b"eight by"),
        memoryview(b"xeight byx")[1:9],
        array.array("H", b"eight by"),
        memoryview(b"eight by").cast("B", (2, 4)),
        (ctypes.c_char * 8)(*b"eight by"),
    ],
)
def test_any_contiguous_buffer_is_taken(cache: StreamingCache, data: bytes) -> None:
    assert cache.get(cache.insert(data)) == b"eight by"
    assert cache.get(cache.append(cache.insert(b""), data)) == b"eight by"


def test_other_buffers_are_refused(cache: StreamingCache) -> None:
    address = cache.insert(b"entry")
    scattered = memoryview(bytearray(b"12345678"))[::2]
    with pytest.raises(BufferError):
        cache.insert(scattered)
    with pytest.raises(BufferError):
        cache.append(address, scattered)
    with pytest.raises(BufferError):
        cache.get_into(address, scattered)
    with pytest.raises(BufferError):
        cache.get_into(address, b"read-only")
    for wrong in ("text", None, 5):
        with pytest.raises(TypeError):
            cache.insert(wrong)  # type: ignore[arg-type]
    cache.check()


def test_a_failed_operation_lets_go_of_its_buffers() -> None:
    def refuse() -> bool:
        raise OSError("no")

    cache = StreamingCache(BUFFER_LENGTH)
    address = cache.insert(bytes(4000))
    data = bytearray(3 * BUFFER_LENGTH)
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (CacheFullError, lambda: cache.insert(data)),
        (CacheFullError, lambda: cache.append(address, data)),
        (CacheFullError, lambda: cache.replace(address, data)),
        (EntryMissingError, lambda: cache.append(99, data)),
        (EntryMissingError, lambda: cache.replace(99, data)),
        (EntryMissingError, lambda: cache.get_into(99, data)),
        (IndexError, lambda: cache.get_into(address, data, 4001)),
    ]
    for kind, call in calls:
        with pytest.raises(kind):
            call()
        data.append(0)  # refused as long as somebody holds the buffer
    cache.on_full = refuse
    for _, call in calls[:3]:
        with pytest.raises(OSError, match="no"):
            call()
        data.append(0)
    cache.check()
    assert (cache.stored_bytes, cache.pinned_count) == (4000, 0)


def test_the_longest_entry_is_just_under_64_mib() -> None:
    assert ENTRY_BYTES_MAX == 64 * 1024**2 - 1
    cache = StreamingCache(68 * 1024**2)
    with mmap.mmap(-1, ENTRY_BYTES_MAX + 1) as data:
        data[-2:] = b"yz"
        with pytest.raises(ValueError, match="at most"):
            cache.insert(data)
        assert cache.reserved_bytes == 0
        with memoryview(data) as view:
            address = cache.insert(view[:-1])
    assert cache.length(address) == ENTRY_BYTES_MAX
    assert cache.get(address, ENTRY_BYTES_MAX - 3) == b"\0\0y"
    assert cache.append(address, b"") == address
    with pytest.raises(ValueError, match="at most"):
        cache.append(address, b"1")
    cache.check()
    assert cache.delete(address) == ENTRY_BYTES_MAX


def test_a_length_near_the_integers_limit_does_not_wrap(cache: StreamingCache) -> None:
    address = cache.insert(bytes(100))
    here = ctypes.addressof(ctypes.c_char())
    for length in (2**63 - 1, 2**63 - 100, 2**62, 2**32, 2**31):
        claimed = (ctypes.c_char * length).from_address(here)
        for call in (cache.insert, lambda data: cache.append(address, data)):
            with pytest.raises(ValueError, match="at most"):
                call(claimed)
        with pytest.raises(ValueError, match="at most"):
            cache.replace(address, claimed)
    cache.check()


@pytest.mark.parametrize("capacity", [-1, 0, BUFFER_LENGTH - 1, CAPACITY_BYTES_MAX + 1, 2**70])
def test_a_capacity_out_of_bounds_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        StreamingCache(capacity)


def test_a_capacity_is_rounded_down_to_whole_buffers() -> None:
    assert StreamingCache(2 * BUFFER_LENGTH - 1).capacity_bytes == BUFFER_LENGTH


@pytest.mark.parametrize("operation", ["insert", "append", "get", "get_into"])
def test_large_copies_let_other_threads_run_but_not_in(operation: str) -> None:
    """While one thread copies, another gets an error, and the entry is whole afterwards."""
    cache = StreamingCache(100 * 1024**2)
    data = some_bytes(32 * 1024**2)
    small = cache.insert(b"small")
    entry = cache.insert(data)
    target = bytearray(len(data))
    calls: dict[str, Callable[[], object]] = {
        "insert": lambda: cache.delete(cache.insert(data)),
        "append": lambda: cache.delete(cache.append(cache.insert(b""), data)),
        "get": lambda: cache.get(entry),
        "get_into": lambda: cache.get_into(entry, target),
    }
    met = threading.Event()
    errors = []

    def meddle() -> None:
        while not met.is_set():
            try:
                cache.length(small)
            except RuntimeError as error:
                errors.append(str(error))
                met.set()

    helper = threading.Thread(target=meddle)
    helper.start()
    try:
        for _ in range(300):
            calls[operation]()
            if met.is_set():
                break
    finally:
        met.set()
        helper.join()
    assert errors == ["the cache is used from two threads at once"]
    assert cache.get(entry) == data
    cache.check()


@pytest.mark.processes
def test_a_cache_survives_a_fork() -> None:
    script = """
import os
from _fast.cache.streaming_cache import StreamingCache
cache = StreamingCache(8 << 20)
kept = cache.insert(b"kept" * 5000)
view = cache.views(kept)
child = os.fork()
if child == 0:
    cache.append(kept, b"child")
    del view
    cache.delete(kept)
    cache.insert(b"other" * 5000)
    cache.check()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert b"".join(view) == cache.get(kept) == b"kept" * 5000
cache.check()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


def test_an_unused_cache_is_only_a_reservation() -> None:
    gc.collect()
    before = resident_bytes()
    caches = [StreamingCache(CAPACITY_BYTES_MAX), StreamingCache(1024**3)]
    assert resident_bytes() - before < 8 * 1024**2
    assert [cache.reserved_bytes for cache in caches] == [0, 0]
    assert caches[0].capacity_bytes == 256 * 1024**3


def test_an_insertion_allocates_no_memory() -> None:
    cache = StreamingCache(16 * BUFFER_LENGTH)
    data = bytes(10_000)
    cache.insert(data)
    tracemalloc.start()
    try:
        addresses = [cache.insert(data) for _ in range(1000)]
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(addresses) == 1000
    assert held <= most < 100_000  # the list and its numbers; the data are 10 MB


def test_the_memory_goes_back_with_the_cache() -> None:
    cache = StreamingCache(64 * 1024**2)
    data = bytes(5 * 1024**2)
    before = resident_bytes()
    for _ in range(10):
        cache.insert(data)
    assert resident_bytes() - before > 40 * 1024**2
    del cache
    gc.collect()
    assert resident_bytes() - before < 20 * 1024**2


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
