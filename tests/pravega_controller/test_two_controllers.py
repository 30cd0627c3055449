"""Two controllers that make and delete the same things: nobody is told of their conflicts."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.background.late_segments import LATE_SECONDS
from pravega_controller.background.members import MEMBERS
from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    GenerationMismatchError,
    KeyValueTableNotFoundError,
    NotFoundError,
    OutcomeUnknownError,
    OwnedElsewhereError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import (
    NamedCut,
    ReaderGroupConfiguration,
    Scale,
    Seal,
    SealedRecord,
    decode,
)
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.history import apply_epochs, scaled_epoch
from pravega_controller.rules.streams import Segment, fixed_configuration
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.streams.pending_work import OWNER_SECONDS_MAX, stream_intent
from pravega_controller.tables.key_value_tables import KeyValueTableConfiguration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_controller.transactions.stream_ends import StreamEnds
from pravega_wire.commands import (
    CreateTableSegment,
    DeleteTableSegment,
    MergeSegmentsBatch,
    ReadTableEntries,
    Request,
    UpdateTableEntries,
)

GROUP_ID = "11111111-2222-3333-4444-555555555555"
CUTS = (NamedCut("s", "a", {}),)
GROUP = ReaderGroupConfiguration(3000, 30000, 3, 1, CUTS, CUTS)


async def test_tables(open_on_memory: Any, memory_store: MemorySegmentStore) -> None:
    configuration = KeyValueTableConfiguration(1, 8)
    made: list[bool] = []
    gone: list[bool] = []

    async def create(controller: Controller) -> None:
        made.append(await controller.tables.create("s", "t", configuration))

    async def delete(controller: Controller) -> None:
        try:
            await controller.tables.delete("s", "t")
        except KeyValueTableNotFoundError:
            return
        gone.append(True)

    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for controller in (first, second):
                    nursery.start_soon(create, controller)
                    nursery.start_soon(delete, controller)
                    nursery.start_soon(create, controller)
        await delete(first)
        assert sum(made) >= 10
        assert len(gone) == sum(made), "a table that was made was deleted, by one"
        assert (await second.tables.list("s", "")).names == []
    assert not [name for name in memory_store.tables if name.startswith("s/")]
    segments = [name for name in memory_store.created if name.startswith("s/")]
    assert len(segments) == len(set(segments)), "a name was used twice"


async def test_a_slow_controller_leaves_no_segment_of_a_table_that_was_deleted(
    open_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    slow = "s/t_kvtable/1.#epoch.0"
    is_first = iter([True])
    answers: list[bool] = []

    def pauses(request: Request) -> bool:
        is_creation = isinstance(request, CreateTableSegment) and request.segment == slow
        return is_creation and next(is_first, False)

    async with open_on_memory() as first, open_on_memory() as second:
        await first.scopes.create("s")
        memory_store.pause = trio.Event()
        memory_store.pauses = pauses
        async with trio.open_nursery() as nursery:

            async def create() -> None:
                configuration = KeyValueTableConfiguration(2, 8)
                answers.append(await first.tables.create("s", "t", configuration))

            nursery.start_soon(create)
            await memory_store.is_paused.wait()
            await second.tables.delete("s", "t")
            memory_store.pause.set()
        # The second has finished the creation of the first, and then deleted the table.
        assert answers == [True]
        assert (await second.tables.list("s", "")).names == []
    assert not [name for name in memory_store.tables if name.startswith("s/")]


async def test_a_delete_that_another_controller_finishes_leaves_the_table_that_is_made_since(
    open_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    configuration = KeyValueTableConfiguration(1, 8)
    is_first = iter([True])

    def pauses(request: Request) -> bool:
        is_deletion = isinstance(request, DeleteTableSegment) and request.segment.startswith("s/")
        return is_deletion and next(is_first, False)

    async with open_on_memory() as first, open_on_memory() as second:
        await first.scopes.create("s")
        await first.tables.create("s", "t", configuration)
        memory_store.pause = trio.Event()
        memory_store.pauses = pauses
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.tables.delete, "s", "t")
            await memory_store.is_paused.wait()
            assert await second.tables.create("s", "t", configuration)
            memory_store.pause.set()
        assert len((await first.tables.get("s", "t")).segments) == 1
    left = sorted(name for name in memory_store.tables if name.startswith("s/"))
    assert left == ["s/t_kvtable/1.#epoch.0"]


async def test_scopes(open_on_memory: Any, memory_store: MemorySegmentStore) -> None:
    refusals = (AlreadyExistsError, OutcomeUnknownError, ScopeNotFoundError, TableNotEmptyError)

    async def tolerate(act: Any, *arguments: Any) -> None:
        with suppress(*refusals):
            await act(*arguments)

    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for controller in (first, second):
                    scopes = controller.scopes
                    nursery.start_soon(tolerate, scopes.create, "s")
                    nursery.start_soon(tolerate, scopes.delete, "s")
                    nursery.start_soon(tolerate, scopes.delete_with_contents, "s")
                    nursery.start_soon(tolerate, scopes.create, "s")
        await tolerate(second.scopes.create, "s")
        assert await first.scopes.exists("s")
        assert await first.tables.create("s", "t", KeyValueTableConfiguration(1, 8))
        await second.scopes.delete_with_contents("s")
        assert not await first.scopes.exists("s")


@pytest.mark.proof
async def test_reader_groups(open_on_memory: Any, memory_store: MemorySegmentStore) -> None:
    # A group that the other controller deletes while it is being created.
    refusals = (ReaderGroupNotFoundError, GenerationMismatchError, OutcomeUnknownError)
    updates: list[int] = []

    async def tolerate(act: Any, *arguments: Any) -> None:
        with suppress(*refusals):
            await act(*arguments)

    async def update(controller: Controller, generation: int) -> None:
        with suppress(*refusals):
            updates.append(await controller.groups.update("s", "g", GROUP_ID, generation, GROUP))

    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(1))
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for controller in (first, second):
                    groups = controller.groups
                    nursery.start_soon(tolerate, groups.create, "s", "g", GROUP_ID, GROUP)
                    nursery.start_soon(update, controller, 0)
                    nursery.start_soon(tolerate, groups.delete, "s", "g", GROUP_ID)
                    nursery.start_soon(tolerate, groups.create, "s", "g", GROUP_ID, GROUP)
        assert set(updates) <= {1}
        await tolerate(first.groups.delete, "s", "g", GROUP_ID)
        assert await second.groups.subscribers("s", "a") == []
        assert not [name for name in memory_store.segments if "_RGg" in name]
        made = await second.groups.create("s", "g", GROUP_ID, GROUP)
        assert made.record.generation == 0
        assert await first.groups.subscribers("s", "a") == ["s/g"]


async def commit(controller: Controller, identifier: bytes) -> bool:
    return await controller.transactions.commit("s", "a", identifier, writer_id="w", writer_ms=None)


async def scale(controller: Controller, segment: Segment) -> None:
    """Replace a segment of the stream s/a by one of the same keys, and wait for it."""
    ranges = [(segment.low, segment.high)]
    result = await controller.streams.scale(
        "s", "a", [segment.segment_id], ranges, now_ms=controller.now_ms()
    )
    controller.finish_later(stream_intent("s", "a"))
    with trio.fail_after(60):
        while not await controller.streams.has_left_epoch(  # noqa: ASYNC110 (no events)
            "s", "a", result.epoch
        ):
            await trio.sleep(0.1)


async def wait_until_ended(controller: Controller, identifier: bytes) -> None:
    with trio.fail_after(60):
        while (  # noqa: ASYNC110 (no events)
            await controller.transactions.state("s", "a", identifier) == TransactionState.COMMITTING
        ):
            await trio.sleep(0.1)


async def test_a_controller_with_old_knowledge_overwrites_no_seal_of_a_large_stream(
    open_on_memory: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """The test rolls a stream of so many segments that its keys do not fit one update."""
    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(1100))
        begun = await first.transactions.begin("s", "a", lease_ms=60_000)
        segments = await first.streams.active_segments("s", "a")
        for controller, segment in zip((first, second, second), segments, strict=False):
            await scale(controller, segment)
        await commit(first, begun.identifier)
        await wait_until_ended(first, begun.identifier)
        async with open_on_memory(port=3) as fresh:
            for segment in segments[:4]:
                found = await fresh.streams.successors("s", "a", segment.segment_id)
                assert found, "a sealed segment of a live stream has successors"


async def append_epochs(controller: Controller, *sealed_counts: int) -> None:
    """Write epochs to s/a, of which each replaces so many of its first segments by one."""
    stream = await controller.store.streams.read("s", "a")
    latest, epochs = stream.latest, []
    for number, count in enumerate(sealed_counts, stream.record.epoch_count):
        sealed = [segment.segment_id for segment in latest[:count]]
        ranges = [(0.0, latest[count - 1].high)]
        epoch = scaled_epoch(latest, sealed, ranges, number=number, created_ms=5)
        latest = apply_epochs(latest, [epoch])
        epochs.append(epoch)
    owner = controller.members.instance_id
    record = structs.replace(stream.record, pending=Scale(), owner=owner)
    await controller.store.writes.write(stream, record, epochs=epochs)


@pytest.mark.proof
async def test_a_large_write_that_another_overtakes_leaves_none_of_its_seals(
    open_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    """The second controller writes among the updates of the first one, which so fails."""
    updates = 0

    def pauses(request: Request) -> bool:
        nonlocal updates
        if isinstance(request, UpdateTableEntries):
            keys = {entry.key.key for entry in request.table_entries}
            updates += any(b"/sealed/" in key for key in keys)
        return updates == 1

    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(2500))
        segments = await first.streams.active_segments("s", "a")
        memory_store.pause, memory_store.pauses = trio.Event(), pauses
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                with pytest.raises(VersionConflictError):
                    await append_epochs(first, 2500)

            nursery.start_soon(write)
            await memory_store.is_paused.wait()
            memory_store.pauses = lambda request: False
            await append_epochs(second, 2, 2499)
            memory_store.pause.set()
        stream = await second.store.streams.read("s", "a")
    entries = memory_store.tables[stream.table].entries
    keys = [stream.history.sealed_key(segment.segment_id) for segment in segments]
    sealed = [decode(entries[key][0], SealedRecord).epoch for key in keys]
    assert sealed == [1, 1] + [2] * 2498


async def test_work_that_its_owner_gives_up_is_taken_up_by_another(
    open_on_memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged: list[StreamEnds] = []
    real = StreamEnds.end_all

    async def end_all(self: StreamEnds, stream: Stream) -> Stream:
        if self in damaged:
            raise CorruptMetadataError("the transactions are damaged")
        return await real(self, stream)

    monkeypatch.setattr(StreamEnds, "end_all", end_all)
    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(2))
        damaged.append(first.transaction_workflows.stream_ends)
        with pytest.raises(CorruptMetadataError):
            await first.streams.seal("s", "a")
        stream = await second.store.streams.read("s", "a")
        assert (stream.record.pending, stream.record.owner) == (Seal(), "")
        with trio.fail_after(60):
            await second.streams.seal("s", "a")
        assert (await first.store.streams.read("s", "a")).record.is_sealed


async def test_nobody_waits_for_ever_for_work_of_a_living_controller(
    open_on_memory: Any, memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(2))
        stream = await first.store.streams.read("s", "a")
        owner = first.members.instance_id
        record = structs.replace(stream.record, pending=Seal(), owner=owner)
        await first.store.writes.write(stream, record)
        with trio.fail_after(OWNER_SECONDS_MAX + 5), pytest.raises(OwnedElsewhereError):
            await second.streams.seal("s", "a")
        second.finish_later(stream_intent("s", "a"))
        await first.streams.seal("s", "a")
        await trio.sleep(OWNER_SECONDS_MAX)
        assert (await second.store.streams.read("s", "a")).record.is_sealed


async def test_a_roll_is_finished_with_the_transactions_of_the_controller_that_died(
    open_on_memory: Any, memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock
) -> None:
    """The first controller is killed in the middle of a merge.

    The survivor has not read its transactions yet.
    """
    async with open_on_memory(port=2) as second:
        with trio.CancelScope() as life:
            async with open_on_memory(port=1) as first:
                await first.scopes.create("s")
                await first.streams.create("s", "a", fixed_configuration(2))
                begun = await first.transactions.begin("s", "a", lease_ms=60_000)
                await scale(first, (await first.streams.active_segments("s", "a"))[0])
                memory_store.pause = trio.Event()
                memory_store.pauses = lambda request: (
                    isinstance(request, MergeSegmentsBatch) and "/1.#" in request.target
                )
                await commit(first, begun.identifier)
                await memory_store.is_paused.wait()
                await trio.sleep(0.5)
                life.cancel()
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: (
            isinstance(request, ReadTableEntries) and "/transactions-" in request.segment
        )
        with trio.fail_after(60):
            while (await second.store.streams.read("s", "a")).record.rolling:  # noqa: ASYNC110
                await trio.sleep(0.5)
        memory_store.pause.set()
        await wait_until_ended(second, begun.identifier)
        assert (
            await second.transactions.state("s", "a", begun.identifier)
            == TransactionState.COMMITTED
        )
        assert (await second.store.streams.read("s", "a")).record.epoch_count == 4
    merged = [name for name, segment in memory_store.segments.items() if segment.merged]
    assert sorted(merged) == ["s/a/0.#epoch.2", "s/a/1.#epoch.2"]


async def test_who_is_too_late_to_make_a_scope_leaves_no_intent(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        memory_store.reply_seconds = 0.01
        refused: list[str] = []

        async def create(c: Controller, name: str, seconds: float) -> None:
            await trio.sleep(seconds)
            try:
                await c.scopes.create(name)
            except AlreadyExistsError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(create, one, f"s{number}", 0.0)
                nursery.start_soon(create, two, f"s{number}", number * 0.001 + 0.0005)
        assert len(refused) == 30
        await trio.sleep(LATE_SECONDS + 15)
        assert not memory_store.tables[INTENTS].entries


TABLE = KeyValueTableConfiguration(1, 8)

CREATIONS: dict[str, Callable[[Controller, str], Awaitable[object]]] = {
    "scope": lambda c, name: c.scopes.create(name),
    "table": lambda c, name: c.tables.create("of", name, TABLE),
    "stream": lambda c, name: c.streams.create("of", name, fixed_configuration(1)),
}
DELETIONS: dict[str, Callable[[Controller, str], Awaitable[object]]] = {
    "scope": lambda c, name: c.scopes.delete(name),
    "table": lambda c, name: c.tables.delete("of", name),
    "stream": lambda c, name: c.streams.delete("of", name),
}


@pytest.mark.parametrize("kind", CREATIONS)
async def test_one_of_two_who_create_or_delete_at_once_wins(
    kind: str,
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Both ask for the same at the same time, or a little later, up to the end of the first."""
    async with open_on_memory(port=1, now_ms=lambda: 5) as one, open_on_memory(port=2) as two:
        await one.scopes.create("of")
        memory_store.reply_seconds = 0.01
        for act in (CREATIONS[kind], DELETIONS[kind]):
            winners: Counter[str] = Counter()

            async def ask(
                c: Controller,
                name: str,
                seconds: float,
                act: Callable[[Controller, str], Awaitable[object]] = act,
                winners: Counter[str] = winners,
            ) -> None:
                await trio.sleep(seconds)
                with suppress(AlreadyExistsError, NotFoundError, OutcomeUnknownError):
                    is_winner = await act(c, name) is not False
                    winners[name] += is_winner

            async with trio.open_nursery() as nursery:
                for number in range(40):
                    name = f"n{number}"
                    nursery.start_soon(ask, one, name, 0.0)
                    nursery.start_soon(ask, two, name, number * 0.003)
            assert winners == dict.fromkeys((f"n{number}" for number in range(40)), 1)
            if kind == "stream" and act is CREATIONS[kind]:
                for number in range(40):
                    await one.streams.seal("of", f"n{number}")


async def test_one_of_two_equal_updates_of_a_reader_group_wins(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await one.scopes.create("s")
        await one.streams.create("s", "a", fixed_configuration(1))
        for number in range(10):
            await one.groups.create("s", f"g{number}", GROUP_ID, GROUP)
        memory_store.reply_seconds = 0.01
        winners: list[int] = []

        async def update(c: Controller, number: int, seconds: float) -> None:
            await trio.sleep(seconds)
            with suppress(GenerationMismatchError):
                winners.append(await c.groups.update("s", f"g{number}", GROUP_ID, 0, GROUP))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(update, one, number, 0.0)
                nursery.start_soon(update, two, number, number * 0.01)
        assert winners == [1] * 10
        for number in range(10):
            assert (await one.groups.get("s", f"g{number}")).record.generation == 1


async def test_a_refused_deletion_of_a_scope_shows_nothing(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It stands still at each of its requests in turn, and the scope is used meanwhile."""
    number, is_over = 0, False
    while not is_over:
        memory_store.reset()
        async with (
            open_on_memory(port=1, reply_seconds_max=100.0) as slow,
            open_on_memory(port=2) as other,
        ):
            await slow.scopes.create("s")
            await slow.streams.create("s", "a", fixed_configuration(1))
            is_over = await _use_a_scope_while_its_deletion_stands_still(
                slow, other, memory_store, number
            )
        number += 1
    assert number > 2


async def _use_a_scope_while_its_deletion_stands_still(
    slow: Controller, other: Controller, memory_store: MemorySegmentStore, number: int
) -> bool:
    """Return whether the deletion ends before its request of a number."""
    left = itertools.count(-number)
    answers: list[str] = []
    memory_store.pause = trio.Event()
    memory_store.pauses = lambda request: (
        getattr(request, "segment", "") != MEMBERS and next(left) == 0
    )
    memory_store.is_paused = trio.Event()

    async def delete() -> None:
        try:
            await slow.scopes.delete("s")
        except TableNotEmptyError:
            answers.append("not empty")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        with trio.move_on_after(1) as waiting:
            await memory_store.is_paused.wait()
        memory_store.pauses = lambda request: False
        assert await other.scopes.exists("s")
        assert "s" in (await other.store.scopes.list_page("")).names
        with pytest.raises(AlreadyExistsError):
            await other.scopes.create("s")
        assert await other.streams.create("s", "b", fixed_configuration(1))
        assert await other.tables.create("s", "t", TABLE)
        await other.groups.create("s", "g", GROUP_ID, GROUP)
        with pytest.raises(TableNotEmptyError):
            await other.scopes.delete("s")
        memory_store.pause.set()
    memory_store.pause = None
    assert answers == ["not empty"]
    assert await slow.tables.create("s", "u", TABLE)
    return waiting.cancelled_caught


async def test_what_is_made_after_a_scope_was_found_empty_is_kept(
    open_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    """The deletion finds the scope empty, and then a stream is made, before it goes on."""

    def pauses(request: Request) -> bool:
        return isinstance(request, DeleteTableSegment)

    async with open_on_memory(port=1) as slow, open_on_memory(port=2) as other:
        await slow.scopes.create("s")
        memory_store.pause, memory_store.pauses = trio.Event(), pauses
        async with trio.open_nursery() as nursery:

            async def delete() -> None:
                with pytest.raises(TableNotEmptyError):
                    await slow.scopes.delete("s")

            nursery.start_soon(delete)
            await memory_store.is_paused.wait()
            assert await other.scopes.exists("s")
            assert await other.streams.create("s", "a", fixed_configuration(1))
            memory_store.pause.set()
        memory_store.pause = None
        for controller in (slow, other):
            assert await controller.scopes.exists("s")
            assert "s" in (await controller.store.scopes.list_page("")).names
        await other.streams.seal("s", "a")
        await other.streams.delete("s", "a")
        await slow.scopes.delete("s")
        assert not await other.scopes.exists("s")
        await other.scopes.create("s")


async def test_a_scope_is_found_that_was_made_anew_by_another_controller(
    open_on_memory: Any,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await one.scopes.create("s")
        assert await one.streams.create("s", "a", fixed_configuration(1))
        await two.scopes.delete_with_contents("s")
        await two.scopes.create("s")
        assert await one.streams.create("s", "b", fixed_configuration(1))


async def test_records_that_were_written_without_a_condition_are_read(
    open_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    """Their values lack the member ``write``."""
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(1))
        await controller.tables.create("s", "t", TABLE)
        await controller.groups.create("s", "g", GROUP_ID, GROUP)
        begun = await controller.transactions.begin("s", "a", lease_ms=20_000)
    count = 0
    for table in memory_store.tables.values():
        for key, (value, version) in table.entries.items():
            if value.endswith(b"}"):
                former = re.sub(rb',"write":"[0-9a-f]{16}"', b"", value)
                count += former != value
                table.entries[key] = former, version
    assert count > 8
    async with open_on_memory() as controller:
        assert await commit(controller, begun.identifier)
        with pytest.raises(AlreadyExistsError):
            await controller.scopes.create("s")
        assert not await controller.tables.create("s", "t", TABLE)
        assert await controller.groups.update("s", "g", GROUP_ID, 0, GROUP) == 1
        await controller.tables.delete("s", "t")
        await controller.scopes.delete_with_contents("s")
        assert not await controller.scopes.exists("s")
