"""Epochs that streams have left behind: when they go, what stays, and what is told about them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    EarlierStreamError,
    EpochDroppedError,
    InvalidStreamCutError,
    NotFoundError,
)
from pravega_controller.metadata.records import NamedCut, ReaderGroupConfiguration
from pravega_controller.metadata.streams import epochs as epoch_records
from pravega_controller.metadata.streams.history import StreamHistory
from pravega_controller.rules.history import scaled_epoch
from pravega_controller.rules.stream_cuts import cut_at
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.streams.old_epochs import EPOCHS_REMOVED_MAX, OLD_EPOCHS
from pravega_controller.testing.memory_segment_store import MemorySegment, MemorySegmentStore
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.commands import ReadTable, Request
from support.rare_parameters import mark_rare

DAY_MS = 86_400_000
LEASE_MS = 20_000
GROUP_ID = "11111111-2222-3333-4444-555555555555"


class Wall:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


class Scene:
    """One or two controllers with a stream that has left epochs behind, each with a snapshot."""

    def __init__(self, controllers: list[Controller], memory: MemorySegmentStore, wall: Wall):
        self.controller = controllers[0]
        self.other = controllers[-1]
        self.memory = memory
        self.wall = wall

    async def scale(self, count: int = 1) -> None:
        """Replace the stream's only segment, so many times."""
        for _ in range(count):
            (active,) = await self.controller.streams.active_segments("s", "a")
            await self.controller.streams.scale(
                "s", "a", [active.segment_id], [(0.0, 1.0)], now_ms=self.wall()
            )
            await self.controller.streams.workflows.work.finish("s", "a")

    async def truncate(self) -> dict[int, int]:
        """Move the head to the end of the stream."""
        cut = cut_at(await self.controller.streams.active_segments("s", "a"))
        await self.controller.streams.truncate("s", "a", cut)
        return cut

    async def round(self, *, days: float = 0) -> None:
        self.wall.ms += int(days * DAY_MS)
        self.controller.old_epochs.owns = lambda key: True
        await self.controller.old_epochs.run_round()

    async def first(self) -> int:
        return (await self.other.store.streams.read("s", "a")).record.first_epoch

    def count(self, kind: str) -> int:
        """Count the records of a kind, of all streams."""
        return sum(
            key.split(b"/")[1] == kind.encode()
            for name, table in self.memory.tables.items()
            if "histories" in name
            for key in table.entries
        )

    def notes(self) -> set[bytes]:
        table = self.memory.tables.get(OLD_EPOCHS)
        return set() if table is None else set(table.entries)


def segment_of(epoch: int) -> int:
    """Return the segment that an epoch of the scene's stream has."""
    return names.segment_id(epoch, epoch)


async def wait_until_committed(controller: Controller, identifier: bytes) -> None:
    with trio.fail_after(120):
        while (  # noqa: ASYNC110 (a client asks again, too)
            await controller.transactions.state("s", "a", identifier)
            is not TransactionState.COMMITTED
        ):
            await trio.sleep(1)


@asynccontextmanager
async def open_scene(
    open_on_memory: Any, memory: MemorySegmentStore, **settings: Any
) -> AsyncIterator[Scene]:
    wall = Wall()
    async with (
        open_on_memory(now_ms=wall, port=1, **settings) as first,
        open_on_memory(now_ms=wall, port=2, **settings) as second,
    ):
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(1))
        yield Scene([first, second], memory, wall)


@pytest.fixture
async def scene(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Scene]:
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    async with open_scene(open_on_memory, memory_store) as scene:
        yield scene


async def test_epochs_go_a_week_after_the_head_has_left_them(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(9)
    await scene.round(days=30)
    assert scene.notes() == set(), "the head has not moved"
    head = await scene.truncate()
    await scene.round()
    await scene.round(days=6.9)
    assert await scene.first() == 0
    assert len(await scene.other.streams.successors("s", "a", 0)) == 1
    await scene.round(days=0.2)
    assert await scene.first() == 8
    assert scene.notes() == set()
    # The mark stream has an epoch of its own.
    assert (scene.count("epoch"), scene.count("snapshot")) == (2 + 1, 1)
    assert (scene.count("sealed"), scene.count("sizes")) == (2, 2)
    assert await scene.other.streams.head("s", "a") == head
    await scene.scale(3)
    assert [s.segment_id for s in await scene.other.streams.active_segments("s", "a")] == [
        segment_of(12)
    ]


async def test_what_was_dropped_is_not_found_and_never_the_end(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(9)
    head = await scene.truncate()
    await scene.round()
    await scene.round(days=8)
    streams = scene.other.streams
    for epoch in range(7):
        with pytest.raises(EpochDroppedError):
            await streams.successors("s", "a", segment_of(epoch))
    assert [s.segment.segment_id for s in await streams.successors("s", "a", segment_of(7))] == [
        segment_of(8)
    ]
    assert await streams.successors("s", "a", segment_of(9)) == ()
    for epoch in range(8):
        with pytest.raises(EpochDroppedError):
            await streams.epoch_segments("s", "a", epoch)
        assert await streams.has_left_epoch("s", "a", epoch)
    old = {segment_of(3): 0}
    with pytest.raises(EpochDroppedError):
        await streams.segments_between("s", "a", old, {})
    with pytest.raises(EpochDroppedError):
        await streams.segments_between("s", "a", {}, old)
    with pytest.raises(EpochDroppedError):
        await streams.check_cut("s", "a", old)
    with pytest.raises(InvalidStreamCutError):
        await streams.truncate("s", "a", old)
    # From where the stream is still known, and from its head.
    between = await streams.segments_between("s", "a", {}, head)
    assert [s.segment_id for s in between] == [segment_of(8), segment_of(9)]
    between = await streams.segments_between("s", "a", head, {})
    assert [s.segment_id for s in between] == [segment_of(9)]


async def test_a_position_of_an_earlier_stream_is_told_from_a_truncated_one(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    streams = scene.other.streams
    await scene.scale(2)
    await scene.controller.streams.seal("s", "a")
    await scene.controller.streams.delete("s", "a")
    await scene.controller.streams.create("s", "a", fixed_configuration(1))
    (first,) = await streams.head("s", "a")
    await scene.scale(9)
    await scene.truncate()
    await scene.round()
    await scene.round(days=8)
    assert await scene.first() == 8
    for segment, error in (
        *((segment_of(epoch), EarlierStreamError) for epoch in range(3)),
        (first, EpochDroppedError),
        (names.segment_id(names.segment_number(first) + 1, 1), EpochDroppedError),
    ):
        for question in (
            streams.successors("s", "a", segment),
            streams.check_cut("s", "a", {segment: 0}),
            streams.segments_between("s", "a", {segment: 0}, {}),
        ):
            with pytest.raises(error):
                await question


async def test_a_transaction_keeps_its_epoch_until_it_has_ended(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(2)
    transactions = scene.controller.transactions
    begun = await transactions.begin("s", "a", lease_ms=LEASE_MS)
    await scene.scale(7)
    await scene.truncate()
    await scene.round()
    await scene.round(days=8)
    assert await scene.first() == 0
    assert await transactions.commit("s", "a", begun.identifier, writer_id="", writer_ms=None)
    await wait_until_committed(scene.controller, begun.identifier)
    await scene.round()
    assert await scene.first() == 8
    # The roll has added two epochs, of which the first repeats one that is gone.
    assert await scene.other.streams.epoch_segments("s", "a", 10)
    assert not [name for name in scene.memory.segments if "#transaction" in name]


async def test_a_slow_controller_begins_no_transaction_on_an_epoch_that_expires(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    """It knows the stream as it was, and looks only after it has begun."""
    await scene.scale(2)
    slow = scene.other
    await slow.transactions.begin("s", "a", lease_ms=LEASE_MS)
    known = slow.store.streams.known("s", "a")
    assert known is not None
    epochs = dict(known.history._epochs)
    await trio.sleep(60)
    await scene.scale(7)
    await scene.truncate()
    await scene.round()
    await scene.round(days=8)
    assert await scene.first() == 8
    history = StreamHistory(slow.store.tables, known.table, known.stream_id, stream="s/a")
    history.update(known.record)
    history._epochs.update(epochs)
    slow.store.streams._known["s", "a"] = dataclasses.replace(known, history=history)
    slow.store.streams._seen_at["s", "a"] = trio.current_time()
    created = len(scene.memory.created)
    begun = await slow.transactions.begin("s", "a", lease_ms=LEASE_MS)
    assert names.transaction_epoch(begun.identifier) == 9
    assert len(scene.memory.created) == created + 2
    await trio.sleep(5)
    left = [name for name in scene.memory.segments if "#transaction" in name]
    assert len(left) == 1
    assert begun.identifier.hex() in left[0], "what was begun before is undone"


async def test_a_stream_that_was_seen_long_ago_is_read_before_a_transaction_begins(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.other.transactions.begin("s", "a", lease_ms=LEASE_MS)
    await scene.scale(9)
    await trio.sleep(61)
    created = len(scene.memory.created)
    begun = await scene.other.transactions.begin("s", "a", lease_ms=LEASE_MS)
    assert names.transaction_epoch(begun.identifier) == 9
    assert len(scene.memory.created) == created + 1


async def test_commits_of_a_slow_controller_go_on_with_what_is_there(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(2)
    slow = scene.other
    await slow.transactions.begin("s", "a", lease_ms=LEASE_MS)
    known = slow.store.streams.known("s", "a")
    await scene.scale(7)
    await scene.truncate()
    await trio.sleep(60)
    await scene.round()
    await scene.round(days=8)
    begun = await slow.transactions.begin("s", "a", lease_ms=LEASE_MS)
    assert known is not None
    history = StreamHistory(slow.store.tables, known.table, known.stream_id, stream="s/a")
    history.update(known.record)
    slow.store.streams._known["s", "a"] = dataclasses.replace(known, history=history)
    assert await slow.transactions.commit("s", "a", begun.identifier, writer_id="", writer_ms=None)
    await wait_until_committed(slow, begun.identifier)


async def test_a_question_under_way_is_not_told_that_a_dropped_segment_has_no_successors(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(9)
    await scene.truncate()
    await scene.round()
    seal = f"/sealed/{segment_of(2)}".encode()

    def is_about_seal(request: Request) -> bool:
        return isinstance(request, ReadTable) and any(
            key.key.endswith(seal) for key in request.keys
        )

    scene.memory.pauses = is_about_seal
    scene.memory.pause = trio.Event()
    answers: list[object] = []

    async def ask() -> None:
        try:
            answers.append(await scene.other.streams.successors("s", "a", segment_of(2)))
        except EpochDroppedError as error:
            answers.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await scene.memory.is_paused.wait()
        await scene.round(days=8)
        assert await scene.first() == 8
        scene.memory.pause.set()
    assert isinstance(answers[0], EpochDroppedError)


async def test_a_stream_is_deleted_while_its_epochs_go(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(9)
    await scene.truncate()
    await scene.round()
    original = StreamHistory.remove_old

    async def remove_later(history: Any, *, epochs_max: int) -> int:
        assert await original(history, epochs_max=3) == 3
        await scene.other.streams.seal("s", "a")
        await scene.other.streams.delete("s", "a")
        return 3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamHistory, "remove_old", remove_later)
        await scene.round(days=8)
    await trio.sleep(60)
    assert scene.count("epoch") == scene.count("sealed") == scene.count("snapshot") == 0
    await scene.round()
    assert scene.notes() == set()
    with pytest.raises(NotFoundError):
        await scene.controller.old_epochs.drop("s", "a")


async def test_two_controllers_drop_the_same_epochs(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(4):
        await scene.scale(9)
        await scene.truncate()
        await scene.round()
        scene.wall.ms += 8 * DAY_MS
        async with trio.open_nursery() as nursery:
            scene.other.old_epochs.owns = lambda key: True
            for controller in (scene.controller, scene.other):
                nursery.start_soon(controller.old_epochs.run_round)
            nursery.start_soon(scene.scale)
    last = (await scene.other.store.streams.read("s", "a")).record.epoch
    assert await scene.first() >= last - 4
    assert scene.count("epoch") <= 7
    head = await scene.other.streams.head("s", "a")
    assert len(await scene.other.streams.segments_between("s", "a", head, {})) == 2


@pytest.mark.parametrize("seed", mark_rare(range(4), 1))
async def test_among_scales_truncations_and_drops_nobody_is_told_that_the_stream_ends(
    seed: int, scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    random = Random(seed)
    sides = [scene.controller, scene.other]
    counts: Counter[str] = Counter()
    last = 0
    for side in sides:
        side.old_epochs.expiring_ms = 0
        side.old_epochs.owns = lambda key: True
    scene.memory.reply_seconds = 0.005

    async def move(nursery: trio.Nursery) -> None:
        nonlocal last
        for _ in range(25):
            await scene.scale()
            last += 1
            if random.random() < 0.5:
                await scene.truncate()
        nursery.cancel_scope.cancel()

    async def drop(side: Controller) -> None:
        while True:
            await trio.sleep(random.random() / 10)
            await side.old_epochs.run_round()

    async def ask(side: Controller) -> None:
        while True:
            await trio.sleep(random.random() / 50)
            if not last:
                continue
            epoch = random.randrange(max(0, last - 8), last)
            try:
                found = await side.streams.successors("s", "a", segment_of(epoch))
            except EpochDroppedError:
                counts["dropped"] += 1
                continue
            assert [each.segment.segment_id for each in found] == [segment_of(epoch + 1)]
            counts["told"] += 1
            head = await side.streams.head("s", "a")
            assert await side.streams.segments_between("s", "a", head, {})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move, nursery)
        for side in sides:
            nursery.start_soon(drop, side)
            for _ in range(3):
                nursery.start_soon(ask, side)
    assert counts["dropped"] > 10
    assert counts["told"] > 10
    assert await scene.first() > 0


async def test_a_truncation_while_a_note_is_removed_is_noted(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(2)
    await scene.truncate()
    (entry,) = scene.memory.tables[OLD_EPOCHS].entries.values()
    await scene.truncate()
    (later,) = scene.memory.tables[OLD_EPOCHS].entries.values()
    assert later[1] > entry[1]
    await scene.controller.old_epochs.run_round()
    assert scene.notes() == {b"s/a"}


async def test_subscribers_that_the_head_has_left_behind_go_on(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    """They keep no epochs, and they can still release what they have read since."""
    named = (NamedCut("s", "a", {}),)
    configuration = ReaderGroupConfiguration(1, 1, 1, 2, named, named)
    await scene.controller.groups.create("s", "g", GROUP_ID, configuration)

    async def release(cut: dict[int, int]) -> None:
        await scene.controller.groups.release(
            "s", "a", subscriber="s/g", group_id=GROUP_ID, generation=0, cut=cut
        )

    await release({segment_of(0): 0})
    await scene.scale(9)
    head = await scene.truncate()
    await scene.round()
    await scene.round(days=8)
    assert await scene.first() == 8
    with pytest.raises(InvalidStreamCutError):
        await release({segment_of(1): 0})
    await release(head)


@pytest.mark.proof
async def test_thousands_of_epochs_leave_few_records(
    open_on_memory: Any, memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_scene(open_on_memory, memory_store) as scene:
        await write_epochs(scene, 5_000)
        before = sum(len(table.entries) for table in memory_store.tables.values())
        head = await scene.truncate()
        requests = memory_store.requests
        await scene.round()
        await scene.round(days=8)
        assert scene.notes() == {b"s/a"}, "there is more to remove than in one round"
        assert scene.count("epoch") > 5_000 - EPOCHS_REMOVED_MAX
        await scene.round()
        after = sum(len(table.entries) for table in memory_store.tables.values())
        assert before > 15_000
        assert after < 1_000
        assert memory_store.requests - requests < 300
        assert scene.notes() == set()
        assert await scene.other.streams.head("s", "a") == head
        await scene.scale()


async def write_epochs(scene: Scene, count: int) -> None:
    """Write the records of so many scales, without making their segments, which takes time."""
    store = scene.controller.store
    stream = await store.streams.read("s", "a")
    for number in range(1, count + 1):
        sealed = [segment.segment_id for segment in stream.latest]
        epoch = scaled_epoch(stream.latest, sealed, [(0.0, 1.0)], number=number, created_ms=number)
        record = structs.replace(stream.record, epoch=number)
        sizes = {number: dict.fromkeys(sealed, 7)}
        # The stream's record counts the epoch by the same write.
        stream = await store.writes.write(stream, record, epochs=[epoch], sizes=sizes)
    (active,) = stream.active
    scene.memory.segments[stream.segment_name(active.segment_id)] = MemorySegment(0, 0, 0)


async def test_clients_are_told_not_found(
    grpc_on_memory: Any,
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    async with open_scene(open_on_memory, memory_store) as scene:
        await scene.scale(9)
        await scene.truncate()
        await scene.round()
        await scene.round(days=8)
    stream = pb.StreamInfo(scope="s", stream="a")
    old = {segment_of(3): 0}
    questions = {
        "getSegmentsImmediatelyFollowing": pb.SegmentId(streamInfo=stream, segmentId=segment_of(3)),
        "getEpochSegments": pb.GetEpochSegmentsRequest(streamInfo=stream, epoch=3),
        "getSegmentsBetween": pb.StreamCutRange(streamInfo=stream, **{"from": old}),
        "isStreamCutValid": pb.StreamCut(streamInfo=stream, cut=old),
    }
    for name, request in questions.items():
        with pytest.raises(grpc.RpcError) as caught:
            await grpc_on_memory.call(name, request)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND, name
        assert "not on record any more" in caught.value.details()
    answer = await grpc_on_memory.call("truncateStream", pb.StreamCut(streamInfo=stream, cut=old))
    assert answer.status == pb.UpdateStreamStatus.FAILURE
    answer = await grpc_on_memory.call("checkScale", pb.ScaleStatusRequest(streamInfo=stream))
    assert answer.status == pb.ScaleStatusResponse.SUCCESS
    answer = await grpc_on_memory.call("getSegments", pb.GetSegmentsRequest(streamInfo=stream))
    assert [each.segmentId.segmentId for each in answer.segments] == [segment_of(9)]
