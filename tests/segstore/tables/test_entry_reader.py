"""Reads of a table's entries: where they end, and how many are under way."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from segstore.api import HasRoom, OnRead, ReadHandle
from segstore.tables.entries import TableDataError, encode_entry
from segstore.tables.entry_reader import HEADS_TOGETHER_MAX, EntryReader, read_heads
from support.models.memory_container import MemoryContainer

ENTRY = encode_entry(b"key", b"value")


class CountingContainer(MemoryContainer):
    """A container that completes reads when it is told to, and counts those under way."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[int, int, OnRead]] = []
        self.held_max = 0

    def read_nowait(
        self,
        name: str,
        *,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        self.held.append((offset, length_max, on_complete))
        self.held_max = max(self.held_max, len(self.held))
        return None

    def release(self) -> None:
        held, self.held = self.held, []
        for offset, length_max, on_complete in held:
            super().read_nowait("t", offset=offset, length_max=length_max, on_complete=on_complete)


async def test_an_entry_beyond_the_end_of_a_read_is_damage() -> None:
    container = MemoryContainer()
    await container.create_segment("t")
    await container.append("t", 3 * ENTRY)
    end = 2 * len(ENTRY) + 1
    reader = EntryReader(container, "t", start=0, end=end, read_bytes=1000)
    assert [entry.offset for entry in await reader.read()] == [0, len(ENTRY)]
    with pytest.raises(TableDataError) as caught:
        await reader.read()
    assert caught.value.offset == 2 * len(ENTRY)


async def test_entries_that_are_read_together_take_a_bounded_number_of_reads() -> None:
    container = CountingContainer()
    await container.create_segment("t")
    count = 2 * HEADS_TOGETHER_MAX + 1
    await container.append("t", count * ENTRY)
    offsets = [number * len(ENTRY) for number in range(count)]
    found: dict[int, bytes] = {}

    async def read() -> None:
        heads = await read_heads(container, "t", offsets)
        found.update((offset, head.key) for offset, head in heads.items())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(3):
                await trio.testing.wait_all_tasks_blocked()
                container.release()
    assert container.held_max == HEADS_TOGETHER_MAX
    assert found == dict.fromkeys(offsets, b"key")
