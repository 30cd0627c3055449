"""Copying many buffers into one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.wire.gather import gather


@given(st.lists(st.binary(max_size=300)), st.integers(0, 2000))
def test_buffers_lie_side_by_side_until_the_target_is_full(parts: list[bytes], room: int) -> None:
    target = bytearray(b"\xee" * room)
    joined = b"".join(parts)
    count = gather(target, parts)
    assert count == min(len(joined), room)
    assert target == joined[:count] + b"\xee" * (room - count)


def test_long_buffers_are_copied_whole() -> None:
    parts = [bytes([number]) * (number * 50_000) for number in range(5)]
    target = bytearray(sum(map(len, parts)))
    assert gather(target, (memoryview(part) for part in parts)) == len(target)
    assert target == b"".join(parts)


def test_a_target_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(BufferError):
        gather(b"read only", [b"x"])


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(TypeError):
        gather(bytearray(4), ["text"])  # type: ignore[list-item]
    with pytest.raises(BufferError):
        gather(bytearray(4), [memoryview(bytes(8))[::2]])
