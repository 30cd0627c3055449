"""Functions over bytes accept or refuse the kinds of buffers that are easily forgotten."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Any

import mmh3
import pytest

from _fast.crc import crc32c, crc32c_portable
from _fast.hashing import murmur3_128
from _fast.log.data_frame import FrameDamagedError, FrameReader
from _fast.log.journal import INCOMPLETE, BatchScan
from _fast.log.operations import OperationDamagedError, decode_append
from _fast.wire.appends import AppendDecoder
from _fast.wire.events import compact_events, scan_events
from _fast.wire.frames import FrameError, scan_frames

ANY_TYPE = bytes([1]) * 256
GIB = 1024**3


def scan_batches(data: Any) -> int:
    return BatchScan(generation=1, salt=2, offset=4096).run(data)


def decode_appends(data: Any) -> tuple[list[Any], int]:
    return AppendDecoder(ANY_TYPE, 2**31 - 1, 5).decode(data, lambda *frame: frame)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "crc32c": (crc32c, 0),
    "crc32c_portable": (crc32c_portable, 0),
    "murmur3_128": (murmur3_128, mmh3.hash_bytes(b"")),
    "scan_frames": (lambda data: scan_frames(data, 0, ANY_TYPE, 100), ([], 0)),
    "AppendDecoder": (decode_appends, ([], 0)),
    "BatchScan": (scan_batches, INCOMPLETE),
    "scan_events": (lambda data: scan_events(data)[1], 0),
    "compact_events": (lambda data: compact_events(data)[2], 0),
    "FrameReader": (lambda data: FrameReader().feed(data, 1), FrameDamagedError),
    "decode_append": (decode_append, OperationDamagedError),
}

each_function = pytest.mark.parametrize(
    ("function", "of_nothing"), FUNCTIONS.values(), ids=FUNCTIONS.keys()
)


@each_function
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def test_no_bytes_at_all_are_fine(
    function: Callable[[Any], Any], of_nothing: Any, kind: Callable[[bytes], Any]
) -> None:
    if isinstance(of_nothing, type):
        with pytest.raises(of_nothing):
            function(kind(b""))
    else:
        assert function(kind(b"")) == of_nothing


@each_function
def test_bytes_with_gaps_between_them_are_refused(
    function: Callable[[Any], Any], of_nothing: Any
) -> None:
    with pytest.raises((BufferError, ValueError), match=r"contiguous"):
        function(memoryview(bytes(64))[::2])
    with pytest.raises((BufferError, ValueError), match=r"contiguous"):
        function(memoryview(bytes(64))[::-1])


@each_function
def test_what_is_no_buffer_is_refused(function: Callable[[Any], Any], of_nothing: Any) -> None:
    for value in (None, "text", 7):
        with pytest.raises(TypeError):
            function(value)


@each_function
def test_read_only_and_writable_bytes_are_read_alike(
    function: Callable[[Any], Any], of_nothing: Any
) -> None:
    def answer(data: Any) -> str:
        try:
            return repr(function(data))
        except ValueError as error:
            return repr(error)

    data = bytes(range(1, 130))
    writable = bytearray(data)
    assert answer(data) == answer(writable) == answer(memoryview(writable).toreadonly())
    writable += b"more"  # nobody holds it


def test_lengths_beyond_2_gib_in_headers_wait_or_are_refused() -> None:
    for length in (2**31 - 1, -1, -(2**31)):
        header = struct.pack(">ii", 9, length)
        with pytest.raises(FrameError, match="at most"):
            scan_frames(header, 0, ANY_TYPE, 0xFF_FFFF)
    assert scan_frames(struct.pack(">ii", 9, 2**31 - 1), 0, ANY_TYPE, 2**31) == ([], 0)
    assert decode_appends(struct.pack(">ii", 4, 2**31 - 1)) == ([], 0)
    for length in (2**31 - 1, -1):
        end = bytes(16) + struct.pack(">ii", 0, length) + bytes(12)
        with pytest.raises(FrameError, match="does not fit"):
            decode_appends(struct.pack(">ii", 4, len(end)) + end)


@pytest.mark.parametrize("length", [2**31, 2**32 - 41, 2**32 - 1])
def test_a_batch_longer_than_2_gib_is_waited_for_without_memory(length: int) -> None:
    fields = b"SGJB" + struct.pack("<QQQII", 1, 1, 0, length, 2**32 - 1)
    scan = BatchScan(generation=1, salt=2, offset=4096)
    assert scan.run(fields + struct.pack("<I", crc32c(fields, 2)) + bytes(1000)) == INCOMPLETE
    assert (scan.bytes_wanted, scan.end_offset) == (40 + length, 4096)


@pytest.fixture
def long_zeros() -> Iterator[mmap.mmap]:
    """More bytes than an int32 counts, which take no memory as long as they are only read."""
    with mmap.mmap(-1, 2 * GIB + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as zeros:
        zeros.madvise(mmap.MADV_NOHUGEPAGE)
        yield zeros


def test_an_event_that_ends_beyond_2_gib_is_found(long_zeros: mmap.mmap) -> None:
    long_zeros[:8] = struct.pack(">ii", 0, 2**31 - 1)
    long_zeros[2**31 + 7 : 2**31 + 16] = struct.pack(">ii", 0, 1) + b"x"
    spans, position = scan_events(long_zeros)
    assert list(spans[:4]) == [8, 2**31 - 1, 2**31 + 15, 1]
    assert len(spans) == 2 * (2 + (4096 - 16) // 8)
    assert position == 2**31 + 4096
    assert spans[-2] == position


def test_a_sum_beyond_2_gib_goes_on_where_it_stands(long_zeros: mmap.mmap) -> None:
    long_zeros[-3:] = b"end"
    with memoryview(long_zeros) as view, view[: 2**31 - 5] as head, view[2**31 - 5 :] as tail:
        assert crc32c(view) == crc32c(tail, crc32c(head))
