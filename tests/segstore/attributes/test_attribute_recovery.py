"""Crashes while attributes go into the index, case by case."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from segstore.attributes import attribute_index
from segstore.attributes.attribute_index import attribute_segment_name
from segstore.errors import InvalidRequestError, NoSuchSegmentError, StorageError
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    ATTRIBUTE_SEGMENT_TYPE,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import DeleteOperation, MapOperation, MergeOperation, Operation
from segstore.tiers.api import ChunkInfo
from support.faults.faulty_chunks import Fault

VERB = AttributeUpdateType
FIRST, LAST = bytes(16), b"\xff" * 16


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def replace(values: dict[bytes, int]) -> list[AttributeUpdate]:
    return [AttributeUpdate(each, VERB.REPLACE, value) for each, value in values.items()]


async def everything(container: Any, name: str = "s") -> dict[bytes, int]:
    return {
        attribute_id: value
        async for page in container.attribute_iterator(name, first=FIRST, last=LAST)
        for attribute_id, value in page
    }


async def checkpoint(container: Any) -> None:
    container.parts.processor.request_checkpoint()
    await container.wait_in_flight("s")


async def index_chunks(tiers: Any) -> list[ChunkInfo]:
    return [chunk for chunk in await tiers.chunks.list_chunks("") if "$attributes" in chunk.name]


CASES = {
    "before the update is written": ("write", Fault.REFUSED),
    "in the middle of the update": ("write", Fault.PARTIAL),
    "behind the update, before the log has its place": ("write", Fault.REPLY_LOST),
    "when the log has it, before the old tree is cut off": ("delete", Fault.REFUSED),
    "when the old tree is cut off": ("delete", Fault.REPLY_LOST),
}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_a_crash(
    tiers: Any, case: str, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribute_index, "ROLLOVER_BYTES", 20_000)
    call, fault = CASES[case]
    model = {key(number): number for number in range(1500)}
    choose = random.Random(7)

    def crash_at(made: str) -> Fault:
        if made != call:
            return Fault.NONE
        tiers.next_fault = lambda _: Fault.NONE
        tiers.crash()
        return fault

    async def change_until_the_crash(container: Any) -> None:
        for number in range(1000):
            newer = {key(choose.randrange(1500)): number for _ in range(20)}
            model.update(newer)
            await container.update_attributes("s", replace(newer))
            if checkpointed:
                # The log is cut off here: the checkpoint has what is not in the index.
                await checkpoint(container)
                await container.parts.writer.flush_once(everything=True, all_attributes=False)
            tiers.next_fault = crash_at
            await container.flush()
            await container.parts.storage.collect()

    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment("s")
        await container.update_attributes("s", replace(model))
        await container.flush()
        with trio.CancelScope(shield=True), pytest.raises(StorageError):
            await change_until_the_crash(container)
    assert tiers.crashed
    for _ in range(3):
        async with tiers.open(page_bytes_max=0) as container:
            assert await everything(container) == model
            model[key(7)] = model.get(key(7), 0) + 1
            await container.update_attributes("s", [AttributeUpdate(key(7), VERB.ACCUMULATE, 1)])
            await container.flush()
            tiers.forget_clean("s")
            assert await everything(container) == model
            assert await container.get_attributes("s", [key(7), key(8)]) == {
                key(7): model[key(7)],
                key(8): model[key(8)],
            }


@pytest.mark.parametrize("cut", ["all", "its beginning", "a hole", "its end"])
async def test_a_power_cut_may_leave_an_update_in_any_state(tiers: Any, cut: str) -> None:
    model = {key(number): number for number in range(500)}
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.update_attributes("s", replace(model))
        await container.flush()
    [chunk] = await index_chunks(tiers)
    length = 7000
    choose = random.Random(3)
    left = bytearray(choose.randbytes(length))
    if cut == "its beginning":
        left[2000:] = b""
    elif cut == "a hole":
        left[1000:3000] = bytes(2000)
    elif cut == "its end":
        left[:5000] = bytes(5000)
    await tiers.chunks.write(chunk.name, offset=chunk.length, data=[left])
    for number in range(3):
        async with tiers.open() as container:
            assert await everything(container) == model
            model[key(number)] = 1000
            await container.update_attributes("s", replace({key(number): 1000}))


async def test_operations_that_the_index_has_are_not_written_again(tiers: Any) -> None:
    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment("s", attributes={key(1): 1})
        await container.update_attributes("s", replace({key(1): 2, key(2): 2}))
        await container.flush()
        await container.update_attributes("s", replace({key(2): NULL_ATTRIBUTE_VALUE}))
        tiers.crash()
    async with tiers.open() as container:
        memory = tiers.memory("s")
        assert set(memory.dirty) == {key(2)}, "what the log says and the index has is clean"
        assert await everything(container) == {key(1): 2}
        persisted = memory.values[ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO]
        assert 0 < persisted < memory.dirty[key(2)]


async def test_what_the_index_got_behind_a_checkpoint_is_not_written_again(tiers: Any) -> None:
    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment("s", attributes={key(1): 1})
        await container.update_attributes("s", replace({key(1): 2, key(2): 2}))
        await checkpoint(container)
        await container.flush()
        assert tiers.memory("s").dirty == {}
        await container.update_attributes("s", replace({key(3): 3}))
        await checkpoint(container)
        tiers.crash()
    async with tiers.open(drain_seconds=0) as container:
        assert set(tiers.memory("s").dirty) == {key(3)}, "the checkpoint has no other"
        await container.flush()
        tiers.crash()
    async with tiers.open() as container:
        assert tiers.memory("s").dirty == {}, "the index got it behind the checkpoint"
        assert await everything(container) == {key(1): 2, key(2): 2, key(3): 3}


async def test_what_changed_while_the_index_was_written_is_written_again(tiers: Any) -> None:
    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment("s", attributes={key(1): 1})
        await container.flush()
        await container.update_attributes("s", replace({key(1): 2}))
        changed_by = tiers.memory("s").changed_by
        await container.update_attributes("s", replace({key(2): 2}))
        await checkpoint(container)
        # As if the index had been asked for the first change alone, and the second came later.
        segment = container.parts.metadata.by_name["s"]
        place = segment.attribute_memory.root_pointer
        pointers = {
            ATTRIBUTE_SEGMENT_ROOT_POINTER: place,
            ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO: changed_by,
        }
        await container.record_attributes(segment, pointers)()
        tiers.crash()
    async with tiers.open() as container:
        assert set(tiers.memory("s").dirty) == {key(1), key(2)}
        await container.flush()
        assert await everything(container) == {key(1): 2, key(2): 2}


def test_a_snapshot_that_does_not_tell_which_operation_was_the_last_takes_the_checkpoint() -> None:
    metadata = ContainerMetadata(1)
    made = MapOperation("s", {key(1): 1, EVENT_COUNT: 2})
    made.segment_id = made.sequence_number = 5
    metadata.apply(made, 0)
    data = metadata.snapshot(9)
    told = ContainerMetadata(1)
    told.restore(data)
    assert told.by_name["s"].attribute_memory.dirty == {key(1): 5}
    fields = msgspec.msgpack.decode(data)
    assert fields[4][0].pop() == 5
    untold = ContainerMetadata(1)
    untold.restore(msgspec.msgpack.encode(fields))
    assert untold.by_name["s"].attribute_memory.dirty == {key(1): 9}
    assert untold.by_name["s"].attributes == told.by_name["s"].attributes


async def test_a_removed_attribute_does_not_come_back_from_the_index(tiers: Any) -> None:
    async with tiers.open(drain_seconds=0) as container:
        await container.create_segment("s", attributes={key(1): 1, key(2): 2})
        await container.flush()
        await container.update_attributes("s", replace({key(1): NULL_ATTRIBUTE_VALUE}))
        await checkpoint(container)
        await container.parts.writer.flush_once(everything=True, all_attributes=False)
        assert await everything(container) == {key(2): 2}
        tiers.crash()
    async with tiers.open() as container:
        assert await everything(container) == {key(2): 2}
        await container.flush()
        tiers.forget_clean("s")
        assert await container.get_attributes("s", [key(1), key(2)]) == {key(2): 2}


async def test_a_lost_index_fails_what_needs_it_and_nothing_else(tiers: Any) -> None:
    async with tiers.open() as container:
        for name in "st":
            await container.create_segment(name, attributes={key(1): 1})
    [lost, _] = await index_chunks(tiers)
    await tiers.chunks.delete(lost.name)
    async with tiers.open() as container:
        with pytest.raises(StorageError, match="is missing"):
            await container.get_attributes("s", [key(1)])
        update = AttributeUpdate(key(1), VERB.ACCUMULATE, 1)
        with pytest.raises(StorageError, match="is missing"):
            await container.append("s", b"x", attribute_updates=[update])
        await container.append("s", b"y")
        await container.append("t", b"z", attribute_updates=[update])
        assert await container.get_attributes("t", [key(1)]) == {key(1): 2}


async def test_tier_2_failing_while_attributes_are_loaded_refuses_in_order(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        await container.create_segment("s", attributes={key(1): 1})
        await container.flush()
        tiers.forget_clean("s")
        tiers.next_fault = lambda call: Fault.REFUSED if call == "read" else Fault.NONE
        answers: list[tuple[str, str]] = []

        def append(label: str, *updates: AttributeUpdate) -> None:
            container.append_nowait(
                "s",
                b"x",
                attribute_updates=updates,
                on_complete=lambda error, _: answers.append((label, type(error).__name__)),
            )

        append("first")
        append("needs it", AttributeUpdate(key(1), VERB.ACCUMULATE, 1))
        append("behind")
        await container.wait_in_flight("s")
        assert answers == [
            ("first", "NoneType"),
            ("needs it", "StorageError"),
            ("behind", "NoneType"),
        ]
        tiers.next_fault = lambda _: Fault.NONE
        append("again", AttributeUpdate(key(1), VERB.REPLACE_IF_EQUALS, 5, 1))
        await container.wait_in_flight("s")
        assert answers[3:] == [("again", "NoneType")]


async def test_deleted_and_merged_segments_leave_no_attributes_in_tier_2(tiers: Any) -> None:
    async with tiers.open(drain_seconds=0) as container:
        for name in ("s", "source", "target"):
            await container.create_segment(name, attributes={key(1): 1})
        await container.append("source", b"data")
        await container.flush()
        assert len(await index_chunks(tiers)) == 3
        await container.delete_segment("s")
        await container.merge_segment("target", "source")
        tiers.crash()
    async with tiers.open() as container:
        await container.create_segment("s", attributes={key(2): 2})
        assert await everything(container) == {key(2): 2}
        await container.flush()
        await container.parts.storage.collect()
        names = [chunk.name for chunk in await index_chunks(tiers)]
        assert [name.partition(".S-")[0] for name in names] == ["s", "target"]
        assert await container.get_attributes("target", [key(1)]) == {key(1): 1}
    async with tiers.open() as container:
        await container.delete_segment("s")
        await container.delete_segment("target")
    async with tiers.open() as container:
        await container.parts.storage.collect()
    names = [chunk.name for chunk in await tiers.chunks.list_chunks("")]
    assert [name for name in names if not name.startswith("_system/chunks-0$")] == []


async def test_a_segment_that_is_deleted_while_its_index_is_read_is_gone(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        await container.create_segment("s", attributes={key(1): 1})
        await container.flush()
        tiers.forget_clean("s")
        tiers.read_seconds = 1.0

        async def ask() -> None:
            with pytest.raises(NoSuchSegmentError):
                await container.get_attributes("s", [key(1)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await container.delete_segment("s")
            await container.create_segment("s", attributes={key(1): 2})
        assert await container.get_attributes("s", [key(1)]) == {key(1): 2}
        assert tiers.attribute_cache.count == 0


async def test_a_sealed_segment_gets_its_last_flush(tiers: Any) -> None:
    async with tiers.open() as container:
        await container.create_segment("s", attributes={key(1): 1})
        await container.seal_segment("s")
        modified = container.segment_info("s").last_modified_ms
        await container.flush()
        assert not tiers.memory("s").dirty
        assert container.segment_info("s").last_modified_ms == modified
    async with tiers.open() as container:
        assert await everything(container) == {key(1): 1}


async def test_transient_segments_have_no_index_and_few_attributes(tiers: Any) -> None:
    transient = {ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.TRANSIENT)}
    async with tiers.open() as container:
        await container.create_segment("s", attributes=transient)
        for number in range(100):
            await container.update_attributes("s", replace({key(number): 1}))
            await container.update_attributes("s", replace({key(number): NULL_ATTRIBUTE_VALUE}))
        await container.update_attributes("s", replace({key(number): 1 for number in range(16)}))
        with pytest.raises(InvalidRequestError):
            await container.update_attributes("s", replace({key(16): 1}))
        await container.flush()
        assert await index_chunks(tiers) == []
        assert len(tiers.memory("s").values) == 17
        assert len(await everything(container)) == 16


async def test_a_checkpoint_does_not_grow_with_attributes_that_are_persisted(tiers: Any) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        sizes = []
        for start in (0, 5000):
            for number in range(start, start + 5000, 500):
                await container.update_attributes(
                    "s", replace({key(each): each for each in range(number, number + 500)})
                )
            await container.flush()
            sizes.append(len(container.parts.metadata.snapshot(1)))
        assert sizes[0] == sizes[1] < 300
        await container.update_attributes("s", replace({key(1): 7}))
        assert sizes[0] < len(container.parts.metadata.snapshot(1)) < sizes[0] + 50


@pytest.mark.proof
async def test_100_000_attributes_of_one_segment_take_bounded_memory(tiers: Any) -> None:
    count, batch = 100_000, 1000
    async with tiers.open(page_bytes_max=256 * 1024) as container:
        await container.create_segment("s")
        tracemalloc.start()
        try:
            for start in range(0, count, batch):
                values = {key(number): number for number in range(start, start + batch)}
                container.append_nowait(
                    "s", b"x", attribute_updates=replace(values), on_complete=lambda *_: None
                )
                if start % 10_000 == 0:
                    await container.wait_in_flight("s")
                    await container.flush()
                    await checkpoint(container)
            await container.wait_in_flight("s")
            await container.flush()
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        stored = await tiers.index_bytes("s")
        memory = tiers.memory("s")
        assert len(memory.cached) == 4096
        assert len(memory.values) == 4096 + len(memory.core)
        # Tier 2 is in this process too.
        assert held_bytes - stored < 6 * 1024 * 1024
        choose = random.Random(5)
        for _ in range(20):
            wanted = [key(choose.randrange(count)) for _ in range(10)]
            found = await container.get_attributes("s", wanted)
            assert found == {each: int.from_bytes(each, "big") for each in wanted}
    async with tiers.open() as container:
        found = await everything(container)
        assert len(found) == count
        assert list(found) == sorted(found)
        assert len(tiers.memory("s").values) == len(tiers.memory("s").core)


async def test_a_container_bounds_the_attributes_of_all_its_segments(tiers: Any) -> None:
    async with tiers.open(segment_count_max=10, container_count_max=25) as container:
        for number in range(8):
            values = {key(each): number for each in range(20)}
            await container.create_segment(f"s{number}", attributes=values)
        await container.flush()
        cached = [len(tiers.memory(f"s{number}").cached) for number in range(8)]
        assert sum(cached) == tiers.attribute_cache.count == 25
        assert max(cached) == 10, "the segment that was flushed last keeps its attributes"
        for number in range(8):
            assert await container.get_attributes(f"s{number}", [key(3)]) == {key(3): number}
        assert tiers.attribute_cache.count <= 25


async def test_the_log_has_the_place_of_the_index(tiers: Any) -> None:
    async with tiers.open() as container:
        await container.create_segment("s", attributes={key(1): 1})
        await container.flush()
        segment = container.parts.metadata.by_name["s"]
        pointer = segment.attributes[ATTRIBUTE_SEGMENT_ROOT_POINTER]
        [chunk] = await index_chunks(tiers)
        assert chunk.name.startswith(attribute_segment_name(segment.storage_name))
        footer = await tiers.chunks.read(chunk.name, offset=pointer, length=8)
        assert footer == b"SegBTree"


@pytest.mark.parametrize("gone", ["deleted", "merged"])
def test_attributes_of_a_segment_that_is_gone_do_not_count(gone: str) -> None:
    metadata = ContainerMetadata(1)
    for number, name in ((1, "s"), (2, "t")):
        made = MapOperation(name, {key(1): 1})
        made.segment_id = made.sequence_number = number
        metadata.apply(made, 0)
    segment = metadata.by_name["s"]
    metadata.mark_persisted(segment, {}, 1)
    assert metadata.attribute_cache.count == 1
    ended: Operation = DeleteOperation("s")
    ended.segment_id = 1
    if gone == "merged":
        ended = MergeOperation("t", "s")
        ended.segment_id, ended.source_id, ended.offset, ended.length = 2, 1, 0, 0
    ended.sequence_number = 3
    metadata.apply(ended, 0)
    assert metadata.attribute_cache.count == 0
    segment.attribute_memory.apply({key(2): 2}, 2)
    metadata.mark_persisted(segment, {}, 2)
    assert metadata.attribute_cache.count == 0
    assert list(metadata.unpersisted) == [2]


async def change_more_than_one_update_takes(container: Any) -> dict[bytes, int]:
    """Change attributes so that a new segment's index is written three times; return them."""
    model: dict[bytes, int] = {}
    await container.create_segment("s")
    for batch in range(3):
        values = {key(3 * number + batch): number for number in range(1000)}
        await container.update_attributes("s", replace(values))
        model.update(values)
    return model


async def test_a_later_tree_is_not_forgotten_for_an_earlier_one_of_the_same_flush(
    tiers: Any,
) -> None:
    """There are more changes than one update of the index takes, while the log is busy with a
    checkpoint."""
    async with tiers.open(page_bytes_max=0) as container, trio.open_nursery() as nursery:
        model = await change_more_than_one_update_takes(container)
        tiers.logs._flush_scheduled = True  # the log stands still
        container.append_nowait("s", b"in flight", on_complete=lambda error, length: None)
        await trio.testing.wait_all_tasks_blocked()
        container.parts.processor.request_checkpoint()
        nursery.start_soon(container.flush)
        await trio.testing.wait_all_tasks_blocked()
        tiers.logs._flush()
        await trio.testing.wait_all_tasks_blocked()
        await checkpoint(container)
        segment = container.parts.metadata.by_name["s"]
        with container.parts.attribute_indexes.use(segment) as index:
            assert segment.attribute_memory.root_pointer == index._present_root_pointer()
        tiers.crash()
    async with tiers.open(page_bytes_max=0) as container:
        assert await everything(container) == model


@pytest.mark.proof
async def test_no_tree_is_cut_off_before_the_log_has_the_place_of_the_one_that_took_its_place(
    tiers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribute_index, "ROLLOVER_BYTES", 20_000)
    async with tiers.open(page_bytes_max=0) as container, trio.open_nursery() as nursery:
        model = await change_more_than_one_update_takes(container)
        tiers.logs._flush_scheduled = True  # the log stands still
        nursery.start_soon(container.flush)
        await trio.testing.wait_all_tasks_blocked()
        queued = tiers.logs._queue.popleft()
        queued.on_durable(queued.log._store(queued))
        tiers.logs._flush_scheduled = True
        await trio.testing.wait_all_tasks_blocked()
        tiers.crash()
        nursery.cancel_scope.cancel()
    async with tiers.open(page_bytes_max=0) as container:
        assert await everything(container) == model
