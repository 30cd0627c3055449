from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.tiers.s3.checks import BLOCK_BYTES, TEXT_CHARACTERS_MAX, CheckError, Checks

PATTERN = bytes(range(256)) * (2 * BLOCK_BYTES // 256)
bodies = st.builds(
    lambda start, length: PATTERN[start : start + length],
    st.integers(0, 255),
    st.sampled_from([0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1]),
)


@given(st.lists(bodies, min_size=1, max_size=4))
def test_text_comes_back(members: list[bytes]) -> None:
    checks = Checks.of_parts([Checks.of(body) for body in members])
    assert Checks.parse(str(checks)) == checks
    assert checks.length == sum(map(len, members))


@given(st.lists(bodies, min_size=1, max_size=3), st.data())
def test_blocks_around_a_range_can_be_checked(members: list[bytes], data: st.DataObject) -> None:
    body = b"".join(members)
    checks = Checks.of_parts([Checks.of(member) for member in members])
    if not body:
        return
    start = data.draw(st.integers(0, len(body) - 1))
    end = data.draw(st.integers(start + 1, len(body)))
    first, last = checks.blocks_around(start, end)
    assert first <= start < end <= last
    assert last - first <= end - start + 2 * BLOCK_BYTES
    checks.verify(body[first:last], offset=first)
    damaged = bytearray(body[first:last])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1
    with pytest.raises(CheckError, match="do not match"):
        checks.verify(bytes(damaged), offset=first)


def test_what_is_not_whole_blocks_is_refused() -> None:
    checks = Checks.of(PATTERN)
    with pytest.raises(CheckError, match="not whole blocks"):
        checks.verify(PATTERN[: BLOCK_BYTES + 1], offset=0)


@given(st.text(max_size=20))
def test_other_text_is_refused_or_means_something(text: str) -> None:
    with suppress(CheckError):
        assert Checks.parse(text).length >= 0


def test_the_largest_joined_object_has_room_for_its_checksums() -> None:
    mib = 1024 * 1024
    members = [
        Checks((8 * mib,), tuple(range(BLOCK_BYTES, 8 * mib + 1, BLOCK_BYTES)), (2**31,) * 16)
    ]
    assert len(str(Checks.of_parts(members * 9))) < TEXT_CHARACTERS_MAX
