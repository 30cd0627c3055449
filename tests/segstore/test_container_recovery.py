"""A container that crashes anywhere comes back with everything it acknowledged, and nothing else.

Random operations run against the container and against a model; the container crashes (what is not
acknowledged may be lost), recovers, and must equal the model. A failing case is its seed.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container
from segstore.errors import (
    ContainerOfflineError,
    DataLogCorruptError,
    DataLogError,
    NoSuchSegmentError,
    SegmentError,
    SegmentStoreError,
    StorageError,
)
from segstore.inactive.eviction import ALL_STAY
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_TYPE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from segstore.tiers.memory import MemoryChunkStorage
from support.faults.crashing_tiers import CrashingTiers, active_names, checkpoint, evict
from support.faults.faulty_chunks import FaultyChunkStorage
from support.models.memory_container import MemoryContainer
from support.models.model_workload import ModelWorkload
from support.rare_parameters import mark_rare

NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(4)]
WRITERS = [bytes([number]) * 16 for number in range(3)]


class Workload:
    """Random operations on a container and its model, and crashes among them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.operations = ModelWorkload(
            self.random, NAMES, WRITERS, lengths=[0, 1, 50, 3000, 200_000], truncate_max=400_000
        )

    async def step(self, container: Container, model: MemoryContainer) -> None:
        """Do one operation; both must give the same answer."""
        kind = self.random.choices(
            ["append", "create", "seal", "truncate", "merge", "delete", "attributes"],
            [20, 4, 1, 3, 2, 1, 3],
        )[0]
        await self.operations.operate(container, model, kind)

    async def crash_under_load(
        self, tiers: CrashingTiers, container: Container, model: MemoryContainer
    ) -> dict[str, list[bytes]]:
        """Queue a burst of appends, crash somewhere in it; returns what may or must be there."""
        acked: dict[str, int] = dict.fromkeys(NAMES, 0)
        sent: dict[str, list[bytes]] = {name: [] for name in NAMES}

        def complete(name: str, error: SegmentStoreError | None) -> None:
            if error is None:
                acked[name] += 1
            else:
                assert isinstance(error, SegmentError | ContainerOfflineError)

        for _ in range(self.random.randrange(1, 30)):
            name = self.random.choice(NAMES)
            data = self.random.randbytes(self.random.choice([10, 1000, 700_000]))
            container.append_nowait(
                name,
                data,
                on_complete=lambda error, length, name=name: complete(name, error),
            )
            sent[name].append(data)
            for _ in range(self.random.choice([0, 0, 1, 5])):
                await trio.lowlevel.checkpoint()
        tiers.crash()
        # The container that failed cancels its block; the model's part must go on.
        with trio.CancelScope(shield=True):
            for name, count in acked.items():
                for data in sent[name][:count]:
                    await model.append(name, data)
                sent[name] = sent[name][count:]
        return sent


async def settle(
    container: Container, model: MemoryContainer, in_doubt: dict[str, list[bytes]]
) -> None:
    """Tell the model how much of the data in flight is stored; it may be there, in order."""
    for name, datas in in_doubt.items():
        try:
            length = container.segment_info(name).length
        except SegmentError:
            continue
        for data in datas:
            if model.segment_info(name).length == length:
                break
            await model.append(name, data)
        assert model.segment_info(name).length == length


@pytest.mark.parametrize("seed", mark_rare(range(25), 10))
async def test_a_container_that_crashes_equals_the_model_after_recovery(seed: int) -> None:
    tiers, model, workload = CrashingTiers(ALL_STAY), MemoryContainer(0), Workload(seed)
    in_doubt: dict[str, list[bytes]] = {}
    for _ in range(5):
        # No drain: the storage writer is cut off wherever it is.
        async with tiers.open(drain_seconds=0) as container:
            await settle(container, model, in_doubt)
            await workload.operations.compare(container, model)
            for _ in range(workload.random.randrange(40)):
                await workload.step(container, model)
                if workload.random.random() < 0.05:
                    container.parts.writer.request_flush()
                    await trio.sleep(0.001)
            in_doubt = await workload.crash_under_load(tiers, container, model)
    async with tiers.open() as container:
        await settle(container, model, in_doubt)
        await workload.operations.compare(container, model)


async def test_a_drained_container_leaves_a_short_log_and_all_data_in_tier_2() -> None:
    tiers = CrashingTiers(ALL_STAY)
    async with tiers.open() as container:
        await container.create_segment(NAMES[0])
        for _ in range(20):
            await container.append(NAMES[0], b"x" * 100_000)
    log = await tiers.logs.open_log(0)
    assert log.bytes_since_truncation < 2000
    assert sum(chunk.length for chunk in await tiers.chunks.list_chunks(NAMES[0])) == 2_000_000
    async with tiers.open() as container:
        assert container.segment_info(NAMES[0]).storage_length == 2_000_000
        result = await container.read(NAMES[0], offset=1_500_000, length_max=10)
        assert result.data == b"x" * 10


async def test_a_segment_created_again_does_not_show_its_namesake_bytes() -> None:
    tiers = CrashingTiers(ALL_STAY)
    for content in (b"old" * 1000, b"new"):
        async with tiers.open() as container:
            await container.create_segment(NAMES[0])
            await container.append(NAMES[0], content)
            result = await container.read(NAMES[0], offset=0, length_max=10_000)
            assert result.data == content
        if content != b"new":
            async with tiers.open() as container:
                await container.delete_segment(NAMES[0])
    async with tiers.open() as container:
        assert (await container.read(NAMES[0], offset=0, length_max=10_000)).data == b"new"


async def test_bytes_missing_from_both_tiers_stop_the_container_with_their_place() -> None:
    tiers = CrashingTiers(ALL_STAY)
    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment(NAMES[0])
        await container.append(NAMES[0], b"x" * 10)
        container.parts.processor.request_checkpoint()
        await container.wait_in_flight(NAMES[0])
    log = await tiers.logs.open_log(0)
    checkpoint = [entry.address async for entry in log.read()][-1]
    await log.truncate(checkpoint)
    corrupt = pytest.RaisesExc(DataLogCorruptError, match="bytes from 0 to 10")
    with pytest.RaisesGroup(corrupt):
        async with tiers.open():
            pass


async def test_transient_segments_do_not_outlive_the_process() -> None:
    tiers = CrashingTiers(ALL_STAY)
    async with tiers.open(drain_seconds=0) as container:
        transient = {ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.TRANSIENT)}
        await container.create_segment(NAMES[0], attributes=transient)
        await container.create_segment(NAMES[1])
        await container.append(NAMES[0], b"part of an event")
    async with tiers.open() as container:
        await container.wait_in_flight(NAMES[0])
        with pytest.raises(NoSuchSegmentError):
            container.segment_info(NAMES[0])
        assert container.segment_info(NAMES[1]).length == 0
    assert await tiers.chunks.list_chunks(NAMES[0]) == []


async def test_reads_parked_at_the_stop_are_answered_empty() -> None:
    tiers = CrashingTiers(ALL_STAY)
    answers = []
    async with tiers.open() as container:
        await container.create_segment(NAMES[0])
        container.read_nowait(
            NAMES[0],
            offset=0,
            length_max=10,
            on_complete=lambda error, result: answers.append((error, result)),
        )
    [(error, result)] = answers
    assert error is None
    assert result is not None
    assert (result.data, result.at_tail, result.end_of_segment) == (b"", True, False)


async def test_a_fenced_container_fails_its_appends_and_ends() -> None:
    tiers = CrashingTiers(ALL_STAY)

    async def own_a_log_that_another_opens() -> None:
        async with tiers.open() as container:
            await container.create_segment(NAMES[0])
            await tiers.logs.open_log(0)
            with pytest.raises(ContainerOfflineError):
                await container.append(NAMES[0], b"late")
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as failure:
        await own_a_log_that_another_opens()
    assert failure.group_contains(DataLogError)


async def test_a_log_of_merged_segments_that_the_cache_cannot_hold_is_replayed() -> None:
    tiers = CrashingTiers(ALL_STAY)
    cache_bytes = 2 * 1024 * 1024
    target = NAMES[0]
    block = random.Random(1).randbytes(256 * 1024)
    async with tiers.open(drain_seconds=0, cache_bytes=cache_bytes) as container:
        await container.create_segment(target)
        # Less than calls for a checkpoint. Tier 2 gets the sources as the cache fills, and loses
        # them as they are merged.
        sources = [f"{target}#transaction.{number:032x}" for number in range(14)]
        for source in sources:
            await container.create_segment(source)
            await container.append(source, block)
        for source in sources:
            await container.merge_segment(target, source)
        with trio.fail_after(30):
            while container.segment_info(target).storage_length < 14 * len(block):  # noqa: ASYNC110
                await trio.sleep(0.02)
        tiers.crash()
    async with tiers.open(cache_bytes=cache_bytes) as container:
        assert container.segment_info(target).length == 14 * len(block)
        offset = 0
        while offset < 14 * len(block):
            result = await container.read(target, offset=offset, length_max=len(block))
            assert result.data == (block * 2)[offset % len(block) :][: len(result.data)]
            offset += len(result.data)


async def test_room_is_made_although_a_segment_went_with_what_was_merged_into_it() -> None:
    tiers = CrashingTiers()
    async with tiers.open() as container:
        for name in ("target", "source", "kept", "gone"):
            await container.create_segment(name)
        await container.append("source", b"merged")
        await checkpoint(container)
        await container.merge_segment("target", "source")
        await container.flush()
        for _ in range(1500):
            await container.append("gone", bytes(3000))
            await container.append("kept", bytes(300))
        await container.delete_segment("target")
        await container.delete_segment("gone")
        await container.flush()
        tiers.crash()
    async with tiers.open(cache_bytes=4 * 1024 * 1024) as container:
        assert container.segment_info("kept").length == 1500 * 300


@pytest.mark.proof
async def test_a_recovery_does_not_stand_still_for_more_than_the_cache_behind_a_gone_merge(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    cache_bytes = 2 * 1024 * 1024
    tiers = CrashingTiers()
    refuse_writes_of(monkeypatch, "kept")
    async with tiers.open(drain_seconds=0) as container:
        for name in ("target", "source", "kept"):
            await container.create_segment(name)
        await container.append("source", b"merged")
        await checkpoint(container)
        await container.merge_segment("target", "source")
        await container.flush()
        for number in range(1500):
            await container.append("target", bytes(3000))
            await container.append("kept", b"%04d" % number)
            await container.append("kept", bytes(1500))
        await container.delete_segment("target")
        with pytest.raises(StorageError):
            await container.flush()
        assert not await container.parts.storage.stored_length("target.S-1")
        tiers.crash()
    monkeypatch.undo()
    expected = b"".join(b"%04d" % number + bytes(1500) for number in range(1500))
    with trio.fail_after(9):
        async with tiers.open(cache_bytes=cache_bytes, drain_seconds=0) as container:
            assert container.parts.read_index.index_of(
                container.parts.metadata.by_name["kept"]
            ).logged
            assert await everything(container, "kept") == expected
            await container.flush()
            assert not container.parts.read_index.index_of(
                container.parts.metadata.by_name["kept"]
            ).logged
            tiers.crash()
    async with tiers.open(cache_bytes=cache_bytes) as container:
        assert container.segment_info("kept").storage_length == len(expected)
        assert await everything(container, "kept") == expected


def refuse_writes_of(patch: pytest.MonkeyPatch, segment: str) -> None:
    """Make tier 2 refuse all writes to a segment."""
    write = FaultyChunkStorage.write

    async def refuse(storage: FaultyChunkStorage, name: str, **what: Any) -> None:
        if name.startswith(segment):
            raise StorageError("the disk is full")
        await write(storage, name, **what)

    patch.setattr(FaultyChunkStorage, "write", refuse)


async def leave_in_doubt(tiers: CrashingTiers, *, times: int = 1) -> None:
    """Leave one segment inactive and some others removed by merges, before the power goes."""
    tiers.boot_id = "first"
    async with tiers.open(drain_seconds=0) as container:
        for number in range(6):
            for name in (f"target {number}", f"source {number}"):
                await container.create_segment(name)
            await container.append(f"source {number}", b"merged")
        await container.create_segment("inactive")
        await container.append("inactive", b"0123")
        await checkpoint(container)
        for number in range(6):
            await container.merge_segment(f"target {number}", f"source {number}")
            container.parts.metadata.by_name[f"target {number}"].user_count += number % 2
        for _ in range(times):
            await container.activate("inactive")
            await container.append("inactive", b"4567")
            await evict(container)
            assert "inactive" not in active_names(container)
        for number in range(6):
            await container.delete_segment(f"target {number}")
        await container.flush()
        tiers.crash()
    assert isinstance(tiers.chunks, MemoryChunkStorage)
    [chunk] = [data for name, data in tiers.chunks.contents.items() if name.startswith("inactive")]
    assert chunk == b"0123" + b"4567" * times
    chunk[4:] = bytes(4 * times)
    tiers.boot_id = "second"


async def everything(container: Container, name: str) -> bytes:
    await container.activate(name)
    data = b""
    while len(data) < container.segment_info(name).length:
        result = await container.read(name, offset=len(data), length_max=1000)
        data += bytes(result.data)
    return data


async def test_what_is_in_doubt_is_written_however_many_segments_went_with_merged_ones() -> None:
    tiers = CrashingTiers()
    await leave_in_doubt(tiers)
    async with tiers.open(drain_seconds=0) as container:
        assert await everything(container, "inactive") == b"01234567"
        await checkpoint(container)
        tiers.crash()
    async with tiers.open() as container:
        assert await everything(container, "inactive") == b"01234567"


async def test_what_a_recovery_did_not_find_does_not_end_what_it_recovered() -> None:
    tiers = CrashingTiers()
    await leave_in_doubt(tiers, times=6)
    async with tiers.open(drain_seconds=0) as container:
        container.parts.writer.request_flush()
        await trio.sleep(0.2)
        assert await everything(container, "inactive") == b"0123" + b"4567" * 6
        assert not container.parts.writer.failing_segments


async def test_what_is_in_doubt_and_cannot_be_written_now_stays_in_the_log() -> None:
    tiers = CrashingTiers()
    await leave_in_doubt(tiers)
    with pytest.MonkeyPatch.context() as patch:
        refuse_writes_of(patch, "inactive")
        with pytest.raises(StorageError, match="the disk is full"):
            async with tiers.open(drain_seconds=0):
                tiers.crash()
    async with tiers.open() as container:
        assert await everything(container, "inactive") == b"01234567"


async def test_a_segment_that_became_inactive_and_lacks_bytes_in_tier_2_is_damage() -> None:
    tiers = CrashingTiers()
    await leave_in_doubt(tiers)
    assert isinstance(tiers.chunks, MemoryChunkStorage)
    [chunk] = [data for name, data in tiers.chunks.contents.items() if name.startswith("inactive")]
    del chunk[2:]
    with pytest.raises(ExceptionGroup) as caught:
        async with tiers.open(drain_seconds=0):
            tiers.crash()
    [error] = caught.value.exceptions
    assert isinstance(error, DataLogCorruptError)
    assert "inactive became inactive" in str(error)


async def test_a_segment_that_became_inactive_when_all_was_truncated_lacks_nothing() -> None:
    tiers = CrashingTiers()
    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment("inactive")
        await container.append("inactive", b"0123")
        await container.truncate_segment("inactive", offset=4)
        await checkpoint(container)
        # A later operation on it makes the recovery ask tier 2 how much that has.
        update = AttributeUpdate(bytes(16), AttributeUpdateType.REPLACE, 1)
        await container.update_attributes("inactive", [update])
        await evict(container)
        assert "inactive" not in active_names(container)
        tiers.crash()
    # No byte of it was ever in tier 2.
    assert isinstance(tiers.chunks, MemoryChunkStorage)
    assert not [name for name in tiers.chunks.contents if name.startswith("inactive.S-1$0")]
    async with tiers.open() as container:
        await container.activate("inactive")
        info = container.segment_info("inactive")
        assert (info.start_offset, info.length) == (4, 4)


async def test_tier_2_is_told_where_each_segment_ended_before_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = CrashingTiers()
    async with tiers.open(drain_seconds=0) as container:
        for name in ("a", "b", "unchanged"):
            await container.create_segment(name)
            await container.append(name, b"0123456789")
        await checkpoint(container)
        for _ in range(2):
            await container.append("a", b"more")
        await container.create_segment("c")
        await container.append("c", b"new")
        await evict(container)
        await container.append("b", b"more")
        await evict(container)
        tiers.crash()
    told: dict[str, int] = {}
    stored_length = ChunkedSegmentStorage.stored_length

    async def note(
        storage: ChunkedSegmentStorage, segment: str, *, certain: int | None = None
    ) -> int:
        if certain is not None:
            told[segment.partition(".S-")[0]] = certain
        return await stored_length(storage, segment, certain=certain)

    monkeypatch.setattr(ChunkedSegmentStorage, "stored_length", note)
    async with tiers.open():
        assert told == {"a": 10, "b": 10, "c": 0, "_system/containers/metadata_0": 0}
        tiers.crash()
