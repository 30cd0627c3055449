"""A writer of a byte stream, of a real store, and of one that breaks connections."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random

import anyio
import pytest

import segstore_client
from pravega_wire.sessions import append_session
from segstore_client import NotFoundError, StreamSealedError, UsageError, WriterClosedError
from segstore_client.connections.calls import call_blocking
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.steps import byte_segment_steps
from support.byte_store import ByteStore
from support.client_stores import open_client
from support.event_loops import RunClient
from support.full_store import FullStore
from support.served_stream import served_stream

HALVES = [(0.0, 0.5), (0.5, 1.0)]


@pytest.mark.parametrize("seed", range(4))
async def test_bytes_are_stored_once_in_order_however_connections_break(
    seed: int, run_client: RunClient
) -> None:
    draw = Random(seed)
    written = [draw.randbytes(draw.randrange(0, 300)) for _ in range(200)]

    async def write(store: ByteStore) -> None:
        with anyio.fail_after(60):
            async with open_client(store.controller) as client, client.byte_writer("s/t") as file:
                for number, data in enumerate(written):
                    await file.write(data)
                    if number % 10 == seed:
                        await file.flush()
                        assert store.data == b"".join(written[: number + 1])
                assert file.tell() == sum(map(len, written))

    with ByteStore(seed, breaks=6).running() as store:
        await run_client(write, store)
    assert store.data == b"".join(written)
    assert store.connections > 2


async def test_the_bytes_of_one_write_stay_together(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_segment_steps, "PIECE_BYTES", 1000)
    kinds = (bytes, bytearray, memoryview)

    async def write(store: ByteStore) -> None:
        async with open_client(store.controller) as client, client.byte_writer("s/t") as file:
            for number, length in enumerate((1000, 999, 0, 2500)):
                await file.write(kinds[number % 3](bytes([number]) * length))
                await file.flush()

    with ByteStore(0).running() as store:
        await run_client(write, store)
    assert [len(each) for each in store.appends[:2]] == [1000, 999]
    assert b"".join(store.appends[2:]) == b"\x03" * 2500
    assert max(map(len, store.appends)) <= 2500


async def test_short_writes_are_sent_together(run_client: RunClient) -> None:
    async def write(store: ByteStore) -> None:
        async with open_client(store.controller) as client, client.byte_writer("s/t") as file:
            for number in range(10_000):
                await file.write(bytes([number % 256]))
            assert file.tell() == 10_000

    with ByteStore(0).running() as store:
        await run_client(write, store)
    assert store.data == bytes(number % 256 for number in range(10_000))
    assert store.last_event_number <= 10


async def test_a_byte_writer_takes_no_more_than_its_buffer(run_client: RunClient) -> None:
    async def write(store: FullStore, controller: object) -> None:
        async with (
            open_client(controller) as client,
            client.byte_writer("s/t", buffer_bytes=3 * 5008) as file,
        ):
            for _ in range(3):
                await file.write(bytes(5000))
            with anyio.move_on_after(0.05) as scope:
                await file.write(bytes(5000))
            assert scope.cancelled_caught
            assert file.tell() == 15000
            store.has_room.set()
            with anyio.fail_after(30):
                await file.write(bytes(500))
                await file.flush()
            assert file.tell() == 15500

    with ByteStore(0).running() as known, FullStore().running() as store:
        controller = known.controller
        # The length comes from one store, and what is written goes to the other.
        addresses = [known.address]
        controller.segment_address = lambda *_: addresses.pop() if addresses else store.address
        await run_client(write, store, controller)


async def cancel_natively(store: ByteStore, turns: int) -> None:
    """Write pieces that are sent at once; each call is cancelled after so many turns."""
    async with open_client(store.controller) as client, client.byte_writer("s/t") as file:
        for _ in range(5):
            writing = asyncio.create_task(file.write(bytes(append_session.BATCH_BYTES)))
            for _ in range(turns):
                await asyncio.sleep(0)
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
        await file.flush()
        assert file.tell() == len(store.data) > 0


@pytest.mark.parametrize("turns", range(1, 4))
def test_a_write_that_is_cancelled_has_taken_what_it_tells(turns: int) -> None:
    with ByteStore(0).running() as store:
        asyncio.run(cancel_natively(store, turns))


async def test_a_byte_stream_is_sealed_and_truncated(tmp_path: Path, run_client: RunClient) -> None:
    async def use(address: str) -> None:
        async with segstore_client.connect(address) as store:
            async with store.byte_writer("s/t") as file:
                assert file.tell() == 0
                await file.write(bytes(range(100)))
                await file.truncate_before(30)
                await file.truncate_before(20)
                with pytest.raises(UsageError, match="t be truncated before 101: it ends at 100"):
                    await file.truncate_before(101)
                with pytest.raises(UsageError, match="-1 is not an offset"):
                    await file.truncate_before(-1)
            async with store.byte_writer("s/t") as file:
                assert file.tell() == 100
                await file.write(b"end")
                await file.seal()
                with pytest.raises(StreamSealedError, match="stream s/t is sealed"):
                    await file.write(b"more")
            async with store.byte_reader("s/t") as reader:
                assert (await reader.head(), await reader.tail()) == (30, 103)
                assert b"".join([piece async for piece in reader]) == bytes(range(30, 100)) + b"end"
            with pytest.raises(StreamSealedError, match="stream s/t is sealed"):
                async with store.byte_writer("s/t"):
                    pass

    async with served_stream(tmp_path, 0) as stream:
        await run_client(use, stream.address)


async def test_what_a_byte_writer_cannot_do_is_told(tmp_path: Path, run_client: RunClient) -> None:
    async def use(address: str) -> None:
        async with segstore_client.connect(address) as store:
            writer = store.byte_writer("s/t")
            with pytest.raises(WriterClosedError, match="the writer of s/t is not entered"):
                await writer.write(b"1")
            await store.create_stream("s/two", segments=2)
            with pytest.raises(UsageError, match="s/two has 2 segments: a byte stream has one"):
                async with store.byte_writer("s/two"):
                    pass
            with pytest.raises(NotFoundError, match="stream s/none does not exist"):
                async with store.byte_writer("s/none"):
                    pass
            left = AsyncExitStack()
            file = await left.enter_async_context(store.byte_writer("s/t"))
            await file.write(b"bytes")
            await file.flush()
            await store.seal_stream("s/t")
            await file.write(b"more")
            for _ in range(2):
                with pytest.raises(StreamSealedError, match="stream s/t is sealed"):
                    await file.flush()
            with pytest.raises(StreamSealedError):
                await file.seal()
            with pytest.raises(StreamSealedError):
                await left.aclose()

    async with served_stream(tmp_path, 0) as stream:
        await run_client(use, stream.address)


async def test_a_stream_that_is_scaled_meanwhile_is_no_byte_stream(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def use(address: str) -> None:
        async with segstore_client.connect(address) as store:
            left = AsyncExitStack()
            file = await left.enter_async_context(store.byte_writer("s/t"))
            await file.write(b"bytes")
            await file.flush()
            with ControllerClient(address) as client:
                scale = partial(
                    client.scale_stream, "s", "t", sealed=[0], ranges=HALVES, timeout=60
                )
                await call_blocking(scale)
            await file.write(b"more")
            with pytest.raises(UsageError, match="stream s/t was scaled: a byte stream never is"):
                await file.flush()
            with pytest.raises(UsageError):
                await left.aclose()

    async with served_stream(tmp_path, 0) as stream:
        await run_client(use, stream.address)
