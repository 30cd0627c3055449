"""Beginnings, ends and hard times of a container: what simulated runs have found."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio
import trio.testing

from _fast.cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.errors import SegmentStoreError
from segstore.testing.chunk_owners import next_owner
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.tiers.api import LogEntry
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLog, MemoryDataLogFactory

MIB = 1024 * 1024


class LogsThatCancel(MemoryDataLogFactory):
    """Cancels whoever has just read an empty log."""

    def __init__(self, scope: trio.CancelScope) -> None:
        super().__init__()
        self.scope = scope

    async def open_log(self, container_id: int) -> MemoryDataLog:
        log = await super().open_log(container_id)

        async def read() -> AsyncGenerator[LogEntry, None]:
            self.scope.cancel()
            for entry in ():
                yield entry

        log.read = read  # type: ignore[method-assign]
        return log


async def test_a_container_can_be_cancelled_while_its_tasks_start() -> None:
    with trio.CancelScope() as scope:
        logs = LogsThatCancel(scope)
        storage = next_owner(MemoryChunkStorage())
        async with open_container(0, logs, storage, CacheManager(StreamingCache(8 * MIB))):
            await trio.lowlevel.checkpoint()
            pytest.fail("was not cancelled")
    assert scope.cancelled_caught


async def test_a_full_cache_is_waited_for_without_spinning(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = FaultyChunkStorage(
        MemoryChunkStorage(),
        next_fault=lambda call: Fault.REFUSED if call == "write" and full else Fault.NONE,
    )
    full = True
    answers: list[SegmentStoreError | None] = []
    storage = next_owner(chunks)
    manager = CacheManager(StreamingCache(2 * MIB))
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        await container.create_segment("a")
        for _ in range(40):
            container.append_nowait(
                "a", bytes(100_000), on_complete=lambda error, length: answers.append(error)
            )
            await trio.testing.wait_all_tasks_blocked()
        # Time only goes by on this clock while everybody waits.
        await trio.sleep(10)
        assert 0 < len(answers) < 40
        full = False
        await container.wait_in_flight("a")
        assert answers == [None] * 40
