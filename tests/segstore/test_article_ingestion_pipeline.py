"""The ingestion pipeline article, section by section, on a real container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from _fast.log.data_frame import FrameReader
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import (
    ContainerOfflineError,
    DataLogError,
    SegmentSealedError,
    SegmentStoreError,
)
from segstore.model.operations import AppendOperation, Operation, decode_operation
from segstore.testing.chunk_owners import next_owner
from segstore.throttling.calculators import batching_seconds
from segstore.tiers.api import Buffer, LogAddress, OnDurable
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLog, MemoryDataLogFactory

FRAME_BYTES_MAX = 1024 * 1024
settle = trio.testing.wait_all_tasks_blocked


class SlowLogs(MemoryDataLogFactory):
    """Logs whose writes are under way until ``finish``; ``writes`` has their bytes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.held = False
        self.fails = False
        self._waiting: list[Callable[[], None]] = []

    async def open_log(self, container_id: int) -> MemoryDataLog:
        log = await super().open_log(container_id)
        append = log.append_nowait

        def append_nowait(parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
            self.writes.append(b"".join(parts))

            def done(error: DataLogError | None) -> None:
                self._waiting.append(lambda: on_durable(error))
                if not self.held:
                    self.finish()

            if self.fails:
                failure = DataLogError("tier 1 does not answer")
                trio.lowlevel.current_trio_token().run_sync_soon(on_durable, failure)
                return LogAddress(len(self.writes))
            return append(parts, done)

        log.append_nowait = append_nowait  # type: ignore[method-assign]
        return log

    def finish(self) -> None:
        """Finish the writes under way, so that they become durable."""
        waiting, self._waiting = self._waiting, []
        for complete in waiting:
            complete()

    def operations(self) -> list[list[Operation]]:
        """Return the operations that end in each write."""
        reader = FrameReader()
        return [
            [decode_operation(record) for _, record in reader.feed(data, 0)] for data in self.writes
        ]


@asynccontextmanager
async def opened(logs: SlowLogs, *names: str) -> AsyncIterator[Container]:
    manager = CacheManager(StreamingCache(64 * 1024 * 1024))
    storage = next_owner(MemoryChunkStorage())
    async with open_container(0, logs, storage, manager, drain_seconds=0) as container:
        for name in names:
            await container.create_segment(name)
        logs.writes.clear()
        yield container
        logs.held = False
        logs.finish()


class Answers:
    """The answers, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[SegmentStoreError | None, int]] = []

    def __call__(self, error: SegmentStoreError | None, number: int) -> None:
        self.all.append((error, number))


async def test_the_ingestion_pipeline_multiplexes_all_segments_into_one_log() -> None:
    logs, answers = SlowLogs(), Answers()
    names = [f"s{number}" for number in range(10)]
    async with opened(logs, *names) as container:
        for name in names * 3:
            container.append_nowait(name, name.encode(), on_complete=answers)
        await settle()
        assert len(answers.all) == 30
        written = [each for write in logs.operations() for each in write]
        segment_ids = [each.segment_id for each in written]
        assert len(set(segment_ids)) == 10
        assert segment_ids == segment_ids[:10] * 3
        numbers = [each.sequence_number for each in written]
        assert numbers == sorted(numbers)
        assert len(numbers) == 30


async def test_choosing_a_good_write_size_fills_frames_of_up_to_a_megabyte() -> None:
    logs, answers = SlowLogs(), Answers()
    async with opened(logs, "s") as container:
        logs.held = True
        container.append_nowait("s", b"first", on_complete=answers)
        await settle()
        for _ in range(300):
            container.append_nowait("s", bytes(10_000), on_complete=answers)
        await settle()
        assert len(logs.writes[0]) < 1000, "the first had nothing to wait for"
        assert len(logs.writes) > 2
        assert all(0.9 * FRAME_BYTES_MAX < len(each) <= FRAME_BYTES_MAX for each in logs.writes[1:])


async def test_a_large_operation_spans_frames_and_frames_keep_its_order() -> None:
    logs, answers = SlowLogs(), Answers()
    data = bytes(range(256)) * 12_000
    async with opened(logs, "s") as container:
        container.append_nowait("s", data, on_complete=answers)
        container.append_nowait("s", b"behind", on_complete=answers)
        await settle()
        assert [number for _, number in answers.all] == [len(data), len(data) + 6]
        assert len(logs.writes) >= 3
        appended = [
            bytes(each.data)
            for write in logs.operations()
            for each in write
            if isinstance(each, AppendOperation)
        ]
        assert appended == [data, b"behind"]


def test_the_delay_is_what_recent_writes_left_empty_of_the_recent_latency() -> None:
    def delay(share: float) -> float:
        return batching_seconds(
            recent_latency_seconds=0.01,
            average_write_bytes=share * FRAME_BYTES_MAX,
            write_bytes_max=FRAME_BYTES_MAX,
            seconds_max=0.05,
        )

    assert delay(0) == pytest.approx(0.01), "never longer than the latency"
    assert delay(0.25) == pytest.approx(0.0075)
    assert delay(1) == 0, "full frames have no reason to wait"


async def test_metadata_updates_are_judged_by_what_is_in_flight_and_seen_when_durable() -> None:
    logs, answers, refused = SlowLogs(), Answers(), Answers()
    async with opened(logs, "s") as container:
        logs.held = True
        container.append_nowait("s", b"data", on_complete=answers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.seal_segment, "s")
            await settle()
            container.append_nowait("s", b"late", on_complete=refused)
            await settle()
            assert answers.all == []
            info = container.segment_info("s")
            assert (info.length, info.sealed) == (0, False)
            logs.held = False
            logs.finish()
        assert answers.all == [(None, 4)]
        await settle()
        assert [type(error) for error, _ in refused.all] == [SegmentSealedError]
        info = container.segment_info("s")
        assert (info.length, info.sealed) == (4, True)


async def test_tier_1_write_failures_stop_the_container_and_recovery_tells_what_was_written() -> (
    None
):
    logs, answers = SlowLogs(), Answers()

    async def write_until_the_end() -> None:
        async with opened(logs, "s") as container:
            assert await container.append("s", b"durable") == 7
            logs.fails = True
            for _ in range(3):
                container.append_nowait("s", b"in flight", on_complete=answers)
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await write_until_the_end()
    assert caught.group_contains(DataLogError)
    assert [type(error) for error, _ in answers.all] == 3 * [ContainerOfflineError]
    logs.fails = False
    async with opened(logs) as container:
        assert container.segment_info("s").length == 7
        assert (await container.read("s", offset=0, length_max=100)).data == b"durable"


async def test_infrequent_operations_are_written_one_by_one_and_at_once() -> None:
    logs = SlowLogs()
    async with opened(logs, "s") as container:
        for number in range(5):
            await container.append("s", b"%d" % number)
        assert [len(write) for write in logs.operations()] == [1] * 5


async def test_a_large_flow_of_very_small_appends_takes_few_writes() -> None:
    logs, answers = SlowLogs(), Answers()
    async with opened(logs, "s") as container:
        logs.held = True
        for number in range(5000):
            container.append_nowait("s", b"%d" % number, on_complete=answers)
            if number % 100 == 0:
                await settle()
        logs.held = False
        logs.finish()
        await settle()
        assert [error for error, _ in answers.all] == [None] * 5000
        assert len(logs.writes) <= 3
