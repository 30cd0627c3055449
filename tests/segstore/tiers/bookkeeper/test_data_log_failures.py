"""Logs on bookies whose opening, rolling over or metadata fail."""

# ruff: noqa: F401, F811 - fixtures are imported by their names

from __future__ import annotations

import contextlib

import pytest
import trio

from bookkeeper_client.errors import UnreadableEntryError
from bookkeeper_client.quorums import Quorums
from segstore.errors import DataLogError
from segstore.tiers.bookkeeper import data_log
from segstore.tiers.bookkeeper import factory as module
from segstore.tiers.bookkeeper.log_metadata import decode_log_metadata
from segstore.tiers.bookkeeper.metadata_node import MetadataNode
from support.models.memory_bookies import MemoryBookies
from support.models.memory_server import MemorySession
from zookeeper_client.api import ANY_VERSION

from .test_data_log import (
    NODE,
    append,
    bookies,
    open_factory,
    read_all,
    session,
    until,
)


def watchers(nursery: trio.Nursery) -> int:
    return sum("WritableLedger._watch" in task.name for task in nursery.child_tasks)


async def test_openings_that_fail_leave_no_task_behind(
    bookies: MemoryBookies,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factory = await open_factory(bookies, nursery)

    async def fail(*_: object) -> None:
        raise UnreadableEntryError("entry 0: too few bookies can be asked")

    monkeypatch.setattr(module, "_measure", fail)
    for _ in range(5):
        with pytest.raises(DataLogError):
            await factory.open_log(4)
    await until(lambda: watchers(nursery) == 0)


async def test_a_log_that_fails_while_it_rolls_over_leaves_no_task_behind(
    bookies: MemoryBookies,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factory = await open_factory(bookies, nursery)
    log = await factory.open_log(4)
    goes_on = trio.Event()
    add_ledger = MetadataNode.add_ledger

    async def wait(self: MetadataNode, *arguments: object) -> object:
        ledger = await add_ledger(self, *arguments)  # type: ignore[arg-type]
        await goes_on.wait()
        return ledger

    monkeypatch.setattr(MetadataNode, "add_ledger", wait)
    await append(log, bytes(2000))
    await append(log, b"x")
    await until(lambda: log._is_rolling)
    log._fail(UnreadableEntryError("it failed"))
    goes_on.set()
    await trio.sleep(0.1)
    await log.aclose()
    await until(lambda: watchers(nursery) == 0)


async def test_a_damaged_node_ends_its_log_and_not_the_process(
    bookies: MemoryBookies,
    session: MemorySession,
) -> None:
    async with trio.open_nursery() as nursery:
        log = await (await open_factory(bookies, nursery)).open_log(4)
        await session.set(NODE, b"damaged", ANY_VERSION)
        with contextlib.suppress(DataLogError):
            await append(log, bytes(2000))
        await until(lambda: log._error is not None)
        nursery.cancel_scope.cancel()


async def test_a_narrow_ledger_is_left_when_further_bookies_are_back(
    bookies: MemoryBookies,
    nursery: trio.Nursery,
    session: MemorySession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_log, "WIDEN_SECONDS", 0.05)
    await bookies.stop("b")
    factory = await open_factory(bookies, nursery)
    log = await factory.open_log(4)
    written = [(await append(log, b"%d" % number), b"%d" % number) for number in range(3)]
    await trio.sleep(0.1)
    written.append((await append(log, b"still alone"), b"still alone"))
    await trio.sleep(0.1)
    assert log._ledger.quorums == Quorums(2, 2, 2)
    await bookies.start("b")
    await trio.sleep(0.1)
    written.append((await append(log, b"the last there"), b"the last there"))
    await until(lambda: log._ledger.quorums == Quorums(3, 3, 2))
    written.append((await append(log, b"wide"), b"wide"))
    metadata = decode_log_metadata((await session.get(NODE)).data)
    assert len(metadata.ledgers) == 2
    await trio.sleep(0.1)
    written.append((await append(log, b"and wide it stays"), b"and wide it stays"))
    await log.aclose()
    again = await (await open_factory(bookies, nursery)).open_log(4)
    assert await read_all(again) == written
