"""Journals that come back older, in random lives of a container: refused, however often they are
tried, or all that tier 2 has is served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container, open_container
from segstore.errors import PermanentError
from segstore.process.tier_two import EpochRecordingLogs
from segstore.tiers.journal import JournalSettings
from segstore.tiers.memory import MemoryChunkStorage
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

KIB = 1024
MIB = 1024 * KIB
SETTINGS = JournalSettings(
    file_bytes=512 * KIB, journal_bytes_max=8192 * KIB, batch_bytes_max=384 * KIB
)
NAMES = ("a", "b", "c")
ATTEMPTS = 8


class LostBytesError(Exception):
    """A container serves less than tier 2 has."""


@asynccontextmanager
async def living(
    disk: SimulatedDisk, chunks: MemoryChunkStorage, random: Random, *, gently: bool = True
) -> AsyncIterator[Container]:
    async with open_simulated_journal(disk, SETTINGS, random=random) as journal:
        logs = EpochRecordingLogs(journal)
        storage = ChunkedSegmentStorage(chunks, epoch=logs.epoch_now, boot_id="boot")
        logs.check_log = storage.check_log
        cache = CacheManager(StreamingCache(8 * MIB))
        drain_seconds = 60 if gently else 0
        async with open_container(0, logs, storage, cache, drain_seconds=drain_seconds) as opened:
            yield opened


def copy_of(chunks: MemoryChunkStorage) -> MemoryChunkStorage:
    copied = MemoryChunkStorage()
    for name, data in chunks.contents.items():
        copied.contents[name] = bytearray(data)
    return copied


async def live(
    disk: SimulatedDisk, chunks: MemoryChunkStorage, random: Random, copies: list[SimulatedDisk]
) -> None:
    """Run the container once, and copy the journal now and then."""
    async with living(disk, chunks, random, gently=random.random() < 0.5) as container:
        for _ in range(random.randrange(1, 8)):
            name = random.choice(NAMES)
            if container.parts.metadata.by_name.get(name) is None:
                await container.create_segment(name)
            await container.append(name, random.randbytes(random.randrange(1, 3000)))
            if random.random() < 0.3:
                copies.append(disk.after_kill())
            if random.random() < 0.3:
                await trio.sleep(random.choice([1, 40]))


async def try_older(
    older: SimulatedDisk, chunks: MemoryChunkStorage, random: Random, stored: dict[str, int]
) -> bool:
    """Try a container on an older journal, several times; whether it was refused each time."""
    for _ in range(ATTEMPTS):
        try:
            async with living(older, chunks, random, gently=False) as container:
                served = {
                    name: segment.length
                    for name, segment in container.parts.metadata.by_name.items()
                }
        except* PermanentError:
            pass
        else:
            if any(served.get(name, 0) < length for name, length in stored.items()):
                raise LostBytesError(f"{served} is served of {stored}")
            return False
        older = older.after_kill()
    return True


async def stored_bytes(chunks: MemoryChunkStorage) -> dict[str, int]:
    state = await ChunkedSegmentStorage(chunks, epoch=lambda: 0, boot_id="boot").inspect()
    found = {}
    for segment in state.metadata.segment_names():
        record = state.metadata.get(segment)
        if "$attributes" not in segment and record is not None and record.chunks:
            last = record.chunks[-1]
            length = max(last.length, (await chunks.info(last.name)).length)
            found[segment.rpartition(".S-")[0]] = last.start + length
    return found


async def run_lives(seed: int) -> int:
    """Count the older journals that were refused."""
    random = Random(seed)
    disk, chunks = SimulatedDisk(), MemoryChunkStorage()
    copies: list[SimulatedDisk] = []
    refused = 0
    for _ in range(5):
        await live(disk, chunks, random, copies)
        disk = disk.after_kill()
        if copies:
            older = random.choice(copies).after_kill()
            stored = await stored_bytes(chunks)
            refused += await try_older(older, copy_of(chunks), random, stored)
    async with living(disk, chunks, random) as container:
        served = container.parts.metadata.by_name
        assert all(served[name].length >= n for name, n in (await stored_bytes(chunks)).items())
    return refused


@pytest.mark.parametrize("seed", range(12))
async def test_an_older_journal_is_refused_or_costs_nothing_that_tier_2_has(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    await run_lives(seed)


async def test_some_of_them_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    assert sum([await run_lives(seed) for seed in range(4)]) > 4


async def test_a_recovery_that_takes_the_lesser_length_is_found(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    from segstore.chunks.chunked import ChunkedSegmentStorage
    from segstore.durable_log.recovery import Recovery
    from segstore.model.metadata import SegmentMetadata
    from segstore.ownership.epoch_claims import EpochClaim

    verify = Recovery._verify

    async def take_the_lesser(self: Recovery, segment: SegmentMetadata) -> None:
        segment.storage_length = min(segment.storage_length, segment.length)
        await verify(self, segment)

    async def trust(self: EpochClaim, last_epoch: object) -> None:
        await trio.lowlevel.checkpoint()

    async def refuse_nothing(self: ChunkedSegmentStorage, ends: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(ChunkedSegmentStorage, "_refuse_newer", refuse_nothing)
    monkeypatch.setattr(Recovery, "_verify", take_the_lesser)
    monkeypatch.setattr(EpochClaim, "check_log", trust)

    async def run_some() -> None:
        for seed in range(12):
            await run_lives(seed)

    with pytest.raises(LostBytesError):
        await run_some()
