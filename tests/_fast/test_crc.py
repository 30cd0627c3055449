"""CRC32C, with and without the processor's instruction, against Google's implementation."""

import random
from collections.abc import Callable

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.crc import HARDWARE, crc32c, crc32c_portable

Checksum = Callable[..., int]

BOTH = pytest.mark.parametrize("checksum", [crc32c, crc32c_portable])
# Around the sizes where the lanes of the fast way start and end.
SIZES = [
    size + off
    for size in (0, 8, 16, 256, 768, 1536, 8192, 12288, 12288 + 768, 24576, 100_000)
    for off in (-9, -1, 0, 1, 7, 9)
    if size + off >= 0
]


@BOTH
def test_known_sums(checksum: Checksum) -> None:
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(b"") == 0
    assert checksum(bytes(32)) == 0x8A9136AA
    assert checksum(b"\xff" * 32) == 0x62A8AB43


@BOTH
@given(data=st.binary(max_size=300), value=st.integers(0, 2**32 - 1), start=st.integers(0, 9))
def test_small_sums_agree(
    checksum: Checksum,
    data: bytes,
    value: int,
    start: int,
) -> None:
    assert checksum(data, value) == google_crc32c.extend(value, data)
    unaligned = memoryview(data)[start:]
    assert checksum(unaligned) == google_crc32c.value(data[start:])


@BOTH
@pytest.mark.parametrize("size", SIZES)
def test_large_sums_agree_at_every_alignment(checksum: Checksum, size: int) -> None:
    data = random.Random(size).randbytes(size + 8)
    for start in range(8):
        part = data[start : start + size]
        assert checksum(memoryview(data)[start : start + size]) == google_crc32c.value(part)


@BOTH
@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_a_sum_goes_on_from_the_sum_before(checksum: Checksum, data: bytes, cut: int) -> None:
    assert checksum(data[cut:], checksum(data[:cut])) == checksum(data)


@BOTH
def test_any_contiguous_buffer_will_do(checksum: Checksum) -> None:
    assert checksum(bytearray(b"123456789")) == 0xE3069283
    assert checksum(memoryview(b"0123456789")[1:]) == 0xE3069283
    with pytest.raises(BufferError):
        checksum(memoryview(b"0123456789")[::2])
    with pytest.raises(TypeError):
        checksum("text")


@BOTH
@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_sum_has_32_bits(checksum: Checksum, value: int) -> None:
    with pytest.raises(OverflowError):
        checksum(b"", value)


def test_the_instruction_is_used_where_the_processor_has_it() -> None:
    with open("/proc/cpuinfo") as cpuinfo:
        assert (" sse4_2 " in cpuinfo.read()) == HARDWARE
