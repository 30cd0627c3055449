"""A container that serves looks for damage in its chunks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from segstore.chunks.checksums import BLOCK_BYTES
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.scrub import (
    FAILURES_MAX,
    FIRST_PASS_SECONDS,
    RETRY_SECONDS,
    START_SECONDS,
    Pace,
    ScrubPolicy,
)
from segstore.errors import ChunkDamagedError
from segstore.process.config import MIB, ScrubSettings
from segstore.tiers.memory import MemoryChunkStorage
from support.local_tiers import ObservedChunks

DATA = random.Random(5).randbytes(2 * MIB + 12_345)
DAY = 86_400.0


class Store:
    """Owners of the same chunks, one after the other."""

    def __init__(self, *, bytes_per_second: int = 4 * MIB) -> None:
        self.memory = MemoryChunkStorage()
        self.chunks = ObservedChunks(self.memory)
        self.epoch = 0
        self.bytes_per_second = bytes_per_second
        self.random = random.Random(1)

    def owner(self) -> ChunkedSegmentStorage:
        self.epoch += 1
        epoch = self.epoch
        policy = ScrubPolicy(Pace(self.bytes_per_second), DAY, self.random.random)
        return ChunkedSegmentStorage(self.chunks, epoch=lambda: epoch, scrub=policy)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ChunkedSegmentStorage]:
        storage = self.owner()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.run)
            yield storage
            nursery.cancel_scope.cancel()

    def chunk_of(self, segment: str) -> bytearray:
        [name] = [each for each in self.memory.contents if each.startswith(f"{segment}$")]
        return self.memory.contents[name]

    async def write(self, *segments: str) -> None:
        storage = self.owner()
        for segment in segments:
            await storage.write(segment, offset=0, data=[DATA], rollover_bytes=0)
        await storage.settle()


def errors(logs: list[Any]) -> dict[str, str]:
    return {each["segment"]: each["reason"] for each in logs if each["log_level"] == "error"}


def scrubbed(logs: list[Any]) -> list[Any]:
    return [each for each in logs if each["event"] == "tier 2 is scrubbed"]


@pytest.mark.parametrize("left", [None, 0, 1000])
async def test_chunks_that_are_missing_or_short_are_told_at_start(
    left: int | None, autojump_clock: trio.testing.MockClock
) -> None:
    store = Store(bytes_per_second=0)
    await store.write("whole", "damaged", "truncated")
    if left is None:
        store.memory.contents = {
            name: data for name, data in store.memory.contents.items() if "damaged" not in name
        }
    else:
        del store.chunk_of("damaged")[left:]
    store.chunk_of("whole").extend(b"what nobody wrote")
    with capture_logs() as logs:
        async with store.running():
            await trio.sleep(START_SECONDS + 1)
    assert list(errors(logs)) == ["damaged"]
    assert ("missing" if left is None else f"has {left} bytes") in errors(logs)["damaged"]
    assert not [call for call in store.chunks.calls if call.kind == "read" and "$0" in call.name]


async def test_a_pass_finds_a_flipped_bit_that_nobody_reads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Store()
    await store.write("a", "b", "c")
    store.chunk_of("b")[BLOCK_BYTES * 5 + 1] ^= 1
    store.chunk_of("b")[BLOCK_BYTES * 25 + 1] ^= 1
    with capture_logs() as logs:
        async with store.running():
            await trio.sleep(FIRST_PASS_SECONDS + 30)
            assert len(scrubbed(logs)) == 1
            assert scrubbed(logs)[0]["damages"] == 2
            assert scrubbed(logs)[0]["bytes"] == 3 * len(DATA)
            await trio.sleep(DAY)
    assert len(scrubbed(logs)) == 2
    places = [each["chunk_offset"] for each in logs if each["log_level"] == "error"]
    assert places == [BLOCK_BYTES * 5, BLOCK_BYTES * 25], "each is told once"


async def test_a_pass_keeps_to_its_rate(autojump_clock: trio.testing.MockClock) -> None:
    store = Store(bytes_per_second=MIB)
    await store.write("a", "b", "c")
    with capture_logs() as logs:
        async with store.running():
            seconds = 3 * len(DATA) / MIB
            await trio.sleep(FIRST_PASS_SECONDS + START_SECONDS + seconds - 1)
            assert not scrubbed(logs)
            await trio.sleep(5)
            assert scrubbed(logs)


async def test_nothing_is_read_at_a_rate_of_none(autojump_clock: trio.testing.MockClock) -> None:
    store = Store(bytes_per_second=0)
    await store.write("a")
    async with store.running():
        await trio.sleep(2 * DAY)
    assert not [call for call in store.chunks.calls if call.kind == "read" and "a$" in call.name]


async def test_what_has_no_checksums_gets_them(autojump_clock: trio.testing.MockClock) -> None:
    store = Store()
    crashed = store.owner()
    await crashed.write("s", offset=0, data=[DATA[:700_000]], rollover_bytes=0)
    await crashed.journal.record_checksums()
    await crashed.write("s", offset=700_000, data=[DATA[700_000:]], rollover_bytes=0)
    await crashed.write("t", offset=100, data=[DATA], rollover_bytes=0)
    async with store.running() as storage:
        for segment in ("s", "t"):
            await storage.stored_length(segment)
            [chunk] = await storage.chunks_of(segment)
            assert chunk.checksums.length < chunk.length
        await trio.sleep(FIRST_PASS_SECONDS + 30)
        for segment in ("s", "t"):
            [chunk] = await storage.chunks_of(segment)
            assert chunk.checksums.length == chunk.length == len(DATA)
    store.chunk_of("s")[1_000_000] ^= 4
    store.chunk_of("t")[5] ^= 4
    later = store.owner()
    for segment, offset in (("s", 1_000_000), ("t", 100)):
        with pytest.raises(ChunkDamagedError):
            await later.read(segment, offset=offset, length=1)
        assert await later.read(segment, offset=BLOCK_BYTES, length=5)


async def test_segments_that_change_while_they_are_scrubbed_are_not_damaged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Store(bytes_per_second=MIB)
    await store.write("gone", "truncated", "merged", "stays")
    with capture_logs() as logs:
        async with store.running() as storage:
            await trio.sleep(FIRST_PASS_SECONDS + START_SECONDS + 0.5)
            await storage.delete("gone")
            await storage.truncate("truncated", offset=len(DATA))
            await storage.concat(
                "stays", offset=len(DATA), source="merged", length=len(DATA), rollover_bytes=0
            )
            await storage.delete("merged", merged_into="stays")
            await storage.collect()
            await trio.sleep(60)
            assert await storage.read("stays", offset=len(DATA), length=50) == DATA[:50]
    assert not errors(logs)
    assert scrubbed(logs)


async def test_a_tier_2_that_refuses_is_scrubbed_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Store()
    await store.write("a")
    store.chunks.refused.add("lengths")
    with capture_logs() as logs:
        async with store.running():
            await trio.sleep(FIRST_PASS_SECONDS + 30)
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == [
        "the lengths of chunks cannot be compared"
    ]
    assert scrubbed(logs)


async def test_an_outage_of_tier_2_is_no_damage(autojump_clock: trio.testing.MockClock) -> None:
    store = Store()
    await store.write(*(f"s{number}" for number in range(12)))
    with capture_logs() as logs:
        async with store.running():
            await trio.sleep(FIRST_PASS_SECONDS)
            store.chunks.refused.add("read")
            await trio.sleep(RETRY_SECONDS / 2)
            assert not scrubbed(logs)
            assert [each["event"] for each in logs if "scrubbed now" in each["event"]] == [
                *["a chunk cannot be scrubbed now"] * (FAILURES_MAX - 1),
                "tier 2 cannot be scrubbed now",
            ]
            store.chunks.refused.clear()
            await trio.sleep(RETRY_SECONDS)
    assert len(scrubbed(logs)) == 1
    assert not errors(logs)


def test_settings_that_make_no_sense_are_refused() -> None:
    assert ScrubSettings().bytes_per_second == 4 * MIB
    for settings in ({"bytes_per_second": -1}, {"pass_seconds_min": 0.0}):
        with pytest.raises(ValueError, match="scrub needs"):
            ScrubSettings(**settings)
