"""Rounds of watermarks over a real segment store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.errors import NotFoundError, StreamNotFoundError
from pravega_controller.metadata.records import IntentRecord
from pravega_controller.metadata.streams import epochs as epoch_records
from pravega_controller.rules.streams import ScaleType, ScalingPolicy, StreamConfiguration
from pravega_controller.rules.transactions import TransactionState, segment_name
from pravega_controller.watermarks.watermarks import (
    WRITER_MARKS,
    OldPositionError,
    OldTimeError,
    Watermarks,
)
from pravega_wire import names
from pravega_wire.commands import NULL_ATTRIBUTE_VALUE
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.watermarks import SegmentWithRange, Watermark, decode_watermark

QUIET: dict[str, Any] = {
    "request_poll_seconds": 0.0,
    "retention_period_seconds": 0.0,
    "watermark_period_seconds": 0.0,
}


class Scene:
    """A controller whose rounds the test makes."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.marks: Watermarks = controller.watermarks
        self.segments = self.marks._segments

    async def create(self, count: int = 1, *, timeout_ms: int = 0) -> None:
        scaling = ScalingPolicy(ScaleType.FIXED, count)
        configuration = StreamConfiguration(scaling, timestamp_aggregation_timeout_ms=timeout_ms)
        await self.controller.streams.create("s", "t", configuration)

    async def record(self, writer: str, time: int, position: dict[int, int]) -> None:
        """Write up to a position or further, and record it."""
        for segment_id, offset in position.items():
            await self.write_up_to(names.segment_name("s", "t", segment_id), offset)
        await self.marks.record_mark("s", "t", writer, time, position)

    async def write_up_to(self, segment: str, offset: int) -> None:
        info = await self.segments.segment_info(segment)
        if info is not None and info.length < offset and not info.is_sealed:
            data = bytes(offset - info.length)
            await self.segments.append_if_at(
                segment, data, expected_offset=info.length, writer_id=bytes(16)
            )

    async def watermarks(self) -> list[Watermark]:
        """Run another round; return all watermarks that were written."""
        await self.marks.run_round()
        segment = "s/_MARKt/0.#epoch.0"
        info = await self.segments.segment_info(segment)
        assert info is not None
        data = await self.segments.read_segment(segment, offset=0, length=info.length)
        return [decode_watermark(data[start:end]) for start, end in iterate_event_spans(data)]

    async def writers(self) -> set[str]:
        pages = [page async for page in self.marks._tables.pages(WRITER_MARKS)]
        return {entry.key.decode().rpartition("/")[2] for page in pages for entry in page}


@pytest.fixture
async def scene(segment_store: tuple[str, int]) -> AsyncIterator[Scene]:
    config = ControllerConfig(segment_stores=(segment_store,), **QUIET)
    async with open_controller(config, Environment(random=Random(7))) as controller:
        await controller.scopes.create("s")
        yield Scene(controller)


def whole(offset: int) -> dict[SegmentWithRange, int]:
    return {SegmentWithRange(0, 0.0, 1.0): offset}


async def test_the_slowest_writer_gives_the_time_and_the_fastest_the_cut(scene: Scene) -> None:
    await scene.create(timeout_ms=60_000)
    await scene.record("a", 100, {0: 10})
    await scene.record("b", 120, {0: 30})
    first = Watermark(100, 120, whole(30))
    assert await scene.watermarks() == [first]
    assert await scene.watermarks() == [first]


async def test_watermarks_follow_each_other_and_the_mark_leads_to_the_last(scene: Scene) -> None:
    await scene.create(timeout_ms=60_000)
    segment = "s/_MARKt/0.#epoch.0"
    for number in range(1, 4):
        await scene.record("a", 10 * number, {0: number})
        found = await scene.watermarks()
        assert found[-1] == Watermark(10 * number, 10 * number, whole(number))
        assert len(found) == number
        mark = await scene.segments.get_attribute(segment, REVISION_MARK)
        info = await scene.segments.segment_info(segment)
        assert info is not None
        expected = NULL_ATTRIBUTE_VALUE if number == 1 else info.length * (number - 1) // number
        assert mark == expected


async def test_a_position_beyond_the_tail_ends_at_the_tail(scene: Scene) -> None:
    """The cut was beyond the tail: no reader got there, and Spark was refused such a start."""
    await scene.create(2)
    await scene.record("a", 100, {0: 10, 1: 5})
    await scene.marks.record_mark("s", "t", "a", 200, {0: 10_000, 1: 2**62})
    halves = SegmentWithRange(0, 0.0, 0.5), SegmentWithRange(1, 0.5, 1.0)

    async def tail() -> dict[SegmentWithRange, int]:
        infos = await scene.segments.segment_infos(["s/t/0.#epoch.0", "s/t/1.#epoch.0"])
        return {half: info.length for half, info in zip(halves, infos, strict=True) if info}

    before = await tail()
    assert await scene.watermarks() == [Watermark(200, 200, before)]
    await scene.write_up_to("s/t/0.#epoch.0", 30)
    await scene.marks.record_mark("s", "t", "a", 300, {0: 10_000, 1: 2**62})
    after = await tail()
    assert after[halves[0]] > before[halves[0]]
    assert (await scene.watermarks())[-1].cut == after


async def test_marks_do_not_go_back(scene: Scene) -> None:
    await scene.create()
    await scene.record("a", 100, {0: 10})
    await scene.record("a", 100, {0: 10})
    with pytest.raises(OldTimeError):
        await scene.record("a", 99, {0: 20})
    with pytest.raises(OldPositionError):
        await scene.record("a", 101, {0: 9})
    with pytest.raises(StreamNotFoundError):
        await scene.marks.record_mark("s", "none", "a", 1, {})


async def test_a_writer_that_lags_is_waited_for(scene: Scene) -> None:
    await scene.create(timeout_ms=60_000)
    await scene.record("a", 100, {0: 10})
    await scene.record("b", 100, {0: 10})
    assert len(await scene.watermarks()) == 1
    await scene.record("a", 200, {0: 20})
    assert len(await scene.watermarks()) == 1
    await scene.record("b", 150, {0: 15})
    assert (await scene.watermarks())[-1] == Watermark(150, 200, whole(20))


async def test_a_writer_that_sends_a_mark_while_it_is_removed_stays(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.create()
    for writer in ("a", "b"):
        await scene.record(writer, 100, {0: 10})
    await scene.watermarks()
    await scene.record("a", 200, {0: 20})
    remove = scene.marks._tables.remove

    async def mark_first(table: str, key: bytes, *, version: int) -> None:
        await scene.record("b", 150, {0: 15})
        await remove(table, key, version=version)

    monkeypatch.setattr(scene.marks._tables, "remove", mark_first)
    await scene.marks.run_round()
    assert await scene.writers() == {"a", "b"}


async def test_without_a_time_out_a_writer_that_lags_is_gone(scene: Scene) -> None:
    await scene.create()
    await scene.record("a", 100, {0: 10})
    await scene.record("b", 100, {0: 10})
    await scene.watermarks()
    await scene.record("a", 200, {0: 20})
    assert (await scene.watermarks())[-1] == Watermark(200, 200, whole(20))
    assert await scene.writers() == {"a"}
    await scene.watermarks()
    assert await scene.writers() == set()


async def test_positions_of_epochs_that_were_dropped_hold_up_no_watermark(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    await scene.create(timeout_ms=60_000)
    await scene.record("a", 100, {0: 10})
    assert len(await scene.watermarks()) == 1
    streams, old_epochs = scene.controller.streams, scene.controller.old_epochs
    for number in range(9):
        active = names.segment_id(number, number)
        await streams.scale("s", "t", [active], [(0.0, 1.0)], now_ms=number)
        await streams.workflows.work.finish("s", "t")
    last = names.segment_id(9, 9)
    await streams.truncate("s", "t", {last: 0})
    old_epochs.expiring_ms = 0
    for _ in range(3):
        await old_epochs.drop("s", "t")
    assert (await scene.controller.store.streams.read("s", "t")).record.first_epoch == 8
    # All that is known of where it is lies before the first epoch: the cut is where that begins.
    await scene.record("a", 200, {0: 10})
    first = SegmentWithRange(names.segment_id(8, 8), 0.0, 1.0)
    assert (await scene.watermarks())[-1] == Watermark(200, 200, {first: 0})
    await scene.record("a", 300, {0: 10})
    await scene.record("b", 310, {last: 5})
    cut = {SegmentWithRange(last, 0.0, 1.0): 5}
    assert (await scene.watermarks())[-1] == Watermark(300, 310, cut)


async def test_a_removed_writer_counts_until_it_lags(scene: Scene) -> None:
    await scene.create(timeout_ms=60_000)
    await scene.record("a", 100, {0: 10})
    await scene.record("b", 90, {0: 10})
    await scene.marks.remove("s", "t", "b")
    assert (await scene.watermarks())[-1].lower == 90
    await scene.record("a", 200, {0: 20})
    assert (await scene.watermarks())[-1].lower == 200
    for writer, stream in (("b", "t"), ("c", "t"), ("a", "none")):
        with pytest.raises(NotFoundError):
            await scene.marks.remove("s", stream, writer)


async def test_cuts_are_whole_across_scales(scene: Scene) -> None:
    await scene.create(2)
    await scene.record("a", 100, {0: 5})
    first = {SegmentWithRange(0, 0.0, 0.5): 5, SegmentWithRange(1, 0.5, 1.0): 0}
    assert (await scene.watermarks())[-1].cut == first
    await scene.controller.streams.scale("s", "t", [1], [(0.5, 0.7), (0.7, 1.0)], now_ms=1)
    scene.controller.finish_later(IntentRecord("stream", "s", "t"))
    with trio.fail_after(60):
        while (await scene.controller.store.streams.read("s", "t")).record.pending:  # noqa: ASYNC110
            await trio.sleep(0.01)
    upper = 1 << 32 | 3
    await scene.record("a", 200, {0: 6, upper: 4})
    assert (await scene.watermarks())[-1].cut == {
        SegmentWithRange(0, 0.0, 0.5): 6,
        SegmentWithRange(1 << 32 | 2, 0.5, 0.7): 0,
        SegmentWithRange(upper, 0.7, 1.0): 4,
    }


async def test_another_controller_goes_on_where_the_first_was(
    scene: Scene, segment_store: tuple[str, int]
) -> None:
    await scene.create(timeout_ms=60_000)
    await scene.record("a", 100, {0: 10})
    assert len(await scene.watermarks()) == 1
    config = ControllerConfig(segment_stores=(segment_store,), **QUIET)
    async with open_controller(config, Environment(random=Random(8))) as controller:
        other = Scene(controller)
        assert len(await other.watermarks()) == 1
        await other.record("a", 200, {0: 20})
        assert len(await other.watermarks()) == 2
    await scene.record("a", 300, {0: 30})
    found = await scene.watermarks()
    assert [each.lower for each in found] == [100, 200, 300]


async def test_of_two_controllers_one_writes(scene: Scene, segment_store: tuple[str, int]) -> None:
    await scene.create(timeout_ms=60_000)
    config = ControllerConfig(segment_stores=(segment_store,), **QUIET)
    async with open_controller(config, Environment(random=Random(8))) as controller:
        other = Scene(controller)
        for number in range(1, 6):
            await scene.record("a", 10 * number, {0: number})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scene.marks.run_round)
                nursery.start_soon(other.marks.run_round)
            assert [each.lower for each in await scene.watermarks()] == [
                10 * n for n in range(1, number + 1)
            ]


async def test_marks_of_a_stream_that_is_gone_go_too(scene: Scene) -> None:
    await scene.create()
    await scene.record("a", 100, {0: 10})
    await scene.controller.streams.seal("s", "t")
    await scene.controller.streams.delete("s", "t")
    await scene.marks.run_round()
    assert await scene.writers() == set()


async def test_a_stream_of_the_same_name_has_writers_of_its_own(scene: Scene) -> None:
    await scene.create()
    await scene.record("a", 100, {0: 10})
    await scene.controller.streams.seal("s", "t")
    await scene.controller.streams.delete("s", "t")
    await scene.create()
    await scene.record("a", 50, {1: 1})
    await scene.marks.run_round()
    mark = await scene.controller.store.streams.read("s", "_MARKt")
    segment = mark.segment_name(mark.active[0].segment_id)
    info = await scene.segments.segment_info(segment)
    assert info is not None
    data = await scene.segments.read_segment(segment, offset=0, length=info.length)
    [span] = iterate_event_spans(data)
    assert decode_watermark(data[slice(*span)]).lower == 50


async def commit(scene: Scene, writer: str, time: int | None) -> None:
    """Write ten bytes in a transaction, and have it committed."""
    transactions = scene.controller.transactions
    identifier = (await transactions.begin("s", "t", lease_ms=20_000)).identifier
    segment = segment_name("s", "t", 0, identifier)
    assert await scene.segments.append_if_at(
        segment, b"ab", expected_offset=0, writer_id=bytes(range(16))
    )
    assert await transactions.commit("s", "t", identifier, writer_id=writer, writer_ms=time)
    with trio.fail_after(60):
        while await transactions.state("s", "t", identifier) is not TransactionState.COMMITTED:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_committed_transactions_note_their_writers_times(scene: Scene) -> None:
    await scene.create(timeout_ms=60_000)
    await commit(scene, "w", None)
    await commit(scene, "", 50)
    assert await scene.watermarks() == []
    assert await scene.writers() == set()
    await commit(scene, "w", 200)
    await commit(scene, "w", 100)
    assert await scene.watermarks() == [Watermark(200, 200, whole(30))]
    await commit(scene, "w", 300)
    assert (await scene.watermarks())[-1] == Watermark(300, 300, whole(50))
