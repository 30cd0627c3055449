"""A reader of a real stream that scales, is truncated, sealed, and holds no events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import segstore_client
from segstore_client import NotFoundError, PravegaError, event_reader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.bounds import Bounds, find_bounds
from segstore_client.errors import EarlierStreamError
from segstore_client.groups import group_reader
from segstore_client.positions import Position
from support.event_loops import RunClient
from support.served_stream import ServedStream, run, serve_stream, served_stream

KEYS = 5


async def write_scaling(stream: ServedStream) -> int:
    """Write numbered events before and after each of three scalings; return their number."""

    def write(first: int) -> None:
        with BlockingEventWriter(stream.client, "s", "t") as writer:
            for number in range(first, first + 50):
                writer.submit(b"%d" % number, key=str(number % KEYS))

    count = 0
    for ranges in ([(0.0, 0.4), (0.4, 1.0)], [(0.0, 0.5), (0.5, 1.0)], [(0.0, 1.0)], []):
        await run(write, count)
        count += 50
        if ranges:
            await stream.scale(*ranges)
    return count


async def test_events_are_read_in_the_order_of_their_keys_through_scalings(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def read(address: str) -> list[int]:
        async with (
            segstore_client.connect(address) as store,
            store.reader("s/t", end=Position.TAIL) as reader,
        ):
            return [int(event.data) async for event in reader]

    async with served_stream(tmp_path, 0) as stream:
        count = await write_scaling(stream)
        numbers = await run_client(read, stream.address)
        await run(stream.client.seal_stream, "s", "t")
        again = await run_client(read, stream.address)
    for found in (numbers, again):
        by_key = defaultdict(list)
        for number in found:
            by_key[number % KEYS].append(number)
        assert sorted(found) == list(range(count))
        assert all(each == sorted(each) for each in by_key.values())


async def test_readers_are_back_in_time_while_all_servers_are_away(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reader, "LEAVE_SECONDS_MAX", 0.1)

    async def read(address: str, stop: Callable[[], None]) -> None:
        async with segstore_client.connect(address, patience=1e6) as store:
            await store.create_group("s/g", ["s/t"])
            async with store.group("s/g").reader("one") as reader, store.reader("s/t") as alone:
                for each in (reader, alone):
                    event = await each.next_event(timeout=60.0)
                    assert event is not None
                    assert event.data == b"event 0"
                    assert len(await each.next_batch(timeout=60.0)) == 2
                    assert await each.next_batch(timeout=0.0) == []
                stop()
                for each in 3 * (reader, alone):
                    assert await each.next_event(timeout=0.1) is None
                    assert await each.next_batch(timeout=0.0) == []

    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(3)
        token, stop = trio.lowlevel.current_trio_token(), nursery.cancel_scope.cancel
        with trio.CancelScope(shield=True):
            await run_client(read, stream.address, lambda: token.run_sync_soon(stop))


async def test_a_reader_at_the_tail_gets_what_comes_until_the_stream_is_sealed(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def read(address: str) -> list[bytes]:
        async with segstore_client.connect(address) as store:
            found = []
            async with store.reader("s/t", start=Position.TAIL) as reader:
                async with store.writer("s/t") as writer:
                    await writer.write(b"new")
                with anyio.fail_after(60):
                    found.append((await anext(reader)).data)
                    await store.seal_stream("s/t")
                    found += [event.data async for event in reader]
            return found

    async with served_stream(tmp_path, 3) as stream:
        assert await run_client(read, stream.address) == [b"new"]


async def test_a_truncated_stream_is_read_from_its_head_or_a_cut(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def read(address: str, start: Position | dict[int, int]) -> list[bytes]:
        async with (
            segstore_client.connect(address) as store,
            store.reader("s/t", start=start, end=Position.TAIL) as reader,
        ):
            return [event.data async for event in reader]

    async with served_stream(tmp_path, 3) as stream:
        await run(stream.client.truncate_stream, "s", "t", {0: 15})
        # A cut before the head was one once: the reader goes on at the head.
        for start in (Position.HEAD, {0: 0}):
            assert await run_client(read, stream.address, start) == [b"event 1", b"event 2"]
        assert await run_client(read, stream.address, {0: 30}) == [b"event 2"]


async def test_an_async_reader_of_a_stream_that_was_made_again_is_told_so(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended as if it had come to the tail."""

    def find_and_make_again(
        controller: ControllerClient, scope: str, stream: str, **where: Any
    ) -> Bounds:
        found = find_bounds(controller, scope, stream, **where)
        settings = controller.stream_settings(scope, stream)
        controller.seal_stream(scope, stream)
        controller.delete_stream(scope, stream)
        controller.create_stream(scope, stream, settings)
        return found

    async def read(address: str) -> None:
        async with (
            segstore_client.connect(address) as store,
            store.reader("s/t", end=Position.TAIL) as reader,
        ):
            with pytest.raises(EarlierStreamError, match="segment 0 is of an earlier stream s/t"):
                await anext(reader)

    monkeypatch.setattr(event_reader, "find_bounds", find_and_make_again)
    async with served_stream(tmp_path, 3) as stream:
        await run_client(read, stream.address)


async def read_into(found: list[bytes], reader: segstore_client.EventReader) -> None:
    async for event in reader:
        found.append(event.data)


async def test_an_error_in_one_segment_ends_the_reading_of_all(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def read(address: str) -> None:
        async with segstore_client.connect(address) as store:
            await store.create_stream("s/two", segments=2)
            async with store.writer("s/two") as writer:
                for number in range(100):
                    await writer.submit(b"event", key=str(number))
            async with store.reader("s/two", start={0: 0, 1: 9}) as reader:
                found: list[bytes] = []
                with pytest.raises(PravegaError, match="does not hold events"):
                    await read_into(found, reader)
                assert set(found) <= {b"event"}
                assert len(found) < 100

    async with served_stream(tmp_path, 0) as stream:
        await run_client(read, stream.address)


async def test_events_come_in_batches_and_one_by_one_in_turns(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def read(address: str) -> None:
        async with (
            segstore_client.connect(address) as store,
            store.reader("s/t", start={0: 15}, end=Position.TAIL) as reader,
        ):
            batches = reader.batches()
            assert (await anext(reader)).data == b"event 1"
            assert [event.data for event in await anext(batches)] == [b"event 2", b"event 3"]
            for ended in (reader, batches):
                with pytest.raises(StopAsyncIteration):
                    await anext(ended)
        async with (
            segstore_client.connect(address) as store,
            store.reader("s/t", start={0: 9}) as reader,
        ):
            with pytest.raises(PravegaError, match="does not hold events"):
                await anext(reader.batches())

    async with served_stream(tmp_path, 4) as stream:
        await run_client(read, stream.address)


async def test_what_cannot_be_read_is_told(tmp_path: Path, run_client: RunClient) -> None:
    async def read(address: str) -> None:
        async with segstore_client.connect(address) as store:
            with pytest.raises(NotFoundError, match="stream s/none does not exist"):
                async with store.reader("s/none"):
                    pass
            async with store.reader("s/t", start={0: 9}) as reader:
                for _ in range(2):
                    with pytest.raises(PravegaError, match="does not hold events, perhaps a byte"):
                        await anext(reader)

    async with served_stream(tmp_path, 3) as stream:
        await run_client(read, stream.address)
