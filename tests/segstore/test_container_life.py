"""Beginnings, ends and hard times of a container: what simulated runs have found."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from _fast.cache.streaming_cache import StreamingCache
from segstore.api import ReadResult
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import ContainerOfflineError, DataLogError, SegmentStoreError
from segstore.inactive.eviction import ALL_STAY
from segstore.tiers.api import Buffer, LogAddress, LogEntry
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLog, MemoryDataLogFactory
from support.chunk_owners import next_owner
from support.faults.crashing_tiers import CrashingTiers, evict
from support.faults.faulty_chunks import Fault, FaultyChunkStorage
from support.local_tiers import LocalTiers

MIB = 1024 * 1024


class LogsThatCancel(MemoryDataLogFactory):
    """Logs that cancel the task that has just read an empty log."""

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


@pytest.mark.parametrize(("drain_seconds", "stored"), [(5.0, 0), (600.0, 15)])
async def test_a_cancelled_owner_waits_for_the_drain(
    drain_seconds: float, stored: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Each write to tier 2 takes 10 s."""
    chunks = MemoryChunkStorage()
    is_slow = False
    slow = FaultyChunkStorage(
        chunks, next_delay=lambda call: 10.0 if call == "write" and is_slow else 0.0
    )
    manager = CacheManager(StreamingCache(8 * MIB))
    with trio.CancelScope() as scope:
        async with open_container(
            0, MemoryDataLogFactory(), next_owner(slow), manager, drain_seconds=drain_seconds
        ) as container:
            await container.create_segment("a")
            await container.append("a", b"only in the log")
            is_slow = True
            begun = trio.current_time()
            scope.cancel()
    assert 5 <= trio.current_time() - begun <= drain_seconds
    assert sum(each.length for each in await chunks.list_chunks("a.")) == stored


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


class HeldWrites(MemoryChunkStorage):
    """Storage whose writes tell that they are ``reached``, and wait until they may ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = trio.Event(), trio.Event()
        self.go_on.set()

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.reached.set()
        with trio.CancelScope(shield=True):
            await self.go_on.wait()
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


async def test_a_log_that_fails_while_a_drain_flushes_ends_the_container_with_its_error(
    tmp_path: Path,
) -> None:
    chunks, failed = HeldWrites(), trio.Event()
    tiers = LocalTiers(tmp_path, chunks)

    async def fail_in_the_first_write(container: Container) -> None:
        await chunks.reached.wait()
        tiers.log.failing = True
        container.append_nowait("a", b"x", on_complete=lambda error, length: failed.set())
        await failed.wait()
        await trio.testing.wait_all_tasks_blocked()
        chunks.go_on.set()

    async def live() -> None:
        async with trio.open_nursery() as nursery, tiers.container() as container:
            for name in ("a", "b"):
                await container.create_segment(name)
                await container.append(name, b"bytes that tier 2 does not have")
            chunks.reached, chunks.go_on = trio.Event(), trio.Event()
            nursery.start_soon(fail_in_the_first_write, container)

    with capture_logs() as log, pytest.raises(ExceptionGroup) as raised:
        await live()
    assert raised.group_contains(DataLogError)
    assert not raised.group_contains(AssertionError)
    assert [each["container"] for each in log if each["event"] == "drain ended early"] == [0]


class LogsThatRefuseTruncation(MemoryDataLogFactory):
    """Logs whose truncation fails once there is an ``error``."""

    error: Exception | None = None

    async def open_log(self, container_id: int) -> MemoryDataLog:
        log = await super().open_log(container_id)
        truncate = log.truncate

        async def refuse(address: LogAddress) -> None:
            if self.error is not None:
                raise self.error
            await truncate(address)

        log.truncate = refuse  # type: ignore[method-assign]
        return log

    async def drain_with(self, error: Exception) -> None:
        """Serve a container, and end it with truncations that fail."""
        storage = next_owner(MemoryChunkStorage())
        manager = CacheManager(StreamingCache(8 * MIB))
        with trio.fail_after(100):
            async with open_container(0, self, storage, manager) as container:
                await container.create_segment("s")
                await container.append("s", b"x")
                self.error = error


async def test_a_drain_that_may_not_truncate_the_log_ends_the_container(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Another owner has it: the container hung for ever, and its store with it."""
    with capture_logs() as log:
        for _ in range(40):  # the storage writer may be told first, which ends the container too
            with contextlib.suppress(ExceptionGroup):
                await LogsThatRefuseTruncation().drain_with(DataLogError("the log is fenced"))
    assert "the log is fenced" in {each.get("error") for each in log}


async def test_a_defect_in_a_drain_ends_the_container(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await LogsThatRefuseTruncation().drain_with(ZeroDivisionError())
    assert raised.group_contains(ZeroDivisionError)


async def test_a_read_that_waits_for_tier_2_is_answered_when_the_container_stops(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = CrashingTiers(ALL_STAY)
    async with tiers.open() as container:
        await container.create_segment("s")
        await container.append("s", b"history")
    answers: list[tuple[object, ...]] = []
    async with tiers.open(drain_seconds=0) as container:
        tiers.read_seconds = 1000.0
        for offset in (0, 3, 7):
            container.read_nowait(
                "s",
                offset=offset,
                length_max=10,
                on_complete=lambda *answer: answers.append(answer),
            )
        await trio.sleep(1)
        assert answers == []
    expected = [(None, ReadResult(offset, b"", True, False)) for offset in (0, 3, 7)]
    assert sorted(answers, key=str) == expected


async def test_a_reader_that_asks_again_while_a_container_fails_is_refused() -> None:
    """A store finds a container for a moment after it has failed. A read at the tail that came in
    this moment was never answered, and its reader waited for ever."""
    tiers, answers = CrashingTiers(ALL_STAY), list[tuple[object, ReadResult | None]]()
    async with tiers.open() as container:
        await container.create_segment("s")

        def ask(error: SegmentStoreError | None, result: ReadResult | None) -> None:
            answers.append((error, result))
            if error is None:
                container.read_nowait("s", offset=0, length_max=10, on_complete=ask)

        container.read_nowait("s", offset=0, length_max=10, on_complete=ask)
        tiers.crash()
        with contextlib.suppress(SegmentStoreError):
            await container.append("s", b"x")
        await trio.sleep_forever()
    [(first, told), (refusal, _)] = answers
    assert (first, told) == (None, ReadResult(0, b"", True, False))
    assert isinstance(refusal, ContainerOfflineError)


CALLS: dict[str, Callable[[Container, str], Awaitable[object]]] = {
    "create": lambda container, name: container.create_segment(f"{name} anew"),
    "append": lambda container, name: container.append(name, b"x"),
    "update": lambda container, name: container.update_attributes(name, []),
    "seal": lambda container, name: container.seal_segment(name),
    "truncate": lambda container, name: container.truncate_segment(name, offset=1),
    "merge": lambda container, name: container.merge_segment(name, "source"),
    "delete": lambda container, name: container.delete_segment(name),
    "activate": lambda container, name: container.activate(name),
    "info": lambda container, name: container.find_info(name),
    "attributes": lambda container, name: container.get_attributes(name, [bytes(16)]),
    "wait": lambda container, name: container.wait_in_flight(name),
    "read": lambda container, name: container.read(name, offset=0, length_max=10),
    "read the tail": lambda container, name: container.read(name, offset=3, length_max=10),
    "confirm": lambda container, _: container.confirm_answer(),
    "flush": lambda container, _: container.flush(),
    "checkpoint": lambda container, _: container.checkpoint(),
}
"""The calls of a container that may wait, on a segment of a name."""


@pytest.mark.parametrize("crashes", [False, True])
async def test_no_call_waits_when_the_container_has_ended(
    autojump_clock: trio.testing.MockClock, crashes: bool
) -> None:
    tiers = CrashingTiers()
    async with tiers.open(drain_seconds=0) as container:
        for name in ("active", "inactive", "source"):
            await container.create_segment(name)
            await container.append(name, b"abc")
        await evict(container)
        await container.activate("active")
        if crashes:
            tiers.crash()
    for what, call in CALLS.items():
        for name in ("active", "inactive", "absent"):
            with trio.move_on_after(100) as scope, contextlib.suppress(SegmentStoreError):
                await call(container, name)
            assert not scope.cancelled_caught, f"{what} of a segment that is {name} waits"


async def test_reads_that_come_while_the_tasks_end_are_told_to_ask_again() -> None:
    """A nursery refuses tasks from the moment at which its last one ends. A read of tier 2 that
    came then, before the container was closed, ended its connection with an error of trio."""
    chunks, logs = MemoryChunkStorage(), MemoryDataLogFactory()
    manager = CacheManager(StreamingCache(32 * MIB))
    async with open_container(0, logs, next_owner(chunks), manager) as container:
        await container.create_segment("a")
        await container.append("a", bytes(4 * MIB))
    fails = False
    # A read that fails is begun again with the next request.
    faulty = FaultyChunkStorage(
        chunks, next_fault=lambda call: Fault.REFUSED if fails and call == "read" else Fault.NONE
    )
    for _ in range(20):
        manager = CacheManager(StreamingCache(32 * MIB))
        async with trio.open_nursery() as nursery:
            async with open_container(
                0, logs, next_owner(faulty), manager, drain_seconds=0.0
            ) as container:
                await container.find_info("a")
                fails = True
                nursery.start_soon(read_all_the_time, container)
                await trio.sleep(0.01)
            fails = False
            nursery.cancel_scope.cancel()


async def read_all_the_time(container: Container) -> None:
    """Begin a read of tier 2 in each turn of the event loop."""
    place = 0
    while True:
        place = (place + 100_000) % (4 * MIB)
        container.read_nowait("a", offset=place, length_max=10, on_complete=lambda *_: None)
        await trio.lowlevel.checkpoint()
