"""The client of segment stores against one in memory that fails in every way it can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pravega_cluster.records import Host
from pravega_controller.errors import (
    InvalidRequestError,
    NoSuchTableError,
    OutcomeUnknownError,
    StepRefusedError,
    StoreAnswerError,
    StoreDelayedError,
    StoreSilentError,
    StoreUnavailableError,
    TableNotEmptyError,
    UncertainConflictError,
    VersionConflictError,
)
from pravega_controller.metadata.conflicts import until_unchanged
from pravega_controller.metadata.records import GONE, NumberRecord, decode, encode
from pravega_controller.store_client.placement import MapPlacement, StaticPlacement
from pravega_controller.store_client.segment_client import (
    ALIVE_SECONDS_MAX,
    BACKOFF_SECONDS_MIN,
    NewSegment,
    SegmentBounds,
    SegmentClient,
    for_each,
    open_segment_client,
)
from pravega_controller.store_client.store_link import (
    QUESTIONS_MAX,
    REQUESTS_IN_FLIGHT_MAX,
    SILENT_SHARE,
)
from pravega_controller.store_client.table_client import (
    NOT_EXISTS,
    VALUE_BYTES_MAX,
    Change,
    Deleted,
    Entry,
    TableClient,
)
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_wire import commands as wire

PLACEMENT = StaticPlacement((("127.0.0.1", 6000),), 4)
SEGMENT = "s/a/0.#epoch.0"
TABLE = "_system/_tables/t"


@pytest.fixture
async def client(
    memory_store: MemorySegmentStore,
) -> AsyncIterator[SegmentClient]:
    async with open_segment_client(
        PLACEMENT,
        open_stream=memory_store.open_stream,
        random=Random(1),
        reply_seconds_max=5,
        retry_seconds_max=20,
    ) as opened:
        yield opened


async def create(client: SegmentClient, segment: str = SEGMENT) -> None:
    await client.create_segments([NewSegment(segment, 1, 7, 9)])


async def test_a_segment_is_created_sealed_truncated_and_deleted(
    client: SegmentClient, memory_store: MemorySegmentStore
) -> None:
    assert await client.segment_info(SEGMENT) is None
    await create(client)
    stored = memory_store.segments[SEGMENT]
    assert (stored.scale_type, stored.target_rate, stored.rollover_bytes) == (1, 7, 9)
    stored.length = 10
    await client.truncate_segment(SEGMENT, offset=4)
    await client.update_policy(SEGMENT, scale_type=2, target_rate=8)
    assert (stored.scale_type, stored.target_rate) == (2, 8)
    await client.seal_segments([SEGMENT])
    assert await client.segment_info(SEGMENT) == SegmentBounds(4, 10, is_sealed=True)
    await client.delete_segments([SEGMENT])
    assert memory_store.segments == {}


async def test_a_store_that_waits_for_room_is_asked_why_and_not_waited_for(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await create(client)
    memory_store.delays = ("the disk of /data is full",)
    memory_store.pause = trio.Event()
    memory_store.pauses = lambda request: isinstance(request, wire.SealSegment)
    began = trio.current_time()
    with pytest.raises(StoreDelayedError, match=r"6000 waits: the disk of /data is full"):
        await client.seal_segments([SEGMENT])
    with pytest.raises(StoreDelayedError):
        await client.request(SEGMENT, lambda i: wire.SealSegment(i, SEGMENT, ""))
    assert trio.current_time() - began == pytest.approx(2 * SILENT_SHARE * 5, abs=0.5)
    assert await client.segment_info(SEGMENT) == SegmentBounds(0, 0, is_sealed=False)
    memory_store.pause.set()
    memory_store.pause = None
    await client.seal_segments([SEGMENT])


@pytest.mark.parametrize("delays", [(), None])
async def test_a_silent_store_that_does_not_tell_why_is_waited_for_as_before(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
    delays: tuple[str, ...] | None,
) -> None:
    await create(client)
    memory_store.delays = delays
    memory_store.pause = trio.Event()
    memory_store.pauses = lambda request: isinstance(request, wire.SealSegment)
    with pytest.raises(
        StoreUnavailableError, match=r"gave up after 20 s: .* did not answer"
    ) as told:
        await client.seal_segments([SEGMENT])
    assert not isinstance(told.value, StoreDelayedError)


async def test_a_store_that_answers_nothing_is_named_soon(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It stands still: its machine takes connections, and nobody reads what they bring."""
    await create(client)
    memory_store.stands_still = trio.Event()
    began = trio.current_time()
    with pytest.raises(StoreSilentError, match=r"^segment store 127.0.0.1:6000 does not answer$"):
        await client.request(SEGMENT, lambda i: wire.SealSegment(i, SEGMENT, ""))
    told: list[float] = []

    async def seal(seconds: float) -> None:
        await trio.sleep(seconds)
        with pytest.raises(StoreSilentError):
            await client.seal_segments([SEGMENT])
        told.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for seconds in (0.0, 1.0, 2.0):
            nursery.start_soon(seal, seconds)
    waited = QUESTIONS_MAX * (SILENT_SHARE * 5 + ALIVE_SECONDS_MAX)
    # A question of another caller may be under way when one has had enough.
    assert min(told) == pytest.approx(began + 2 * waited, abs=0.5)
    assert max(told) - min(told) <= ALIVE_SECONDS_MAX
    async with trio.open_nursery() as nursery:
        # Who has a time of its own, as a controller that starts, waits for the store.
        nursery.start_soon(
            partial(TableClient(client, random=Random(3)).create, TABLE, retry_seconds_max=60.0)
        )
        await trio.sleep(30)
        memory_store.stands_still.set()
    memory_store.stands_still = None
    await client.seal_segments([SEGMENT])


async def test_who_gives_up_is_told_what_the_store_waits_for(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory_store.wrong_host_replies = 1_000_000
    memory_store.delays = ("container 1 is offline: a ledger needs 2 bookies, 1 take writes",)
    with pytest.raises(StoreDelayedError, match=r"does not serve .*: a ledger needs 2 bookies"):
        await create(client)


async def test_doing_it_twice_is_the_same_as_once(
    client: SegmentClient, memory_store: MemorySegmentStore
) -> None:
    for _ in range(2):
        await create(client)
    memory_store.segments[SEGMENT].length = 10
    for offset in (4, 4, 2):
        await client.truncate_segment(SEGMENT, offset=offset)
    assert memory_store.segments[SEGMENT].start == 4
    for _ in range(2):
        await client.seal_segments([SEGMENT])
    for _ in range(2):
        await client.delete_segments([SEGMENT])
    await client.seal_segments([SEGMENT])
    await client.truncate_segment(SEGMENT, offset=9)
    await client.update_policy(SEGMENT, scale_type=0, target_rate=0)


async def test_truncating_beyond_the_end_is_no_success(client: SegmentClient) -> None:
    await create(client)
    with pytest.raises(StepRefusedError):
        await client.truncate_segment(SEGMENT, offset=1)


async def test_a_store_that_comes_back_is_waited_for(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory_store.refuse_connections = 10
    await create(client)
    assert memory_store.refuse_connections == 0
    assert memory_store.created == [SEGMENT]


async def test_a_store_that_stays_away_is_given_up_in_time(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory_store.refuse_connections = 1_000_000
    begun = trio.current_time()
    with (
        capture_logs() as logs,
        pytest.raises(StoreUnavailableError, match="nobody listens"),
    ):
        await create(client)
    (line,) = [each for each in logs if each["event"] == "a segment store is waited for"]
    assert "nobody listens" in line["why"]
    assert 5 <= line["seconds"] < 7, "long before it is given up"
    assert 15 < trio.current_time() - begun <= 20
    assert 1_000_000 - memory_store.refuse_connections < 60, "the pauses grow"


async def test_a_store_that_does_not_own_the_segment_is_asked_again(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory_store.wrong_host_replies = 3
    await create(client)
    assert memory_store.created == [SEGMENT]


@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_request_without_an_answer_is_sent_again_on_a_new_connection(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    is_applied: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await create(client, "s/b/0.#epoch.0")
    memory_store.fault = Fault(memory_store.changes, is_applied, lasts=False)
    await create(client)
    assert memory_store.created == ["s/b/0.#epoch.0", SEGMENT]


@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_conditional_update_whose_reply_was_lost_has_happened_once(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    is_applied: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    first = await tables.put(TABLE, b"k", value(1), version=NOT_EXISTS)
    memory_store.fault = Fault(memory_store.changes, is_applied, lasts=False)
    second = await tables.put(TABLE, b"k", value(2), version=first)
    entry = await tables.get(TABLE, b"k")
    assert entry is not None
    assert (number_in(entry), entry.version) == (2, second)
    memory_store.fault = Fault(memory_store.changes, is_applied, lasts=False)
    await tables.remove(TABLE, b"k", version=second)
    assert await tables.get(TABLE, b"k") is None


def value(number: int) -> bytes:
    return encode(NumberRecord(number))


def number_in(entry: Entry | None) -> int:
    assert entry is not None
    return decode(entry.value, NumberRecord).next_number


@pytest.mark.parametrize("version", ["of an entry", "of no entry"])
async def test_of_two_who_write_equal_values_one_is_refused(
    client: SegmentClient, memory_store: MemorySegmentStore, version: str
) -> None:
    one, other = (TableClient(client, random=Random(seed)) for seed in (3, 4))
    await one.create(TABLE)
    known = NOT_EXISTS
    if version == "of an entry":
        known = await one.put(TABLE, b"k", value(1), version=NOT_EXISTS)
    await one.put(TABLE, b"k", value(2), version=known)
    with pytest.raises(VersionConflictError) as refusal:
        await other.put(TABLE, b"k", value(2), version=known)
    assert type(refusal.value) is VersionConflictError
    # What anybody may have written is no conflict.
    same = Change(b"g", GONE, NOT_EXISTS, is_shared=True)
    assert await one.update(TABLE, [same]) == await other.update(TABLE, [same])
    found = await one.get(TABLE, b"g")
    assert found is not None
    assert found.value == GONE


async def test_an_update_that_was_overwritten_after_its_reply_was_lost_is_in_doubt(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    one = TableClient(client, random=Random(3))
    await one.create(TABLE)
    first = await one.put(TABLE, b"k", value(1), version=NOT_EXISTS)
    fault = Fault(memory_store.changes, is_applied=True, lasts=False)
    memory_store.fault = fault
    async with trio.open_nursery() as nursery:

        async def overwrite() -> None:
            await fault.reached.wait()
            memory_store.tables[TABLE].entries[b"k"] = value(2), 1_000

        nursery.start_soon(overwrite)
        with pytest.raises(UncertainConflictError):
            await one.put(TABLE, b"k", value(2), version=first)
    with pytest.raises(OutcomeUnknownError):
        await until_unchanged(partial(put_after_a_lost_reply, one, memory_store))


async def put_after_a_lost_reply(tables: TableClient, memory_store: MemorySegmentStore) -> None:
    """Write a key at an old version, with an update that is sent twice."""
    memory_store.fault = Fault(memory_store.changes, is_applied=False, lasts=False)
    await tables.put(TABLE, b"k", value(3), version=1)


async def test_another_writer_is_noticed(client: SegmentClient) -> None:
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    old = await tables.put(TABLE, b"k", value(1), version=NOT_EXISTS)
    with pytest.raises(VersionConflictError):
        await tables.put(TABLE, b"k", value(2), version=NOT_EXISTS)
    await tables.put(TABLE, b"k", value(3))
    with pytest.raises(VersionConflictError):
        await tables.put(TABLE, b"k", value(4), version=old)
    with pytest.raises(VersionConflictError):
        await tables.remove(TABLE, b"k", version=old)
    await tables.remove(TABLE, b"k")
    with pytest.raises(VersionConflictError):
        await tables.put(TABLE, b"k", value(4), version=old)


async def test_an_update_of_several_keys_is_made_whole_or_not_at_all(client: SegmentClient) -> None:
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    version = await tables.put(TABLE, b"known", value(1), version=NOT_EXISTS)
    new = Change(b"new", value(2), NOT_EXISTS)
    with pytest.raises(VersionConflictError):
        await tables.update(TABLE, [new, Change(b"known", value(2), version + 1)])
    assert await tables.get(TABLE, b"new") is None
    await tables.update(TABLE, [new, Change(b"known", value(2), version)])
    found = await tables.get_all(TABLE, [b"new", b"known"])
    assert [number_in(entry) for entry in found] == [2, 2]


@pytest.mark.parametrize("is_applied", [False, True])
async def test_who_deleted_a_table_is_known_unless_the_reply_was_lost(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    is_applied: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    assert await tables.is_empty(TABLE)
    assert await tables.exists(TABLE)
    memory_store.fault = Fault(memory_store.changes, is_applied, lasts=False)
    found = await tables.delete(TABLE, must_be_empty=True)
    assert found is (Deleted.PERHAPS_NOW if is_applied else Deleted.NOW)
    assert await tables.delete(TABLE, must_be_empty=True) is Deleted.BEFORE
    assert not await tables.exists(TABLE)


async def test_keys_of_a_table_that_another_deletes_are_removed(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    version = await tables.put(TABLE, b"k", value(1), version=NOT_EXISTS)
    memory_store.fault = fault = Fault(memory_store.changes, is_applied=True, lasts=False)
    async with trio.open_nursery() as nursery:

        async def delete_table() -> None:
            await fault.reached.wait()
            assert not memory_store.tables[TABLE].entries
            del memory_store.tables[TABLE]

        nursery.start_soon(delete_table)
        await tables.remove(TABLE, b"k", version=version)
    await tables.remove(TABLE, b"k", version=version)
    await tables.remove_all(TABLE, [b"k"])
    assert not await tables.exists(TABLE)


async def test_a_value_that_no_table_takes_is_not_sent(
    client: SegmentClient, memory_store: MemorySegmentStore
) -> None:
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    before = memory_store.requests
    with pytest.raises(InvalidRequestError):
        await tables.put(TABLE, b"k", bytes(VALUE_BYTES_MAX + 1))
    assert memory_store.requests == before
    await tables.put(TABLE, b"k", bytes(VALUE_BYTES_MAX))


async def test_a_reply_that_does_not_fit_its_request_is_not_waited_out(
    client: SegmentClient, memory_store: MemorySegmentStore
) -> None:
    before = memory_store.requests
    with pytest.raises(StoreAnswerError):
        await client.read_segment("s/missing/0.#epoch.0", offset=0, length=1)
    assert memory_store.requests == before + 1


async def test_many_keys_are_read_in_their_order(client: SegmentClient) -> None:
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    keys = [f"k{number}".encode() for number in range(50)]
    for key in keys[::2]:
        await tables.put(TABLE, key, key.upper())
    found = await tables.get_all(TABLE, keys)
    assert [entry and entry.value for entry in found] == [
        key.upper() if number % 2 == 0 else None for number, key in enumerate(keys)
    ]


async def test_pages_give_every_entry_once(
    client: SegmentClient, memory_store: MemorySegmentStore
) -> None:
    memory_store.page_entries_max = 7
    tables = TableClient(client, random=Random(3))
    await tables.create(TABLE)
    keys = {f"k{number}".encode() for number in range(50)}
    for key in keys:
        await tables.put(TABLE, key, b"v")
    read = [entry.key async for page in tables.pages(TABLE) for entry in page]
    assert len(read) == len(keys)
    assert set(read) == keys


async def test_a_table_that_is_missing_or_not_empty_is_an_error(client: SegmentClient) -> None:
    tables = TableClient(client, random=Random(3))
    with pytest.raises(NoSuchTableError):
        await tables.get(TABLE, b"k")
    with pytest.raises(NoSuchTableError):
        await tables.put(TABLE, b"k", b"v")
    await tables.delete(TABLE, must_be_empty=True)
    await tables.create(TABLE)
    await tables.put(TABLE, b"k", b"v")
    with pytest.raises(TableNotEmptyError):
        await tables.delete(TABLE, must_be_empty=True)
    await tables.delete(TABLE, must_be_empty=False)


async def test_more_requests_than_fit_in_flight_all_get_their_own_reply(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    count = REQUESTS_IN_FLIGHT_MAX + 100
    segments = [f"s/a/{number}.#epoch.0" for number in range(count)]
    async with trio.open_nursery() as nursery:
        for segment in segments:
            nursery.start_soon(create, client, segment)
    assert sorted(memory_store.created) == sorted(segments)
    for number, segment in enumerate(segments):
        memory_store.segments[segment].length = number
    infos: dict[str, Any] = {}

    async def ask(segment: str) -> None:
        infos[segment] = await client.segment_info(segment)

    await for_each(segments, ask, limit=count)
    assert [infos[segment].length for segment in segments] == list(range(count))


async def test_requests_about_many_segments_have_their_replies_in_order(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    count = 2 * REQUESTS_IN_FLIGHT_MAX + 7
    segments = [f"s/a/{number}.#epoch.0" for number in range(count)]

    async def create_all() -> None:
        await client.create_segments(NewSegment(segment, 1, 7, 9) for segment in segments)

    # Several that ask for more than there is room for do not wait for each other in a circle.
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(create_all)
    assert sorted(memory_store.created) == sorted(segments)
    for number, segment in enumerate(segments):
        memory_store.segments[segment].length = number
    await client.delete_segments(segments[5:9])
    infos = await client.segment_infos(segments)
    assert [info and info.length for info in infos] == [
        None if 5 <= number < 9 else number for number in range(count)
    ]
    await client.seal_segments(segments)
    assert all(segment.is_sealed for segment in memory_store.segments.values())


@pytest.mark.parametrize("is_applied", [False, True])
async def test_of_many_requests_those_without_an_answer_are_sent_again(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    is_applied: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    segments = [f"s/a/{number}.#epoch.0" for number in range(100)]
    wanted = [NewSegment(segment, 1, 7, 9) for segment in segments]
    memory_store.fault = Fault(70, is_applied, lasts=False)
    await client.create_segments(wanted)
    assert sorted(memory_store.created) == sorted(segments)
    memory_store.wrong_host_replies = 30
    await client.seal_segments(segments)
    assert all(segment.is_sealed for segment in memory_store.segments.values())
    memory_store.refuse_connections = 1_000_000
    await client.delete_segments(segments)
    assert not memory_store.segments


async def test_many_requests_to_a_store_that_stays_away_are_given_up(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory_store.refuse_connections = 1_000_000
    begun = trio.current_time()
    with pytest.raises(StoreUnavailableError, match="nobody listens"):
        await client.seal_segments([f"s/a/{number}.#epoch.0" for number in range(100)])
    assert 15 < trio.current_time() - begun <= 20
    assert 1_000_000 - memory_store.refuse_connections < 150, "they are not tried one by one"


async def test_requests_about_many_segments_pause_before_they_are_sent_again(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory_store.refuse_connections = 1
    begun = trio.current_time()
    await client.seal_segments([f"s/a/{number}.#epoch.0" for number in range(100)])
    assert trio.current_time() - begun >= BACKOFF_SECONDS_MIN / 2


async def test_a_cancelled_request_leaves_the_others_alone(
    client: SegmentClient,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await create(client)
    memory_store.pause = trio.Event()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as scope:
            nursery.start_soon(create, client, "s/b/0.#epoch.0")
            await create(client, "s/c/0.#epoch.0")
        assert scope.cancelled_caught
        memory_store.pause.set()
    assert "s/b/0.#epoch.0" in memory_store.created


class CountingStream(trio.abc.Stream):
    """A stream that passes everything on, and counts what is sent."""

    def __init__(self, inner: trio.abc.Stream, sent: list[int]) -> None:
        self._inner = inner
        self._sent = sent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._sent.append(len(data))
        await self._inner.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._inner.receive_some(max_bytes)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_requests_that_come_together_leave_together(
    memory_store: MemorySegmentStore,
) -> None:
    sent: list[int] = []

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        return CountingStream(await memory_store.open_stream(host, port), sent)

    async with open_segment_client(
        PLACEMENT,
        open_stream=open_stream,
        random=Random(1),
        reply_seconds_max=5,
        retry_seconds_max=20,
    ) as client:
        await create(client)
        sent.clear()
        segments = [f"s/b/{number}.#epoch.0" for number in range(300)]
        await for_each(segments, lambda segment: create(client, segment), limit=300)
    assert sorted(memory_store.created) == sorted([SEGMENT, *segments])
    assert len(sent) < 10


async def test_each_request_has_the_controllers_token(memory_store: MemorySegmentStore) -> None:
    seen: list[str] = []
    tokens = iter(f"token {number}" for number in range(1000))

    def accept(token: str) -> bool:
        seen.append(token)
        return token.startswith("token ")

    memory_store.accepts_token = accept
    async with open_segment_client(
        PLACEMENT,
        open_stream=memory_store.open_stream,
        random=Random(1),
        reply_seconds_max=5,
        retry_seconds_max=0,
        token=lambda: next(tokens),
    ) as client:
        await create(client)
        memory_store.segments[SEGMENT].append(b"0123456789")
        assert await client.read_segment(SEGMENT, offset=0, length=4) == b"0123"
        await client.update_policy(SEGMENT, scale_type=1, target_rate=2)
        await client.truncate_segment(SEGMENT, offset=4)
        await client.seal_segments([SEGMENT])
        await client.merge_segments({SEGMENT: []})
        await client.delete_segments([SEGMENT])
        tables = TableClient(client, random=Random(3))
        await tables.create(TABLE)
        await tables.put(TABLE, b"key", b"value")
        assert await tables.get(TABLE, b"key")
        assert [page async for page in tables.pages(TABLE)]
        await tables.remove(TABLE, b"key")
        await tables.delete(TABLE, must_be_empty=True)
    assert len(seen) >= 12
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("count", [1, 3])
async def test_a_token_that_is_not_accepted_yet_is_sent_again(
    memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock, count: int
) -> None:
    refusals = 5

    def accept(token: str) -> bool:
        nonlocal refusals
        refusals -= 1
        return refusals < 0

    memory_store.accepts_token = accept
    segments = [f"s/b/{number}.#epoch.0" for number in range(count)]
    async with open_segment_client(
        PLACEMENT,
        open_stream=memory_store.open_stream,
        random=Random(1),
        reply_seconds_max=5,
        retry_seconds_max=20,
        token=lambda: "token",
    ) as client:
        await client.create_segments([NewSegment(each, 1, 7, 9) for each in segments])
        assert sorted(memory_store.created) == segments
        refusals = 10**9
        with pytest.raises(StoreUnavailableError, match="does not accept this controller's token"):
            await client.segment_infos(segments)
        with pytest.raises(StoreUnavailableError, match="do both have the same token_keys"):
            await client.segment_info(segments[0])


async def broken_peer(answer: bytes) -> Callable[[str, int], Any]:
    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await ours.send_all(answer)
        return theirs

    return open_stream


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        wire.Hello.code.to_bytes(4, "big", signed=True) + bytes(100),
        bytes.fromhex("ffffff81 00000008 00000063 00000062"),
    ],
    ids=["another protocol", "malformed", "a later version"],
)
async def test_a_peer_that_is_no_segment_store_is_given_up(
    answer: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_segment_client(
        PLACEMENT,
        open_stream=await broken_peer(answer),
        random=Random(1),
        reply_seconds_max=1,
        retry_seconds_max=3,
    ) as client:
        with pytest.raises(StoreUnavailableError):
            await create(client)


@pytest.mark.parametrize("start_seconds", [0.01, 0.7, 2.5])
async def test_a_store_that_starts_is_found_soon_after(
    start_seconds: float, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    store = MemorySegmentStore()
    await nursery.start(store.run)
    began = trio.current_time()
    attempts = 0

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        nonlocal attempts
        attempts += 1
        if trio.current_time() < began + start_seconds:
            raise ConnectionRefusedError("not yet")
        return await store.open_stream(host, port)

    async with open_segment_client(
        PLACEMENT,
        open_stream=open_stream,
        random=Random(1),
        reply_seconds_max=5,
        retry_seconds_max=20,
    ) as client:
        await create(client)
        assert trio.current_time() - began < 1.15 * start_seconds + 0.03
    assert attempts < 60


async def test_requests_go_to_the_store_of_their_container(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    placement = StaticPlacement((("h", 0), ("h", 1), ("h", 2)), 8)
    stores = [MemorySegmentStore() for _ in placement.stores]
    for store in stores:
        await nursery.start(store.run)

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        return await stores[port].open_stream(host, port)

    async with open_segment_client(
        placement, open_stream=open_stream, random=Random(1), reply_seconds_max=5,
        retry_seconds_max=5,
    ) as client:  # fmt: skip
        segments = [f"s/a/{number}.#epoch.0" for number in range(30)]
        await for_each(segments, lambda segment: create(client, segment))
    for segment in segments:
        assert segment in stores[placement.store_of(segment)[1]].segments
    assert all(store.segments for store in stores)


async def test_the_first_failure_of_many_comes_out_as_it_is() -> None:
    async def fail(number: int) -> None:
        if number == 3:
            raise StoreAnswerError("three")
        await trio.sleep_forever()

    with pytest.raises(StoreAnswerError, match="three"):
        await for_each(range(10), fail, limit=5)


async def test_no_more_than_the_limit_run_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    running: list[int] = []
    most = 0

    async def run(number: int) -> None:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        await trio.sleep(1)
        running.remove(number)

    await for_each(range(20), run, limit=4)
    assert most == 4


async def test_who_asks_where_a_segment_is_waits_until_its_store_can_be_connected_to(
    client: SegmentClient, memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock
) -> None:
    memory_store.refuse_connections = 40
    assert not client.is_known_to_live(SEGMENT)
    await client.wait_until_alive(SEGMENT)
    assert memory_store.refuse_connections == 0
    assert client.is_known_to_live(SEGMENT)
    began = trio.current_time()
    await client.wait_until_alive(SEGMENT)
    assert trio.current_time() == began


async def test_who_asks_where_a_segment_is_does_not_wait_for_ever(
    client: SegmentClient, memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock
) -> None:
    memory_store.refuse_connections = 10**6
    await client.wait_until_alive(SEGMENT)
    assert not client.is_known_to_live(SEGMENT)
    assert trio.current_time() == pytest.approx(20, abs=1)


@pytest.mark.parametrize("is_silent", [False, True])
async def test_who_asks_where_a_segment_is_hears_of_the_store_that_takes_its_container(
    memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock, is_silent: bool
) -> None:
    gone, other = Host("10.0.0.1", 6000), Host("10.0.0.2", 6000)

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        if host == gone.ip and is_silent:  # a machine without power
            await trio.sleep_forever()
        if host == gone.ip:
            raise ConnectionRefusedError("nobody listens")
        return await memory_store.open_stream(host, port)

    placement = MapPlacement(1)
    placement.update({gone: frozenset({0})})
    async with open_segment_client(
        placement,
        open_stream=open_stream,
        random=Random(1),
        reply_seconds_max=20,
        retry_seconds_max=30,
    ) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait_until_alive, SEGMENT)
            await trio.sleep(12)
            assert len(nursery.child_tasks) == 1
            placement.update({other: frozenset({0})})
        assert 12 <= trio.current_time() < 12 + 1.5


async def test_a_store_of_a_cluster_that_does_not_answer_is_not_taken_for_one_that_is_there(
    memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock
) -> None:
    """A process that is being killed keeps its connections for a while, one longer than another."""
    placement = MapPlacement(1)
    placement.update({Host("10.0.0.1", 6000): frozenset({0})})
    async with open_segment_client(
        placement,
        open_stream=memory_store.open_stream,
        random=Random(1),
        reply_seconds_max=20,
        retry_seconds_max=30,
    ) as client:
        await client.wait_until_alive(SEGMENT)
        memory_store.pause = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait_until_alive, SEGMENT)
            await trio.sleep(7)
            assert not client.is_known_to_live(SEGMENT)
            assert len(nursery.child_tasks) == 1
            memory_store.pause.set()
            memory_store.pause = None
        assert trio.current_time() < 9


async def test_a_store_that_hung_up_is_not_taken_for_one_that_is_there() -> None:
    """This holds even before the event loop has read the end of the connection."""
    async with trio.open_nursery() as nursery:
        accepted: list[trio.SocketStream] = []

        async def keep(stream: trio.SocketStream) -> None:
            accepted.append(stream)
            await trio.sleep_forever()

        serve = partial(trio.serve_tcp, keep, 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        async with open_segment_client(
            StaticPlacement((("127.0.0.1", port),), 4),
            open_stream=trio.open_tcp_stream,
            random=Random(1),
            reply_seconds_max=5,
            retry_seconds_max=20,
        ) as client:
            await client.wait_until_alive(SEGMENT)
            await trio.testing.wait_all_tasks_blocked()
            assert client.is_known_to_live(SEGMENT)
            accepted[0].socket.close()
            assert not client.is_known_to_live(SEGMENT)
            await client.wait_until_alive(SEGMENT)
            assert client.is_known_to_live(SEGMENT)
        nursery.cancel_scope.cancel()
