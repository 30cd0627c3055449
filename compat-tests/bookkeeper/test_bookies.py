"""The client of BookKeeper against real bookies and beside the official client.

Each reads what the other wrote, with every digest; each recovers what the other left open and ends
the other as a writer. A bookie is killed, and one is stopped, while entries are written.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from compat_harness.official_bookkeeper import BookiesWithClient
from foreign_servers.deadlines import scale

from bookkeeper_client.client import BookKeeper, BookKeeperSettings, open_bookkeeper
from bookkeeper_client.connections.connections import ConnectionLimits
from bookkeeper_client.errors import (
    FencedError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bookkeeper_client.metadata import State
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.wire.entry_format import DigestType
from zookeeper_client.kazoo_session import KazooSession, open_zookeeper
from zookeeper_client.testing.behaviors import BEHAVIORS, Behavior

pytestmark = pytest.mark.timeout(120)

ALL = Quorums(3, 3, 2)
SECONDS_MAX = scale(60.0)
DIGEST_NAMES = {
    DigestType.CRC32: "CRC32",
    DigestType.HMAC: "MAC",
    DigestType.CRC32C: "CRC32C",
    DigestType.DUMMY: "DUMMY",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookiesWithClient]:
    cluster = BookiesWithClient(Path(tmp_path_factory.mktemp("bookies")), 3)
    yield cluster
    cluster.stop()


@pytest.fixture
async def bookkeeper(cluster: BookiesWithClient) -> AsyncIterator[BookKeeper]:
    settings = BookKeeperSettings(connections=ConnectionLimits(answer_seconds_max=3.0))
    async with (
        trio.open_nursery() as nursery,
        open_zookeeper(cluster.zookeeper, nursery) as zookeeper,
    ):
        yield await open_bookkeeper(zookeeper, cluster.ledgers_root, nursery, settings=settings)
        nursery.cancel_scope.cancel()


def payload(entry_id: int, size: int) -> bytes:
    """Make an entry's bytes as ``LedgerTool`` makes them."""
    return bytes((entry_id * 31 + i) & 0xFF for i in range(size))


def payloads(count: int, size: int) -> list[bytes]:
    return [payload(entry_id, size) for entry_id in range(count)]


def told(data: list[bytes]) -> list[str]:
    """Return what the official client reports about a ledger with these entries."""
    joined = b"".join(data)
    return ["ok", str(len(data) - 1), str(len(joined)), str(zlib.crc32(joined))]


async def read_all(bookkeeper: BookKeeper, ledger_id: int, password: bytes = b"") -> list[bytes]:
    ledger = await bookkeeper.recover_ledger(ledger_id, password=password)
    assert ledger.metadata.state is State.CLOSED
    data = [await ledger.read(entry_id) for entry_id in range(ledger.last_entry_id + 1)]
    assert ledger.metadata.length == sum(map(len, data))
    return data


# ---- ZooKeeper -----------------------------------------------------------------------------------


@pytest.mark.parametrize("behavior", BEHAVIORS, ids=lambda each: each.__name__)
async def test_a_real_zookeeper(
    behavior: Behavior, cluster: BookiesWithClient, nursery: trio.Nursery
) -> None:
    @asynccontextmanager
    async def open_session() -> AsyncIterator[KazooSession]:
        async with open_zookeeper(cluster.zookeeper, nursery) as session:
            yield session

    await behavior(open_session, f"/tests/{behavior.__name__}")


# ---- Ledgers of one, read by the other -----------------------------------------------------------


@pytest.mark.parametrize("digest", DigestType, ids=lambda each: each.name)
async def test_the_official_client_reads_what_is_written_here(
    digest: DigestType, cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(
        ALL, password=b"secret", digest_type=digest, custom={"application": b"segstore"}
    )
    data = payloads(20, 1000)
    for each in data:
        await ledger.add(each)
    await ledger.close()
    asked = cluster.client.ask("recover", ledger.ledger_id, DIGEST_NAMES[digest], "secret")
    assert asked == told(data)
    assert await read_all(bookkeeper, ledger.ledger_id, b"secret") == data


@pytest.mark.parametrize("digest", DigestType, ids=lambda each: each.name)
async def test_what_the_official_client_writes_is_read_here(
    digest: DigestType, cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    _, ledger_id = cluster.client.ask("create", DIGEST_NAMES[digest], 3, 2, 2, "secret")
    assert cluster.client.ask("add", ledger_id, 20, 1000) == ["ok", "19"]
    assert cluster.client.ask("close", ledger_id) == ["ok", "19"]
    assert await read_all(bookkeeper, int(ledger_id), b"secret") == payloads(20, 1000)
    with pytest.raises(UnauthorizedError):
        await bookkeeper.recover_ledger(int(ledger_id), password=b"another")


async def test_longest_and_empty_entries(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    data = [payload(0, 1024 * 1024 - 1024), b"", payload(2, 1)]
    for each in data:
        await ledger.add(each)
    await ledger.close()
    assert cluster.client.ask("recover", ledger.ledger_id, "CRC32C") == told(data)
    assert await read_all(bookkeeper, ledger.ledger_id) == data


async def test_an_empty_ledger_and_one_that_is_gone(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    assert await read_all(bookkeeper, ledger.ledger_id) == []
    assert cluster.client.ask("recover", ledger.ledger_id, "CRC32C") == told([])
    await bookkeeper.delete_ledger(ledger.ledger_id)
    await bookkeeper.delete_ledger(ledger.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await bookkeeper.recover_ledger(ledger.ledger_id, password=b"")


# ---- Ledgers that are left open ------------------------------------------------------------------


async def test_the_official_client_recovers_what_is_left_open_here(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    data = payloads(10, 100)
    for each in data:
        await ledger.add(each)
    assert cluster.client.ask("recover", ledger.ledger_id, "CRC32C") == told(data)
    with pytest.raises(FencedError):
        await ledger.add(b"too late")
    assert await read_all(bookkeeper, ledger.ledger_id) == data


async def test_what_the_official_client_leaves_open_is_recovered_here(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    _, ledger_id = cluster.client.ask("create", "CRC32C", 3, 3, 2)
    assert cluster.client.ask("add", ledger_id, 10, 100) == ["ok", "9"]
    assert await read_all(bookkeeper, int(ledger_id)) == payloads(10, 100)
    refused = cluster.client.ask("add", ledger_id, 1, 100)
    assert refused == ["error", "BKLedgerFencedException"]
    assert cluster.client.ask("recover", ledger_id, "CRC32C") == told(payloads(10, 100))


async def test_two_recoveries_at_once_find_one_end(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    confirmed: list[int] = []
    for entry_id in range(200):
        ledger.add_nowait(
            (payload(entry_id, 100),),
            lambda error, entry_id=entry_id: confirmed.append(entry_id) if error is None else None,
        )
    ends: list[int] = []

    async def recover() -> None:
        found = await bookkeeper.recover_ledger(ledger.ledger_id, password=b"")
        ends.append(found.last_entry_id)

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(recover)
    assert len(set(ends)) == 1
    assert ends[0] >= max(confirmed, default=-1)
    assert await read_all(bookkeeper, ledger.ledger_id) == payloads(ends[0] + 1, 100)
    count = len(confirmed)
    with pytest.raises(FencedError):
        await ledger.add(b"too late")
    assert len(confirmed) == count


# ---- Bookies that fail ---------------------------------------------------------------------------


@pytest.mark.proof
async def test_three_bookies_go_on_when_one_is_killed(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    data: list[bytes] = []
    lost: set[str] = set()

    async def write(count: int) -> None:
        for _ in range(count):
            data.append(payload(len(data), 1000))
            assert await ledger.add(data[-1]) == len(data) - 1
            lost.update(ledger.lost_bookies)

    with trio.fail_after(SECONDS_MAX * 2):
        await write(20)
        await trio.to_thread.run_sync(cluster.kill, 1)
        await write(200)
        assert lost == {cluster.bookie_id(1)}
        await trio.to_thread.run_sync(cluster.start, 1)
        while ledger.lost_bookies:
            await write(1)
            await trio.sleep(0.1)
        await write(20)
        await ledger.close()
    assert cluster.client.ask("recover", ledger.ledger_id, "CRC32C") == told(data)
    assert await read_all(bookkeeper, ledger.ledger_id) == data


async def test_another_bookie_takes_the_place_of_one_that_stands_still(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(Quorums(2, 2, 2), password=b"")
    found = await bookkeeper.store.fetch(ledger.ledger_id)
    assert found is not None
    number = cluster.number_of(found[0].last_segment.bookies[0])
    data = payloads(30, 500)
    with trio.fail_after(SECONDS_MAX):
        for each in data[:10]:
            await ledger.add(each)
        cluster.pause(number)
        try:
            for each in data[10:]:
                await ledger.add(each)
        finally:
            cluster.resume(number)
        await ledger.close()
    found = await bookkeeper.store.fetch(ledger.ledger_id)
    assert found is not None
    assert [segment.first_entry_id for segment in found[0].segments] == [0, 10]
    assert cluster.client.ask("recover", ledger.ledger_id, "CRC32C") == told(data)
    assert await read_all(bookkeeper, ledger.ledger_id) == data


@pytest.mark.proof
async def test_a_ledger_is_recovered_without_one_of_its_bookies(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    data = payloads(10, 100)
    for each in data:
        await ledger.add(each)
    await trio.to_thread.run_sync(cluster.kill, 0)
    try:
        with trio.fail_after(SECONDS_MAX):
            assert await read_all(bookkeeper, ledger.ledger_id) == data
    finally:
        await trio.to_thread.run_sync(cluster.start, 0)
    assert cluster.client.ask("recover", ledger.ledger_id, "CRC32C") == told(data)


async def test_one_bookie_that_is_killed_keeps_what_it_confirmed(
    cluster: BookiesWithClient, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(Quorums(1, 1, 1), password=b"")
    found = await bookkeeper.store.fetch(ledger.ledger_id)
    assert found is not None
    number = cluster.number_of(found[0].last_segment.bookies[0])
    data = payloads(10, 100)
    for each in data:
        await ledger.add(each)
    await trio.to_thread.run_sync(cluster.kill, number)
    await trio.to_thread.run_sync(cluster.start, number)
    with trio.fail_after(SECONDS_MAX):
        assert await read_all(bookkeeper, ledger.ledger_id) == data
