"""Rounds of retention over streams whose bytes and times the test makes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from pravega_controller.controller import Controller
from pravega_controller.errors import VersionConflictError
from pravega_controller.metadata.records import IntentRecord, NamedCut, ReaderGroupConfiguration
from pravega_controller.metadata.streams import epochs as epoch_records
from pravega_controller.retention.retention import (
    CUTS_MAX,
    RETENTION,
    Retention,
    RetentionRegistry,
    thin,
)
from pravega_controller.rules.retention import StoredCut
from pravega_controller.rules.streams import (
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfiguration,
)
from pravega_controller.store_client.placement import StaticPlacement
from pravega_controller.store_client.segment_client import SegmentClient, open_segment_client
from pravega_controller.store_client.table_client import TableClient
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_wire import names

SIZE, TIME = RetentionType.SIZE, RetentionType.TIME
PERIOD = 100
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
GROUP_ID = "11111111-2222-3333-4444-555555555555"


class Scene:
    """A controller whose rounds the test makes, a period after each other."""

    def __init__(
        self, controller: Controller, segments: SegmentClient, store: MemorySegmentStore
    ) -> None:
        self.controller = controller
        self.memory = store
        self.now_ms = 10_000_000
        self.tables = TableClient(segments, random=Random(3))
        registry = RetentionRegistry(self.tables, now_ms=lambda: self.now_ms)
        controller.streams._register_policies = registry.register
        self.retention = Retention(
            controller.store,
            controller.streams,
            segments,
            owns=lambda key: True,
            now_ms=lambda: self.now_ms,
            period_seconds=PERIOD,
        )

    async def create(self, policy: RetentionPolicy | None, *, count: int = 1) -> None:
        scaling = ScalingPolicy(ScaleType.FIXED, count)
        configuration = StreamConfiguration(scaling, policy)
        assert await self.controller.streams.create("s", "t", configuration)

    def write(self, *amounts: int, epoch: int = 0, first: int = 0) -> None:
        for number, amount in enumerate(amounts, first):
            self.memory.segments[f"s/t/{number}.#epoch.{epoch}"].append(b"x" * amount)

    async def round(self, *amounts: int) -> dict[int, int]:
        """Write, and let a period pass; returns the stream's head."""
        self.write(*amounts)
        self.now_ms += 1000 * PERIOD
        await self.retention.retain("s", "t")
        return await self.head()

    async def head(self) -> dict[int, int]:
        return await self.controller.streams.head("s", "t")

    async def keys(self) -> set[str]:
        pages = [page async for page in self.tables.pages(RETENTION)]
        return {entry.key.decode() for page in pages for entry in page}

    async def cuts(self) -> set[int]:
        """Return the times of the stream's cuts."""
        return {int(key.rpartition("/")[2]) for key in await self.keys() if key.count("/") == 2}

    async def subscribe(self, name: str) -> None:
        configuration = ReaderGroupConfiguration(
            1, 1, 1, 2, (NamedCut("s", "t", {}),), (NamedCut("s", "t", {}),)
        )
        await self.controller.groups.create("s", name, GROUP_ID, configuration)

    async def release(self, name: str, cut: dict[int, int]) -> None:
        await self.controller.groups.release(
            "s", "t", subscriber=f"s/{name}", group_id=GROUP_ID, generation=0, cut=cut
        )


@asynccontextmanager
async def open_scene(memory: MemorySegmentStore, open_on_memory: Any) -> AsyncIterator[Scene]:
    placement = StaticPlacement((("127.0.0.1", 1),), 4)
    async with (
        open_on_memory() as controller,
        open_segment_client(
            placement,
            open_stream=memory.open_stream,
            random=controller.store._random,
            reply_seconds_max=5,
            retry_seconds_max=5,
        ) as segments,
    ):
        yield Scene(controller, segments, memory)


@pytest.fixture
async def scene(memory_store: MemorySegmentStore, open_on_memory: Any) -> AsyncIterator[Scene]:
    async with open_scene(memory_store, open_on_memory) as scene:
        await scene.controller.scopes.create("s")
        await scene.retention.open()
        yield scene


def by_size(minimum: int, maximum: int = 0) -> RetentionPolicy:
    return RetentionPolicy(SIZE, minimum, maximum)


def by_time(minimum: int, maximum: int = 0) -> RetentionPolicy:
    return RetentionPolicy(TIME, 1000 * minimum, 1000 * maximum)


async def test_a_size_is_kept_and_what_is_older_goes(scene: Scene) -> None:
    await scene.create(by_size(100))
    assert await scene.round(60) == {0: 0}
    assert await scene.round(60) == {0: 0}
    assert await scene.round(60) == {0: 60}
    assert await scene.round(150) == {0: 180}
    segment = scene.memory.segments["s/t/0.#epoch.0"]
    assert (segment.start, segment.length) == (180, 330)


async def test_a_time_is_kept_and_what_is_older_goes(scene: Scene) -> None:
    await scene.create(by_time(2 * PERIOD))
    assert await scene.round(10) == {0: 0}
    assert await scene.round(10) == {0: 0}
    assert await scene.round(10) == {0: 10}
    assert await scene.round(10) == {0: 20}
    assert await scene.round(0) == {0: 30}
    assert await scene.round(0) == {0: 40}
    assert await scene.round(0) == {0: 40}


async def test_nothing_is_noted_while_nothing_is_written(scene: Scene) -> None:
    await scene.create(by_size(100))
    await scene.round(10)
    keys = await scene.keys()
    changes = scene.memory.changes
    for _ in range(5):
        await scene.round(0)
    assert await scene.keys() == keys
    assert scene.memory.changes == changes


async def test_a_stream_that_was_never_written_has_no_cuts(scene: Scene) -> None:
    await scene.create(by_size(100))
    changes = scene.memory.changes
    for _ in range(3):
        assert await scene.round() == {0: 0}
    assert await scene.keys() == {"s/t"}
    assert scene.memory.changes == changes
    assert await scene.round(60) == {0: 0}
    assert {key for key in await scene.keys() if key.count("/") == 2} != set()
    assert await scene.round(60) == {0: 0}
    assert await scene.round(60) == {0: 60}


async def test_cuts_go_with_what_they_could_drop(scene: Scene) -> None:
    await scene.create(by_size(100))
    for _ in range(20):
        await scene.round(60)
    assert await scene.head() == {0: 18 * 60}
    cuts = {key for key in await scene.keys() if key.count("/") == 2}
    assert len(cuts) == 2


async def test_cuts_before_the_first_epoch_on_record_are_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was noted and one released long ago; the user has truncated the stream since."""
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    await scene.create(by_size(100))
    await scene.subscribe("g")
    await scene.round(60)
    await scene.release("g", {0: 0})
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

    async def write(amount: int) -> dict[int, int]:
        scene.write(amount, epoch=9, first=9)
        return await scene.round()

    # What has released nothing that is there still counts as being at the head.
    assert [await write(60) for _ in range(3)] == [{last: 0}] * 3
    assert len(await scene.keys()) == 1 + 3
    await scene.release("g", {last: 170})
    assert await write(60) == {last: 120}


async def test_sizes_count_across_scales(scene: Scene) -> None:
    await scene.create(by_size(100), count=2)
    await scene.round(50, 30)
    scene.write(20, 0)
    await scene.controller.streams.scale("s", "t", [0], [(0.0, 0.2), (0.2, 0.5)], now_ms=1)
    scene.controller.finish_later(IntentRecord("stream", "s", "t"))
    with trio.fail_after(60):
        while (await scene.controller.store.streams.read("s", "t")).record.pending:  # noqa: ASYNC110
            await trio.sleep(0.001)
    scene.write(40, 30, epoch=1, first=2)
    # 20 of segment 0, and 70 of its successors: ten too few to drop what was there before.
    assert await scene.round() == {0: 0, 1: 0}
    scene.write(0, 10)
    assert await scene.round() == {0: 50, 1: 30}
    scene.write(0, 100)
    two, three = 1 << 32 | 2, 1 << 32 | 3
    assert await scene.round() == {1: 40, two: 40, three: 30}
    assert "s/t/0.#epoch.0" not in scene.memory.segments


async def test_what_subscribers_need_stays_up_to_the_maximum(scene: Scene) -> None:
    await scene.create(by_size(10, 100))
    await scene.subscribe("fast")
    await scene.subscribe("slow")
    await scene.round(30)
    await scene.release("fast", {0: 25})
    await scene.release("slow", {0: 5})
    assert await scene.round(30) == {0: 5}
    await scene.release("slow", {0: 20})
    assert await scene.round(30) == {0: 20}
    # The slow one is 110 bytes behind, of which 100 may be kept at most.
    assert await scene.round(40) == {0: 30}
    assert await scene.round(5) == {0: 60}


async def test_a_maximum_that_equals_the_minimum_leaves_a_lagging_group_the_minimum(
    scene: Scene,
) -> None:
    """Java client 0.9.0 sends such a policy for a minimum alone."""
    await scene.create(by_size(50, 50))
    await scene.subscribe("slow")
    await scene.round(20)
    await scene.release("slow", {0: 10})
    assert await scene.round(20) == {0: 0}
    assert await scene.round(40) == {0: 20}
    assert await scene.round(30) == {0: 40}


async def test_the_minimum_stays_whatever_was_released(scene: Scene) -> None:
    await scene.create(by_size(50))
    await scene.subscribe("only")
    for _ in range(4):
        await scene.round(20)
    await scene.release("only", {0: 80})
    assert await scene.round(0) == {0: 20}


async def test_a_subscriber_that_never_released_counts_for_nothing(scene: Scene) -> None:
    await scene.create(by_time(PERIOD))
    await scene.subscribe("idle")
    await scene.round(10)
    assert await scene.round(10) == {0: 10}


async def check_that_retention_goes_on(scene: Scene, ahead_ms: int) -> None:
    """Let the clock jump for one round, and check the rounds from then on."""
    scene.now_ms += ahead_ms
    await scene.round(10)
    scene.now_ms -= ahead_ms
    head = await scene.head()
    for _ in range(6):
        passed = await scene.round(10)
        assert passed[0] >= head[0]
        head = passed
    length = scene.memory.segments["s/t/0.#epoch.0"].length
    assert head[0] >= length - 50, "what is older than the policy wants is kept"
    assert head[0] <= length - 20, "what the policy wants is gone"
    assert len(await scene.cuts()) <= 5


@pytest.mark.parametrize("ahead_ms", [-YEAR_MS, -HOUR_MS, HOUR_MS, YEAR_MS])
async def test_a_time_is_kept_after_the_clock_has_jumped_for_a_round(
    ahead_ms: int, scene: Scene
) -> None:
    scene.now_ms += 2 * YEAR_MS
    await scene.create(by_time(2 * PERIOD))
    for _ in range(4):
        await scene.round(10)
    await check_that_retention_goes_on(scene, ahead_ms)


@pytest.mark.parametrize("ahead_ms", [-YEAR_MS, -HOUR_MS, HOUR_MS, YEAR_MS])
async def test_a_size_is_kept_after_the_clock_has_jumped_for_a_round(
    ahead_ms: int, scene: Scene
) -> None:
    scene.now_ms += 2 * YEAR_MS
    await scene.create(by_size(25))
    for _ in range(4):
        await scene.round(10)
    await check_that_retention_goes_on(scene, ahead_ms)


async def test_a_controller_whose_clock_is_behind_goes_on_with_the_cuts_of_one_that_was_ahead(
    memory_store: MemorySegmentStore, open_on_memory: Any
) -> None:
    async with open_scene(memory_store, open_on_memory) as scene:
        await scene.controller.scopes.create("s")
        await scene.retention.open()
        await scene.create(by_time(2 * PERIOD))
        scene.now_ms += YEAR_MS
        for _ in range(4):
            await scene.round(10)
        head = await scene.head()
    async with open_scene(memory_store, open_on_memory) as scene:
        for _ in range(4):
            await scene.round(10)
        assert (await scene.head())[0] >= head[0] + 30
        times_ms = sorted(await scene.cuts())
    async with open_scene(memory_store, open_on_memory) as scene:
        await scene.round(10)
        assert sorted(await scene.cuts())[-1] > times_ms[-1], "the times of cuts never go back"


@pytest.mark.parametrize("ahead_ms", [24 * HOUR_MS, YEAR_MS])
async def test_a_controller_that_begins_with_its_clock_ahead_truncates_nothing_early(
    ahead_ms: int,
    memory_store: MemorySegmentStore,
    open_on_memory: Any,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Earlier its first round dropped what was younger than the policy by as much as that."""
    async with open_scene(memory_store, open_on_memory) as scene:
        await scene.controller.scopes.create("s")
        await scene.create(by_time(12 * HOUR_MS // 1000))
        for _ in range(3):
            scene.write(10)
            scene.now_ms += 1000 * PERIOD
            await scene.retention.run_period()
        stopped_ms = scene.now_ms
    async with open_scene(memory_store, open_on_memory) as scene:
        scene.now_ms = stopped_ms + ahead_ms
        for _ in range(3):
            scene.write(10)
            await scene.retention.run_period()
            scene.now_ms += 1000 * PERIOD
        assert await scene.head() == {0: 0}
        times_ms = sorted(await scene.cuts())
        assert times_ms[-1] - stopped_ms < 2 * HOUR_MS
    # The time of the right clock counts again, from the first round on.
    async with open_scene(memory_store, open_on_memory) as scene:
        scene.now_ms = stopped_ms + 10 * 1000 * PERIOD
        await scene.retention.run_period()
        assert await scene.head() == {0: 0}
        scene.now_ms += 14 * HOUR_MS
        await scene.retention.run_period()
        assert (await scene.head())[0] >= 50


async def test_what_is_silent_is_truncated_where_a_store_is_off_each_night(
    memory_store: MemorySegmentStore,
    open_on_memory: Any,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_scene(memory_store, open_on_memory) as scene:
        await scene.controller.scopes.create("s")
        await scene.create(by_time(48 * HOUR_MS // 1000))
        scene.write(10)
        await scene.retention.run_period()
        evening_ms = scene.now_ms
    heads = []
    for _ in range(4):
        async with open_scene(memory_store, open_on_memory) as scene:
            scene.now_ms = evening_ms + 12 * HOUR_MS
            await scene.retention.run_period()
            scene.now_ms += 12 * HOUR_MS
            await scene.retention.run_period()
            heads.append(await scene.head())
            evening_ms = scene.now_ms
    # Of each night an hour counts, and what passes in a day counts a 16th more.
    assert heads == [{0: 0}, {0: 0}, {0: 0}, {0: 10}]


async def test_a_time_that_cannot_be_noted_ends_no_round(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def refuse(*_: object, **__: object) -> int:
        raise VersionConflictError("planted")

    await scene.create(by_size(10))
    with monkeypatch.context() as patch:
        patch.setattr(scene.retention.tables, "put", refuse)
        await scene.retention.run_period()
    assert "time" not in await scene.keys()
    await scene.retention.run_period()
    assert "time" in await scene.keys()


async def test_a_registration_of_a_clock_that_was_ahead_is_forgotten(scene: Scene) -> None:
    scene.now_ms += YEAR_MS
    await scene.create(by_size(10))
    scene.now_ms -= YEAR_MS
    await scene.controller.streams.seal("s", "t")
    await scene.controller.streams.delete("s", "t")
    await scene.retention.retain("s", "t")
    assert await scene.keys() == {"s/t"}, "it may just be made"
    scene.now_ms += HOUR_MS
    await scene.retention.retain("s", "t")
    assert await scene.keys() == set()


async def test_a_policy_that_is_taken_away_ends_it(scene: Scene) -> None:
    await scene.create(by_size(10))
    await scene.round(30)
    await scene.controller.streams.update(
        "s", "t", StreamConfiguration(ScalingPolicy(ScaleType.FIXED, 1))
    )
    assert await scene.round(30) == {0: 0}
    scene.now_ms += 3_600_000
    await scene.round(30)
    assert await scene.keys() == set()


async def test_a_stream_of_the_same_name_begins_anew(scene: Scene) -> None:
    await scene.create(by_size(10))
    await scene.round(30)
    await scene.controller.streams.seal("s", "t")
    await scene.round()
    await scene.controller.streams.delete("s", "t")
    await scene.create(by_size(10))
    scene.memory.segments["s/t/1.#epoch.0"].append(b"x" * 20)
    assert await scene.round() == {1: 0}
    scene.memory.segments["s/t/1.#epoch.0"].append(b"x" * 20)
    assert await scene.round() == {1: 20}
    assert len({key for key in await scene.keys() if key.count("/") == 2}) == 1


async def test_cuts_of_an_earlier_stream_of_the_name_go_although_the_new_one_stays_empty(
    scene: Scene,
) -> None:
    await scene.create(by_size(10))
    await scene.round(30)
    await scene.controller.streams.seal("s", "t")
    await scene.controller.streams.delete("s", "t")
    await scene.create(by_size(10))
    assert len({key for key in await scene.keys() if key.count("/") == 2}) == 1
    assert await scene.round() == {1: 0}
    assert await scene.keys() == {"s/t"}
    changes = scene.memory.changes
    assert await scene.round() == {1: 0}
    assert scene.memory.changes == changes, "the cuts are removed once"


async def test_a_deleted_stream_is_forgotten(scene: Scene) -> None:
    await scene.create(by_size(10))
    await scene.round(30)
    await scene.controller.streams.seal("s", "t")
    await scene.controller.streams.delete("s", "t")
    scene.now_ms += 3_600_000
    await scene.retention.retain("s", "t")
    assert await scene.keys() == set()


@pytest.mark.parametrize("applied", [False, True])
async def test_a_round_that_stops_anywhere_is_made_up_for(
    memory_store: MemorySegmentStore, open_on_memory: Any, *, applied: bool
) -> None:
    """A controller dies at each change that a round makes, and another one goes on."""
    async with open_scene(memory_store, open_on_memory) as scene:
        await scene.controller.scopes.create("s")
        await scene.retention.open()
        await scene.create(by_size(100))
        await scene.round(60)
        await scene.round(60)
        scene.write(60)
        start = scene.now_ms + 1000 * PERIOD
    before = memory_store.contents()
    for at in itertools.count():
        memory_store.restore(before)
        async with open_scene(memory_store, open_on_memory) as scene, trio.open_nursery() as dying:
            scene.now_ms = start
            memory_store.changes = 0
            memory_store.fault = fault = Fault(at, applied, lasts=True)
            with trio.fail_after(60):
                dying.start_soon(end_after_round, scene, fault)
                await fault.reached.wait()
            dying.cancel_scope.cancel()
        if memory_store.fault is None:
            break
        memory_store.fault = None
        async with open_scene(memory_store, open_on_memory) as scene:
            scene.now_ms = start
            await scene.retention.retain("s", "t")
            assert await scene.round(0) == {0: 60}, at
            assert len({key for key in await scene.keys() if key.count("/") == 2}) == 2
    assert at > 5


async def end_after_round(scene: Scene, fault: Fault) -> None:
    """Make one round; a whole round without reaching the fault ends the test."""
    await scene.retention.retain("s", "t")
    scene.memory.fault = None
    fault.reached.set()


async def test_a_cut_without_its_bytes_is_left_out(scene: Scene) -> None:
    await scene.create(by_size(100))
    await scene.round(60)
    await scene.round(60)
    first, _ = sorted(key for key in await scene.keys() if key.count("/") == 2)
    await scene.tables.remove(RETENTION, first.encode())
    assert await scene.round(60) == {0: 0}
    assert await scene.round(60) == {0: 120}
    assert first not in await scene.keys()


async def test_rounds_are_spread_over_the_period(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(3):
        configuration = StreamConfiguration(ScalingPolicy(ScaleType.FIXED, 1), by_size(10))
        await scene.controller.streams.create("s", f"t{number}", configuration)
    looked: list[float] = []

    async def retain(scope: str, name: str) -> None:
        looked.append(trio.current_time() - began)

    scene.retention.retain = retain  # type: ignore[method-assign]
    began = trio.current_time()
    await scene.retention.run_period()
    assert looked == pytest.approx([25, 50, 75])
    assert trio.current_time() - began == pytest.approx(100)


@pytest.mark.proof
async def test_streams_that_stay_empty_are_looked_at_less_often(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.create(by_size(100))
    looked = []
    retain = scene.retention.retain

    async def watched(scope: str, name: str) -> int | None:
        looked.append(period)
        scene.now_ms += 1000 * PERIOD
        return await retain(scope, name)

    scene.retention.retain = watched  # type: ignore[method-assign]
    for period in range(12):  # noqa: B007
        await scene.retention.run_period()
    assert looked == [0, 2, 5, 9]
    scene.write(300)
    for period in range(12, 18):  # noqa: B007
        await scene.retention.run_period()
    assert looked == [0, 2, 5, 9, 13, 14, 15, 16, 17]
    # Another configuration makes it worth a look at once.
    scaling = ScalingPolicy(ScaleType.FIXED, 1)
    await scene.controller.streams.update("s", "t", StreamConfiguration(scaling, by_size(0)))
    for period in range(18, 21):  # noqa: B007
        await scene.retention.run_period()
    assert looked[9:] == [18, 20]
    assert await scene.head() == {0: 300}


def test_the_older_half_thins_out() -> None:
    stored = [StoredCut(number, 0) for number in range(CUTS_MAX)]
    assert thin(stored) == stored
    thinned = thin([*stored, StoredCut(CUTS_MAX, 0)])
    assert len(thinned) < CUTS_MAX
    assert thinned[0].time_ms == 0
    assert [each.time_ms for each in thinned[-200:]] == list(range(CUTS_MAX - 199, CUTS_MAX + 1))
