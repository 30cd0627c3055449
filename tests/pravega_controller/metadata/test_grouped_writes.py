"""Grouped writes: their order, their versions, and whose fault a failure is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from pravega_controller.errors import (
    NoSuchTableError,
    StoreUnavailableError,
    VersionConflictError,
)
from pravega_controller.metadata.grouped_writes import GROUPED_CHANGES_MAX, GroupedWrites
from pravega_controller.store_client.table_client import NOT_EXISTS, Change


class Tables:
    """A table client that answers when it is told to, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []
        self.entries: dict[bytes, int] = {}
        self.gate = trio.CapacityLimiter(1)
        self.failure: Exception | None = None
        self.exists = True
        self._version = 0

    async def create(self, table: str) -> None:
        self.exists = True

    def marked(self, changes: Sequence[Change]) -> Sequence[Change]:
        return changes

    async def update(self, table: str, changes: Sequence[Change]) -> list[int]:
        async with self.gate:
            await trio.lowlevel.checkpoint()
        self.requests.append([change.key for change in changes])
        if not self.exists:
            raise NoSuchTableError(table)
        if self.failure is not None:
            raise self.failure
        for change in changes:
            if change.version >= 0 and self.entries.get(change.key) != change.version:
                raise VersionConflictError(str(change.key))
            if change.version == NOT_EXISTS and change.key in self.entries:
                raise VersionConflictError(str(change.key))
        versions = []
        for change in changes:
            self._version += 1
            self.entries[change.key] = self._version
            versions.append(self._version)
        return versions


async def write_all(
    writes: GroupedWrites, keys: Sequence[bytes], version: int = NOT_EXISTS
) -> dict[bytes, list[int] | Exception]:
    """Submit a write for each key, in order, and collect the results."""
    found: dict[bytes, list[int] | Exception] = {}

    async def write(key: bytes) -> None:
        try:
            found[key] = await writes.write([Change(key, b"", version)])
        except Exception as error:
            found[key] = error

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(write, key)
            await trio.testing.wait_all_tasks_blocked()
    return found


async def hold(tables: Tables, seconds: float) -> None:
    async with tables.gate:
        await trio.sleep(seconds)


async def test_what_waits_goes_together_in_order(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    tables = Tables()
    writes = GroupedWrites(tables, "t")  # type: ignore[arg-type]
    nursery.start_soon(hold, tables, 1)
    await trio.testing.wait_all_tasks_blocked()
    keys = [b"%d" % number for number in range(5)]
    found = await write_all(writes, keys)
    assert tables.requests == [[b"0"], [b"1", b"2", b"3", b"4"]]
    assert found == {key: [number + 1] for number, key in enumerate(keys)}
    await write_all(writes, [b"x"])
    assert tables.requests[-1] == [b"x"]


async def test_a_request_has_a_greatest_size(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    tables = Tables()
    writes = GroupedWrites(tables, "t")  # type: ignore[arg-type]
    nursery.start_soon(hold, tables, 1)
    await trio.testing.wait_all_tasks_blocked()
    await write_all(writes, [b"%d" % number for number in range(GROUPED_CHANGES_MAX + 2)])
    assert [len(request) for request in tables.requests] == [1, GROUPED_CHANGES_MAX, 1]


async def test_a_conflict_is_the_fault_of_one(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    tables = Tables()
    tables.entries[b"2"] = 77
    writes = GroupedWrites(tables, "t")  # type: ignore[arg-type]
    nursery.start_soon(hold, tables, 1)
    await trio.testing.wait_all_tasks_blocked()
    found = await write_all(writes, [b"0", b"1", b"2", b"3"])
    assert [key for key, end in found.items() if isinstance(end, VersionConflictError)] == [b"2"]
    assert tables.requests == [[b"0"], [b"1", b"2", b"3"], [b"1"], [b"2"], [b"3"]]


async def test_what_is_not_known_is_told_to_all(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    tables = Tables()
    tables.failure = StoreUnavailableError("away")
    writes = GroupedWrites(tables, "t")  # type: ignore[arg-type]
    nursery.start_soon(hold, tables, 1)
    await trio.testing.wait_all_tasks_blocked()
    found = await write_all(writes, [b"0", b"1", b"2"])
    assert all(isinstance(end, StoreUnavailableError) for end in found.values())
    tables.failure = None
    assert isinstance((await write_all(writes, [b"0"]))[b"0"], list)


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_a_task_that_goes_away_takes_nobody_with_it(
    cancelled: int, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    tables = Tables()
    writes = GroupedWrites(tables, "t")  # type: ignore[arg-type]
    ends: dict[int, str] = {}
    scopes = [trio.CancelScope() for _ in range(4)]

    async def write(number: int) -> None:
        with scopes[number]:
            try:
                await writes.write([Change(b"%d" % number, b"", NOT_EXISTS)])
                ends[number] = "written"
            except StoreUnavailableError:
                ends[number] = "unknown"

    nursery.start_soon(hold, tables, 1)
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as writers:
        for number in range(4):
            writers.start_soon(write, number)
            await trio.testing.wait_all_tasks_blocked()
        scopes[cancelled].cancel()
    assert ends == {number: "written" for number in range(4) if number != cancelled}


async def test_a_task_that_goes_away_while_it_sends_for_others_fails_none_of_their_writes(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    tables = Tables()
    writes = GroupedWrites(tables, "t")  # type: ignore[arg-type]
    ends: dict[int, list[int]] = {}
    scopes = [trio.CancelScope() for _ in range(4)]

    async def write(number: int) -> None:
        with scopes[number]:
            ends[number] = await writes.write([Change(b"%d" % number, b"", NOT_EXISTS)])

    nursery.start_soon(hold, tables, 1)
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as writers:
        for number in range(4):
            writers.start_soon(write, number)
            await trio.testing.wait_all_tasks_blocked()
        # The first write goes alone; the second task sends the others in one request.
        await trio.sleep(0.9)
        nursery.start_soon(hold, tables, 1)
        await trio.sleep(0.2)
        assert tables.requests == [[b"0"]]
        scopes[1].cancel()
    assert tables.requests == [[b"0"], [b"2", b"3"]]
    assert ends == {0: [1], 2: [2], 3: [3]}


async def test_the_first_write_creates_the_table(autojump_clock: trio.testing.MockClock) -> None:
    tables = Tables()
    tables.exists = False
    writes = GroupedWrites(tables, "t")  # type: ignore[arg-type]
    assert await write_all(writes, [b"0", b"1"]) == {b"0": [1], b"1": [2]}
