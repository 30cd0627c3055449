"""Bytes wait for tier 2: few segments shortly, many segments as long as there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import StorageError
from segstore.inactive.eviction import BACKLOG_MAX
from segstore.tiers.api import Buffer, LogAddress
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLog, MemoryDataLogFactory
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY
from segstore.writer.flush_policy import FlushPolicy
from segstore.writer.flush_timing import FlushTiming
from segstore.writer.segment_aggregator import SegmentAggregator
from segstore.writer.storage_writer import StorageWriter
from support.chunk_owners import next_owner

MIB = 1024 * 1024
MANY = POLICY.few_segments + 44
NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(MANY)]


class NotingChunkStorage(MemoryChunkStorage):
    """Storage that notes when each segment was written, and fails the writes of some."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = refused
        self.attempt_count = 0
        self.written: dict[str, list[float]] = {}

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if name.startswith("scope/"):
            segment = name[: name.index(".#epoch.0") + len(".#epoch.0")]
            if segment in self.refused:
                self.attempt_count += 1
                raise StorageError("this one not")
            self.written.setdefault(segment, []).append(trio.current_time())
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


async def create(container: Container, names: Sequence[str]) -> None:
    for name in names:
        await container.create_segment(name)
    # What is new makes a checkpoint due, and a flush.
    await trio.sleep(POLICY.flush_seconds)


async def append(container: Container, names: Sequence[str], length: int) -> None:
    for name in names:
        await container.append(name, bytes(length))


def stored(container: Container, names: Sequence[str]) -> set[int]:
    return {container.segment_info(name).storage_length for name in names}


@pytest.mark.parametrize("held_share", [0.0, 0.5, 2.0])
def test_few_segments_wait_as_long_whatever_is_held(held_share: float) -> None:
    assert (
        FlushTiming(lambda: held_share, POLICY).seconds(POLICY.few_segments) == POLICY.flush_seconds
    )


def test_many_segments_wait_the_less_the_more_is_held() -> None:
    held_share = 0.0
    timing = FlushTiming(lambda: held_share, POLICY)
    found = []
    for percent in range(0, 120, 10):
        held_share = percent / 100
        found.append(timing.seconds(MANY))
    assert found[0] == POLICY.flush_seconds_max
    assert all(before > after for before, after in pairwise(found[:11]))
    assert found[10:] == [0.0, 0.0]


def test_very_many_segments_or_a_long_log_wait_for_no_more_bytes() -> None:
    timing = FlushTiming(lambda: 0.0, POLICY)
    assert timing.seconds(2 * POLICY.many_segments) == POLICY.flush_seconds_max / 4
    assert timing.seconds(100 * POLICY.many_segments) == POLICY.flush_seconds
    timing.log_is_long = True
    assert timing.seconds(MANY) == POLICY.flush_seconds


@pytest.mark.parametrize("rate", [500, 1_000, 1_500, 1_950])
def test_new_segments_do_not_owe_so_much_that_none_leaves_memory(rate: int) -> None:
    # With BACKLOG_MAX operations owed no segment becomes inactive, for as long as that lasts: so
    # many must not be owed for the sake of longer flushes alone.
    timing = FlushTiming(lambda: 0.0, POLICY)
    owed = max(count for count in range(1, 50_000) if count <= rate * timing.seconds(count))
    assert rate * POLICY.flush_seconds < BACKLOG_MAX
    assert owed < BACKLOG_MAX


def test_the_longest_short_flush_waits_and_a_longer_one_does_not() -> None:
    policy = FlushPolicy(few_segments=1)
    timing = FlushTiming(lambda: 0.0, policy)
    now = 100.0
    aggregators = {
        number: cast(
            "SegmentAggregator",
            SimpleNamespace(
                must_flush=False,
                pending_bytes=policy.short_bytes_max + number,
                oldest=now - policy.flush_seconds,
            ),
        )
        for number in (-1, 0, 1)
    }
    assert list(timing.due(aggregators, now, everything=False)) == [aggregators[1]]
    later = now + policy.flush_seconds_max - policy.flush_seconds
    assert list(timing.due(aggregators, later, everything=False)) == list(aggregators.values())


@pytest.mark.parametrize("kind", ["merge", "truncate", "delete"])
async def test_a_merge_a_truncation_or_a_deletion_makes_its_segment_due_at_once(
    autojump_clock: trio.testing.MockClock, kind: str
) -> None:
    storage = next_owner(NotingChunkStorage())
    manager = CacheManager(StreamingCache(64 * MIB))
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        await create(container, NAMES[:2])
        await append(container, NAMES[:2], 1000)
        if kind == "merge":
            await container.merge_segment(NAMES[0], NAMES[1])
        elif kind == "truncate":
            await container.truncate_segment(NAMES[0], offset=500)
        else:
            await container.delete_segment(NAMES[0])
        await trio.sleep(POLICY.flush_seconds - 1)
        if kind == "delete":
            stored_names = {each.partition(".S-")[0] for each in await storage.segment_names()}
            assert NAMES[0] not in stored_names
            assert len(container.parts.metadata.segments) == 1
        else:
            assert stored(container, NAMES[:1]) == {container.segment_info(NAMES[0]).length}


async def test_many_bytes_of_a_segment_are_due_at_once_and_few_after_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    storage = next_owner(NotingChunkStorage())
    manager = CacheManager(StreamingCache(64 * MIB))
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        await create(container, NAMES[:2])
        await container.append(NAMES[0], b"x")
        for _ in range(5):
            await container.append(NAMES[1], bytes(MIB))
        await trio.sleep(POLICY.flush_seconds - 1)
        assert container.segment_info(NAMES[1]).storage_length >= POLICY.flush_bytes
        assert container.segment_info(NAMES[0]).storage_length == 0
        await trio.sleep(3)
        assert container.segment_info(NAMES[0]).storage_length == 1


async def test_short_flushes_of_many_segments_wait_for_more_bytes_and_long_ones_do_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = NotingChunkStorage()
    long, *short = NAMES
    manager = CacheManager(StreamingCache(64 * MIB))
    async with open_container(0, MemoryDataLogFactory(), next_owner(chunks), manager) as container:
        await create(container, NAMES)
        await append(container, [long], POLICY.short_bytes_max + 1)
        await append(container, short, 100)
        await trio.sleep(2 * POLICY.flush_seconds)
        assert stored(container, [long]) == {POLICY.short_bytes_max + 1}
        assert stored(container, short) == {0}
        await append(container, short, 100)
        await trio.sleep(POLICY.flush_seconds_max)
        assert stored(container, short) == {200}
        assert {len(chunks.written[name]) for name in short} == {1}


@pytest.mark.proof
async def test_many_segments_take_turns_when_their_bytes_fill_the_cache(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = NotingChunkStorage()
    manager = CacheManager(StreamingCache(16 * MIB))
    async with open_container(0, MemoryDataLogFactory(), next_owner(chunks), manager) as container:
        await create(container, NAMES)
        most = 0
        for _ in range(60):
            # 1.2 MiB a second: what 5 s of it hold is half of what slows writers down.
            await append(container, NAMES, 4096)
            await trio.sleep(1.0)
            most = max(most, manager.held_bytes)
        assert most < manager.throttle_bytes
        times = [times for name in NAMES for times in pairwise(chunks.written[name])]
        waits = sorted(after - before for before, after in times)
        assert waits[len(waits) // 2] > 1.5 * POLICY.flush_seconds


async def test_a_round_that_is_cut_goes_on_at_once_and_tries_what_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bad, *fine = NAMES
    assert len(fine) > 2 * POLICY.round_flushes_max
    chunks = NotingChunkStorage(bad)
    manager = CacheManager(StreamingCache(64 * MIB))
    async with open_container(0, MemoryDataLogFactory(), next_owner(chunks), manager) as container:
        await create(container, NAMES)
        for number in range(1, 4):
            await append(container, NAMES, 100)
            container.parts.writer.request_flush()
            await trio.sleep(1.5)
            assert stored(container, fine) == {100 * number}
            assert chunks.attempt_count >= number
        with pytest.raises(StorageError, match="this one not"):
            await container.flush()
        chunks.refused = ()
        await append(container, NAMES, 100)
        await container.flush()
        assert stored(container, NAMES) == {400}


async def test_more_segments_take_longer_rounds_and_not_more_of_them(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each round looks at all unflushed segments: with rounds of one length many segments would
    # keep the event loop busy for the square of their number.
    policy = FlushPolicy(round_flushes_max=4)
    manager = CacheManager(StreamingCache(64 * MIB))
    async with open_container(
        0,
        MemoryDataLogFactory(),
        next_owner(NotingChunkStorage()),
        manager,
        flush_policy=policy,
    ) as container:
        await create(container, NAMES)
        await append(container, NAMES, 100)
        writer = container.parts.writer
        limit = writer._limit_round
        rounds: list[bool] = []

        def noted(due: list[SegmentAggregator]) -> bool:
            rounds.append(limit(due))
            return rounds[-1]

        monkeypatch.setattr(writer, "_limit_round", noted)
        writer.request_flush()
        await trio.sleep(1.0)
        assert stored(container, NAMES) == {100}
        assert sum(rounds) < 3 * policy.rounds_max


async def test_few_attributes_wait_while_bytes_of_many_segments_are_due(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = NotingChunkStorage()
    manager = CacheManager(StreamingCache(64 * MIB))
    async with open_container(0, MemoryDataLogFactory(), next_owner(chunks), manager) as container:
        await create(container, NAMES)
        await append(container, NAMES, 100)
        asked: list[bool] = []
        writer = container.parts.writer
        flush = writer._attributes.flush

        async def noted(now: float, *, everything: bool) -> bool:
            asked.append(stored(container, NAMES) == {100})
            return await flush(now, everything=everything)

        writer._attributes.flush = noted  # type: ignore[method-assign]
        writer.request_flush()
        await trio.sleep(1.0)
        assert asked
        assert all(asked)


@pytest.mark.proof
async def test_a_log_that_many_segments_hold_is_let_go_while_all_of_them_owe_something(
    autojump_clock: trio.testing.MockClock,
) -> None:
    policy = FlushPolicy(held_bytes_max=2 * MIB)
    logs = MemoryDataLogFactory()
    manager = CacheManager(StreamingCache(64 * MIB))
    async with open_container(
        0, logs, next_owner(NotingChunkStorage()), manager, flush_policy=policy
    ) as container:
        await create(container, NAMES)
        most = 0
        for _ in range(60):
            # 600 kB a second: longer waits alone would hold 18 MB.
            await append(container, NAMES, 2000)
            await trio.sleep(1.0)
            most = max(most, container.parts.log.held_bytes)
        assert most < 5 * policy.held_bytes_max


async def test_a_log_whose_files_are_longer_than_the_limit_gets_no_checkpoint_after_the_other(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A container wrote them without a pause, also when nothing else was written."""
    policy = FlushPolicy(held_bytes_max=2 * MIB)
    checkpoints: list[int] = []
    add_checkpoint = StorageWriter.add_checkpoint

    def noted(self: StorageWriter, sequence_number: int, address: LogAddress) -> None:
        checkpoints.append(sequence_number)
        add_checkpoint(self, sequence_number, address)

    monkeypatch.setattr(StorageWriter, "add_checkpoint", noted)
    held_bytes = policy.held_bytes_max + 1
    monkeypatch.setattr(MemoryDataLog, "held_bytes", property(lambda _: held_bytes))
    async with open_container(
        0,
        MemoryDataLogFactory(),
        next_owner(NotingChunkStorage()),
        CacheManager(StreamingCache(64 * MIB)),
        flush_policy=policy,
    ) as container:
        await create(container, NAMES[:1])
        await trio.sleep(10 * policy.checkpoint_seconds)
        checkpoints.clear()
        await trio.sleep(10 * policy.checkpoint_seconds)
        assert not checkpoints
        # Other logs have filled the file in which the last checkpoint lies: it is held by that.
        held_bytes += MIB
        await trio.sleep(10 * policy.checkpoint_seconds)
        assert len(checkpoints) == 1
        for _ in range(250):
            await append(container, NAMES[:1], 100)
            await trio.sleep(policy.checkpoint_seconds / 25)
        assert 4 <= len(checkpoints) <= 13
