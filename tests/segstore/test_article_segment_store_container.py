"""The segment store article: container metadata and segment metadata, on both real tiers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
import trio
import trio.testing

from segstore.container import Container
from segstore.errors import (
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segstore.model.operations import AppendOperation, CheckpointOperation, MapOperation
from segstore.testing.local_tiers import LocalTiers, read_all, until

# ---- Container metadata --------------------------------------------------------------------------


async def test_operation_sequence_numbers_grow_by_one_through_refusals_and_restarts(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    numbers: list[int] = []
    for life in range(3):
        async with tiers.container(crashes=life == 1) as container:
            if life == 0:
                await container.create_segment("s")
            for _ in range(5):
                await container.append("s", b"x")
                with pytest.raises(SegmentError):
                    await container.append("s", b"refused", expected_offset=0)
        numbers += [operation.sequence_number for operation in tiers.log.operations]
    assert len(numbers) > 15
    assert all(second == first + 1 for first, second in pairwise(numbers)), numbers


async def test_operation_sequence_numbers_are_never_given_again_after_a_failure(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(crashes=True) as container:
        await container.create_segment("s")
        tiers.log.holding = True
        waiting: list[object] = []
        container.append_nowait("s", b"one", on_complete=lambda error, _: waiting.append(error))
        await until(lambda: tiers.log.held_count == 1)
        assert waiting == []
        last = tiers.log.operations[-1].sequence_number
    assert isinstance(waiting[0], ContainerOfflineError), "nobody was told that it is durable"
    async with tiers.container() as container:
        # It was durable all the same, and its number is taken.
        assert await container.append("s", b"two") == 6
        assert tiers.log.operations[0].sequence_number == last + 1


async def test_epoch_grows_with_every_start_of_the_container(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    epochs = []
    for life in range(4):
        async with tiers.container(crashes=life % 2 == 0) as container:
            epochs.append(tiers.log.epoch)
            if life == 0:
                await container.create_segment("s")
            await container.append("s", b"x")
    assert all(first < second for first, second in pairwise(epochs)), epochs


async def test_epoch_fences_tier_2_chunks_of_an_earlier_owner_are_never_written_again(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    written: list[set[str]] = []
    for life in range(3):
        async with tiers.container() as container:
            if life == 0:
                await container.create_segment("s")
            await container.append("s", b"x" * 100)
            await container.drain()
        written.append({call.name for call in tiers.chunks.calls_for("write", "s")})
    assert all(written)
    assert not written[0] & written[1]
    assert not (written[0] | written[1]) & written[2]


async def test_active_segment_metadata_is_all_there_after_a_start(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        for number in range(50):
            await container.create_segment(f"s{number}")
            await container.append(f"s{number}", bytes(number))
    async with tiers.container() as container:
        for number in range(50):
            assert container.segment_info(f"s{number}").length == number
            assert await read_all(container, f"s{number}") == bytes(number)


async def test_tier_1_metadata_keeps_the_log_as_long_as_tier_2_has_not_everything(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"], held_bytes_max=1) as container:
        await container.create_segment("s")
        await container.append("s", b"only tier 1 has this")
        await until(lambda: checkpoint_addresses(tiers)[1:])  # it would like to let the log go
        before = [entry.address for entry in tiers.log.entries if has_append(entry.operations)]
        assert not any(address > before[0] for address in tiers.log.truncations)
        tiers.chunks.refused.clear()
        await until(lambda: max(tiers.log.truncations, default=before[0]) > before[0])
        assert await tiers.stored("s") == b"only tier 1 has this"


def has_append(operations: Sequence[object]) -> bool:
    return any(isinstance(operation, AppendOperation) for operation in operations)


def checkpoint_addresses(tiers: LocalTiers) -> list[object]:
    return [
        entry.address
        for entry in tiers.log.entries
        if any(isinstance(operation, CheckpointOperation) for operation in entry.operations)
    ]


async def test_checkpoints_have_the_whole_metadata_so_that_no_operation_before_is_needed(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(held_bytes_max=1, now_ms=lambda: 77) as container:
        await container.create_segment("s", attributes={bytes(16): 5})
        await container.append("s", b"0123456789")
        await container.truncate_segment("s", offset=4)
        await container.seal_segment("s")
        await container.create_segment("t")
        await trio.sleep(60)
        expected = [container.segment_info(name) for name in ("s", "t")]
    async with tiers.container() as container:
        replayed = [
            operation
            for operation in container_log(tiers)
            if isinstance(operation, AppendOperation | MapOperation)
        ]
        assert replayed == [], "the operations themselves are gone"
        assert [container.segment_info(name) for name in ("s", "t")] == expected
        assert await container.get_attributes("s", [bytes(16)]) == {bytes(16): 5}
        assert await read_all(container, "s") == b"456789"


def container_log(tiers: LocalTiers) -> list[object]:
    """Return the operations that a recovery found in the log."""
    return list(tiers.log.read_operations)


# ---- Segment metadata ----------------------------------------------------------------------------


async def test_id_is_a_segments_own_for_its_whole_life_and_no_namesakes(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        for _ in range(2):
            await container.create_segment("s")
            await container.append("s", b"x")
            await container.delete_segment("s")
        await container.create_segment("s")
        await container.append("s", b"third")
        maps = [each for each in tiers.log.operations if isinstance(each, MapOperation)]
        assert [each.name for each in maps] == ["s", "s", "s"]
        ids = [each.segment_id for each in maps]
        assert len(set(ids)) == 3
    async with tiers.container() as container:
        await container.append("s", b" again")
        appended = tiers.log.operations[-1]
        assert isinstance(appended, AppendOperation)
        assert appended.segment_id == ids[2], "the same id in another life"
        assert await read_all(container, "s") == b"third again"


async def test_start_offset_begins_at_0_and_never_goes_down(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await container.append("s", bytes(range(10)))
        assert container.segment_info("s").start_offset == 0
        await container.truncate_segment("s", offset=4)
        with pytest.raises(SegmentTruncatedError):
            await container.truncate_segment("s", offset=3)
        assert container.segment_info("s").start_offset == 4
        with pytest.raises(SegmentTruncatedError):
            await container.read("s", offset=3, length_max=1)
        assert (await container.read("s", offset=4, length_max=1)).data == b"\x04"
    async with tiers.container() as container:
        assert container.segment_info("s").start_offset == 4


async def test_storage_length_is_what_tier_2_has_and_length_what_tier_1_has(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        await container.append("s", b"12345")
        await trio.sleep(30)
        info = container.segment_info("s")
        assert (info.storage_length, info.length) == (0, 5)
        tiers.chunks.refused.clear()
        await until(lambda: container.segment_info("s").storage_length == 5)
        assert container.segment_info("s").length == 5
        assert await tiers.stored("s") == b"12345"


async def test_length_counts_committed_data_alone(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await container.append("s", b"committed")
        tiers.log.holding = True
        done = trio.Event()
        container.append_nowait("s", b" or not", on_complete=lambda error, length: done.set())
        await until(lambda: tiers.log.held_count == 1)
        assert container.segment_info("s").length == 9
        tiers.log.release()
        await done.wait()
        assert container.segment_info("s").length == 16


async def test_last_modified_is_the_time_of_the_last_acknowledged_append(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    now = 1000
    async with tiers.container(now_ms=lambda: now) as container:
        await container.create_segment("s")
        now = 2000
        await container.append("s", b"x")
        now = 3000
        with pytest.raises(SegmentError):
            await container.append("s", b"x", expected_offset=100)
        await read_all(container, "s")
        assert container.segment_info("s").last_modified_ms == 2000


async def test_is_sealed_counts_at_once_and_stays_when_tier_2_has_everything(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        await container.append("s", b"data")
        assert await container.seal_segment("s") == 4
        info = container.segment_info("s")
        assert (info.sealed, info.storage_length) == (True, 0), "not applied to tier 2 yet"
        with pytest.raises(SegmentSealedError):
            await container.append("s", b"more")
        tiers.chunks.refused.clear()
        await container.drain()
        assert container.segment_info("s").storage_length == 4
    async with tiers.container() as container:
        assert container.segment_info("s").sealed
        with pytest.raises(SegmentSealedError):
            await container.append("s", b"more")
        with pytest.raises(SegmentSealedError):
            await container.seal_segment("s")


async def test_is_merged_hides_the_transaction_before_tier_2_has_the_merge(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("parent")
        await container.create_segment("transaction")
        await container.append("transaction", b"all or nothing")
        await container.merge_segment("parent", "transaction")
        assert container.segment_info("parent").storage_length == 0
        with pytest.raises(NoSuchSegmentError):
            container.segment_info("transaction")
        assert await read_all(container, "parent") == b"all or nothing"
        tiers.chunks.refused.clear()
        await container.drain()
        assert await tiers.stored("parent") == b"all or nothing"
        assert not [
            name for name in await tiers.storage.segment_names() if name.startswith("transaction.S")
        ], "once the merge is in tier 2 there is no transaction any more"
        await container.create_segment("transaction")
        assert container.segment_info("transaction").length == 0, "the name is free again"


async def test_is_deleted_is_told_to_everybody_and_reaches_tier_2(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        await container.append("s", b"data")
        await container.drain()
        assert await tiers.stored("s") == b"data"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_gone, container, "s")
            await trio.sleep(5)
            await container.delete_segment("s")
        with pytest.raises(NoSuchSegmentError):
            await container.append("s", b"more")
        with pytest.raises(NoSuchSegmentError):
            await container.delete_segment("s")
        await container.drain()
        assert [name for name in await tiers.storage.segment_names() if name[:3] == "s.S"] == []
        await until(lambda: tiers.chunks.calls_for("delete", "s"))  # the chunk goes a little later
    async with tiers.container() as container:
        with pytest.raises(NoSuchSegmentError):
            container.segment_info("s")


async def expect_gone(container: Container, name: str) -> None:
    with pytest.raises(NoSuchSegmentError):
        await container.read(name, offset=4, length_max=10)


async def test_segment_invariants_hold_at_every_moment(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    random = Random(1)
    async with tiers.container(held_bytes_max=1) as container:
        names = ["a", "b", "c"]
        for name in names:
            await container.create_segment(name)
        seen = set()
        ends = dict.fromkeys(names, (0, 0))

        async def watch() -> None:
            while True:
                for name in names:
                    info = container.segment_info(name)
                    assert info.storage_length <= info.length
                    assert info.start_offset <= info.length
                    assert (info.start_offset, info.length) >= ends[name]
                    ends[name] = (info.start_offset, info.length)
                    seen.add(info.length - info.storage_length > 0)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for _ in range(300):
                name = random.choice(names)
                await container.append(name, random.randbytes(random.randrange(2000)))
                if random.random() < 0.1:
                    info = container.segment_info(name)
                    offset = random.randint(info.start_offset, info.length)
                    await container.truncate_segment(name, offset=offset)
                if random.random() < 0.05:
                    await trio.sleep(10)
            await container.drain()
            nursery.cancel_scope.cancel()
        assert seen == {True, False}, "tier 2 was behind now and then, and caught up"
