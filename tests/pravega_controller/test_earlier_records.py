"""A data directory of the first format: its tables as they were written, opened by this controller.

The fixture was written by the controller of the first format, killed in the middle of five jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.earlier_records import (
    Delete,
    EarlierEpoch,
    EarlierEpochRecord,
    EarlierStreamRecord,
)
from pravega_controller.errors import NotFoundError, StreamNotFoundError
from pravega_controller.history import Epoch
from pravega_controller.intents import INTENTS
from pravega_controller.records import decode, encode
from pravega_controller.streams import RetentionType, Segment, fixed_configuration
from pravega_controller.testing.history_model import HistoryModel
from pravega_controller.testing.memory_segment_store import (
    Fault,
    MemorySegment,
    MemorySegmentStore,
    MemoryTable,
)
from pravega_wire import names

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]

FIXTURE = msgspec.json.decode((Path(__file__).parent / "data/metadata-format-1.json").read_bytes())


def restore(memory: MemorySegmentStore) -> None:
    memory.reset()
    for table, entries in FIXTURE["tables"].items():
        memory.tables[table] = MemoryTable(
            entries={
                key.encode(): (msgspec.json.encode(value), version)
                for key, (value, version) in entries.items()
            }
        )
    for name, fields in FIXTURE["segments"].items():
        memory.segments[name] = MemorySegment(*fields)
    memory._version = 1_000_000


def histories() -> dict[str, list]:
    (entries,) = [entries for table, entries in FIXTURE["tables"].items() if len(entries) > 50]
    return entries


def earlier_history(stream: str) -> HistoryModel:
    """Return a stream's epochs, as the first format stored them."""
    model = HistoryModel()
    while (found := histories().get(f"epoch/{stream}/{len(model.epochs)}")) is not None:
        epoch = decode(msgspec.json.encode(found[0]), EarlierEpochRecord).epoch
        segments = model.segments
        sealed = tuple(segments[identifier] for identifier in epoch.sealed)
        model.append(Epoch(epoch.number, epoch.reference, epoch.created_ms, epoch.created, sealed))
    return model


async def wait_until_finished(memory: MemorySegmentStore) -> None:
    with trio.fail_after(600):
        while memory.tables[INTENTS].entries:  # noqa: ASYNC110 (the store in memory has no events)
            await trio.sleep(1)


def earlier_keys(memory: MemorySegmentStore) -> set[bytes]:
    return {
        key
        for content in memory.tables.values()
        for key in content.entries
        if key.startswith((b"epoch/", b"subscribers/"))
    }


async def check_all(c: Controller, memory: MemorySegmentStore) -> None:
    quiet = await c.streams.configuration("s", "quiet")
    assert quiet.tags == ("red", "green")
    assert quiet.retention is not None
    assert quiet.retention.retention_type is RetentionType.TIME
    assert [s.key_range for s in await c.streams.active_segments("s", "quiet")] == [
        (0, 0.5),
        (0.5, 1),
    ]
    await check_busy(c)
    assert await c.streams.active_segments("s", "done") == ()
    assert len(await c.streams.epoch_segments("s", "done", 2)) == 3
    assert (await c.groups.get("s", "g")).record.generation == 0
    assert await c.groups.subscribers("s", "busy") == ["s/g"]
    with pytest.raises(StreamNotFoundError):
        await c.streams.configuration("s", "gone")
    assert await c.streams.create("s", "gone", fixed_configuration(1))
    (segment,) = await c.streams.active_segments("s", "gone")
    assert segment.segment_id == 1, "numbers go on after those of the deleted stream"


async def check_busy(c: Controller) -> None:
    model = earlier_history("busy")
    stream = await c.store.stream("s", "busy")
    assert stream.active == model.latest
    assert stream.record.base > 0, "a long history got a snapshot"
    for number in range(0, 101, 7):
        found_in_epoch = await c.streams.epoch_segments("s", "busy", number)
        assert [(s.number, s.epoch, s.key_range) for s in found_in_epoch] == [
            (s.number, number, s.key_range) for s in model.segments_in(number)
        ]
    for segment_id in list(model.segments)[::5]:
        found = await c.streams.successors("s", "busy", segment_id)
        assert found == model.successors(segment_id)
    head = await c.streams.head("s", "busy")
    assert head == {s.segment_id: 0 for s in model.segments_in(40)}
    record, _ = await c.store.subscriber(stream, "s/g") or (None, 0)
    assert record is not None
    assert record.cut == head


async def check_finished(c: Controller, memory: MemorySegmentStore) -> None:
    """Check that the work of the earlier controller is finished."""
    assert len(await c.streams.active_segments("s", "scaling")) == 3
    assert memory.segments["s/scaling/0.#epoch.0"].is_sealed
    assert len(await c.streams.active_segments("s", "updating")) == 3
    assert "s/truncating/0.#epoch.0" not in memory.segments
    with pytest.raises(StreamNotFoundError):
        await c.streams.configuration("s", "deleting")
    assert not [name for name in memory.segments if name.startswith("s/deleting/")]
    assert len(await c.streams.active_segments("s", "making")) == 2
    assert "s/_MARKmaking/0.#epoch.0" in memory.segments
    assert (await c.streams.list_with_tag("s", "red", "")).names == ["quiet"]


async def test_everything_is_there_and_goes_on(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    restore(memory_store)
    async with open_on_memory() as controller:
        assert (await controller.streams.list_with_tag("s", "red", "")).names == ["quiet"]
        await wait_until_finished(memory_store)
        await check_all(controller, memory_store)
        await check_finished(controller, memory_store)
        await controller.scopes.delete_with_contents("s")
    assert not [name for name in memory_store.segments if name.startswith("s/")]


@pytest.mark.parametrize("is_applied", [False, True], ids=["not applied", "applied"])
async def test_a_carrying_over_that_is_killed_is_done_again(
    is_applied: bool, open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    step = 0
    while True:
        restore(memory_store)
        memory_store.tables[INTENTS].entries.clear()
        async with open_on_memory() as controller:
            fault = memory_store.fault = Fault(memory_store.changes + step, is_applied)
            async with trio.open_nursery() as nursery:

                async def load(nursery: trio.Nursery = nursery) -> None:
                    await controller.store.stream("s", "busy")
                    nursery.cancel_scope.cancel()

                nursery.start_soon(load)
                await fault.reached.wait()
                nursery.cancel_scope.cancel()
        memory_store.fault = None
        if not fault.reached.is_set():
            break
        async with open_on_memory() as successor:
            await check_busy(successor)
        step += 1
    assert step >= 3
    assert not {key for key in earlier_keys(memory_store) if b"/busy/" in key}


async def test_two_controllers_carry_over_one_stream(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    restore(memory_store)
    memory_store.tables[INTENTS].entries.clear()
    async with (
        open_on_memory(port=1) as first,
        open_on_memory(port=2) as second,
        trio.open_nursery() as nursery,
    ):
        for controller in (first, second, first, second):
            nursery.start_soon(check_busy, controller)


async def remove_by_itself(c: Controller) -> None:
    await c.streams.delete("s", "x")


async def remove_by_new_stream(c: Controller) -> None:
    await c.streams.create("s", "x", fixed_configuration(1))
    await c.streams.seal("s", "x")
    await c.streams.delete("s", "x")


async def remove_by_scope(c: Controller) -> None:
    await c.scopes.delete_with_contents("s")


@pytest.mark.parametrize("remove", [remove_by_itself, remove_by_new_stream, remove_by_scope])
async def test_the_removal_of_a_truncated_stream_that_was_killed_ends(
    remove: Callable[[Controller], Awaitable[None]], open_on_memory: OpenController
) -> None:
    """Removal went from the last epoch down: that of the head's segment is gone."""
    segments = [Segment(names.segment_id(number, number), 0.0, 1.0) for number in range(4)]
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        scope = await controller.store.active_scope("s")
        tables = controller.store.tables
        for number, segment in enumerate(segments[:3]):
            sealed = tuple(one.segment_id for one in segments[max(0, number - 1) : number])
            epoch = EarlierEpochRecord(EarlierEpoch(number, number, 1000, (segment,), sealed))
            await tables.put(scope.histories, f"epoch/x/{number}".encode(), encode(epoch))
        head = {segments[3].segment_id: 50}
        record = EarlierStreamRecord(fixed_configuration(1), 1000, 3, 4, head, True, Delete())
        await tables.put(scope.objects, b"s/x", encode(record))
        with suppress(StreamNotFoundError):
            await remove(controller)
        with pytest.raises(NotFoundError):
            await controller.store.stream("s", "x")


def test_the_fixture_shows_every_kind_of_job_and_record() -> None:
    records = [
        decode(msgspec.json.encode(value), EarlierStreamRecord)
        for table, entries in FIXTURE["tables"].items()
        for key, (value, _) in entries.items()
        if "objects" in table and key.startswith("s/")
    ]
    jobs = {type(record.pending).__name__ for record in records}
    assert jobs == {"Create", "Scale", "Truncate", "Update", "Delete", "NoneType"}
    assert any(record.is_sealed for record in records)
    assert any(isinstance(s, Segment) for s in earlier_history("busy").latest)
