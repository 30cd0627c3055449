"""Reading a container's log yields its records in order, or names the damage."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.durable_log.data_frame import (
    SPARE_FRAMES_MAX,
    DataFrame,
    FramePool,
    FrameReplay,
)
from segstore.errors import DataLogCorruptError
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX, Buffer, DigestedEntry, LogAddress

SEGMENT = "scope/stream/0.#epoch.0"


def entry(position: int, frame: Buffer) -> DigestedEntry:
    return DigestedEntry(LogAddress(position), None, bytes(frame))


def frame_of(*records: bytes) -> bytes:
    frame = DataFrame(LOG_ENTRY_BYTES_MAX)
    for record in records:
        frame.put_whole(record, b"")
    return bytes(frame.seal())


def test_damage_is_told_with_the_position_in_the_log() -> None:
    frame = bytearray(frame_of(b"headbody"))
    frame[20] ^= 0x40
    with pytest.raises(DataLogCorruptError, match="data frame at 17 is damaged: a checksum"):
        FrameReplay().feed(entry(17, frame))


def test_a_record_is_told_with_the_address_of_the_frame_it_began_in() -> None:
    first, second = DataFrame(100), DataFrame(100)
    first.put_whole(b"a", b"b")
    position = first.put_part(b"", b"x" * 120, 0)
    assert second.put_part(b"", b"x" * 120, position) == 120
    reader = FrameReplay()
    assert reader.feed(entry(4, first.seal())) == [(4, b"ab")]
    assert reader.feed(entry(5, second.seal())) == [(4, b"x" * 120)]


@given(st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_damage(data: bytes) -> None:
    with contextlib.suppress(DataLogCorruptError):
        FrameReplay().feed(entry(1, data))


def test_a_frame_comes_back_when_nobody_looks_at_it() -> None:
    pool = FramePool()
    frame = pool.get()
    frame.put_whole(b"x", b"")
    view = frame.seal()
    pool.recycle(frame)
    assert pool.get() is not frame
    view.release()
    pool.recycle(frame)
    assert pool.get() is frame
    assert frame.is_empty


def test_a_pool_keeps_few_frames() -> None:
    pool = FramePool()
    frames = [pool.get() for _ in range(SPARE_FRAMES_MAX + 2)]
    for frame in frames:
        pool.recycle(frame)
    again = [pool.get() for _ in frames]
    assert sum(any(frame is known for known in frames) for frame in again) == SPARE_FRAMES_MAX
