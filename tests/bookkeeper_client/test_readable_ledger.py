"""Reading a ledger with its end: many entries in order, with reads ahead, and past slow bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import trio

from bookkeeper_client.client import BookKeeper, BookKeeperSettings, open_bookkeeper
from bookkeeper_client.connections.connections import BookieConnection
from bookkeeper_client.errors import UnreadableEntryError
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.readable_ledger import AHEAD_MAX, AHEAD_MIN, ReadableLedger
from bookkeeper_client.wire.entry_format import DigestType, EntryFormat
from support.models.memory_bookies import (
    LEDGERS_ROOT,
    MemoryBookies,
    open_memory_bookies,
)

SLOW_SECONDS = 0.05
DATA = [b"%02d" % number * 20 for number in range(60)]


class Opened:
    """A ledger with ``DATA`` that counts what it asks of each bookie."""

    def __init__(self, bookies: MemoryBookies, bookkeeper: BookKeeper, found: ReadableLedger):
        self.bookies = bookies
        self.asked = dict.fromkeys(bookies.bookies, 0)
        self._bookkeeper = bookkeeper
        self.ledger = ReadableLedger(
            found.ledger_id,
            found.metadata,
            EntryFormat(found.ledger_id, DigestType.CRC32C, b""),
            self._find,
            slow_seconds=SLOW_SECONDS,
        )

    def _find(self, bookie: str) -> BookieConnection:
        self.asked[bookie] += 1
        return self._bookkeeper.connection(bookie)

    async def read_from(self, first: int) -> list[bytes]:
        async with aclosing(self.ledger.read_from(first, bytes_ahead=1)) as arriving:
            return [each.payload async for entries in arriving for each in entries]


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    with trio.fail_after(60):
        async with open_memory_bookies("a", "b", "c") as bookies, trio.open_nursery() as nursery:
            bookkeeper = await open_bookkeeper(
                bookies.zookeeper.open_session(),
                LEDGERS_ROOT,
                nursery,
                settings=BookKeeperSettings(slow_seconds=SLOW_SECONDS),
            )
            written = await bookkeeper.create_ledger(Quorums(3, 3, 2), password=b"")
            for each in DATA:
                await written.add(each)
            await written.close()
            found = await bookkeeper.recover_ledger(written.ledger_id, password=b"")
            yield Opened(bookies, bookkeeper, found)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("first", [0, 1, 37, len(DATA) - 1, len(DATA)])
async def test_entries_come_in_their_order_from_one_on(opened: Opened, first: int) -> None:
    assert await opened.read_from(first) == DATA[first:]


@pytest.mark.parametrize(("bytes_ahead", "count"), [(1, AHEAD_MIN), (400, 10), (10**9, AHEAD_MAX)])
async def test_so_many_bytes_are_asked_for_ahead(
    opened: Opened, bytes_ahead: int, count: int
) -> None:
    async with aclosing(opened.ledger.read_from(0, bytes_ahead=bytes_ahead)) as arriving:
        entries = await anext(arriving)
    assert sum(opened.asked.values()) == min(count + len(entries), len(DATA))


async def test_a_bookie_that_stands_still_delays_only_what_was_sent_to_it_by_then(
    opened: Opened,
) -> None:
    opened.bookies.bookies["b"].pause()
    assert await opened.read_from(0) == DATA
    assert 1 <= opened.asked["b"] <= AHEAD_MIN


async def test_a_bookie_that_was_slow_is_asked_again_when_the_others_cannot_help(
    opened: Opened,
) -> None:
    opened.bookies.bookies["b"].pause()
    assert await opened.ledger.read(1) == DATA[1]
    opened.bookies.bookies["b"].resume()
    for name in ("a", "c"):
        await opened.bookies.stop(name)
    assert await opened.read_from(0) == DATA


async def test_what_no_bookie_has_is_an_error_where_it_would_come(opened: Opened) -> None:
    found = []

    async def read() -> None:
        async with aclosing(opened.ledger.read_from(0, bytes_ahead=1)) as arriving:
            async for entries in arriving:
                found.extend(each.payload for each in entries)
                for name in ("a", "b", "c"):
                    opened.bookies.bookies[name].stop()

    with pytest.raises(UnreadableEntryError):
        await read()
    assert 0 < len(found) < len(DATA)
    assert found == DATA[: len(found)]


async def test_an_empty_ledger_has_nothing_to_read() -> None:
    async with open_memory_bookies("a", "b", "c") as bookies, trio.open_nursery() as nursery:
        session = bookies.zookeeper.open_session()
        bookkeeper = await open_bookkeeper(session, LEDGERS_ROOT, nursery)
        written = await bookkeeper.create_ledger(Quorums(3, 3, 2), password=b"")
        await written.close()
        found = await bookkeeper.recover_ledger(written.ledger_id, password=b"")
        assert [each async for each in found.read_from(0, bytes_ahead=1)] == []
        nursery.cancel_scope.cancel()
