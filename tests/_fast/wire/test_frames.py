"""The frame scan against a slow one in Python, and what it refuses."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _fast.wire.frames import FrameError, scan_frames

CODES = (-127, -1, 0, 4, 100)
ACCEPTED = bytes(code - 128 in CODES for code in range(256))
PAYLOAD_MAX = 1000

frame = st.builds(
    lambda code, payload: struct.pack(">ii", code, len(payload)) + payload,
    st.sampled_from(CODES),
    st.binary(max_size=50),
)


def scan_slowly(data: bytes, position: int) -> tuple[list[tuple[int, int, int]], int] | None:
    """Return the frames that a slow scan finds, and its end; None stands for a refusal."""
    frames = []
    while len(data) - position >= 4:
        (code,) = struct.unpack_from(">i", data, position)
        if code not in CODES:
            return None
        if len(data) - position < 8:
            break
        (length,) = struct.unpack_from(">i", data, position + 4)
        if not 0 <= length <= PAYLOAD_MAX:
            return None
        if position + 8 + length > len(data):
            break
        frames.append((code, position + 8, position + 8 + length))
        position += 8 + length
    return frames, position


def assert_alike(data: bytes, position: int) -> None:
    expected = scan_slowly(data, position)
    for buffer in (data, bytearray(data), memoryview(data)):
        if expected is None:
            with pytest.raises(FrameError):
                scan_frames(buffer, position, ACCEPTED, PAYLOAD_MAX)
        else:
            assert scan_frames(buffer, position, ACCEPTED, PAYLOAD_MAX) == expected


@given(st.lists(frame, max_size=8), st.binary(max_size=12), st.integers(0, 20))
def test_complete_frames_are_found(frames: list[bytes], rest: bytes, cut: int) -> None:
    whole = b"".join(frames) + rest
    assert_alike(whole, 0)
    assert_alike(whole[: max(0, len(whole) - cut)], 0)
    assert_alike(b"\xff" * 5 + whole, 5)


@settings(max_examples=500)
@given(st.binary(max_size=60), st.integers(0, 60))
def test_garbage_is_scanned_like_slowly(data: bytes, position: int) -> None:
    assert_alike(data, min(position, len(data)))


@pytest.mark.parametrize("code", [1, 127, 128, -128, -129, 2**31 - 1, -(2**31)])
def test_a_type_that_may_not_come_is_refused_before_its_length_is_there(code: int) -> None:
    with pytest.raises(FrameError, match=f"type {code}"):
        scan_frames(struct.pack(">i", code), 0, ACCEPTED, PAYLOAD_MAX)


@pytest.mark.parametrize("length", [-1, -(2**31), PAYLOAD_MAX + 1, 2**31 - 1])
def test_a_length_that_may_not_be_is_refused_before_its_payload_is_there(length: int) -> None:
    with pytest.raises(FrameError, match="at most"):
        scan_frames(struct.pack(">ii", 4, length), 0, ACCEPTED, PAYLOAD_MAX)


def test_a_payload_of_the_greatest_length_is_taken() -> None:
    data = struct.pack(">ii", 4, PAYLOAD_MAX) + bytes(PAYLOAD_MAX)
    assert scan_frames(data, 0, ACCEPTED, PAYLOAD_MAX) == ([(4, 8, 8 + PAYLOAD_MAX)], len(data))


@pytest.mark.parametrize("position", [-1, 5])
def test_a_position_outside_of_the_buffer_is_our_bug(position: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        scan_frames(b"1234", position, ACCEPTED, PAYLOAD_MAX)


def test_the_table_of_types_has_256_bytes() -> None:
    with pytest.raises(ValueError, match="256"):
        scan_frames(b"", 0, bytes(255), PAYLOAD_MAX)
