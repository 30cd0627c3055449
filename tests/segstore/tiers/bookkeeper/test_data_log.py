"""Logs on ledgers, beyond what every log does: owners, ledgers that come and go, failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import trio

from bookkeeper_client.client import BookKeeperSettings, open_bookkeeper
from bookkeeper_client.connections.connections import ConnectionLimits
from bookkeeper_client.errors import FencedError
from bookkeeper_client.quorums import Quorums
from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.api import LogAddress
from segstore.tiers.bookkeeper import BookKeeperLogSettings
from segstore.tiers.bookkeeper.data_log import BookKeeperDataLog
from segstore.tiers.bookkeeper.factory import BookKeeperLogFactory
from segstore.tiers.bookkeeper.log_metadata import (
    LogMetadata,
    Status,
    decode_log_metadata,
    encode_log_metadata,
)
from segstore.tiers.bookkeeper.metadata_node import MetadataNode
from support.models.memory_bookies import (
    LEDGERS_ROOT,
    MemoryBookies,
    open_memory_bookies,
)
from support.models.memory_server import Loss, MemorySession
from zookeeper_client.api import ConnectionLostError
from zookeeper_client.steady import SteadyZooKeeper

QUICK = BookKeeperSettings(
    connections=ConnectionLimits(answer_seconds_max=2.0), slow_seconds=0.05, look_seconds=0.05
)
DOUBTFUL = replace(QUICK, doubt_seconds=0.2, confirm_seconds_max=2.0)
SHORT = BookKeeperLogSettings(ledger_bytes_max=1000)
NODE = "/logs/4/0/4"


@pytest.fixture
async def bookies() -> AsyncIterator[MemoryBookies]:
    async with open_memory_bookies("a", "b", "c") as bookies:
        yield bookies


@pytest.fixture
def session(bookies: MemoryBookies) -> MemorySession:
    return bookies.zookeeper.open_session()


async def open_factory(
    bookies: MemoryBookies,
    nursery: trio.Nursery,
    settings: BookKeeperLogSettings = SHORT,
    *,
    client: BookKeeperSettings = QUICK,
) -> BookKeeperLogFactory:
    session = bookies.zookeeper.open_session()
    opened = await open_bookkeeper(session, LEDGERS_ROOT, nursery, settings=client)
    return BookKeeperLogFactory(session, "/logs", opened, settings)


async def append(log: BookKeeperDataLog, data: bytes) -> LogAddress:
    done = trio.Event()
    errors: list[DataLogError] = []

    def on_durable(error: DataLogError | None) -> None:
        if error is not None:
            errors.append(error)
        done.set()

    address = log.append_nowait((data,), on_durable)
    await done.wait()
    if errors:
        raise errors[0]
    return address


async def read_all(log: BookKeeperDataLog) -> list[tuple[LogAddress, bytes]]:
    return [(entry.address, entry.data) async for entry in log.read()]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await trio.sleep(0.01)


async def metadata_of(session: MemorySession) -> LogMetadata:
    return decode_log_metadata((await session.get(NODE)).data)


async def ledger_nodes(session: MemorySession) -> list[str]:
    return await session.children(f"{LEDGERS_ROOT}/00/0000")


async def test_a_log_goes_on_in_further_ledgers(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    factory = await open_factory(bookies, nursery)
    log = await factory.open_log(4)
    order: list[LogAddress] = []
    expected: list[tuple[LogAddress, bytes]] = []
    for number in range(400):
        data = b"%d" % number * 10
        address: list[LogAddress] = []

        def on_durable(error: DataLogError | None, address: list[LogAddress] = address) -> None:
            assert error is None
            order.extend(address)

        address.append(log.append_nowait((data,), on_durable))
        expected.append((address[0], data))
        if number % 20 == 0:
            await trio.sleep(0.02)
    await log.aclose()
    assert order == [address for address, _ in expected] == sorted(order)
    metadata = await metadata_of(session)
    assert len(metadata.ledgers) >= 3
    again = await (await open_factory(bookies, nursery)).open_log(4)
    assert await read_all(again) == expected
    assert again.bytes_since_truncation == sum(len(data) for _, data in expected)
    assert again.epoch > metadata.epoch > log.epoch


async def test_truncation_deletes_ledgers(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    log = await (await open_factory(bookies, nursery)).open_log(4)
    addresses = []
    for _ in range(30):
        addresses.append(await append(log, bytes(400)))
        await trio.sleep(0.01)
    before = await ledger_nodes(session)
    await log.truncate(addresses[20])
    assert log.held_bytes == log.bytes_since_truncation
    left = await ledger_nodes(session)
    assert len(left) < len(before)
    assert len(left) == len((await metadata_of(session)).ledgers)
    await log.aclose()
    again = await (await open_factory(bookies, nursery)).open_log(4)
    assert [address for address, _ in await read_all(again)] == addresses[20:]
    assert again.bytes_since_truncation == 10 * 400


async def test_bytes_that_were_read_are_counted_one_by_one(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    """An opening counts each ledger as a whole; a read finds the size of each entry."""
    settings = BookKeeperLogSettings(ledger_bytes_max=1_000_000)
    log = await (await open_factory(bookies, nursery, settings)).open_log(4)
    addresses = [await append(log, bytes(100 + number)) for number in range(8)]
    await log.aclose()
    assert len({address.position >> 32 for address in addresses}) == 1
    again = await (await open_factory(bookies, nursery, settings)).open_log(4)
    assert len(await read_all(again)) == 8
    await again.truncate(addresses[5])
    assert again.held_bytes == 105 + 106 + 107


async def test_a_log_that_was_not_closed_has_all_that_was_acknowledged(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    expected = []
    for number in range(5):
        log = await (await open_factory(bookies, nursery)).open_log(4)
        assert await read_all(log) == expected
        for entry in range(5):
            data = b"%d:%d" % (number, entry) * 30
            expected.append((await append(log, data), data))


async def test_ledgers_without_entries_leave_the_list(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    factory = await open_factory(bookies, nursery, client=DOUBTFUL)
    for number in range(6):
        log = await factory.open_log(4)
        if number == 0:
            await append(log, b"data")
    await trio.sleep(2 * DOUBTFUL.doubt_seconds)
    await factory.open_log(4)
    metadata = await metadata_of(session)
    statuses = [each.status for each in metadata.ledgers]
    assert statuses == [Status.NOT_EMPTY, Status.EMPTY, Status.EMPTY, Status.UNKNOWN]
    assert metadata.epoch == 7
    assert len(await ledger_nodes(session)) == 4


async def test_ledgers_of_earlier_owners_are_kept_for_a_while(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    for _ in range(4):
        await append(await (await open_factory(bookies, nursery)).open_log(4), b"data")
    factory = await open_factory(bookies, nursery, client=DOUBTFUL)
    log = await factory.open_log(4)
    addresses = [await append(log, b"more") for _ in range(3)]
    await log.truncate(addresses[1])
    assert len(await ledger_nodes(session)) == 5
    again = await factory.open_log(4)
    assert [address for address, _ in await read_all(again)] == addresses[1:]
    assert again.bytes_since_truncation == 8
    later = await append(again, b"later")
    await trio.sleep(2 * DOUBTFUL.doubt_seconds)
    await again.truncate(later)
    assert len(await ledger_nodes(session)) == 1


async def test_an_owner_knows_when_the_log_was_its_own_at_last(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    first = await (await open_factory(bookies, nursery)).open_log(4)
    for prove in (first.prove_owner, partial(append, first, b"data")):
        await trio.sleep(1)
        asked = trio.current_time()
        assert first.owned_at < asked
        await prove()
        assert first.owned_at >= asked
    second = await (await open_factory(bookies, nursery)).open_log(4)
    assert second.owned_at <= trio.current_time()
    for _ in range(2):
        with pytest.raises(DataLogError, match="fenced"):
            await first.prove_owner()
    assert await second.prove_owner()
    await first.aclose()


async def test_an_entry_that_was_refused_proves_no_ownership(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    """Earlier it did, so that a replaced owner answered for a tenth of a second when it noticed."""
    first = await (await open_factory(bookies, nursery)).open_log(4)
    await append(first, b"data")
    await (await open_factory(bookies, nursery)).open_log(4)
    await trio.sleep(1)
    before = first.owned_at
    with pytest.raises(DataLogError, match="fenced"):
        await append(first, b"late")
    assert first.owned_at == before
    await first.aclose()


async def test_an_owner_that_cannot_ask_zookeeper_proves_it_by_an_entry(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    steady = SteadyZooKeeper(wait_seconds_max=0.5)
    client = await open_bookkeeper(bookies.zookeeper.open_session(), LEDGERS_ROOT, nursery)
    factory = BookKeeperLogFactory(steady, "/logs", client, SHORT)
    with steady.using(bookies.zookeeper.open_session()):
        log = await factory.open_log(4)
    await trio.sleep(0.1)
    before = log.owned_at
    assert not await log.prove_owner()
    assert log.owned_at == before
    await append(log, b"data")
    assert log.owned_at > before


async def test_bookies_that_forgot_a_ledger_acknowledge_nothing_to_its_earlier_owner(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    """An owner that stood still wrote to a ledger that was fenced, deleted and collected since: its
    bookies took the entries as those of a new ledger."""
    first = await (await open_factory(bookies, nursery, client=DOUBTFUL)).open_log(4)
    await append(first, b"data")
    [ledger] = (await metadata_of(session)).ledgers
    second = await (await open_factory(bookies, nursery, client=DOUBTFUL)).open_log(4)
    await trio.sleep(2 * DOUBTFUL.doubt_seconds)
    await second.truncate(await append(second, b"more"))
    assert ledger not in (await metadata_of(session)).ledgers
    for bookie in bookies.bookies.values():
        bookie.forget(ledger.ledger_id)
    with pytest.raises(DataLogError, match="fenced"):
        await append(first, b"late")
    # Nothing else would have stopped it.
    taken = [each.entry_count(ledger.ledger_id) for each in bookies.bookies.values()]
    assert sum(count > 0 for count in taken) >= 2
    await first.aclose()


async def test_after_a_silence_entries_wait_for_a_zookeeper_that_is_away(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    steady = SteadyZooKeeper()
    client = await open_bookkeeper(
        bookies.zookeeper.open_session(), LEDGERS_ROOT, nursery, settings=DOUBTFUL
    )
    factory = BookKeeperLogFactory(steady, "/logs", client, SHORT)
    with steady.using(bookies.zookeeper.open_session()):
        log = await factory.open_log(4)
        await append(log, b"data")
    await append(log, b"at once")
    await trio.sleep(2 * DOUBTFUL.doubt_seconds)
    done: list[DataLogError | None] = []
    for data in (b"late", b"later"):
        log.append_nowait((data,), done.append)
    await trio.sleep(0.1)
    assert done == []
    with steady.using(bookies.zookeeper.open_session()):
        await until(lambda: len(done) == 2)
    assert done == [None, None]
    # Or until it is clear that it stays away.
    await trio.sleep(2 * DOUBTFUL.doubt_seconds)
    for data in (b"late", b"later"):
        log.append_nowait((data,), done.append)
    await until(lambda: len(done) == 4)
    assert [type(each) for each in done[2:]] == [DataLogError, DataLogError]
    await log.aclose()


async def test_of_owners_that_open_at_once_one_goes_on(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    factories = [await open_factory(bookies, nursery) for _ in range(4)]
    opened: list[BookKeeperDataLog] = []
    refused: list[DataLogError] = []

    async def open_log(factory: BookKeeperLogFactory) -> None:
        try:
            opened.append(await factory.open_log(4))
        except DataLogError as error:
            refused.append(error)

    async with trio.open_nursery() as openers:
        for factory in factories:
            openers.start_soon(open_log, factory)
    assert len(opened) + len(refused) == 4
    able = []
    for log in opened:
        try:
            await append(log, b"data")
            able.append(log)
        except DataLogError as error:
            assert "fenced" in str(error)  # noqa: PT017
    last = max(opened, key=lambda log: log.epoch)
    assert able == [last]


async def test_an_owner_that_was_replaced_changes_nothing(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    first = await (await open_factory(bookies, nursery)).open_log(4)
    addresses = [await append(first, b"data") for _ in range(3)]
    second = await (await open_factory(bookies, nursery)).open_log(4)
    before = await session.get(NODE)
    with pytest.raises(DataLogError, match="fenced"):
        await first.truncate(addresses[2])
    with pytest.raises(DataLogError, match="fenced"):
        await append(first, b"late")
    await first.aclose()
    assert await session.get(NODE) == before
    assert [address for address, _ in await read_all(second)] == addresses


async def test_three_bookies_carry_a_log_on_when_one_stops(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    settings = BookKeeperLogSettings()
    log = await (await open_factory(bookies, nursery, settings)).open_log(4)
    await append(log, b"one")
    await bookies.stop("b")
    await append(log, b"two")
    await bookies.start("b")
    await append(log, b"three")
    again = await (await open_factory(bookies, nursery, settings)).open_log(4)
    assert [data for _, data in await read_all(again)] == [b"one", b"two", b"three"]


async def test_a_lost_ledger_fails_all_that_waits_in_order(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    log = await (await open_factory(bookies, nursery)).open_log(4)
    for name in ("a", "b"):
        bookies.bookies[name].pause()
    told: list[tuple[int, bool]] = []
    for number in range(10):

        def on_durable(error: DataLogError | None, number: int = number) -> None:
            told.append((number, error is None))

        log.append_nowait((bytes(300),), on_durable)
    await trio.sleep(0.05)
    log._fail(OSError("the test ends it"))
    await until(lambda: len(told) == 10)
    assert told == [(number, False) for number in range(10)]
    with pytest.raises(DataLogError, match="the test ends it"):
        await append(log, b"more")
    await log.aclose()
    for name in ("a", "b"):
        bookies.bookies[name].resume()


async def test_no_entry_is_sent_before_the_ledger_before_is_durable(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    log = await (await open_factory(bookies, nursery)).open_log(4)
    for name in ("a", "b"):
        bookies.bookies[name].pause()
    done: list[DataLogError | None] = []
    positions = [log.append_nowait((bytes(600),), done.append).position for _ in range(2)]
    while positions[-1] >> 32 == positions[0] >> 32:
        await trio.sleep(0.01)
        positions.append(log.append_nowait((b"x",), done.append).position)
    first, second = [each.ledger_id for each in (await metadata_of(session)).ledgers]
    await until(lambda: bookies.bookies["c"].entry_count(first) == len(positions) - 1)
    await trio.sleep(0.05)
    assert done == []
    assert bookies.bookies["c"].entry_count(second) == 0
    for name in ("a", "b"):
        bookies.bookies[name].resume()
    await until(lambda: len(done) == len(positions))
    assert done == [None] * len(positions)
    await until(lambda: bookies.bookies["c"].entry_count(second) == 1)


async def test_a_truncation_that_is_not_stored_deletes_no_ledger(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    log = await (await open_factory(bookies, nursery)).open_log(4)
    addresses = []
    for _ in range(30):
        addresses.append(await append(log, bytes(400)))
        await trio.sleep(0.01)
    before = await ledger_nodes(session)
    bookies.zookeeper.lose_answer = lambda path: Loss.CALL if path == NODE else Loss.NONE
    with pytest.raises(DataLogError, match="cannot be truncated"):
        await log.truncate(addresses[20])
    bookies.zookeeper.lose_answer = lambda path: Loss.NONE
    assert await ledger_nodes(session) == before
    assert (await metadata_of(session)).truncated_position == 0
    await log.truncate(addresses[20])
    assert len(await ledger_nodes(session)) < len(before)


async def test_lost_answers_of_zookeeper_lose_no_entry(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    random = Random(5)
    expected: list[tuple[LogAddress, bytes]] = []

    def lose(path: str) -> Loss:
        is_spared = "available" in path or random.random() < 0.8
        return Loss.NONE if is_spared else random.choice([Loss.ANSWER, Loss.CALL])

    opened = 0
    for number in range(40):
        factory = await open_factory(bookies, nursery)
        bookies.zookeeper.lose_answer = lose
        try:
            log = await factory.open_log(4)
        except DataLogError:
            continue
        finally:
            bookies.zookeeper.lose_answer = lambda path: Loss.NONE
        opened += 1
        assert await read_all(log) == expected
        data = b"%d" % number
        expected.append((await append(log, data), data))
        if number % 7 == 6:
            await log.truncate(expected[-2][0])
            expected = expected[-2:]
    assert opened > 10


@pytest.mark.parametrize("is_read_by_next", [True, False])
async def test_a_ledger_that_the_next_owner_has_in_its_list_is_not_deleted(
    is_read_by_next: bool,
    bookies: MemoryBookies,
    nursery: trio.Nursery,
    session: MemorySession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await (await open_factory(bookies, nursery)).open_log(4)
    await append(first, b"data")
    client = await open_bookkeeper(session, LEDGERS_ROOT, nursery, settings=QUICK)
    real = MetadataNode._write

    async def write(self: MetadataNode, data: bytes) -> int:
        """Write, then fail without an answer: the next owner changes the node after this change
        or before it."""
        if is_read_by_next:
            await real(self, data)
        found = await session.get(NODE)
        metadata = decode_log_metadata(found.data).add(99)
        await session.set(NODE, encode_log_metadata(metadata), found.version)
        raise ConnectionLostError(NODE)

    with monkeypatch.context() as patch:
        patch.setattr(MetadataNode, "_write", write)
        with pytest.raises(FencedError):
            await first._node.add_ledger(client)
    named = [each.ledger_id for each in (await metadata_of(session)).ledgers]
    assert named == ([0, 1, 99] if is_read_by_next else [0, 99])
    assert (await client.store.fetch(1) is not None) == is_read_by_next


async def test_what_is_not_ours_is_left_alone(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    factory = await open_factory(bookies, nursery)
    client = await open_bookkeeper(session, LEDGERS_ROOT, nursery, settings=QUICK)
    foreign = await client.create_ledger(
        Quorums(3, 3, 2),
        password=b"",
        custom={"application": b"Pravega", "BookKeeperLogId": b"4"},
    )
    log = await factory.open_log(4)
    await log.aclose()
    node = await session.get(NODE)
    data = encode_log_metadata(decode_log_metadata(node.data).add(foreign.ledger_id))
    await session.set(NODE, data, node.version)
    with pytest.raises(DataLogCorruptError, match="by Pravega for 4"):
        await factory.open_log(4)
    assert (await session.get(NODE)).data == data
    # Its owner goes on.
    assert await foreign.add(b"an entry") == 0


async def test_a_disabled_log_is_not_opened(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    factory = await open_factory(bookies, nursery)
    await (await factory.open_log(4)).aclose()
    node = await session.get(NODE)
    metadata = decode_log_metadata(node.data)
    disabled = LogMetadata(False, metadata.epoch, ledgers=metadata.ledgers)
    await session.set(NODE, encode_log_metadata(disabled), node.version)
    with pytest.raises(DataLogError, match="disabled"):
        await factory.open_log(4)


async def test_too_few_bookies_are_told(bookies: MemoryBookies, nursery: trio.Nursery) -> None:
    factory = await open_factory(bookies, nursery)
    for name in ("b", "c"):
        await bookies.stop(name)
    with pytest.raises(DataLogError, match=r"needs 2 bookies, 1 take writes$"):
        await factory.open_log(4)


async def test_bookies_on_full_disks_are_named(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    factory = await open_factory(bookies, nursery)
    for name in ("b", "c"):
        await bookies.stop(name)
        await session.create(f"{LEDGERS_ROOT}/available/readonly/{name}", b"", is_ephemeral=True)
    words = "1 take writes; read-only, as on a full disk: b, c"
    with pytest.raises(DataLogError, match=words):
        await factory.open_log(4)


async def test_a_log_is_opened_and_goes_on_without_one_of_three_bookies(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    factory = await open_factory(bookies, nursery)
    log = await factory.open_log(4)
    addresses = [await append(log, b"with three")]
    await bookies.stop("c")
    log = await factory.open_log(4)
    addresses += [await append(log, bytes(300)) for _ in range(10)]
    await log.aclose()
    assert len({address.position >> 32 for address in addresses}) >= 2
    # Each entry is at both: the one that is left has it.
    await bookies.stop("b")
    await bookies.start("c")
    log = await (await open_factory(bookies, nursery)).open_log(4)
    assert [address for address, _ in await read_all(log)] == addresses


async def test_epochs_are_known_when_the_logs_are_opened(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    factory = await open_factory(bookies, nursery)
    assert await factory.last_epoch(4) == 0
    for _ in range(3):
        await (await factory.open_log(4)).aclose()
    assert await factory.last_epoch(4) == 3
    again = await open_factory(bookies, nursery)
    assert (await again.last_epoch(4), await again.last_epoch(5)) == (3, 0)


# ---- Without ZooKeeper, and in another session ---------------------------------------------------


async def test_a_change_without_an_answer_that_took_effect_is_no_fence(
    bookies: MemoryBookies, nursery: trio.Nursery, session: MemorySession
) -> None:
    log = await (await open_factory(bookies, nursery)).open_log(4)
    addresses = [await append(log, bytes(100)) for _ in range(8)]
    for kind, index in ((Loss.ANSWER, 3), (Loss.CALL, 5)):
        bookies.zookeeper.lose_answer = lambda path, kind=kind: kind if path == NODE else Loss.NONE
        with pytest.raises(DataLogError, match="cannot be truncated"):
            await log.truncate(addresses[index])
        bookies.zookeeper.lose_answer = lambda path: Loss.NONE
        await log.truncate(addresses[index + 1])
        metadata = await metadata_of(session)
        assert metadata.truncated_position == addresses[index + 1].position - 1
    await append(log, b"goes on")


@pytest.mark.proof
async def test_a_log_goes_on_in_the_next_session(
    bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    steady = SteadyZooKeeper(wait_seconds_max=0.1)
    first = bookies.zookeeper.open_session()
    with steady.using(first):
        client = await open_bookkeeper(steady, LEDGERS_ROOT, nursery, settings=QUICK)
        log = await BookKeeperLogFactory(steady, "/logs", client, SHORT).open_log(4)
        await append(log, b"first")
        bookies.zookeeper.end_session(first)
    # The ledger is full, and there is no ZooKeeper: entries go on in it.
    addresses = [await append(log, bytes(300)) for _ in range(10)]
    assert len({address.position >> 32 for address in addresses}) == 1
    with pytest.raises(DataLogError, match="cannot be truncated"):
        await log.truncate(addresses[3])
    await bookies.stop("a")
    await append(log, b"with two bookies")
    await bookies.start("a")
    with steady.using(bookies.zookeeper.open_session()):
        await log.truncate(addresses[3])
        with trio.fail_after(30):
            while True:
                address = await append(log, b"x")
                if address.position >> 32 > addresses[0].position >> 32:
                    break
        await log.aclose()


@pytest.mark.parametrize("step", ["_check_owners", "_recover_all"])
async def test_an_opening_begins_again_when_the_owner_before_truncates_meanwhile(
    bookies: MemoryBookies, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log = await (await open_factory(bookies, nursery)).open_log(4)
    addresses = []
    for _ in range(30):
        addresses.append(await append(log, bytes(400)))
        await trio.sleep(0.01)
    factory = await open_factory(bookies, nursery)
    carry_out = getattr(factory, step)
    calls = 0

    async def truncate_first(container_id: int, metadata: LogMetadata) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            await log.truncate(addresses[20])
        return await carry_out(container_id, metadata)

    monkeypatch.setattr(factory, step, truncate_first)
    again = await factory.open_log(4)
    assert calls == 2
    assert [address for address, _ in await read_all(again)] == addresses[20:]
