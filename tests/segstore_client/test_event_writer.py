"""A writer of a real stream that scales, is sealed, and takes no more than it may."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace

import anyio
import pytest
import trio

import segstore_client
from pravega_wire.commands import Command
from pravega_wire.connection import Append
from pravega_wire.sessions import append_session
from pravega_wire.sessions.append_session import BATCH_BYTES
from pravega_wire.sessions.routes import SegmentRange
from segstore_client import StreamSealedError, UsageError, WriterClosedError
from segstore_client.access.tokens import PLAIN
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.event_writer import EventWriter
from segstore_client.positions import Position
from support.event_loops import RunClient
from support.full_store import FullStore
from support.served_stream import ServedStream, run, served_stream

KEYS = 5
MEBIBYTE = 1024 * 1024


def read_numbers(stream: ServedStream) -> list[int]:
    numbers = []
    with BlockingEventReader(stream.client, "s", "t", end=Position.TAIL) as reader:
        while (event := reader.next_event()) is not None:
            numbers.append(int(event.data))
    return numbers


@pytest.mark.parametrize("long_each", [0, 150])
async def test_events_follow_their_keys_through_scalings(
    long_each: int, tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 1000)
    scalings = ([(0.0, 0.4), (0.4, 1.0)], [(0.0, 0.5), (0.5, 1.0)], [(0.0, 1.0)])
    each_count = 400
    progress = trio.Event()

    async def write(address: str) -> None:
        number = 0
        async with (
            segstore_client.connect(address) as store,
            store.writer("s/t") as writer,
        ):
            while not progress.is_set() or number % each_count:
                is_long = long_each and number % long_each == 0
                event = b"%d" % number + b" " * (2000 if is_long else 0)
                await writer.submit(event, key=str(number % KEYS))
                number += 1
                if number % 50 == 0:
                    await anyio.sleep(0.001)
            await writer.flush()
            written.append(number)

    written: list[int] = []
    async with served_stream(tmp_path, 0) as stream:

        async def scale() -> None:
            for ranges in scalings:
                await stream.scale(*ranges)
            progress.set()

        async with trio.open_nursery() as both:
            both.start_soon(run_client, write, stream.address)
            both.start_soon(scale)
        numbers = await run(read_numbers, stream)
    by_key = defaultdict(list)
    for number in numbers:
        by_key[number % KEYS].append(number)
    assert sorted(numbers) == list(range(written[0]))
    assert all(each == sorted(each) for each in by_key.values())


async def test_long_events_are_read_beside_others(tmp_path: Path, run_client: RunClient) -> None:
    draw = Random(1)
    events = [draw.randbytes(length) for length in (10, 20 * MEBIBYTE + 1, 0, 8 * MEBIBYTE + 1, 9)]

    async def write(address: str) -> list[bytes]:
        async with segstore_client.connect(address) as store:
            async with store.writer("s/t") as writer:
                for event in events:
                    await writer.submit(event)
            async with store.reader("s/t", end=Position.TAIL) as reader:
                return [event.data async for event in reader]

    async with served_stream(tmp_path, 0) as stream:
        assert await run_client(write, stream.address) == events


async def test_an_error_reaches_all_who_wait(tmp_path: Path, run_client: RunClient) -> None:
    async def write(address: str) -> None:
        async with segstore_client.connect(address) as store:
            left = AsyncExitStack()
            writer = await left.enter_async_context(store.writer("s/t"))
            await writer.write(b"1", key="k")
            await store.seal_stream("s/t")
            waiting = [await writer.submit(b"%d" % each) for each in range(5)]
            for each in waiting:
                with pytest.raises(StreamSealedError, match="stream s/t is sealed"):
                    await each
            with pytest.raises(StreamSealedError):
                await writer.submit(b"more")
            with pytest.raises(StreamSealedError):
                writer.write_nowait(b"more")
            with pytest.raises(StreamSealedError):
                await left.aclose()
            with pytest.raises(StreamSealedError):
                await store.writer("s/t").__aenter__()

    async with served_stream(tmp_path, 0) as stream:
        await run_client(write, stream.address)


async def test_what_a_writer_cannot_take_is_told(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(address: str) -> None:
        async with segstore_client.connect(address) as store:
            writer = store.writer("s/t")
            with pytest.raises(WriterClosedError, match="the writer of s/t is not entered"):
                writer.write_nowait(b"1")
            async with writer:
                monkeypatch.setattr(append_session, "LONG_EVENT_BYTES_MAX", 9 * MEBIBYTE)
                with pytest.raises(UsageError, match="at most 9437184 fit"):
                    await writer.write(bytes(9 * MEBIBYTE + 1))
                await writer.write(b"1")
            with pytest.raises(UsageError, match="at most 8388608 fit"):
                async with store.transaction("s/t") as transaction:
                    await transaction.write(bytes(8 * MEBIBYTE + 1))
            with pytest.raises(WriterClosedError, match="the writer of s/t is closed"):
                await writer.write(b"2")
            with pytest.raises(UsageError, match="'t' is not the name of a stream"):
                store.writer("t")

    async with served_stream(tmp_path, 0) as stream:
        await run_client(write, stream.address)
        assert await run(read_numbers, stream) == [1]


class CountingFullStore(FullStore):
    """Counts the events that have come."""

    event_count = 0

    def answer(self, command: Command | Append) -> bytes:
        self.event_count += command.event_count if isinstance(command, Append) else 0
        return super().answer(command)


class OneSegment:
    """A controller of a stream whose only segment is at a store."""

    def __init__(self, store: FullStore) -> None:
        self._store = store

    def with_patience(self, seconds: float) -> OneSegment:
        return self

    def current_segments(self, scope: str, stream: str) -> object:
        return SimpleNamespace(ranges=(SegmentRange(0, 0.0, 1.0),))

    def segment_address(self, scope: str, stream: str, segment: int) -> tuple[str, int]:
        return self._store.address

    def store_access(self, *_: object) -> object:
        return PLAIN


async def test_a_block_that_is_cancelled_tells_all_who_wait(run_client: RunClient) -> None:
    async def write(store: FullStore) -> None:
        controller: object = OneSegment(store)
        with anyio.CancelScope() as scope:
            async with EventWriter(controller, "s", "t") as writer:  # type: ignore[arg-type]
                acknowledgement = await writer.submit(b"event")
                scope.cancel()
                await anyio.sleep_forever()
        assert acknowledgement.is_done
        with pytest.raises(WriterClosedError, match="the writer of s/t is closed"):
            await acknowledgement

    with FullStore().running() as store:
        await run_client(write, store)


async def test_a_busy_program_is_cancelled_at_the_next_block(run_client: RunClient) -> None:
    """It looks whether it is cancelled at its begin, and for each block that is ready or stored."""

    async def write(store: CountingFullStore) -> None:
        controller: object = OneSegment(store)
        async with EventWriter(controller, "s", "t") as writer:  # type: ignore[arg-type]
            taken = 0
            with anyio.CancelScope() as scope:
                scope.cancel()
                await writer.submit(b"never")
            assert scope.cancelled_caught
            with anyio.CancelScope() as scope:
                while True:
                    await writer.submit(bytes(1000))
                    taken += 1
                    if taken == 10:
                        scope.cancel()
            assert 10 <= taken <= BATCH_BYTES // 1008 + 1
            store.has_room.set()
            await writer.flush()
            # The call that was cancelled has queued nothing.
            assert store.event_count == taken
            with anyio.CancelScope() as scope:
                scope.cancel()
                await writer.submit(b"never")
            assert scope.cancelled_caught

    with CountingFullStore().running() as store:
        await run_client(write, store)


async def test_a_writer_takes_no_more_than_its_buffer(run_client: RunClient) -> None:
    async def write(store: FullStore) -> None:
        controller: object = OneSegment(store)
        writer = EventWriter(controller, "s", "t", buffer_bytes=108 * 3)  # type: ignore[arg-type]
        async with writer:
            for _ in range(3):
                writer.write_nowait(bytes(100))
            with pytest.raises(anyio.WouldBlock):
                writer.write_nowait(b"")
            with anyio.move_on_after(0.05) as scope:
                await writer.submit(b"")
            assert scope.cancelled_caught
            store.has_room.set()
            with anyio.fail_after(30):
                await (await writer.submit(b"", key="k"))
                await writer.flush()
            writer.write_nowait(bytes(100))

    with FullStore().running() as store:
        await run_client(write, store)
