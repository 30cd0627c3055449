"""The client over sockets, with bookies and a ZooKeeper in memory; compat-tests have real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random

import pytest
import trio

from bookkeeper_client.client import BookKeeper, BookKeeperSettings, open_bookkeeper
from bookkeeper_client.connections.connections import ConnectionLimits
from bookkeeper_client.connections.transports import OpenTransport, open_tcp_transport
from bookkeeper_client.errors import (
    BookKeeperError,
    ClosedError,
    FencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
    UnreadableEntryError,
)
from bookkeeper_client.metadata import State, encode_metadata, ledger_path
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.state_machines.racks import Racks
from bookkeeper_client.wire.entry_format import DigestType
from support.models.memory_bookies import (
    LEDGERS_ROOT,
    MemoryBookies,
    open_memory_bookies,
)
from support.models.memory_server import Loss
from zookeeper_client.api import ZooKeeperError, ensure_path

from .conftest import OPEN

SECONDS_MAX = 60.0
QUICK = BookKeeperSettings(
    connections=ConnectionLimits(answer_seconds_max=2.0), slow_seconds=0.05, look_seconds=0.05
)
ALL = Quorums(3, 3, 2)
DATA = [b"%d" % number * number for number in range(30)]


@pytest.fixture
async def bookies() -> AsyncIterator[MemoryBookies]:
    with trio.fail_after(SECONDS_MAX):
        async with open_memory_bookies("a", "b", "c") as bookies:
            yield bookies


@pytest.fixture
async def bookkeeper(
    bookies: MemoryBookies, open_transport: OpenTransport
) -> AsyncIterator[BookKeeper]:
    async with trio.open_nursery() as nursery:
        yield await open_client(bookies, nursery, open_transport=open_transport)
        nursery.cancel_scope.cancel()


async def open_client(
    bookies: MemoryBookies,
    nursery: trio.Nursery,
    settings: BookKeeperSettings = QUICK,
    open_transport: OpenTransport = open_tcp_transport,
) -> BookKeeper:
    session = bookies.zookeeper.open_session()
    return await open_bookkeeper(
        session,
        LEDGERS_ROOT,
        nursery,
        settings=settings,
        random=Random(1),
        open_transport=open_transport,
    )


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await trio.sleep(0.01)


async def read_all(bookkeeper: BookKeeper, ledger_id: int) -> list[bytes]:
    ledger = await bookkeeper.recover_ledger(ledger_id, password=b"")
    data = [await ledger.read(entry_id) for entry_id in range(ledger.last_entry_id + 1)]
    assert ledger.metadata.length == sum(map(len, data))
    return data


async def test_entries_longer_than_sockets_take_at_once_are_written(
    bookkeeper: BookKeeper,
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    data = [bytes([number]) * (1 << 20) for number in range(16)]
    done: list[Exception | None] = []
    for each in data:
        ledger.add_nowait((each,), done.append)
    await ledger.close()
    assert done == [None] * len(data)
    assert await read_all(bookkeeper, ledger.ledger_id) == data


async def test_entries_are_written_and_read(bookkeeper: BookKeeper) -> None:
    ledger = await bookkeeper.create_ledger(
        Quorums(3, 2, 2), password=b"", digest_type=DigestType.HMAC, custom={"who": b"me"}
    )
    done: list[Exception | None] = []
    ids = [ledger.add_nowait((each[:3], each[3:]), done.append) for each in DATA]
    assert ids == list(range(len(DATA)))
    assert done == []
    await ledger.close()
    assert done == [None] * len(DATA)
    with pytest.raises(ClosedError):
        await ledger.add(b"late")
    assert await read_all(bookkeeper, ledger.ledger_id) == DATA
    found = await bookkeeper.store.fetch(ledger.ledger_id)
    assert found is not None
    assert (found[0].state, found[0].custom) == (State.CLOSED, {"who": b"me"})


async def test_a_recovery_ends_the_writer(bookkeeper: BookKeeper) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    for each in DATA:
        await ledger.add(each)
    assert await read_all(bookkeeper, ledger.ledger_id) == DATA
    with pytest.raises(FencedError):
        await ledger.add(b"late")
    with pytest.raises(FencedError):
        await ledger.close()
    assert await read_all(bookkeeper, ledger.ledger_id) == DATA


async def test_a_stopped_bookie_is_done_without_until_it_is_back(
    bookies: MemoryBookies, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    for each in DATA[:10]:
        await ledger.add(each)
    await bookies.stop("b")
    for each in DATA[10:20]:
        await ledger.add(each)
    await until(lambda: ledger.lost_bookies == ["b"])
    await bookies.start("b")
    await until(lambda: not ledger.lost_bookies)
    for each in DATA[20:]:
        await ledger.add(each)
    await ledger.close()
    assert await read_all(bookkeeper, ledger.ledger_id) == DATA
    found = await bookkeeper.store.fetch(ledger.ledger_id)
    assert found is not None
    assert len(found[0].segments) == 1
    await until(lambda: bookies.bookies["b"].entry_count(ledger.ledger_id) >= 20)


async def test_another_bookie_takes_the_place_of_a_silent_one(
    bookies: MemoryBookies, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    for each in DATA[:10]:
        await ledger.add(each)
    await bookies.start("d")
    bookies.bookies["c"].pause()
    for each in DATA[10:20]:
        await ledger.add(each)
    while bookies.bookies["d"].entry_count(ledger.ledger_id) == 0:
        await ledger.add(b"")
        await trio.sleep(0.01)
    await ledger.close()
    bookies.bookies["c"].resume()
    data = await read_all(bookkeeper, ledger.ledger_id)
    assert data[:20] == DATA[:20]
    found = await bookkeeper.store.fetch(ledger.ledger_id)
    assert found is not None
    assert len(found[0].segments) == 2
    assert "d" in found[0].last_segment.bookies


@pytest.mark.proof
async def test_a_ledger_and_who_takes_a_place_in_it_are_of_many_racks(
    bookies: MemoryBookies,
) -> None:
    for name in ("a-2", "b-2", "c-2"):
        await bookies.start(name)
    racks = Racks({name: name[0] for name in bookies.bookies})
    async with trio.open_nursery() as nursery:
        client = await open_bookkeeper(
            bookies.zookeeper.open_session(), LEDGERS_ROOT, nursery, settings=QUICK, racks=racks
        )
        ledger = await client.create_ledger(ALL, password=b"")
        lost = ""
        for turn in range(1, 4):
            found = await client.store.fetch(ledger.ledger_id)
            assert found is not None
            members = found[0].last_segment.bookies
            assert len(found[0].segments) == turn
            assert sorted(map(racks.of, members)) == ["a", "b", "c"]
            assert lost not in members
            if lost:
                bookies.bookies[lost].resume()
            lost = members[turn - 1]
            bookies.bookies[lost].pause()
            while found is not None and len(found[0].segments) == turn:
                await ledger.add(b"entry")
                await trio.sleep(0.01)
                found = await client.store.fetch(ledger.ledger_id)
        nursery.cancel_scope.cancel()


async def test_a_bookie_beyond_the_quorum_gets_what_was_written_and_not_what_came_after(
    bookies: MemoryBookies, bookkeeper: BookKeeper
) -> None:
    """The memory of an entry that is confirmed belongs to its owner again, who lets it go."""
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    await ledger.add(b"first")
    bookies.bookies["c"].pause()
    memory = bytearray(300_000)
    for number in range(10):
        memory[:] = bytes([number]) * len(memory)
        view = memoryview(memory)
        await ledger.add(view)
        view.release()
    memory[:] = b"?" * len(memory)
    bookies.bookies["c"].resume()
    await until(lambda: bookies.bookies["c"].entry_count(ledger.ledger_id) == 11)
    await ledger.close()
    for name in ("a", "b"):
        await bookies.stop(name)
    found = await bookkeeper.recover_ledger(ledger.ledger_id, password=b"")
    for number in range(10):
        assert await found.read(number + 1) == bytes([number]) * len(memory)


async def test_a_writer_without_a_quorum_waits_and_is_given_up(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    settings = BookKeeperSettings(look_seconds=0.05, confirm_seconds_max=2.0)
    bookkeeper = await open_client(bookies, nursery, settings)
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    await ledger.add(b"one")
    for name in ("a", "b"):
        await bookies.stop(name)
    with pytest.raises(NotEnoughBookiesError, match="entry 1 of ledger 0"):
        await ledger.add(b"two")
    with pytest.raises(NotEnoughBookiesError):
        await bookkeeper.create_ledger(ALL, password=b"")
    with pytest.raises(NotEnoughBookiesError):
        await bookkeeper.recover_ledger(ledger.ledger_id, password=b"")
    for name in ("a", "b"):
        await bookies.start(name)
    assert (await read_all(bookkeeper, ledger.ledger_id))[0] == b"one"


async def test_a_silent_bookie_has_company_when_it_is_read(
    bookies: MemoryBookies, bookkeeper: BookKeeper
) -> None:
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    for each in DATA[:3]:
        await ledger.add(each)
    await ledger.close()
    bookies.bookies["b"].pause()
    assert await read_all(bookkeeper, ledger.ledger_id) == DATA[:3]
    opened = await bookkeeper.recover_ledger(ledger.ledger_id, password=b"")
    for name in ("a", "b", "c"):
        await bookies.stop(name)
    with pytest.raises(UnreadableEntryError):
        await opened.read(0)
    with pytest.raises(ValueError, match="ends at 2"):
        await opened.read(3)


async def test_lost_answers_of_zookeeper_do_no_harm(
    bookies: MemoryBookies, bookkeeper: BookKeeper
) -> None:
    random = Random(7)

    def lose(path: str) -> Loss:
        is_read = "available" in path or random.random() < 0.5
        return Loss.NONE if is_read else random.choice([Loss.ANSWER, Loss.CALL])

    for number in range(20):
        try:
            bookies.zookeeper.lose_answer = lose
            ledger = await bookkeeper.create_ledger(ALL, password=b"")
        except (ZooKeeperError, BookKeeperError):
            continue  # the caller is told, and makes another
        finally:
            bookies.zookeeper.lose_answer = lambda path: Loss.NONE
        for each in DATA[:number]:
            await ledger.add(each)
        bookies.zookeeper.lose_answer = lose
        try:
            if number % 2:
                await ledger.close()
            else:
                await bookkeeper.recover_ledger(ledger.ledger_id, password=b"")
        except (ZooKeeperError, BookKeeperError):
            pass
        finally:
            bookies.zookeeper.lose_answer = lambda path: Loss.NONE
        assert await read_all(bookkeeper, ledger.ledger_id) == DATA[:number]


async def test_a_ledger_that_another_client_has_made_is_left_alone(
    bookies: MemoryBookies, bookkeeper: BookKeeper
) -> None:
    session = bookies.zookeeper.open_session()
    theirs = encode_metadata(replace(OPEN, creation_token=1))
    path = f"{LEDGERS_ROOT}/{ledger_path(0)}"
    await ensure_path(session, path.rpartition("/")[0])
    await session.create(path, theirs)
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    assert ledger.ledger_id == 1
    assert (await session.get(path)).data == theirs


async def test_what_is_not_there_is_told(
    bookies: MemoryBookies, bookkeeper: BookKeeper, nursery: trio.Nursery
) -> None:
    with pytest.raises(NoSuchLedgerError):
        await bookkeeper.recover_ledger(99, password=b"")
    ledger = await bookkeeper.create_ledger(ALL, password=b"one")
    with pytest.raises(UnauthorizedError):
        await bookkeeper.recover_ledger(ledger.ledger_id, password=b"two")
    await bookkeeper.delete_ledger(ledger.ledger_id)
    await bookkeeper.delete_ledger(ledger.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await bookkeeper.recover_ledger(ledger.ledger_id, password=b"one")
    session = bookies.zookeeper.open_session()
    assert "00" not in await session.children(LEDGERS_ROOT)
    with pytest.raises(BookKeeperError, match="no bookies below /other"):
        await open_bookkeeper(session, "/other", nursery)
    await session.set(f"{LEDGERS_ROOT}/LAYOUT", b"2\nsome.Other:1", 0)
    with pytest.raises(BookKeeperError, match=r"some\.Other"):
        await open_bookkeeper(session, LEDGERS_ROOT, nursery)


async def test_ids_are_of_63_bits_once_there_is_a_node_for_that(
    bookies: MemoryBookies, bookkeeper: BookKeeper
) -> None:
    session = bookies.zookeeper.open_session()
    await session.create(f"{LEDGERS_ROOT}/idgen-long", b"")
    await session.create(f"{LEDGERS_ROOT}/idgen-long/HOB-0000000002", b"")
    ledger = await bookkeeper.create_ledger(ALL, password=b"")
    assert ledger.ledger_id == 2 << 32
    await ledger.close()
    assert await read_all(bookkeeper, ledger.ledger_id) == []
