"""The behavior that every durable data log has, whatever keeps its entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from bookkeeper_client.client import open_bookkeeper
from segstore.errors import DataLogError
from segstore.runtime.reactor import current_reactor
from segstore.tiers.api import (
    LOG_ENTRY_BYTES_MAX,
    Buffer,
    DurableDataLog,
    DurableDataLogFactory,
    LogAddress,
    LogPart,
)
from segstore.tiers.bookkeeper import BookKeeperLogFactory, BookKeeperLogSettings
from segstore.tiers.bookkeeper.data_log import BookKeeperDataLog
from segstore.tiers.bookkeeper.transports import make_opener
from segstore.tiers.journal import JournalSettings, open_journal
from segstore.tiers.journal.runner import InlineRunner
from segstore.tiers.memory import MemoryDataLogFactory
from support.models.memory_bookies import LEDGERS_ROOT, open_memory_bookies
from support.simulated.simulated_disk import SimulatedDisk

T = TypeVar("T")
OpenFactory = Callable[[], AbstractAsyncContextManager[DurableDataLogFactory]]

SETTINGS = JournalSettings(file_bytes=2 * 1024 * 1024, journal_bytes_max=32 * 1024 * 1024)


async def run_in_place(function: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    return function()


@pytest.fixture(
    params=[
        "memory",
        "journal",
        "simulated journal",
        "ledgers",
        "ledgers in steps",
        "short ledgers",
    ]
)
async def open_factory(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[OpenFactory]:
    """Opens the vendor; what it keeps survives until it is opened again."""
    if "ledgers" in request.param:
        bytes_max = 150_000 if request.param == "short ledgers" else 2**30
        settings = BookKeeperLogSettings(ledger_bytes_max=bytes_max)
        async with open_memory_bookies("a", "b", "c") as bookies:

            @asynccontextmanager
            async def opened_on_bookies() -> AsyncIterator[DurableDataLogFactory]:
                session = bookies.zookeeper.open_session()
                async with trio.open_nursery() as nursery:
                    if request.param == "ledgers in steps":
                        await nursery.start(current_reactor().run)
                    open_transport = make_opener(trio.open_tcp_stream)
                    client = await open_bookkeeper(
                        session, LEDGERS_ROOT, nursery, open_transport=open_transport
                    )
                    yield BookKeeperLogFactory(session, "/logs", client, settings)
                    nursery.cancel_scope.cancel()

            yield opened_on_bookies
        return
    memory = MemoryDataLogFactory()
    disk = SimulatedDisk()

    @asynccontextmanager
    async def opened() -> AsyncIterator[DurableDataLogFactory]:
        if request.param == "memory":
            yield memory
        elif request.param == "journal":
            async with open_journal(tmp_path, SETTINGS) as journal:
                yield journal
        else:
            async with open_journal(
                tmp_path, SETTINGS, disk=disk, runner=InlineRunner(), run_blocking=run_in_place
            ) as journal:
                yield journal

    yield opened


class Completion:
    """The completion of one append, for which a test can wait."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self.error: DataLogError | None = None

    def __call__(self, error: DataLogError | None) -> None:
        assert not self._done.is_set(), "completed twice"
        self.error = error
        self._done.set()

    async def wait(self) -> None:
        await self._done.wait()
        if self.error is not None:
            raise self.error


async def append(log: DurableDataLog, *parts: Buffer) -> LogAddress:
    completion = Completion()
    address = log.append_nowait(parts, completion)
    await completion.wait()
    return address


async def read_all(log: DurableDataLog) -> list[tuple[LogAddress, bytes]]:
    return [(entry.address, entry.data) async for entry in log.read()]


async def test_a_new_log_is_empty(open_factory: OpenFactory) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(0)
        assert await read_all(log) == []
        assert log.bytes_since_truncation == 0
        await log.aclose()


async def test_entries_come_back_in_order_with_their_addresses(open_factory: OpenFactory) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(1)
        expected = [
            (await append(log, b"one"), b"one"),
            (await append(log, b"tw", bytearray(b"o"), memoryview(b"!")), b"two!"),
            (await append(log), b""),
        ]
        await log.aclose()
    async with open_factory() as factory:
        log = await factory.open_log(1)
        assert await read_all(log) == expected
        assert [address for address, _ in expected] == sorted(address for address, _ in expected)
        await log.aclose()


async def test_the_longest_entry_fits(open_factory: OpenFactory) -> None:
    data = bytes(range(256)) * (LOG_ENTRY_BYTES_MAX // 256)
    data += bytes(LOG_ENTRY_BYTES_MAX - len(data))
    async with open_factory() as factory:
        log = await factory.open_log(1)
        for _ in range(5):
            await append(log, data)
        await log.aclose()
    async with open_factory() as factory:
        log = await factory.open_log(1)
        assert [entry for _, entry in await read_all(log)] == [data] * 5
        await log.aclose()


async def test_a_longer_entry_is_a_mistake_of_the_caller(open_factory: OpenFactory) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(1)
        with pytest.raises(AssertionError, match="too long"):
            log.append_nowait([bytes(LOG_ENTRY_BYTES_MAX), b"!"], Completion())
        await log.aclose()


async def test_completions_come_in_append_order_and_not_within_the_append(
    open_factory: OpenFactory,
) -> None:
    order: list[int] = []
    async with open_factory() as factory:
        logs = [await factory.open_log(container) for container in range(3)]
        last = Completion()
        for index in range(300):

            def completed(error: DataLogError | None, index: int = index) -> None:
                assert error is None
                order.append(index)
                if index == 299:
                    last(error)

            logs[0].append_nowait([b"x" * index], completed)
            assert index not in order
        await last.wait()
        for log in logs:
            await log.aclose()
    assert order == list(range(300))


async def test_logs_of_containers_do_not_mix(open_factory: OpenFactory) -> None:
    async with open_factory() as factory:
        logs = [await factory.open_log(container) for container in range(4)]
        for round_number in range(50):
            for container, log in enumerate(logs):
                await append(log, f"{container}:{round_number}".encode())
        for log in logs:
            await log.aclose()
    async with open_factory() as factory:
        for container in range(4):
            log = await factory.open_log(container)
            entries = [data.decode() for _, data in await read_all(log)]
            assert entries == [f"{container}:{number}" for number in range(50)]
            await log.aclose()


async def test_truncation_drops_what_lies_before_and_keeps_the_address(
    open_factory: OpenFactory,
) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(1)
        addresses = [await append(log, bytes([index]) * 100) for index in range(10)]
        await log.truncate(addresses[6])
        await append(log, b"after")
        await log.aclose()
    async with open_factory() as factory:
        log = await factory.open_log(1)
        entries = await read_all(log)
        assert [address for address, _ in entries[:4]] == addresses[6:]
        assert [data for _, data in entries[4:]] == [b"after"]
        await log.aclose()


async def test_addresses_grow_over_truncation_and_reopening(open_factory: OpenFactory) -> None:
    last = LogAddress(0)
    for _ in range(3):
        async with open_factory() as factory:
            log = await factory.open_log(1)
            for _ in range(5):
                address = await append(log, b"data")
                assert address > last
                last = address
            await log.truncate(last)
            await append(log, b"kept")
            await log.aclose()


async def test_every_opening_has_a_higher_epoch(open_factory: OpenFactory) -> None:
    epochs = []
    for _ in range(3):
        async with open_factory() as factory:
            for _ in range(2):
                log = await factory.open_log(5)
                epochs.append(log.epoch)
    assert epochs == sorted(set(epochs))


async def test_an_earlier_owner_is_fenced(open_factory: OpenFactory) -> None:
    async with open_factory() as factory:
        first = await factory.open_log(1)
        await append(first, b"first")
        second = await factory.open_log(1)
        with pytest.raises(DataLogError, match="fenced"):
            await append(first, b"late")
        with pytest.raises(DataLogError, match="fenced"):
            await append(first, b"later")
        assert [data for _, data in await read_all(second)] == [b"first"]
        await append(second, b"second")
        await first.aclose()
        await second.aclose()
        third = await factory.open_log(1)
        assert [data for _, data in await read_all(third)] == [b"first", b"second"]
        await third.aclose()


async def test_what_an_owner_queued_before_it_was_fenced_is_whole_or_refused(
    open_factory: OpenFactory,
) -> None:
    async with open_factory() as factory:
        first = await factory.open_log(1)
        completions = [Completion() for _ in range(20)]
        for completion in completions:
            first.append_nowait([b"queued"], completion)
        second = await factory.open_log(1)
        stored = await read_all(second)
        acknowledged = 0
        for completion in completions:
            try:
                await completion.wait()
                acknowledged += 1
            except DataLogError:
                break
        assert all(data == b"queued" for _, data in stored)
        if isinstance(first, BookKeeperDataLog):  # bookies keep what came too late to be told
            assert acknowledged <= len(stored) <= len(completions)
        else:
            assert len(stored) == acknowledged
        await second.aclose()


async def test_a_closed_log_refuses_appends(open_factory: OpenFactory) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(1)
        await append(log, b"data")
        await log.aclose()
        await log.aclose()
        with pytest.raises(DataLogError, match="closed"):
            await append(log, b"more")


async def test_closing_waits_for_what_is_queued(open_factory: OpenFactory) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(1)
        completions = [Completion() for _ in range(10)]
        for completion in completions:
            log.append_nowait([b"data"], completion)
        await log.aclose()
        with trio.fail_after(60):
            for completion in completions:
                await completion.wait()


async def test_bytes_since_truncation_follow_appends_and_truncations(
    open_factory: OpenFactory,
) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(1)
        addresses = [await append(log, bytes(100_000)) for _ in range(20)]
        assert log.bytes_since_truncation == 2_000_000
        await log.truncate(addresses[10])
        assert 1_000_000 <= log.bytes_since_truncation <= 1_200_000
        await log.truncate(addresses[3])
        assert 1_000_000 <= log.bytes_since_truncation <= 1_200_000
        await log.aclose()
    async with open_factory() as factory:
        log = await factory.open_log(1)
        assert 1_000_000 <= log.bytes_since_truncation <= 1_200_000
        await log.aclose()


async def test_a_recovery_reads_digests_or_entries_and_parts_of_them_later(
    open_factory: OpenFactory,
) -> None:
    async with open_factory() as factory:
        log = await factory.open_log(0)
        addresses = [await append(log, bytes([number]) * 30_000, b"end") for number in range(9)]
        await log.truncate(addresses[2])
        await log.aclose()
    async with open_factory() as factory:
        log = await factory.open_log(0)
        entries = [entry async for batch in log.read_digests() for entry in batch]
        assert [entry.address for entry in entries] == addresses[2:]
        for number, entry in enumerate(entries, 2):
            assert (entry.digest, entry.data) == (None, bytes([number]) * 30_000 + b"end")
        await append(log, b"later")
        assert await log.read_entry(addresses[4]) == bytes([4]) * 30_000 + b"end"
        positions = [address.position for address in addresses]
        parts = [LogPart(positions[2], 1, 2), LogPart(positions[2], 29_999, 4)]
        parts.append(LogPart(positions[8], 0, 30_003))
        assert await log.read_parts(parts) == [
            b"\x02\x02",
            b"\x02end",
            bytes([8]) * 30_000 + b"end",
        ]
        await log.truncate(addresses[5])
        assert await log.read_parts([LogPart(positions[5], 29_999, 4)]) == [b"\x05end"]
        with pytest.raises(DataLogError):
            await log.read_parts([LogPart(positions[8] + 100, 0, 1)])
        with pytest.raises(DataLogError):
            await log.read_entry(LogAddress(positions[0] - 1))
        await log.aclose()


async def test_a_crash_drops_what_was_not_acknowledged() -> None:
    factory = MemoryDataLogFactory()
    log = await factory.open_log(1)
    await append(log, b"acknowledged")
    answers: list[DataLogError | None] = []
    log.append_nowait([b"queued"], answers.append)
    factory.drop_unacknowledged()
    await trio.testing.wait_all_tasks_blocked()
    assert answers == []
    assert [data for _, data in await read_all(await factory.open_log(1))] == [b"acknowledged"]
