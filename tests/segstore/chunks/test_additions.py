"""New chunks of many segments become known together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.records import AddChunk
from segstore.errors import InvalidChunkOffsetError, StorageError
from segstore.tiers.api import Buffer
from segstore.tiers.memory import MemoryChunkStorage

NAMES = [f"s{number}" for number in range(20)]


class SlowJournals(MemoryChunkStorage):
    """Journals whose writes take time; it counts them, and fails some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.failing: set[int] = set()
        self.stored_before_failing = False

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if "journal" not in name:
            await super().write(name, offset=offset, data=data, meanwhile=meanwhile)
            return
        self.count += 1
        fails = self.count in self.failing
        await trio.lowlevel.checkpoint()
        if not fails or self.stored_before_failing:
            await super().write(name, offset=offset, data=data, meanwhile=meanwhile)
        if fails:
            raise StorageError("the journal not")


def owner(chunks: MemoryChunkStorage, epoch: int = 1) -> ChunkedSegmentStorage:
    return ChunkedSegmentStorage(chunks, epoch=lambda: epoch)


async def write_all(storage: ChunkedSegmentStorage, names: Sequence[str]) -> dict[str, str]:
    """Write to all at once; the errors by segment."""
    failures: dict[str, str] = {}

    async def write(name: str) -> None:
        try:
            await storage.write(name, offset=0, data=[name.encode()], rollover_bytes=0)
        except StorageError as error:
            failures[name] = str(error)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(write, name)
    return failures


async def stored(storage: ChunkedSegmentStorage) -> dict[str, int]:
    return {name: await storage.stored_length(name) for name in NAMES}


ALL_STORED = {name: len(name) for name in NAMES}


async def test_many_segments_first_chunks_are_few_writes_of_the_journal() -> None:
    chunks = SlowJournals()
    storage = owner(chunks)
    await storage.segment_names()
    assert await write_all(storage, NAMES) == {}
    assert chunks.count <= 2
    assert await stored(storage) == ALL_STORED
    assert await stored(owner(chunks, 2)) == ALL_STORED


@pytest.mark.parametrize("stored_before_failing", [False, True])
async def test_all_whose_write_of_the_journal_failed_are_told(stored_before_failing: bool) -> None:
    chunks = SlowJournals()
    chunks.stored_before_failing = stored_before_failing
    chunks.failing = {1}
    storage = owner(chunks)
    await storage.segment_names()
    failures = await write_all(storage, NAMES)
    assert len(failures) >= len(NAMES) - 1
    assert set(failures.values()) == {"the journal not"}
    assert await write_all(storage, NAMES) == {}
    assert await stored(storage) == ALL_STORED
    assert await stored(owner(chunks, 2)) == ALL_STORED


async def test_a_chunk_that_does_not_fit_keeps_no_other_from_being_added() -> None:
    chunks = SlowJournals()
    storage = owner(chunks)
    await storage.write("damaged", offset=0, data=[b"four"], rollover_bytes=4)
    await storage.truncate("damaged", offset=4)
    strange: list[StorageError] = []

    async def add_strange() -> None:
        with pytest.raises(InvalidChunkOffsetError) as caught:
            await storage._additions.add(AddChunk("damaged", 3, 1, "damaged$3"))
        strange.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_all, storage, NAMES[:10])
        nursery.start_soon(add_strange)
        nursery.start_soon(write_all, storage, NAMES[10:])
    assert len(strange) == 1
    assert await stored(storage) == ALL_STORED
    assert await stored(owner(chunks, 2)) == ALL_STORED


async def test_who_gives_up_waiting_adds_nothing() -> None:
    chunks = SlowJournals()
    storage = owner(chunks)
    await storage.segment_names()

    async def give_up() -> None:
        with trio.move_on_after(0.01):
            await storage._additions.add(AddChunk("s0", 0, 1, "s0$0"))

    async with storage.journal.changing(), trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
    await storage.write("s1", offset=0, data=[b"x"], rollover_bytes=0)
    assert await storage.segment_names() == ["s1"]


async def test_who_waits_for_one_that_gives_up_is_not_told_that_it_was_added() -> None:
    giving_up, waiting = trio.CancelScope(), trio.Event()

    class GivingUp(SlowJournals):
        async def write(
            self,
            name: str,
            *,
            offset: int,
            data: Sequence[Buffer],
            meanwhile: Callable[[], None] | None = None,
        ) -> None:
            if waiting.is_set():
                giving_up.cancel()
            await super().write(name, offset=offset, data=data, meanwhile=meanwhile)

    storage = owner(GivingUp())
    await storage.write("damaged", offset=0, data=[b"four"], rollover_bytes=4)
    await storage.truncate("damaged", offset=4)
    refused: list[str] = []

    async def add(change: AddChunk) -> None:
        try:
            await storage._additions.add(change)
        except StorageError:
            refused.append(change.segment)

    async def give_up() -> None:
        with giving_up:
            await add(AddChunk("s0", 0, 1, "s0$0"))

    async with trio.open_nursery() as nursery, storage.journal.changing():
        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(add, AddChunk("damaged", 3, 1, "damaged$3"))
        nursery.start_soon(add, AddChunk("s1", 0, 1, "s1$0"))
        await trio.testing.wait_all_tasks_blocked()
        waiting.set()
    assert giving_up.cancelled_caught
    assert sorted(refused) == ["damaged", "s1"]
