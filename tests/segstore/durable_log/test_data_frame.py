"""Reading a container's log yields its records in order, old frames too, or names the damage."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.durable_log.data_frame import (
    SPARE_FRAMES_MAX,
    DataFrame,
    FramePool,
    FrameReplay,
)
from segstore.errors import DataLogCorruptError
from segstore.model.attributes import EVENT_COUNT
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import CheckpointOperation
from segstore.testing.chunk_owners import next_owner
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX, Buffer, DigestedEntry, LogAddress
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory

SEGMENT = "scope/stream/0.#epoch.0"

VERSION_1_LOG = """
01000001000000540000004f0304000000000000000200000000000000010000018bcfe56800001773636f70652f737472
65616d2f302e2365706f63682e300000000110800000000000000000000000000000000000000000000007
010000010000005b00000056030100000000000000030000000000000001000000000000000000000005000210000102030
405060708090a0b0c0d0e0f0000000000000004108000000000000000000000000000000100000000000000056669727374
010000010000005c00000057030100000000000000040000000000000001000000000000000500000006000210000102030
405060708090a0b0c0d0e0f0000000000000006108000000000000000000000000000000100000000000000077365636f6e
64
010000010000003b000000360304000000000000000500000000000000020000018bcfe56800001773636f70652f7374726
5616d2f312e2365706f63682e3000000000
01000001000000370000003203060000000000000006000000000000000200000001146b6b6b6b6b6b6b6b6b6b6b6b6b6b6
b6b6b6b6b6bfffffffffffffffd
01000001000000290000002403010000000000000007000000000000000200000000000000000000000500007468697264
01000001000000320000002d0303000000000000000800000000000000010000000000000002000000000000000b0000000
00000000500000000
010000010000001e000000190307000000000000000900000000000000010000000000000002
0100000100000028000000230304000000000000000a00000000000000030000018bcfe568000004676f6e6500000000
010000010000001600000011030a000000000000000b0000000000000003
010000010000001e000000190302000000000000000c00000000000000010000000000000010
"""
"""Frames of version 1 as a container 3 wrote them behind its first checkpoint."""


def entry(position: int, frame: Buffer) -> DigestedEntry:
    return DigestedEntry(LogAddress(position), None, bytes(frame))


def version_1_frame(record: bytes) -> bytes:
    content = len(record).to_bytes(4, "big") + b"\3" + record
    return bytes((1, 0, 0, 1)) + len(content).to_bytes(4, "big") + content


def version_1_frames() -> list[bytes]:
    checkpoint = CheckpointOperation()
    checkpoint.sequence_number = 1
    checkpoint.snapshot = ContainerMetadata(3).snapshot(1)
    frames, rest = (
        [version_1_frame(b"".join(checkpoint.encode()))],
        bytes.fromhex("".join(VERSION_1_LOG.split())),
    )
    while rest:
        length = 8 + int.from_bytes(rest[4:8], "big")
        frames.append(rest[:length])
        rest = rest[length:]
    return frames


def frame_of(*records: bytes) -> bytes:
    frame = DataFrame(LOG_ENTRY_BYTES_MAX)
    for record in records:
        frame.put_whole(record, b"")
    return bytes(frame.seal())


async def test_a_log_of_version_1_frames_opens_and_goes_on_in_version_2() -> None:
    factory = MemoryDataLogFactory()
    log = await factory.open_log(3)
    for frame in version_1_frames():
        log.append_nowait((frame,), lambda error: None)
    await log.aclose()
    storage = next_owner(MemoryChunkStorage())
    for opened in range(3):
        cache_manager = CacheManager(StreamingCache(64 * 1024 * 1024))
        async with open_container(3, factory, storage, cache_manager) as container:
            info = container.segment_info(SEGMENT)
            assert (info.start_offset, info.length, info.sealed) == (2, 16, True)
            writer = bytes(range(16))
            values = await container.get_attributes(SEGMENT, [EVENT_COUNT, writer])
            assert values == {EVENT_COUNT: 7, writer: 6}
            content = b""
            while len(content) < 14:
                read = await container.read(SEGMENT, offset=2 + len(content), length_max=100)
                content += read.data
            assert content == b"rstsecondthird"
            await container.create_segment(f"new/{opened}")


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
