"""Idle segments become inactive, and no caller can see it."""

from __future__ import annotations

import msgspec
import pytest
import structlog
import trio
import trio.testing

from segstore.container import Container
from segstore.durable_log.update_transaction import NAME_BYTES_MAX
from segstore.errors import (
    ContainerOfflineError,
    DataLogCorruptError,
    NoSuchSegmentError,
    SegmentExistsError,
    StorageError,
)
from segstore.inactive.eviction import CORE_COUNT_MAX, QUIET_CHANGES_MAX, EvictionPolicy
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_TYPE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
    core_attribute,
)
from segstore.model.metadata import RECORDS_PER_CHANGE, ContainerMetadata, records_name
from segstore.model.operations import ActivateOperation
from segstore.model.segment_record import SegmentRecord
from support.faults.crashing_tiers import CrashingTiers, active_names, checkpoint, evict

WRITER = bytes([1]) * 16


def count_activations(container: Container) -> list[str]:
    """Return a list that receives the names of the segments that become active from now on."""
    activated: list[str] = []
    apply = container.parts.state.apply

    def noting(operation: object) -> None:
        if isinstance(operation, ActivateOperation):
            activated.append(operation.name)
        apply(operation)  # type: ignore[arg-type]

    container.parts.state.apply = noting  # type: ignore[method-assign]
    return activated


async def test_an_idle_segment_leaves_memory_and_comes_back_as_it_was(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        update = AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, 5)
        await container.append("s", b"x" * 100, attribute_updates=[update])
        await container.truncate_segment("s", offset=10)
        await container.seal_segment("s")
        before = container.segment_info("s")
        segment_id = container.parts.metadata.by_name["s"].segment_id
        await evict(container)
        assert active_names(container) == set()
        await container.activate("s")
        after = container.segment_info("s")
        assert (after.length, after.start_offset, after.sealed, after.last_modified_ms) == (
            100,
            10,
            True,
            before.last_modified_ms,
        )
        assert container.parts.metadata.by_name["s"].segment_id == segment_id
        assert await container.get_attributes("s", [WRITER]) == {WRITER: 5}
        assert (await container.read("s", offset=10, length_max=90)).data == b"x" * 90


async def test_what_tier_2_lacks_keeps_a_segment(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await container.create_segment("bytes")
        await container.create_segment("attributes")
        await container.create_segment("nothing")
        await container.append("bytes", b"x")
        update = AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, 5)
        await container.update_attributes("attributes", [update])
        await evict(container, flush=False)
        assert active_names(container) == {"bytes", "attributes"}
        await evict(container)
        assert active_names(container) == set()


async def test_what_tier_2_has_not_cut_off_or_merged_keeps_a_segment(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        for name in ("truncated", "target", "idle"):
            await container.create_segment(name)
            await container.append(name, b"xy")
        await container.create_segment("source")
        await container.flush()
        await container.truncate_segment("truncated", offset=1)
        await container.merge_segment("target", "source")
        await evict(container, flush=False)
        assert active_names(container) == {"truncated", "target"}
        await evict(container)
        assert active_names(container) == set()


async def test_a_record_of_an_earlier_time_makes_nothing_active(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await evict(container)
        offset = container.parts.records.offset_now("s")
        assert offset is not None
        record, record_bytes = await container.parts.records.read(offset)

        async def activate_late() -> None:
            late = ActivateOperation(record, offset=offset, record_bytes=record_bytes)
            await container.wait_for(late)

        await container.append("s", b"x")
        with pytest.raises(SegmentExistsError):
            await activate_late()
        await evict(container)
        with pytest.raises(NoSuchSegmentError):
            await activate_late()
        await container.delete_segment("s")
        with pytest.raises(NoSuchSegmentError):
            await activate_late()
        assert active_names(container) == set()


async def test_a_recovery_asks_tier_2_anew_about_a_segment_that_came_back(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment("s")
        await container.append("s", b"abc")
        await evict(container)
        await container.append("s", b"def")
        await container.flush()
        tiers.crash()
    async with tiers.open() as container:
        assert container.segment_info("s").storage_length == 6


async def test_the_info_of_an_inactive_segment_is_that_of_its_record(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"abcdef")
        await container.truncate_segment("s", offset=2)
        await container.seal_segment("s")
        await container.flush()
        before = container.segment_info("s")
        assert await container.find_info("s") == before
        await evict(container)
        sequence_number = container.parts.metadata.sequence_number
        assert await container.find_info("s") == before
        assert active_names(container) == set()
        assert container.parts.metadata.sequence_number == sequence_number, "nothing was logged"
        with pytest.raises(NoSuchSegmentError):
            await container.find_info("none")
        await container.delete_segment("s")
        with pytest.raises(NoSuchSegmentError):
            await container.find_info("s")


async def test_the_info_of_a_segment_that_changes_meanwhile_is_never_older_than_the_call(
    tiers: CrashingTiers,
) -> None:
    """A record that is read while its segment comes back, grows and leaves again is read anew."""
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"abc")
        await evict(container)
        records = container.parts.records
        read = records.read
        reads: list[int] = []

        async def read_slowly(offset: int) -> tuple[SegmentRecord, int]:
            reads.append(offset)
            found = await read(offset)
            if len(reads) == 1:
                await container.append("s", b"def")
                await evict(container)
                assert active_names(container) == set()
            return found

        records.read = read_slowly  # type: ignore[method-assign]
        assert (await container.find_info("s")).length == 6
        assert active_names(container) == set()


async def test_a_record_that_is_read_while_its_container_stops_is_no_damage(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await evict(container)
    for ask in (container.find_info, container.activate):
        with pytest.raises(ContainerOfflineError):
            await ask("s")


async def test_a_record_that_is_removed_while_it_is_read_is_no_damage(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"abc")
        await evict(container)
        records = container.parts.records

        async def fail(offset: int) -> tuple[SegmentRecord, int]:
            raise StorageError("the head of the records was truncated")

        read, records.read = records.read, fail  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await container.find_info("s")

        async def delete_and_fail(offset: int) -> tuple[SegmentRecord, int]:
            records.read = read  # type: ignore[method-assign]
            await container.delete_segment("s")
            return await fail(offset)

        records.read = delete_and_fail  # type: ignore[method-assign]
        with pytest.raises(NoSuchSegmentError):
            await container.find_info("s")


async def test_a_segment_that_is_used_between_two_looks_stays(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        for name in ("read", "asked", "idle"):
            await container.create_segment(name)
            await container.append(name, b"x")
        await container.flush()
        eviction = container.parts.eviction
        assert eviction is not None
        eviction.look(trio.current_time())
        await container.read("read", offset=0, length_max=1)
        await container.get_attributes("asked", [WRITER])
        await eviction.evict(eviction.look(trio.current_time()))
        assert active_names(container) == {"read", "asked"}


async def test_a_segment_that_is_written_stays_whatever_time_the_clock_shows(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        container.parts.state.now_ms = lambda: 1_700_000_000_000
        for name in ("written", "idle"):
            await container.create_segment(name)
            await container.append(name, b"x")
        await container.flush()
        eviction = container.parts.eviction
        assert eviction is not None
        eviction.look(trio.current_time())
        # A clock that was set back shows the same time once more.
        await container.append("written", b"x")
        await container.flush()
        await eviction.evict(eviction.look(trio.current_time()))
        assert active_names(container) == {"written"}


async def test_use_after_the_second_look_keeps_a_segment_too(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        for name in ("read", "idle"):
            await container.create_segment(name)
            await container.append(name, b"x")
        await container.flush()
        eviction = container.parts.eviction
        assert eviction is not None
        eviction.look(trio.current_time())
        candidates = eviction.look(trio.current_time())
        assert len(candidates) == 2
        await container.read("read", offset=0, length_max=1)
        await eviction.evict(candidates)
        assert active_names(container) == {"read"}


@pytest.mark.parametrize(("count", "stays"), [(CORE_COUNT_MAX, False), (2000, True)])
async def test_a_segment_with_more_core_attributes_than_a_record_has_room_for_stays(
    tiers: CrashingTiers, count: int, stays: bool
) -> None:
    ids = [core_attribute((1 << 63) + number) for number in range(count)]
    async with tiers.open() as container:
        await container.create_segment("x" * NAME_BYTES_MAX)
        updates = [AttributeUpdate(each, AttributeUpdateType.REPLACE, -(1 << 62)) for each in ids]
        await container.update_attributes("x" * NAME_BYTES_MAX, updates)
        await evict(container)
        assert bool(active_names(container)) == stays
        tiers.crash()
    async with tiers.open() as container:
        found = await container.get_attributes("x" * NAME_BYTES_MAX, ids)
        assert found == dict.fromkeys(ids, -(1 << 62))


async def test_tables_transient_segments_and_those_with_waiting_readers_stay(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        for name, kind in (("table", SegmentType.TABLE), ("transient", SegmentType.TRANSIENT)):
            await container.create_segment(name, attributes={ATTRIBUTE_SEGMENT_TYPE: int(kind)})
        await container.create_segment("watched")
        answers: list[object] = []
        handle = container.read_nowait(
            "watched", offset=0, length_max=1, on_complete=lambda _, result: answers.append(result)
        )
        await evict(container)
        assert active_names(container) == {"table", "transient", "watched"}
        assert handle is not None
        handle.cancel()
        await evict(container)
        assert active_names(container) == {"table", "transient"}
        assert answers == []


async def test_the_idlest_leave_when_there_are_too_many(tiers: CrashingTiers) -> None:
    policy = EvictionPolicy(active_count_max=3, look_seconds=1e9)
    async with tiers.open(policy=policy) as container:
        eviction = container.parts.eviction
        assert eviction is not None
        names = [f"s{number}" for number in range(6)]
        for now, name in enumerate(names):
            await container.create_segment(name)
            eviction.look(float(now))
        await eviction.evict(eviction.look(10.0))
        assert active_names(container) == {"s3", "s4", "s5"}
        await eviction.evict(eviction.look(59.0))
        assert active_names(container) == {"s3", "s4", "s5"}
        await eviction.evict(eviction.look(64.5))
        assert active_names(container) == {"s5"}, "those that were idle for a minute leave"


async def test_the_task_lets_idle_segments_leave_and_the_log_begin_anew(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=50, idle_seconds_max=60.0)
    async with tiers.open(policy=policy) as container:
        for number in range(2500):
            await container.create_segment(f"s{number}")
        await trio.sleep(30)
        assert len(active_names(container)) == 50
        assert container.parts.metadata.change_count < 100, "a checkpoint came after the creations"
        assert not container.parts.writer._checkpoints, "the log begins there"
        await trio.sleep(60)
        assert active_names(container) == set()
        await container.append("s7", b"x")
        assert active_names(container) == {"s7"}


async def test_segments_are_scanned_less_often_while_there_is_room_for_all(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=2, look_seconds=1.0, relaxed_look_seconds=5.0)
    async with tiers.open(policy=policy) as container:
        eviction = container.parts.eviction
        assert eviction is not None
        looked_at: list[float] = []
        look = eviction.look

        def watch(now: float) -> list[int]:
            looked_at.append(now)
            return look(now)

        eviction.look = watch  # type: ignore[method-assign]
        began = trio.current_time()
        await container.create_segment("s0")
        await trio.sleep(12.5)
        assert [round(now - began) for now in looked_at] == [5, 10]
        for name in ("s1", "s2", "s3"):
            await container.create_segment(name)
        await trio.sleep(4.4)
        assert [round(now - began) for now in looked_at[2:]] == [13, 14]
        assert len(active_names(container)) == 2


async def test_a_start_five_seconds_after_many_segments_replays_next_to_nothing(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=50)
    async with tiers.open(policy=policy, drain_seconds=0) as container:
        for number in range(1000):
            await container.create_segment(f"s{number}")
        await trio.sleep(5)
        assert len(active_names(container)) == 50
        tiers.crash()
    with structlog.testing.capture_logs() as logs:
        async with tiers.open(policy=policy) as container:
            assert len(active_names(container)) == 50
            await container.append("s7", b"x")
    [operations] = [log["operations"] for log in logs if log["event"] == "container recovered"]
    assert operations < 10


async def test_no_checkpoint_comes_early_after_a_few_changes_or_while_others_follow(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=5000)
    async with tiers.open(policy=policy) as container:
        for number in range(QUIET_CHANGES_MAX):
            await container.create_segment(f"few{number}")
        await trio.sleep(5)
        assert container.parts.metadata.change_count == QUIET_CHANGES_MAX
        for number in range(QUIET_CHANGES_MAX):
            await container.create_segment(f"following{number}")
            await trio.sleep(0.5)
        assert container.parts.metadata.change_count == 2 * QUIET_CHANGES_MAX
        await trio.sleep(3)
        assert container.parts.metadata.change_count == 0


async def test_what_leaves_counts_for_the_time_that_a_start_takes_for_it(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        for number in range(300):
            await container.create_segment(f"s{number}")
        before = container.parts.metadata.change_count
        await evict(container)
        assert container.parts.metadata.change_count - before >= 300 // RECORDS_PER_CHANGE


async def test_a_checkpoint_has_active_segments_only(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        for number in range(300):
            await container.create_segment(f"scope/stream{number}/0.#epoch.0")
        everything = len(container.parts.metadata.snapshot(1))
        await evict(container)
        await container.append("scope/stream7/0.#epoch.0", b"x")
        await container.flush()
        assert len(container.parts.metadata.snapshot(1)) < everything / 50


async def test_a_start_reads_no_records(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        for number in range(300):
            await container.create_segment(f"s{number}")
        await evict(container)
    tiers.calls.clear()
    async with tiers.open() as container:
        assert container.parts.metadata.by_name == {}
        reads_to_start = tiers.calls.count("read")
        assert reads_to_start <= 2, "the chunks' metadata"
        await container.append("s7", b"x")
        assert active_names(container) == {"s7"}


async def test_several_who_want_a_segment_load_it_once(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"abc")
        await evict(container)
        activated = count_activations(container)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(container.activate, "s")
                nursery.start_soon(container.append, "s", b"x")
                nursery.start_soon(container.get_attributes, "s", [WRITER])
            assert (await container.read("s", offset=0, length_max=3)).data == b"abc"
        assert activated == ["s"]
        assert container.segment_info("s").length == 8


async def test_operations_on_an_inactive_segment_keep_their_order(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await evict(container)
        lengths: list[int] = []
        for number in range(20):
            container.append_nowait(
                "s", bytes([number]), on_complete=lambda _, length: lengths.append(length)
            )
        assert await container.seal_segment("s") == 20
        assert lengths == list(range(1, 21))
        assert (await container.read("s", offset=0, length_max=20)).data == bytes(range(20))


async def test_a_name_of_no_segment_is_refused_without_asking_tier_2_twice(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        for number in range(50):
            await container.create_segment(f"s{number}")
        await evict(container)
        await container.flush()
    async with tiers.open() as container:
        for _ in range(3):
            with pytest.raises(NoSuchSegmentError):
                await container.append("absent", b"x")
            reads = tiers.calls.count("read")
            with pytest.raises(NoSuchSegmentError):
                await container.read("absent", offset=0, length_max=1)
            with pytest.raises(NoSuchSegmentError):
                await container.get_attributes("another", [WRITER])
            with pytest.raises(NoSuchSegmentError):
                await container.delete_segment("absent too")
            with pytest.raises(SegmentExistsError):
                await container.create_segment("s7")
        assert tiers.calls.count("read") == reads


async def test_what_tier_2_cannot_tell_is_refused_and_told_when_it_can(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"x")
        await evict(container)
    async with tiers.open() as container:
        tiers.refuse_reads()
        with pytest.raises(StorageError):
            await container.append("s", b"y")
        with pytest.raises(StorageError):
            await container.create_segment("s")
        with pytest.raises(StorageError):
            await container.create_segment("t")
        with pytest.raises(StorageError):
            await container.read("s", offset=0, length_max=1)
        with pytest.raises(StorageError):
            await container.activate("s")
        tiers.refuse_nothing()
        assert await container.append("s", b"y") == 2
        with pytest.raises(SegmentExistsError):
            await container.create_segment("s")
        await container.create_segment("t")


async def test_a_cancelled_read_of_an_inactive_segment_is_not_answered(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"x")
        await evict(container)
        answers: list[object] = []
        handle = container.read_nowait(
            "s", offset=0, length_max=1, on_complete=lambda _, result: answers.append(result)
        )
        assert handle is not None
        handle.cancel()
        await container.activate("s")
        await container.wait_in_flight("s")
        assert answers == []


async def test_a_read_that_waits_for_its_segment_is_answered_at_the_stop(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        await evict(container)
        answers: list[tuple[object, object]] = []
        for offset in (0, 0):
            container.read_nowait(
                "s",
                offset=offset,
                length_max=1,
                on_complete=lambda error, result: answers.append((error, result)),
            )
    assert [error for error, _ in answers] == [None, None]


async def test_records_have_no_name_that_clients_get_to(tiers: CrashingTiers) -> None:
    name = records_name(0)
    async with tiers.open() as container:
        await container.create_segment("s")
        await evict(container)
        with pytest.raises(NoSuchSegmentError):
            await container.append(name, b"x")
        with pytest.raises(NoSuchSegmentError):
            await container.delete_segment(name)
        await container.create_segment(name)
        await container.append(name, b"mine")
        await evict(container)
        await checkpoint(container)
    async with tiers.open() as container:
        assert (await container.read(name, offset=0, length_max=9)).data == b"mine"
        await container.delete_segment(name)
        assert await container.append("s", b"x") == 1


async def test_ids_are_never_given_twice(tiers: CrashingTiers) -> None:
    given: list[int] = []
    async with tiers.open() as container:
        for _ in range(3):
            await container.create_segment("s")
            given.append(container.parts.metadata.by_name["s"].segment_id)
            await evict(container)
            await container.delete_segment("s")
            await checkpoint(container)
    async with tiers.open() as container:
        await container.create_segment("s")
        given.append(container.parts.metadata.by_name["s"].segment_id)
    assert len(set(given)) == 4


def test_a_snapshot_of_another_version_is_refused() -> None:
    entry = [3, "s", 10, 2, 10, True, 77, 0, b""]
    for version in (0, 1, 2, 4):
        with pytest.raises(DataLogCorruptError, match=f"snapshot of version {version}"):
            ContainerMetadata(0).restore(msgspec.msgpack.encode([version, 0, 9, 4, [entry]]))


def test_a_snapshot_without_the_records_it_speaks_of_is_damaged() -> None:
    with pytest.raises(DataLogCorruptError):
        ContainerMetadata(0).restore(msgspec.msgpack.encode([3, 0, 9, 4, [], 2]))
