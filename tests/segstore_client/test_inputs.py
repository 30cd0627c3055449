"""Values of a wrong kind, which both faces of the client refuse at the call."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import segstore_client
from segstore_client import Position, UsageError, blocking
from segstore_client.inputs import to_bytes
from support.event_loops import RunClient
from support.served_stream import run, served_stream

NO_BYTES: list[Any] = ["text", 7, [1, 2], {"a": 1}, None]


def test_a_buffer_is_copied_as_it_may_change() -> None:
    buffer = bytearray(b"event")
    event = to_bytes(buffer, "an event")
    buffer[0] = 0
    assert event == b"event"
    assert to_bytes(memoryview(b"view"), "an event") == b"view"


async def test_what_is_no_event_is_refused_at_the_call(
    tmp_path: Path, run_client: RunClient
) -> None:
    """It ended the writer later, and the events that were queued before it were lost with it."""

    async def write(address: str) -> None:
        async with segstore_client.connect(address) as store:
            async with store.writer("s/t") as writer:
                await writer.submit(b"event 0")
                for event in NO_BYTES:
                    with pytest.raises(UsageError, match="an event is bytes, not"):
                        await writer.submit(event)
                    with pytest.raises(UsageError, match="an event is bytes, not"):
                        writer.write_nowait(event)
                with pytest.raises(UsageError, match="a routing key is text"):
                    await writer.submit(b"event", key=7)  # type: ignore[arg-type]
                await writer.submit(b"event 1")
            async with store.reader("s/t", end=Position.TAIL) as reader:
                assert [event.data async for event in reader] == [b"event 0", b"event 1"]

    def write_blocking(address: str) -> None:
        with blocking.connect(address) as store:
            with store.writer("s/t") as writer, store.transaction("s/t") as transaction:
                for each in (writer, transaction):
                    for event in NO_BYTES:
                        with pytest.raises(UsageError, match="an event is bytes, not"):
                            each.submit(event)
                    with pytest.raises(UsageError, match="a routing key is text"):
                        each.submit(b"event", key=b"key")  # type: ignore[arg-type]
                transaction.submit(b"event 2")
            with store.reader("s/t", start={0: 30}, end=Position.TAIL) as reader:
                assert [event.data for event in reader] == [b"event 2"]

    async with served_stream(tmp_path, 0) as stream:
        await run_client(write, stream.address)
        await run(write_blocking, stream.address)


async def test_what_is_no_entry_is_refused_at_once(tmp_path: Path, run_client: RunClient) -> None:
    """It was taken for an outage, and tried again for a minute."""

    async def put(address: str) -> None:
        async with segstore_client.connect(address) as store:
            await store.create_table("s/table", primary_key_bytes=3)
            table = await store.table("s/table")
            with pytest.raises(UsageError, match="a value is bytes, not str"):
                await table.put(b"key", "value")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="a key is bytes, not str"):
                await table.put("key", b"value")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="a key is bytes, not int"):
                await table.get(7)  # type: ignore[arg-type]

    async with served_stream(tmp_path, 0) as stream:
        await run_client(put, stream.address)


async def test_what_is_no_place_is_refused(tmp_path: Path, run_client: RunClient) -> None:
    places: list[Any] = ["end", 7, datetime(2026, 1, 1)]

    async def read(address: str) -> None:
        async with segstore_client.connect(address) as store:
            for place in places:
                with pytest.raises(UsageError, match=r"is no (place|end) of a stream|has no zone"):
                    await store.read_frame("s/t", start=place)
            async with store.writer("s/t") as writer:
                with pytest.raises(UsageError, match="has no zone"):
                    await writer.note_time(places[-1])

    async with served_stream(tmp_path, 1) as stream:
        await run_client(read, stream.address)


async def test_a_group_of_a_stream_that_does_not_exist_is_not_made(
    tmp_path: Path, run_client: RunClient
) -> None:
    """The controller had a group then that nobody could read, nor make again."""

    async def create(address: str) -> None:
        async with segstore_client.connect(address) as store:
            with pytest.raises(segstore_client.NotFoundError, match="s/missing"):
                await store.create_group("s/group", ["s/missing"])
            assert await store.list_groups("s") == []

    async with served_stream(tmp_path, 0) as stream:
        await run_client(create, stream.address)
