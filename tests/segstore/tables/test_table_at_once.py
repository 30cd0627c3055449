"""Requests to a table while other requests change it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from pravega_wire.commands import NOT_EXISTS, TableEntry, TableKey
from segstore.api import ReadResult
from segstore.errors import NoSuchSegmentError, TableKeyMissingError
from segstore.model.attributes import AttributeId
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import SLICE_COUNT, TableSegments
from support.local_tiers import LocalTiers
from support.models.memory_container import MemoryContainer

settle = trio.testing.wait_all_tasks_blocked


class GatedContainer(MemoryContainer):
    """A container whose attribute reads wait at the gate that there was when they began."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()
        self.gate.set()

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        await self.gate.wait()
        return await super().get_attributes(name, attribute_ids)


def one_bucket(key: bytes) -> bytes:
    return b"\x11" * 16


async def put(tables: TableSegments, key: bytes, value: bytes = b"v") -> int:
    [version] = await tables.update("t", [TableEntry(TableKey(key), value)])
    return version


async def test_an_update_that_finds_room_made_by_somebody_else_goes_on() -> None:
    tables = TableSegments(MemoryContainer(), TableSettings(unindexed_count_max=3))
    await tables.create("t")
    for key in (b"a", b"b", b"c"):
        await put(tables, key)
    table = tables.find_table("t")
    index = await table.index()
    assert not index.has_room
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            # Somebody else is about to make room when a compaction's step does.
            async with table._making_room:
                nursery.start_soon(put, tables, b"late")
                await settle()
                await index.step(compacted=(0, 0))
            assert index.has_room
    [found] = await tables.read("t", [b"late"])
    assert found.value == b"v"


async def test_a_key_is_found_while_its_bucket_becomes_one_of_several() -> None:
    container = GatedContainer()
    first = TableSegments(container, TableSettings(), hash_key=one_bucket)
    await first.create("t")
    version = await put(first, b"a")
    await first.find_table("t").follow()
    tables = TableSegments(container, TableSettings(), hash_key=one_bucket)
    await tables.info("t")
    found: list[TableEntry] = []

    async def look() -> None:
        found.extend(await tables.read("t", [b"a"]))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            usual, slow = container.gate, trio.Event()
            container.gate = slow
            nursery.start_soon(look)
            await settle()
            container.gate = usual
            await put(tables, b"b")
            await tables.find_table("t").follow()
            slow.set()
    assert found == [TableEntry(TableKey(b"a", version), b"v")]
    assert await tables.read("t", [b"a"]) == found


async def test_a_step_on_a_table_that_is_gone_leaves_its_namesake_known() -> None:
    container = GatedContainer()
    tables = TableSegments(container, TableSettings())
    await tables.create("t")
    await put(tables, b"a")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            usual, slow = container.gate, trio.Event()
            container.gate = slow
            nursery.start_soon(tables._maintain, tables._tables["t"])
            await settle()
            container.gate = usual
            await tables.delete("t")
            await tables.create("t")
            await put(tables, b"b")
            namesake = tables.find_table("t")
            slow.set()
    assert tables.find_table("t") is namesake


async def test_an_update_of_many_keys_gives_others_their_turn_and_none_overtakes_it() -> None:
    tables = TableSegments(MemoryContainer(), TableSettings())
    await tables.create("t")
    count = 20 * SLICE_COUNT
    turns = 0
    taken: list[str] = []

    async def update(name: str, keys: Sequence[bytes]) -> None:
        entries = [TableEntry(TableKey(key), name.encode()) for key in keys]
        await tables.update("t", entries)
        taken.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(update, "many", [b"%d" % number for number in range(count)])
        await trio.lowlevel.checkpoint()
        nursery.start_soon(update, "one", [b"7"])
        while nursery.child_tasks:
            turns += 1
            await trio.lowlevel.checkpoint()
    assert turns >= 20
    [seven, eight] = await tables.read("t", [b"7", b"8"])
    assert (seven.value, eight.value) == (b"one", b"many")
    assert (await tables.info("t")).entry_count == count


async def namesake_with(container: MemoryContainer, *keys: bytes) -> None:
    """Delete the table and make it again, as another process; nobody here is told."""
    others = TableSegments(container, TableSettings())
    await others.delete("t")
    await others.create("t")
    for key in keys:
        await put(others, key, b"new")


@pytest.mark.parametrize("keys", [(), (b"b",)], ids=["empty", "of the same length"])
async def test_a_namesake_of_a_table_whose_deletion_nobody_waited_for_is_another_table(
    keys: tuple[bytes, ...],
) -> None:
    container = GatedContainer()
    tables = TableSegments(container, TableSettings())
    await tables.create("t")
    await put(tables, b"a", b"old")
    await namesake_with(container, *keys)
    [missing] = await tables.read("t", [b"a"])
    assert missing == TableEntry(TableKey(b"a", NOT_EXISTS), b"")
    assert (await tables.info("t")).entry_count == len(keys)
    page = await tables.iterate_entries("t", count_max=10)
    assert [entry.key.key for entry in page.entries] == [*keys]
    with pytest.raises(TableKeyMissingError):
        await tables.update("t", [TableEntry(TableKey(b"a", 0), b"x")])


async def test_a_deletion_that_is_told_of_late_leaves_the_namesake_known() -> None:
    container = MemoryContainer()
    tables = TableSegments(container, TableSettings())
    await tables.create("t")
    await put(tables, b"a")
    await namesake_with(container)
    await put(tables, b"b")
    namesake = tables.find_table("t")
    tables.forget("t")
    assert tables.find_table("t") is namesake
    await container.delete_segment("t")
    tables.forget("t")
    assert not tables.index_bytes


class SlowContainer(GatedContainer):
    """A container whose other reads wait at the gate too."""

    async def read(self, name: str, *, offset: int, length_max: int) -> ReadResult:
        gate = self.gate
        result = await super().read(name, offset=offset, length_max=length_max)
        await gate.wait()
        return result


CALLS: dict[str, Callable[[TableSegments], Awaitable[object]]] = {
    "read": lambda tables: tables.read("t", [b"a"]),
    "look": lambda tables: tables.read("t", [b"b"]),
    "iterate": lambda tables: tables.iterate_entries("t", count_max=10),
    "delta": lambda tables: tables.read_delta("t", from_position=0, count_max=10),
    "update": lambda tables: tables.update("t", [TableEntry(TableKey(b"b", NOT_EXISTS), b"x")]),
    "count": lambda tables: tables.info("t"),
    "delete": lambda tables: tables.delete("t", must_be_empty=True),
}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("call", CALLS)
async def test_what_waits_while_a_namesake_replaces_its_table_takes_neither_for_the_other(
    call: str, is_open: bool
) -> None:
    """The bytes at the place of an entry may be another key's, and an empty table is full."""
    container = SlowContainer()
    tables = TableSegments(container, TableSettings(kept_value_bytes_max=0))
    await tables.create("t")
    await put(tables, b"a", b"old")
    if call == "delete":
        await tables.remove("t", [TableKey(b"a")])
    if not is_open:
        tables = TableSegments(container, TableSettings(kept_value_bytes_max=0))

    async def refused() -> None:
        with pytest.raises(NoSuchSegmentError):
            await CALLS[call](tables)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            usual, slow = container.gate, trio.Event()
            container.gate = slow
            nursery.start_soon(refused)
            await settle()
            container.gate = usual
            await namesake_with(container, b"b")
            slow.set()
        for each in (tables, TableSegments(container, TableSettings())):
            assert await each.read("t", [b"b"]) == [TableEntry(TableKey(b"b", 0), b"new")]


async def test_an_update_that_waits_behind_a_namesakes_creation_does_not_reach_it(
    tmp_path: Path,
) -> None:
    """Both tables are empty: the length does not tell them apart."""
    tiers = LocalTiers(tmp_path)
    async with tiers.container() as container, trio.open_nursery() as nursery:
        tables = TableSegments(container, TableSettings())
        nursery.start_soon(tables.run)
        await tables.create("t")
        assert [each.key.version for each in await tables.read("t", [b"a"])] == [NOT_EXISTS]
        tiers.log.holding = True
        later = TableSegments(container, TableSettings())
        nursery.start_soon(container.delete_segment, "t")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(later.create, "t")
        await trio.testing.wait_all_tasks_blocked()
        refused = trio.Event()

        async def update() -> None:
            with pytest.raises(NoSuchSegmentError):
                await tables.update("t", [TableEntry(TableKey(b"a"), b"value")])
            refused.set()

        nursery.start_soon(update)
        await trio.testing.wait_all_tasks_blocked()
        tiers.log.release()
        await refused.wait()
        assert container.segment_info("t").length == 0
        nursery.cancel_scope.cancel()
