"""One segment's trouble with tier 2 harms neither other segments nor the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import InvalidChunkOffsetError, StorageError, StorageFullError
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.tiers.api import Buffer, LogAddress
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLog, MemoryDataLogFactory
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY
from support.chunk_owners import next_owner

MIB = 1024 * 1024
NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(20)]


class RefusingChunkStorage(MemoryChunkStorage):
    """Storage that fails writes to the chunks of some segments, and counts the attempts."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = set(refused)
        self.attempt_count = 0
        self.error = StorageError("this one not")

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if any(name.startswith(each) for each in self.refused):
            self.attempt_count += 1
            raise self.error
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


def stored(container: Container, name: str) -> int:
    return container.segment_info(name).storage_length


@pytest.mark.parametrize("refused_count", [1, 7])
async def test_a_segment_that_tier_2_refuses_keeps_no_other_from_it(
    autojump_clock: trio.testing.MockClock, refused_count: int
) -> None:
    refused, fine = NAMES[:refused_count], NAMES[refused_count:]
    chunks = RefusingChunkStorage(*refused)
    logs = MemoryDataLogFactory()
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, logs, next_owner(chunks), manager) as container:
        for name in NAMES:
            await container.create_segment(name)
        for round_number in range(1, 20):
            for name in NAMES:
                await container.append(name, bytes(100))
            await trio.sleep(2 * POLICY.flush_seconds)
            assert {stored(container, name) for name in fine} == {100 * round_number}
        assert {stored(container, name) for name in refused} == {0}
        assert container.parts.writer._lowest_unflushed() < container.parts.metadata.sequence_number
        with pytest.raises(StorageError, match="this one not"):
            await container.flush()


KEEPS = "segment keeps the journal from being freed; writers stop when it is full"


async def test_a_segment_that_tier_2_takes_again_lets_the_log_go(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bad, *fine = NAMES[:3]
    chunks = RefusingChunkStorage(bad)
    logs = MemoryDataLogFactory()
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, logs, next_owner(chunks), manager) as container:
        for name in NAMES[:3]:
            await container.create_segment(name)
        await container.append(bad, b"refused")
        with capture_logs() as entries:
            for _ in range(60):
                for name in fine:
                    await container.append(name, bytes(10))
                await trio.sleep(POLICY.flush_seconds)
            assert (
                5
                <= chunks.attempt_count
                <= 60 * POLICY.flush_seconds / POLICY.pause_seconds_max + 20
            )
            failures = container.parts.writer.failing_segments
            assert {name: str(error) for name, error in failures.items()} == {bad: "this one not"}
            held = container.parts.log.bytes_since_truncation
            chunks.refused.clear()
            await trio.sleep(POLICY.pause_seconds_max + 1)
        told = [entry["event"] for entry in entries if entry.get("segment") == bad]
        errors = [entry for entry in entries if entry["log_level"] == "error"]
        assert set(told[:-1]) == {"segment does not reach tier 2", KEEPS}
        assert told.index(KEEPS) > told.index("segment does not reach tier 2")
        assert {entry["event"] for entry in errors} == {KEEPS}
        assert all(entry["journal_bytes"] > 0 for entry in errors)
        assert errors[0]["seconds"] >= 60
        assert told[-1] == "segment reaches tier 2 again"
        assert stored(container, bad) == 7
        assert not container.parts.writer.failing_segments
        container.parts.processor.request_checkpoint()
        await trio.sleep(2 * POLICY.flush_seconds)
        assert container.parts.log.bytes_since_truncation < held


async def test_a_full_tier_2_is_told_as_a_reason_of_delays_until_it_has_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = RefusingChunkStorage(NAMES[0])
    chunks.error = StorageFullError("cannot write", "the disk of /data/storage is full")
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, MemoryDataLogFactory(), next_owner(chunks), manager) as container:
        await container.create_segment(NAMES[0])
        await container.append(NAMES[0], b"refused")
        assert container.delay_reasons() == []
        await trio.sleep(2 * POLICY.flush_seconds)
        assert container.delay_reasons() == ["the disk of /data/storage is full"]
        # Another error is a reason only while it holds writers back.
        chunks.error = StorageError("not reached")
        await trio.sleep(2 * POLICY.pause_seconds_max)
        assert str(container.parts.writer.failure) == "not reached"
        assert container.delay_reasons() == []
        chunks.refused.clear()
        await trio.sleep(2 * POLICY.pause_seconds_max)
        assert container.parts.writer.failure is None
        assert stored(container, NAMES[0]) == 7


async def test_a_segment_whose_chunks_are_strange_asks_for_a_recovery_although_others_are_fine(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bad, *fine = NAMES[:3]
    chunks = RefusingChunkStorage(bad)
    chunks.error = InvalidChunkOffsetError("of another length")
    manager = CacheManager(StreamingCache(8 * MIB))
    with pytest.RaisesGroup(InvalidChunkOffsetError, allow_unwrapped=True, flatten_subgroups=True):
        async with open_container(
            0, MemoryDataLogFactory(), next_owner(chunks), manager
        ) as container:
            for name in NAMES[:3]:
                await container.create_segment(name)
            await container.append(bad, b"refused")
            for _ in range(60):
                for name in fine:
                    await container.append(name, bytes(10))
                await trio.sleep(POLICY.flush_seconds / 2)


async def test_a_source_whose_target_is_gone_is_owed_until_it_is_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target, source = NAMES[:2]
    chunks = RefusingChunkStorage()
    logs = MemoryDataLogFactory()
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, logs, next_owner(chunks), manager) as container:
        for name in (target, source):
            await container.create_segment(name)
        await container.append(source, b"stored, ")
        await trio.sleep(2 * POLICY.flush_seconds)
        # Neither can the rest be written, nor the list of chunks that the deletion changes.
        chunks.refused = {source, "_system"}
        await container.append(source, b"not stored")
        await container.seal_segment(source)
        await container.merge_segment(target, source)
        await container.delete_segment(target)
        await trio.sleep(4 * POLICY.pause_seconds_max)
        assert container.parts.writer.failing_segments
        chunks.refused.clear()
        await trio.sleep(2 * POLICY.pause_seconds_max)
        assert not container.parts.writer.failing_segments
        await container.flush()
        left = {segment.name for segment in container.parts.metadata.segments.values()}
        assert left.isdisjoint({target, source})


class FullDataLogFactory(MemoryDataLogFactory):
    """Logs that can be full: appends then wait until a log is truncated."""

    is_full = False

    def _flush(self) -> None:
        if not self.is_full:
            super()._flush()

    async def open_log(self, container_id: int) -> MemoryDataLog:
        log = await super().open_log(container_id)
        truncate = log.truncate

        async def truncate_and_go_on(address: LogAddress) -> None:
            await truncate(address)
            self.is_full = False
            self._flush()

        log.truncate = truncate_and_go_on  # type: ignore[method-assign]
        return log


async def test_a_log_that_is_full_until_it_is_truncated_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The place of an attribute index waits for room in the log, and that for bytes in tier 2."""
    name, late = NAMES[:2]
    logs = FullDataLogFactory()
    manager = CacheManager(StreamingCache(8 * MIB))
    async with open_container(0, logs, next_owner(MemoryChunkStorage()), manager) as container:
        for each in (name, late):
            await container.create_segment(each)
        values = {
            number.to_bytes(16, "big"): number for number in range(POLICY.attribute_flush_count + 1)
        }
        replace = AttributeUpdateType.REPLACE
        await container.append(late, b"not due yet")
        await container.update_attributes(
            name, [AttributeUpdate(each, replace, value) for each, value in values.items()]
        )
        await container.checkpoint()
        logs.is_full = True
        with trio.fail_after(10 * POLICY.flush_seconds):
            length = await container.append(name, b"waits for room in the log")
        assert length == 25
        assert stored(container, late) == 11
        assert await container.get_attributes(name, [*values]) == values
