"""The segment store article: storage writer, aggregators and tier 2 truncation, on both tiers."""

from __future__ import annotations

import os
from random import Random

import pytest
import trio
import trio.testing

from segstore.errors import ChunkDamagedError, SegmentTruncatedError
from segstore.model.attributes import ROLLOVER_SIZE
from segstore.testing.local_tiers import MIB, LocalTiers, read_all, until
from segstore.tiers.chunk_paths import path_of


async def test_storage_writer_brings_everything_to_tier_2_without_being_asked(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        for name in ("a", "b"):
            await container.create_segment(name)
            await container.append(name, name.encode() * 1000)
        for name in ("a", "b"):
            await until(lambda name=name: container.segment_info(name).storage_length == 1000)
            assert await tiers.stored(name) == name.encode() * 1000


async def test_storage_writer_aggregates_small_appends_into_few_large_writes(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        for name in ("a", "b", "c"):
            await container.create_segment(name)
        for number in range(600):
            await container.append("abc"[number % 3], b"%05d" % number)
        tiers.chunks.refused.clear()
        await container.drain()
        for first, name in enumerate("abc"):
            expected = b"".join(b"%05d" % number for number in range(first, 600, 3))
            assert await tiers.stored(name) == expected
            [written] = tiers.chunks.calls_for("write", name)
            assert written.length == 1000, "200 appends, one write"


async def test_storage_writer_splits_what_is_long_into_large_writes(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    data = Random(5).randbytes(10 * MIB)
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        for offset in range(0, len(data), MIB):
            await container.append("s", data[offset : offset + MIB])
        tiers.chunks.refused.clear()
        await container.drain()
        lengths = [call.length for call in tiers.chunks.calls_for("write", "s")]
        assert lengths == [4 * MIB, 4 * MIB, 2 * MIB]
        assert await tiers.stored("s") == data


async def test_storage_writer_applies_operations_in_the_order_of_the_log(
    tiers: LocalTiers, still_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(refused=["write"]) as container:
        await container.create_segment("s")
        await container.append("s", b"one ")
        for number, name in enumerate(("x", "y")):
            await container.create_segment(name)
            await container.append(name, b"transaction %d " % number)
            await container.merge_segment("s", name)
            await container.append("s", b"then ")
        await container.truncate_segment("s", offset=2)
        await container.append("s", b"end")
        await container.seal_segment("s")
        assert tiers.chunks.calls_for("write", "") == []
        tiers.chunks.refused.clear()
        await container.drain()
        expected = b"one transaction 0 then transaction 1 then end"
        assert (await tiers.stored("s"))[-len(expected) + 2 :] == expected[2:]
        assert await read_all(container, "s") == expected[2:]


async def test_storage_writer_keeps_no_state_and_begins_anew_with_the_log(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container(crashes=True) as container:
        await container.create_segment("s")
        await container.append("s", b"in tier 2 already, ")
        await until(lambda: container.segment_info("s").storage_length == 19)
        tiers.chunks.refused.add("write")
        await container.append("s", b"in tier 1 alone")
    async with tiers.container() as container:
        # The log has both appends; the writer finds out what tier 2 has.
        await container.drain()
        [written] = tiers.chunks.calls_for("write", "s")
        assert written.length == 15
        assert await tiers.stored("s") == b"in tier 2 already, in tier 1 alone"


async def test_storage_writer_tries_again_while_tier_2_fails_and_doubles_nothing(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        await container.create_segment("s")
        for number in range(5):
            tiers.chunks.refused = {"write", "delete"}
            await container.append("s", b"%d" % number)
            await trio.sleep(20)
            assert container.segment_info("s").storage_length == number
            tiers.chunks.refused = set()
            await until(lambda n=number: container.segment_info("s").storage_length > n)
            assert container.segment_info("s").storage_length == number + 1
        assert await tiers.stored("s") == b"01234"


@pytest.mark.parametrize("log_has_it", [True, False])
async def test_storage_writer_and_recovery_detect_that_tier_2_was_changed_by_others(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock, log_has_it: bool
) -> None:
    async with tiers.container(crashes=log_has_it) as container:
        await container.create_segment("s")
        await container.append("s", b"0123456789")
        await until(lambda: container.segment_info("s").storage_length == 10)
        [written] = tiers.chunks.calls_for("write", "s")
    os.truncate(tiers.path / "chunks" / path_of(written.name), 4)
    if log_has_it:
        async with tiers.container() as container:
            assert await read_all(container, "s") == b"0123456789"
            await container.drain()
            assert await tiers.stored("s") == b"0123456789", "what was lost is written again"
        return
    async with tiers.container(crashes=True) as container:
        with pytest.raises(ChunkDamagedError, match="is shorter than 10 bytes"):
            await container.read("s", offset=0, length_max=4)
        # What comes behind is stored and read as ever: only what was lost is refused.
        await container.append("s", b", and more")
        await until(lambda: container.segment_info("s").storage_length == 20)
        assert (await container.read("s", offset=10, length_max=10)).data == b", and more"


@pytest.fixture
def slower_clock() -> trio.testing.MockClock:
    """A clock five times as fast as the real one: what is due after seconds can be told from the
    rest."""
    return trio.testing.MockClock(rate=5)


# ---- Aggregators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["merge", "truncate", "delete"])
async def test_aggregators_with_a_merge_truncate_or_delete_are_flushed_at_once(
    tiers: LocalTiers, slower_clock: trio.testing.MockClock, kind: str
) -> None:
    async with tiers.container() as container:
        for name in ("s", "t"):
            await container.create_segment(name)
        await container.append("s", bytes(1000))
        await container.append("t", bytes(1000))
        began = trio.current_time()
        if kind == "merge":
            await container.merge_segment("s", "t")
        elif kind == "truncate":
            await container.truncate_segment("s", offset=500)
        else:
            await container.delete_segment("s")
        names = None
        while trio.current_time() - began < 4:  # before it is due by its age
            await trio.sleep(0.2)
            names = {name.partition(".")[0] for name in await tiers.storage.segment_names()}
            if kind == "delete":
                done = "s" not in names
            else:
                done = container.segment_info("s").storage_length >= 1000
            if done:
                break
        else:
            pytest.fail(f"after {trio.current_time() - began} seconds tier 2 has {names}")


async def test_aggregators_are_flushed_when_they_have_much_or_wait_long(
    tiers: LocalTiers, slower_clock: trio.testing.MockClock
) -> None:
    async with tiers.container() as container:
        for name in ("much", "little"):
            await container.create_segment(name)
        await container.append("little", b"x")
        for _ in range(5):
            await container.append("much", bytes(MIB))
        await trio.sleep(4)
        assert container.segment_info("much").storage_length >= 4 * MIB
        await trio.sleep(10)
        assert container.segment_info("little").storage_length == 1


# ---- Tier 2 truncation ---------------------------------------------------------------------------


async def test_tier_2_truncation_by_chunks_keeps_offsets_and_deletes_what_was_cut_off(
    tiers: LocalTiers, fast_clock: trio.testing.MockClock
) -> None:
    data = Random(9).randbytes(100_000)
    async with tiers.container() as container:
        await container.create_segment("s", attributes={ROLLOVER_SIZE: 10_000})
        await container.append("s", data)
        await container.drain()
        [name] = [n for n in await tiers.storage.segment_names() if n.startswith("s.")]
        before = await tiers.storage.chunks_of(name)
        assert [chunk.start for chunk in before] == list(range(0, 100_000, 10_000))
        await container.truncate_segment("s", offset=54_321)
        with pytest.raises(SegmentTruncatedError):
            await container.read("s", offset=54_320, length_max=1)
        await container.drain()
        after = await tiers.storage.chunks_of(name)
        assert [chunk.start for chunk in after] == [50_000, 60_000, 70_000, 80_000, 90_000]
        files = tiers.path / "chunks"
        await until(lambda: not any((files / path_of(each.name)).exists() for each in before[:5]))
        deleted = {call.name for call in tiers.chunks.calls_for("delete", "s")}
        assert deleted == {chunk.name for chunk in before[:5]}
        left = {info.name for info in await tiers.chunks.list_chunks("s.")}
        assert left == {chunk.name for chunk in after}
    async with tiers.container() as container:
        result = await container.read("s", offset=54_321, length_max=10)
        assert (result.offset, result.data) == (54_321, data[54_321:54_331])
        assert await read_all(container, "s") == data[54_321:]
