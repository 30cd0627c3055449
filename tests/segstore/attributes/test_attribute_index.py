"""The tree of a segment's attributes on tier 2: found again after every crash, never guessed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from _fast.btree.tree import FOOTER_BYTES, PageCache
from segstore.attributes import attribute_index
from segstore.attributes.attribute_index import AttributeIndex, attribute_segment_name
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.errors import StorageError
from segstore.model.attributes import NULL_ATTRIBUTE_VALUE
from segstore.tiers.api import Buffer, ChunkInfo
from segstore.tiers.memory import MemoryChunkStorage
from support.chunk_owners import next_owner
from support.faults.faulty_chunks import Fault, FaultyChunkStorage

NAME = attribute_segment_name("s.S-1")


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Store:
    """Tier 2 with one attribute segment."""

    def __init__(self, next_fault: Callable[[str], Fault] = lambda _: Fault.NONE) -> None:
        self.chunks = MemoryChunkStorage()
        self.faulty = FaultyChunkStorage(self.chunks, next_fault=next_fault)
        self.pages = PageCache(1 << 20)
        self.storage = next_owner(self.faulty)

    def open(self, root_pointer: int | None = None, *, by_new_owner: bool = True) -> AttributeIndex:
        """Open the index as a process finds it that knows this root pointer."""
        if by_new_owner:
            self.storage = next_owner(self.faulty)
        return AttributeIndex(
            NAME,
            self.storage,
            self.pages,
            key_length=16,
            root_pointer=NULL_ATTRIBUTE_VALUE if root_pointer is None else root_pointer,
        )

    async def own_chunks(self) -> list[ChunkInfo]:
        """Return the segment's chunks."""
        return await self.chunks.list_chunks(NAME)

    async def append_garbage(self, data: bytes) -> None:
        [*_, last] = await self.chunks.list_chunks(NAME)
        await self.chunks.write(last.name, offset=last.length, data=[data])

    async def stored_length(self) -> int:
        return await self.storage.stored_length(NAME)


async def entries_of(index: AttributeIndex) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    start: bytes | None = bytes(16)
    while start is not None:
        entries, start = await index.scan(start, b"\xff" * 16, limit=100)
        found.update(entries)
    return found


async def test_what_was_written_is_found_by_the_next_process() -> None:
    store = Store()
    persisted = await store.open().write({key(1): 10, key(2): -20}, 7)
    assert persisted.sequence_number == 7
    index = store.open(persisted.root_pointer)
    assert await index.find_many([key(2), key(3), key(1)]) == [-20, None, 10]
    persisted = await index.write({key(1): NULL_ATTRIBUTE_VALUE, key(3): 3}, 9)
    assert await entries_of(store.open(persisted.root_pointer)) == {key(2): -20, key(3): 3}


async def test_an_index_that_the_log_does_not_know_is_empty_and_not_written_over() -> None:
    store = Store()
    first = await store.open().write({key(1): 10}, 7)
    length = await store.stored_length()
    index = store.open()
    assert await index.find_many([key(1)]) == [None]
    second = await index.write({key(1): 11}, 8)
    assert second.root_pointer is not None
    assert second.root_pointer > length
    assert await store.open(second.root_pointer).find_many([key(1)]) == [11]
    assert await store.open(first.root_pointer).find_many([key(1)]) == [10]


async def test_removing_what_was_never_there_writes_nothing() -> None:
    store = Store()
    index = store.open()
    assert await index.write({key(1): NULL_ATTRIBUTE_VALUE}, 7) == (7, None)
    assert await store.own_chunks() == []


@pytest.mark.parametrize("garbage", [b"torn", bytes(50_000), b"SegBTree" * 12])
async def test_what_lies_behind_the_root_pointer_does_not_count(garbage: bytes) -> None:
    store = Store()
    persisted = await store.open().write({key(1): 10}, 7)
    await store.append_garbage(garbage)
    length = await store.stored_length()
    index = store.open(persisted.root_pointer)
    assert await entries_of(index) == {key(1): 10}
    persisted = await index.write({key(2): 20}, 8)
    assert persisted.root_pointer is not None
    assert persisted.root_pointer > length
    assert await entries_of(store.open(persisted.root_pointer)) == {key(1): 10, key(2): 20}


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.PARTIAL, Fault.REPLY_LOST])
async def test_a_write_that_failed_is_tried_again_with_the_same_bytes(fault: Fault) -> None:
    faults: list[Fault] = []
    store = Store(lambda call: faults.pop() if call == "write" and faults else Fault.NONE)
    index = store.open()
    await index.write({key(number): number for number in range(1000)}, 5)
    first = await store.stored_length()
    for _ in range(3):
        faults.append(fault)
        with pytest.raises(StorageError):
            await index.write({key(5): 55}, 7)
        assert await index.find_many([key(5)]) == [5]
    persisted = await index.write({key(5): 56, key(6): 66}, 9)
    assert persisted.sequence_number == 7, "the write that failed is done first"
    index_again = store.open(persisted.root_pointer, by_new_owner=False)
    assert await index_again.find_many([key(5), key(6)]) == [55, 6]
    persisted = await index.write({key(5): 56, key(6): 66}, 9)
    assert persisted.sequence_number == 9
    assert await store.open(persisted.root_pointer).find_many([key(5), key(6)]) == [56, 66]
    assert await store.stored_length() < first + 2 * (first + FOOTER_BYTES)


async def test_a_missing_end_of_the_tree_is_damage() -> None:
    store = Store()
    persisted = await store.open().write({key(1): 10}, 7)
    await store.chunks.delete((await store.own_chunks())[0].name)
    with pytest.raises(StorageError, match=r"attributes\.index is damaged: its tree ends at"):
        await store.open(persisted.root_pointer).find_many([key(1)])


@pytest.mark.parametrize("where", ["page", "footer"])
async def test_a_wrong_byte_is_damage_and_named(where: str) -> None:
    store = Store()
    persisted = await store.open().write({key(1): 10}, 7)
    assert persisted.root_pointer is not None
    store.pages = PageCache(1 << 20)
    offset = persisted.root_pointer + 20 if where == "footer" else 30
    [first, *_] = await store.own_chunks()
    await store.chunks.write(first.name, offset=offset, data=[b"\x55"])
    with pytest.raises(StorageError, match=r"is damaged: at offset \d+"):
        await store.open(persisted.root_pointer).find_many([key(1)])


async def test_reads_fail_while_tier_2_does_and_work_again_afterwards() -> None:
    fault = Fault.NONE
    store = Store(lambda _: fault)
    persisted = await store.open().write({key(number): number for number in range(3000)}, 7)
    store.pages = PageCache(0)
    index = store.open(persisted.root_pointer)
    for _ in range(2):
        fault = Fault.REFUSED
        with pytest.raises(StorageError, match="injected"):
            await index.find_many([key(0), key(2999)])
        fault = Fault.NONE
        assert await index.find_many([key(0), key(2999)]) == [0, 2999]


async def test_the_attribute_segment_is_cut_off_behind_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attribute_index, "ROLLOVER_BYTES", 40_000)
    store = Store()
    index = store.open()
    choose = random.Random(1)
    model: dict[bytes, int] = {}
    for round_number in range(600):
        changes = {key(choose.randrange(2000)): choose.randrange(100) for _ in range(20)}
        model.update(changes)
        persisted = await index.write(changes, round_number)
        await index.truncate()
    await store.storage.collect()
    stored = sum(chunk.length for chunk in await store.own_chunks())
    assert stored < min(12_000_000, await store.stored_length() / 2)
    assert await entries_of(store.open(persisted.root_pointer)) == model


async def test_a_read_that_is_overtaken_by_a_truncation_starts_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(attribute_index, "ROLLOVER_BYTES", 30_000)
    read_seconds = 0.0
    store = Store()
    store.pages = PageCache(0)
    store.faulty = FaultyChunkStorage(
        store.chunks, next_delay=lambda call: read_seconds if call == "read" else 0.0
    )
    index = store.open()
    await index.write({key(number): number for number in range(4000)}, 1)
    [first, *_] = await store.own_chunks()
    answers: list[Sequence[int | None]] = []

    async def find() -> None:
        answers.append(await index.find_many([key(3999)]))

    async with trio.open_nursery() as nursery:
        read_seconds = 1.0
        nursery.start_soon(find)
        await trio.testing.wait_all_tasks_blocked()
        read_seconds = 0.0
        for number in range(2, 20):
            await index.write({key(at): number for at in range(4000)}, number)
            await index.truncate()
            await store.storage.collect()
        assert first not in await store.own_chunks()
        assert answers == []
    assert answers == [[19]]


class SlowlyRead(ChunkedSegmentStorage):
    """Storage whose reads give less than they are asked for, as at the border of two chunks."""

    async def read(self, segment: str, *, offset: int, length: int) -> bytes:
        return await super().read(segment, offset=offset, length=min(length, 1000))

    async def write(
        self,
        segment: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        rollover_bytes: int,
        on_stored: Callable[[int], None] | None = None,
    ) -> None:
        await super().write(segment, offset=offset, data=data, rollover_bytes=7000)


async def test_pages_may_lie_in_several_chunks() -> None:
    store = Store()
    model = {key(number): number for number in range(5000)}
    storage = SlowlyRead(store.chunks, epoch=lambda: 1)
    index = AttributeIndex(
        NAME, storage, PageCache(0), key_length=16, root_pointer=NULL_ATTRIBUTE_VALUE
    )
    await index.write(model, 1)
    assert len(await store.own_chunks()) > 10
    assert await entries_of(index) == model


changes_of_keys = st.dictionaries(
    st.integers(0, 30).map(key), st.integers(-3, 3) | st.just(NULL_ATTRIBUTE_VALUE), max_size=12
)
plans = st.lists(
    st.tuples(changes_of_keys, st.sampled_from(["", "", "crash", "torn", "truncate"])), max_size=20
)


@settings(max_examples=100, deadline=None)
@given(plans)
def test_the_index_equals_a_dictionary_whatever_crashes(
    plan: list[tuple[dict[bytes, int], str]],
) -> None:
    async def run() -> None:
        store = Store()
        index = store.open()
        model: dict[bytes, int] = {}
        known = None
        for number, (changes, event) in enumerate(plan):
            persisted = await index.write(changes, number)
            if event == "crash":  # before the log has the new root pointer
                index = store.open(known)
                assert await entries_of(index) == model
                continue
            known = persisted.root_pointer
            model.update(changes)
            for each in [each for each in model if model[each] == NULL_ATTRIBUTE_VALUE]:
                del model[each]
            if event == "truncate":
                await index.truncate()
            elif event == "torn" and known is not None:
                await store.append_garbage(bytes(number * 10))
                index = store.open(known)
            assert await entries_of(index) == model

    trio.run(run)
