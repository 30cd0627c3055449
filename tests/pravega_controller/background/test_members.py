"""Several controllers on one segment store: who lives, who takes over, and what the slow may do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.background.late_segments import LATE_SECONDS
from pravega_controller.background.members import MEMBERS, choose_owner
from pravega_controller.controller import Controller
from pravega_controller.errors import OutcomeUnknownError
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import IntentRecord, decode
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.streams.pending_work import stream_intent
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import commands as wire

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


@given(st.sets(st.text(min_size=1), min_size=1, max_size=6), st.lists(st.text(), max_size=30))
def test_a_key_moves_only_when_its_owner_goes(members: set[str], keys: list[str]) -> None:
    for key in keys:
        owner = choose_owner(key, members)
        assert owner in members
        for gone in members - {owner}:
            assert choose_owner(key, members - {gone}) == owner


def test_keys_are_shared_out() -> None:
    owners = Counter(choose_owner(f"s/{number}", ["a", "b", "c"]) for number in range(3000))
    assert min(owners.values()) > 800


def ports(controller: Controller) -> set[int]:
    return {member.port for member in controller.members.living()}


async def test_the_living_know_each_other_and_share_the_work(
    open_on_memory: OpenController, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_on_memory(port=1) as first:
        assert ports(first) == {1}
        assert first.members.owns("anything")
        async with open_on_memory(port=2) as second:
            await trio.sleep(3)
            assert ports(first) == ports(second) == {1, 2}
            for number in range(50):
                owners = [c.members.owns(f"s/{number}") for c in (first, second)]
                assert sorted(owners) == [False, True]
        began = trio.current_time()
        while ports(first) != {1}:  # noqa: ASYNC110 (the store in memory has no events)
            await trio.sleep(0.1)
        assert 4 <= trio.current_time() - began <= 10


@pytest.mark.parametrize(
    ("before", "port", "seconds"),
    [("standalone-0", 2, 0.5), ("", 1, 0.5), ("", 2, 5.0)],
    ids=["of the same name", "without a name on the same port", "elsewhere"],
)
async def test_who_starts_at_a_place_with_a_name_knows_who_is_dead(
    before: str,
    port: int,
    seconds: float,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Only of a controller elsewhere it has to find out whether that one lives."""
    async with open_on_memory(port=1, place=before):
        await trio.sleep(5)
    assert memory_store.tables[MEMBERS].entries, "it left as one that is killed does"
    began = trio.current_time()
    async with open_on_memory(port=port, place="standalone-0") as second:
        assert seconds - 2.5 <= trio.current_time() - began <= seconds
        assert ports(second) == ({port} if seconds < 1 else {1, 2})


async def test_nobody_is_dead_because_the_store_was_away(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await trio.sleep(5)
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: True
        await trio.sleep(60)
        memory_store.pause.set()
        memory_store.pause = None
        for _ in range(100):
            await trio.sleep(0.1)
            assert ports(first) == ports(second) == {1, 2}


class Stall:
    """Holds up what one controller writes of itself, and one request of a kind."""

    def __init__(
        self, memory: MemorySegmentStore, instance_id: str, kind: type[wire.Request]
    ) -> None:
        self._key = instance_id.encode()
        self._kind = kind
        self.is_taken = trio.Event()
        self._memory = memory
        memory.pause = trio.Event()
        memory.pauses = self._pauses

    def _pauses(self, request: wire.Request) -> bool:
        if isinstance(request, wire.UpdateTableEntries) and request.segment == MEMBERS:
            return request.table_entries[0].key.key == self._key
        if isinstance(request, self._kind) and not self.is_taken.is_set():
            self.is_taken.set()
            return True
        return False

    def end(self) -> None:
        assert self._memory.pause is not None
        self._memory.pause.set()
        self._memory.pause = None


@pytest.mark.parametrize(
    "kind",
    [wire.CreateSegment, wire.SealSegment],
    ids=["while it creates", "while it seals"],
)
async def test_a_slow_controller_does_no_harm_to_what_came_after_it(
    kind: type[wire.Request],
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    # One that gave up waiting would send its request again before it is taken for dead.
    patient = {"reply_seconds_max": 100.0}
    async with open_on_memory(port=1, **patient) as slow, open_on_memory(port=2) as other:
        await slow.scopes.create("s")
        await slow.streams.create("s", "a", fixed_configuration(1))
        await trio.sleep(5)
        stall = Stall(memory_store, slow.members.instance_id, kind)
        done = trio.Event()

        async def update() -> None:
            with pytest.raises(OutcomeUnknownError):
                await slow.streams.update("s", "a", fixed_configuration(2))
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(update)
            await stall.is_taken.wait()
            with trio.fail_after(10):
                # The other waits for the owner of the work, then takes it over.
                await other.streams.update("s", "a", fixed_configuration(3))
            assert not done.is_set()
            assert len(await other.streams.active_segments("s", "a")) == 3
            stall.end()
            with trio.fail_after(30):
                await done.wait()
        # The other one has finished the update of the slow one before its own, and nobody makes it
        # once more: nothing of either is half done.
        stream = await other.store.streams.read("s", "a")
        assert stream.configuration.scaling.segment_count_min == len(stream.active) == 3
        alive = {name for name, segment in memory_store.segments.items() if not segment.is_sealed}
        names = {stream.segment_name(segment.segment_id) for segment in stream.active}
        assert {name for name in alive if name.startswith("s/a/")} == names
        await trio.sleep(LATE_SECONDS + 15)
        assert ports(slow) == ports(other) == {1, 2}, "it has joined again"
        assert not memory_store.tables[INTENTS].entries


@pytest.mark.parametrize("is_deleted", [False, True], ids=["truncated", "deleted"])
async def test_a_slow_controller_leaves_no_segment_that_another_has_dropped(
    is_deleted: bool,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its request to create a segment is so late that the segment has come and gone since."""
    patient = {"reply_seconds_max": 100.0}
    async with open_on_memory(port=1, **patient) as slow, open_on_memory(port=2) as other:
        await slow.scopes.create("s")
        await slow.streams.create("s", "a", fixed_configuration(1))
        await trio.sleep(5)
        stall = Stall(memory_store, slow.members.instance_id, wire.CreateSegment)
        await slow.streams.scale("s", "a", [0], [(0.0, 0.5), (0.5, 1.0)], now_ms=5)
        async with trio.open_nursery() as nursery:
            slow.finish_later(stream_intent("s", "a"))
            await stall.is_taken.wait()
            with trio.fail_after(20):
                await other.streams.workflows.work.finish("s", "a")
            halves = [one.segment_id for one in await other.streams.active_segments("s", "a")]
            assert len(halves) == 2
            await other.streams.scale("s", "a", halves, [(0.0, 1.0)], now_ms=6)
            await other.streams.workflows.work.finish("s", "a")
            (last,) = await other.streams.active_segments("s", "a")
            await other.streams.truncate("s", "a", {last.segment_id: 0})
            if is_deleted:
                await other.streams.seal("s", "a")
                await other.streams.delete("s", "a")
            stall.end()
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
    left = [name for name in memory_store.segments if name.startswith("s/a/")]
    assert left == ([] if is_deleted else ["s/a/3.#epoch.2"])
    assert len(memory_store.created) > len(set(memory_store.created)), "one came back"


async def test_no_segment_name_is_used_twice_by_a_creation_that_a_deletion_passes(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The numbers that a slow creation has read are those of a stream that came and went since."""
    patient = {"reply_seconds_max": 100.0}
    async with open_on_memory(port=1, **patient) as slow, open_on_memory(port=2) as other:
        await slow.scopes.create("s")
        memory_store.pause = trio.Event()
        is_held = trio.Event()

        def pauses(request: wire.Request) -> bool:
            if is_held.is_set() or not isinstance(request, wire.UpdateTableEntries):
                return False
            if all(entry.key.key != b"s/a" for entry in request.table_entries):
                return False
            is_held.set()
            return True

        memory_store.pauses = pauses
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.streams.create, "s", "a", fixed_configuration(2))
            await is_held.wait()
            assert await other.streams.create("s", "a", fixed_configuration(1))
            await other.streams.seal("s", "a")
            await other.streams.delete("s", "a")
            memory_store.pause.set()
        stream = await other.store.streams.read("s", "a")
        assert stream.record.pending is None
        assert sorted(segment.number for segment in stream.active) == [2, 3]
        names = {stream.segment_name(segment.segment_id) for segment in stream.active}
        assert {name for name in memory_store.segments if name.startswith("s/a/")} == names
        await trio.sleep(15)
        assert not memory_store.tables[INTENTS].entries


async def test_a_request_waits_for_what_a_living_controller_has_under_way(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    patient = {"reply_seconds_max": 100.0}
    async with (
        open_on_memory(port=1, **patient) as first,
        open_on_memory(port=2, **patient) as second,
    ):
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(1))
        await trio.sleep(5)
        memory_store.pause = trio.Event()
        held: list[wire.Request] = []

        def pauses(request: wire.Request) -> bool:
            if isinstance(request, wire.SealSegment) and not held:
                held.append(request)
                return True
            return False

        memory_store.pauses = pauses
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.streams.update, "s", "a", fixed_configuration(2))
            nursery.start_soon(second.streams.update, "s", "a", fixed_configuration(5))
            await trio.sleep(15)
            stream = await second.store.streams.read("s", "a")
            owner = stream.record.owner
            assert stream.record.pending is not None
            assert {first.members.instance_id, second.members.instance_id} > {owner}
            memory_store.pause.set()
        stream = await second.store.streams.read("s", "a")
        assert stream.record.pending is None
        assert stream.record.epoch == 2
        assert len(stream.active) == stream.configuration.scaling.segment_count_min


async def test_many_changes_by_two_controllers_are_all_made_and_none_is_refused(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    random = Random(5)
    made: list[tuple[str, bool]] = []
    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")

        async def create(controller: Controller, name: str) -> None:
            await trio.sleep(random.random() / 100)
            made.append((name, await controller.streams.create("s", name, fixed_configuration(2))))

        memory_store.reply_seconds = 0.002
        async with trio.open_nursery() as nursery:
            for number in range(10):
                for controller in (first, second, first, second):
                    nursery.start_soon(create, controller, f"a{number}")
        assert sorted(name for name, is_new in made if is_new) == [f"a{n}" for n in range(10)]
        async with trio.open_nursery() as nursery:
            for count in range(1, 9):
                for controller in (first, second):
                    configuration = fixed_configuration(count)
                    nursery.start_soon(controller.streams.update, "s", "a0", configuration)
        memory_store.reply_seconds = 0.0
        stream = await first.store.streams.read("s", "a0")
        assert len(stream.active) == stream.configuration.scaling.segment_count_min
        assert stream.record.epoch == stream.last_epoch
    assert len(set(memory_store.created)) == len(memory_store.created)


async def test_a_controller_outlives_the_loss_of_the_table_of_members(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as controller:
        lost = memory_store.tables.pop(MEMBERS)
        await trio.sleep(5)
        await controller.scopes.create("s")
        assert await controller.streams.create("s", "a", fixed_configuration(1))
        memory_store.tables[MEMBERS] = lost
        await trio.sleep(5)
        assert controller.members.is_trusted


@pytest.mark.parametrize("late", [INTENTS, MEMBERS], ids=["its intents", "its membership"])
async def test_nobody_removes_the_intents_of_a_controller_that_lives_again(
    late: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was silent for long enough, and shows that it lives while its burial is under way."""
    patient = {"reply_seconds_max": 100.0}
    async with open_on_memory(port=1, **patient) as slow, open_on_memory(port=2, **patient) as two:
        await slow.scopes.create("s")
        await slow.streams.create("s", "a", fixed_configuration(1))
        await trio.sleep(5)
        intent = stream_intent("s", "a")
        await slow.store.intents.put(intent)
        instance_id = slow.members.instance_id.encode()
        silence, burial, is_late = trio.Event(), trio.Event(), trio.Event()

        def pauses(request: wire.Request) -> bool:
            if isinstance(request, wire.UpdateTableEntries) and request.segment == MEMBERS:
                memory_store.pause = silence
                return request.table_entries[0].key.key == instance_id and not silence.is_set()
            memory_store.pause = burial
            if not isinstance(request, wire.RemoveTableKeys) or request.segment != late:
                return False
            if request.keys[0].key.startswith(instance_id):
                is_late.set()
            return is_late.is_set()

        memory_store.pauses, memory_store.pause = pauses, silence
        with trio.fail_after(30):
            await is_late.wait()
        silence.set()
        with trio.fail_after(30):
            while not slow.members.is_trusted:  # noqa: ASYNC110
                await trio.sleep(0.1)
        await slow.store.intents.put(intent)
        burial.set()
        memory_store.pauses = lambda request: False
        await trio.sleep(3)
        assert slow.members.is_trusted
        assert intents_of(memory_store, slow) == [intent]
        assert ports(slow) == ports(two) == {1, 2}


def intents_of(memory: MemorySegmentStore, controller: Controller) -> list[IntentRecord]:
    """Return the stored intents of a controller."""
    prefix = controller.members.instance_id.encode()
    entries = memory.tables[INTENTS].entries
    return [
        decode(value, IntentRecord) for key, (value, _) in entries.items() if key.startswith(prefix)
    ]


async def test_a_late_removal_of_an_intent_leaves_the_one_that_was_written_after_it(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The controller gave the removal up, and it reached the store all the same."""
    async with open_on_memory(reply_seconds_max=1.0, retry_seconds_max=0.5) as c:
        await c.scopes.create("s")
        await c.streams.create("s", "a", fixed_configuration(1))
        await trio.sleep(5)
        intent = stream_intent("s", "a")
        await c.store.intents.put(intent)
        c.store.intents.remove(intent)
        late = memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: isinstance(request, wire.RemoveTableKeys)
        await memory_store.is_paused.wait()
        memory_store.pause = None
        await trio.sleep(5)
        await c.store.intents.put(intent)
        late.set()
        await trio.sleep(5)
        assert intents_of(memory_store, c) == [intent]
        c.store.intents.remove(intent)
        await trio.sleep(5)
        assert not intents_of(memory_store, c)
