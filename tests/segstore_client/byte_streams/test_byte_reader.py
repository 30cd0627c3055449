"""A reader of a byte stream, of a real store, and of one that breaks connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import anyio
import pytest

import segstore_client
from segstore_client import ClosedError, NotFoundError, RefusedError, TruncatedError, UsageError
from segstore_client.byte_streams import byte_reader
from segstore_client.positions import Position
from support.byte_store import ByteStore
from support.client_stores import open_client
from support.event_loops import RunClient
from support.served_stream import served_stream

BYTES = Random(1).randbytes(3_000_000)


@pytest.mark.parametrize("seed", range(4))
async def test_bytes_come_once_however_connections_break(seed: int, run_client: RunClient) -> None:
    draw = Random(seed)

    async def read(store: ByteStore) -> bytes:
        found = b""
        with anyio.fail_after(60):
            async with open_client(store.controller) as client, client.byte_reader("s/t") as file:
                while piece := await file.read(draw.randint(1, 200_000)):
                    found += piece
                    assert file.tell() == len(found)
                assert await file.read(1) == b""
        return found

    with ByteStore(seed, breaks=6, data=BYTES).running() as store:
        assert await run_client(read, store) == BYTES
    assert store.connections > 2


class CountingFetch:
    """Fetches the bytes from 0 to 39 in pieces of two; is ready with the next one soon."""

    def __init__(
        self,
        cursor: object,
        locate: object,
        hand_over: Callable[[list[bytes]], Awaitable[None]],
        **_: object,
    ) -> None:
        self._hand_over = hand_over

    async def run(self) -> None:
        for number in range(0, 40, 2):
            await asyncio.sleep(0)
            await self._hand_over([bytes([number, number + 1])])


async def cancel_natively(store: ByteStore, turns: int) -> bytes:
    """Read byte by byte to the end; each call is cancelled after so many turns of the loop."""
    found = b""
    async with open_client(store.controller) as client, client.byte_reader("s/t") as file:
        while True:
            reading = asyncio.create_task(file.read(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                if not (piece := await reading):
                    return found
                found += piece


@pytest.mark.parametrize("turns", range(2, 8))
def test_a_read_that_is_cancelled_loses_nothing(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_reader, "SegmentFetch", CountingFetch)
    with ByteStore(0).running() as store:
        assert asyncio.run(cancel_natively(store, turns)) == bytes(range(40))


async def test_a_reader_seeks(run_client: RunClient) -> None:
    async def read(store: ByteStore) -> None:
        draw = Random(7)
        with anyio.fail_after(60):
            async with open_client(store.controller) as client, client.byte_reader("s/t") as file:
                for offset in [0, 10, 5, 2_999_990, *(draw.randrange(3_000_000) for _ in range(9))]:
                    await file.seek(offset)
                    found = await file.read(10)
                    assert found
                    assert found == BYTES[offset : offset + len(found)]
                    # What lies in the same piece needs no request.
                    connections = store.connections
                    await file.seek(offset)
                    assert await file.read(len(found)) == found
                    assert store.connections == connections
                await file.seek(3_000_000)
                assert await file.read(10) == b""

    with ByteStore(3, data=BYTES).running() as store:
        await run_client(read, store)


async def test_a_store_that_falls_silent_is_left(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segstore_client.reading.segment_fetch.KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr("segstore_client.reading.segment_fetch.SILENCE_SECONDS_MAX", 0.1)

    async def read(store: ByteStore) -> bytes:
        with anyio.fail_after(60):
            async with open_client(store.controller) as client, client.byte_reader("s/t") as file:
                store.is_silent = True
                return b"".join([piece async for piece in file])

    with ByteStore(0, data=b"bytes").running() as store:
        assert await run_client(read, store) == b"bytes"


async def test_a_reader_at_the_tail_waits_until_the_stream_is_sealed(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def use(address: str) -> None:
        async with (
            segstore_client.connect(address) as store,
            store.byte_writer("s/t") as file,
        ):
            await file.write(b"before")
            await file.flush()
            async with store.byte_reader("s/t", offset=Position.TAIL) as reader:
                assert reader.tell() == await reader.tail() == 6
                for _ in range(2):
                    with anyio.move_on_after(0.3) as scope:
                        await reader.read(3)
                    assert scope.cancelled_caught
                await file.write(b"after")
                with anyio.fail_after(60):
                    assert await reader.read(3) == b"aft"
                    assert await reader.read(3) == b"er"
                    # Bytes behind the tail are waited for, too.
                    await reader.seek(15)
                    await file.write(b"0123")
                    await file.flush()
                    await file.write(b"4567")
                    assert (await reader.read(1)) == b"4"
                    await file.seal()
                    assert [piece async for piece in reader] == [b"567"]
                    await reader.seek(100)
                    with pytest.raises(RefusedError, match="is sealed at 19, before offset 100"):
                        await reader.read(1)

    async with served_stream(tmp_path, 0) as stream:
        await run_client(use, stream.address)


async def test_truncated_bytes_are_told_with_the_new_head(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def use(address: str) -> None:
        async with (
            segstore_client.connect(address) as store,
            store.byte_writer("s/t") as file,
        ):
            await file.write(bytes(range(100)))
            async with store.byte_reader("s/t", offset=10) as early:
                await file.truncate_before(60)
                for _ in range(2):
                    with pytest.raises(TruncatedError, match="it begins at 60 now") as raised:
                        await early.read(10)
                    assert raised.value.head == await early.head() == 60
                await early.seek(raised.value.head)
                assert await early.read(10) == bytes(range(60, 70))
            async with store.byte_reader("s/t") as late:
                assert late.tell() == 60
                # A piece that has been read already is not taken away.
                assert await late.read(1) == b"\x3c"
                await file.truncate_before(100)
                assert await late.read(100) == bytes(range(61, 100))

    async with served_stream(tmp_path, 0) as stream:
        await run_client(use, stream.address)


async def test_what_cannot_be_read_is_told(tmp_path: Path, run_client: RunClient) -> None:
    async def use(address: str) -> None:
        async with segstore_client.connect(address) as store:
            await store.create_stream("s/two", segments=2)
            with pytest.raises(UsageError, match="s/two has 2 segments: a byte stream has one"):
                async with store.byte_reader("s/two"):
                    pass
            with pytest.raises(NotFoundError, match="stream s/none does not exist"):
                async with store.byte_reader("s/none"):
                    pass
            with pytest.raises(UsageError, match="-1 is not an offset"):
                async with store.byte_reader("s/t", offset=-1):
                    pass
            file = store.byte_reader("s/t")
            with pytest.raises(ClosedError, match="the reader of s/t is not entered"):
                await file.read(1)
            left = AsyncExitStack()
            await left.enter_async_context(file)
            with pytest.raises(UsageError, match="0 bytes cannot be read"):
                await file.read(0)
            await store.seal_stream("s/t")
            await store.delete_stream("s/t")
            for call in (file.read(1), file.tail()):
                with pytest.raises(NotFoundError, match="stream s/t does not exist"):
                    await call
            await left.aclose()

    async with served_stream(tmp_path, 0) as stream:
        await run_client(use, stream.address)
