"""Guesses at the starts of events: right or none, on data that looks like events everywhere."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.reading.splits import find_event_start
from pravega_wire.event_framing import frame_event, frame_events, iterate_event_spans

HEADER_BYTES = 8


def starts_of(data: bytes) -> set[int]:
    return {start - HEADER_BYTES for start, _ in iterate_event_spans(data)}


def text(random: random.Random) -> bytes:
    return b"a line of text " * random.randrange(1, 20)


def zeros(random: random.Random) -> bytes:
    return random.randbytes(random.randrange(50)) + bytes(random.randrange(300))


def big_endian_numbers(random: random.Random) -> bytes:
    return b"".join(struct.pack(">q", random.randrange(5_000_000)) for _ in range(20))


def framed(random: random.Random) -> bytes:
    return frame_events([random.randbytes(random.randrange(40)) for _ in range(10)])


@pytest.mark.parametrize("payload", [text, zeros, big_endian_numbers, framed])
@pytest.mark.parametrize("seed", range(10))
def test_an_event_is_found_from_anywhere(payload: object, seed: int) -> None:
    assert callable(payload)
    source = random.Random(seed)
    data = b"".join(frame_event(payload(source)) for _ in range(3_000))
    near = source.randrange(len(data) - 70_000)
    found = find_event_start(data[near : near + 65_536])
    assert found is not None
    assert near + found in starts_of(data)


def test_nothing_is_found_within_one_long_event() -> None:
    assert find_event_start(random.Random(1).randbytes(100_000)) is None
    assert find_event_start(b"") is None
    assert find_event_start(bytes(7)) is None


@given(st.lists(st.binary(max_size=30), min_size=30, max_size=60), st.integers(0, 200))
def test_what_is_found_begins_a_chain(events: list[bytes], near: int) -> None:
    data = frame_events(events)
    found = find_event_start(data[near:])
    if found is not None:
        code, length = struct.unpack_from(">ii", data, near + found)
        assert code == 0
        assert length >= 0
