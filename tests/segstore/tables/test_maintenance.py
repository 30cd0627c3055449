"""Tables are maintained beside each other: what is due, when, and by how many tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pravega_wire.commands import NO_VERSION, TableEntry, TableKey
from segstore.errors import StorageError
from segstore.model.attributes import AttributeUpdate
from segstore.tables.maintenance import MAINTAINED_MAX, Maintenance
from segstore.tables.settings import TableSettings
from segstore.tables.table_segment import TableSegment
from segstore.tables.table_segments import TableSegments
from support.models.memory_container import MemoryContainer

settle = trio.testing.wait_all_tasks_blocked
SETTINGS = TableSettings(index_count=4, index_seconds=5.0)


class TroubledContainer(MemoryContainer):
    """A container in which index steps of some tables wait for ever, and those of others fail."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[str] = set()
        self.failing: set[str] = set()
        self.step_count = 0

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        self.step_count += 1
        if name in self.waiting:
            await trio.sleep_forever()
        if name in self.failing:
            raise StorageError("tier 2 is away")
        await super().update_attributes(name, updates)


async def put(tables: TableSegments, name: str, count: int = 4) -> None:
    key = TableKey(b"key", NO_VERSION)
    for _ in range(count):
        await tables.update(name, [TableEntry(key, b"value")])


async def is_indexed(tables: TableSegments, name: str) -> bool:
    return (await tables._index(tables.find_table(name))).unindexed_bytes == 0


async def test_a_table_that_waits_or_fails_keeps_no_other_from_being_maintained(
    autojump_clock: trio.testing.MockClock,
) -> None:
    container = TroubledContainer()
    tables = TableSegments(container, SETTINGS)
    troubled = [f"t{number}" for number in range(MAINTAINED_MAX - 1)]
    container.waiting.update(troubled)
    container.failing.add("failing")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        for name in (*troubled, "failing", "fine"):
            await tables.create(name)
        with capture_logs() as logs:
            for name in (*troubled, "failing"):
                await put(tables, name)
            await settle()
            for _ in range(10):
                await put(tables, "fine")
                await trio.sleep(1)
                assert await is_indexed(tables, "fine")
        assert {line["segment"] for line in logs} == {"failing"}
        assert 2 <= len(logs) <= 4
        assert not await is_indexed(tables, "failing")
        container.failing.clear()
        await trio.sleep(SETTINGS.index_seconds + 1)
        assert await is_indexed(tables, "failing")
        nursery.cancel_scope.cancel()


async def test_so_many_tables_are_maintained_at_a_time_and_each_by_one_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    container = TroubledContainer()
    tables = TableSegments(container, SETTINGS)
    names = [f"t{number}" for number in range(MAINTAINED_MAX + 3)]
    container.waiting.update(names)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        for name in names:
            await tables.create(name)
        for _ in range(3):
            for name in names:
                await put(tables, name)
            await trio.sleep(20)
        assert container.step_count == MAINTAINED_MAX
        nursery.cancel_scope.cancel()


async def test_a_table_that_becomes_due_while_it_is_maintained_is_maintained_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tables = TableSegments(MemoryContainer(), SETTINGS)
    await tables.create("t")
    table = tables.find_table("t")
    begun: list[float] = []

    async def maintain(due: TableSegment) -> None:
        begun.append(trio.current_time())
        if len(begun) == 1:
            maintenance.ask(due, trio.current_time())
        await trio.sleep(10)

    maintenance = Maintenance(maintain, retry_seconds=1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(maintenance.run)
        maintenance.ask(table, trio.current_time())
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert len(begun) == 2
    assert begun[1] - begun[0] == pytest.approx(10)
