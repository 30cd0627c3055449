"""The Python client of this package, on trio and asyncio, against the server under test.

Each kind of thing is used once: what the client does among kills and beside Java's has tests of its
own. The original server has to take the same requests.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

import anyio
import pytest
from foreign_servers.deadlines import scale

import segstore_client
from segstore_client import (
    ABSENT,
    ConflictError,
    Position,
    Store,
    StreamSealedError,
    UsageError,
)

Run: TypeAlias = Callable[[Callable[[Store, str], Awaitable[None]]], None]

SECONDS_MAX = scale(90.0)
EVENTS = [b"event %d" % number for number in range(50)]

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]
matrix = partial(pytest.mark.matrix, client="segstore_client", version="0.3.0")


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest, controller_uri: str) -> Run:
    """Run a function with a store and the name of a new scope."""

    def run_in(use: Callable[[Store, str], Awaitable[None]]) -> None:
        async def connect() -> None:
            async with segstore_client.connect(controller_uri) as store:
                scope = f"own-{uuid.uuid4().hex[:8]}"
                await store.create_scope(scope)
                with anyio.fail_after(SECONDS_MAX):
                    await use(store, scope)

        anyio.run(connect, backend=request.param)

    return run_in


async def write_events(store: Store, stream: str, *, segments: int = 2) -> None:
    await store.create_stream(stream, segments=segments)
    async with store.writer(stream) as writer:
        for event in EVENTS:
            await writer.submit(event, key=event.decode())


async def read_events(store: Store, stream: str) -> list[bytes]:
    async with store.reader(stream, end=Position.TAIL) as reader:
        return [event.data async for event in reader]


@matrix(api="events")
def test_events_are_written_and_read(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        stream = f"{scope}/events"
        await write_events(store, stream)
        assert sorted(await read_events(store, stream)) == sorted(EVENTS)
        frame = await store.read_frame(stream)
        assert sorted(frame.column("event").to_pylist()) == sorted(EVENTS)

    run(use)


@matrix(api="large events")
def test_an_event_of_several_mebibytes_is_one_event(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        large = bytes(range(250)) * 40_000
        await store.create_stream(f"{scope}/large")
        async with store.writer(f"{scope}/large") as writer:
            for event in (b"before", large, b"after"):
                await writer.write(event, key="key")
        assert await read_events(store, f"{scope}/large") == [b"before", large, b"after"]

    run(use)


async def give_up(store: Store, stream: str) -> None:
    async with store.transaction(stream) as transaction:
        await transaction.write(b"never seen")
        raise RuntimeError("given up")


@matrix(api="transactions")
def test_a_transaction_is_seen_whole_or_never(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        stream = f"{scope}/events"
        await store.create_stream(stream, segments=2)
        async with store.transaction(stream) as transaction:
            for event in EVENTS:
                await transaction.submit(event, key=event.decode())
        with pytest.raises(RuntimeError, match="given up"):
            await give_up(store, stream)
        assert sorted(await read_events(store, stream)) == sorted(EVENTS)

    run(use)


@matrix(api="manual scaling")
def test_events_of_a_key_stay_in_order_through_a_scaling(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        stream = f"{scope}/events"
        await store.create_stream(stream)
        async with store.writer(stream) as writer:
            for number in range(100):
                await writer.submit(b"%d" % number, key="key")
                if number == 50:
                    await store.scale_stream(stream, 3)
        assert await read_events(store, stream) == [b"%d" % number for number in range(100)]

    run(use)


@matrix(api="sealed streams")
def test_a_sealed_stream_ends(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        stream = f"{scope}/events"
        await write_events(store, stream)
        await store.seal_stream(stream)
        async with store.reader(stream) as reader:
            assert sorted([event.data async for event in reader]) == sorted(EVENTS)
        with pytest.raises(StreamSealedError):
            async with store.writer(stream):
                pass
        await store.delete_stream(stream)
        assert await store.list_streams(scope) == []

    run(use)


@matrix(api="truncation")
def test_a_truncated_stream_begins_at_the_cut(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        stream = f"{scope}/events"
        await write_events(store, stream)
        cut = await store.stream_cut(stream, Position.TAIL)
        async with store.writer(stream) as writer:
            await writer.write(b"behind it")
        async with store.reader(stream, start=cut, end=Position.TAIL) as reader:
            assert [event.data async for event in reader] == [b"behind it"]
        async with store.reader(stream, end=cut) as reader:
            assert len([event async for event in reader]) == len(EVENTS)
        await store.truncate_stream(stream, cut)
        assert await read_events(store, stream) == [b"behind it"]

    run(use)


@matrix(api="times and watermarks")
def test_a_writer_notes_times_that_go_on(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        await store.create_stream(f"{scope}/events")
        async with store.writer(f"{scope}/events") as writer:
            now = datetime.now(UTC)
            await writer.write(b"event")
            await writer.note_time(now)
            with pytest.raises(UsageError, match="went back"):
                await writer.note_time(now - timedelta(days=1))

    run(use)


@matrix(api="reader groups")
def test_a_group_reads_each_event_once_and_begins_anew(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        await write_events(store, f"{scope}/events")
        await store.create_group(f"{scope}/group", [f"{scope}/events"])
        group = store.group(f"{scope}/group")
        async with group.reader("one") as reader:
            found = [(await anext(reader)).data for _ in EVENTS]
        assert sorted(found) == sorted(EVENTS)
        assert await group.unread_bytes() == 0
        assert await store.list_groups(scope) == [f"{scope}/group"]
        await group.reset(Position.HEAD)
        async with group.reader("two") as reader:
            again = [(await anext(reader)).data for _ in EVENTS]
        assert sorted(again) == sorted(EVENTS)
        await store.delete_group(f"{scope}/group")

    run(use)


@matrix(api="state synchronizer")
def test_a_state_is_shared(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        await store.create_stream(f"{scope}/state")
        async with store.synchronizer(
            f"{scope}/state", load=bytes, apply=lambda state, update: state + update
        ) as state:
            assert await state.begin(b"a")
            await state.change(lambda _: [b"b"])
            assert await state.read() == b"ab"
            await state.compact(bytes)
            assert await state.read() == b"ab"

    run(use)


@matrix(api="byte streams")
def test_bytes_are_written_and_read(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        stream = f"{scope}/bytes"
        await store.create_stream(stream)
        async with store.byte_writer(stream) as file:
            await file.write(b"some bytes")
        async with store.byte_reader(stream, offset=5) as file:
            assert await file.read(100) == b"bytes"

    run(use)


@matrix(api="key-value tables")
def test_entries_of_a_table_change_under_conditions(run: Run) -> None:
    async def use(store: Store, scope: str) -> None:
        await store.create_table(f"{scope}/table", primary_key_bytes=2, partitions=2)
        table = await store.table(f"{scope}/table")
        version = await table.put(b"k1", b"one", version=ABSENT)
        with pytest.raises(ConflictError):
            await table.put(b"k1", b"two", version=ABSENT)
        await table.put(b"k1", b"two", version=version)
        await table.put(b"k2", b"other")
        found = {entry.key: entry.value async for entry in table.entries()}
        assert found == {b"k1": b"two", b"k2": b"other"}
        await table.remove(b"k1")
        assert await table.get(b"k1") is None

    run(use)
