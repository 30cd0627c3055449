"""Times of the writers of a real stream, at which readers begin and end."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

import segstore_client
from segstore_client import Position, Store, UsageError, blocking
from support.event_loops import RunClient
from support.served_stream import run, served_stream

PERIOD = {"watermark_period_seconds": 0.2}
EVENT_BYTES = 15
"""Length of ``event 0`` with its header, in bytes."""
TIMES = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]


async def wait_for_cut(store: Store, time: datetime, cut: dict[int, int]) -> None:
    """Wait until the watermark of a time is written."""
    with anyio.fail_after(60):
        while True:
            # There is no watermark yet.
            with suppress(UsageError):
                if await store.stream_cut("s/t", time) == cut:
                    return
            await anyio.sleep(0.05)


async def read_between(store: Store, start: datetime, end: datetime | Position) -> list[bytes]:
    async with store.reader("s/t", start=start, end=end) as reader:
        return [event.data async for event in reader]


async def test_readers_begin_and_end_at_the_times_that_a_writer_notes(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def write_and_read(address: str) -> None:
        async with segstore_client.connect(address) as store:
            async with store.writer("s/t") as writer:
                for number, time in enumerate(TIMES):
                    await writer.submit(b"event %d" % number)
                    await writer.note_time(time)
                    await wait_for_cut(store, time, {0: (number + 1) * EVENT_BYTES})
                with pytest.raises(UsageError, match="the time of a writer of s/t went back"):
                    await writer.note_time(TIMES[0])
            assert await read_between(store, TIMES[0], Position.TAIL) == [b"event 1", b"event 2"]
            assert await read_between(store, TIMES[0], TIMES[1]) == [b"event 1"]
            assert await read_between(store, TIMES[2], Position.TAIL) == []

    async with served_stream(tmp_path, 0, **PERIOD) as stream:
        await run_client(write_and_read, stream.address)


async def test_a_writer_that_blocks_notes_times(tmp_path: Path, run_client: RunClient) -> None:
    def write(address: str) -> None:
        with blocking.connect(address) as store, store.writer("s/t") as writer:
            writer.submit(b"event 0")
            writer.note_time(TIMES[1])
            with pytest.raises(UsageError, match="went back"):
                writer.note_time(TIMES[0])
            with store.writer("s/t") as new:
                # Only a writer's own times must not go back.
                new.note_time(TIMES[0])

    async def wait(address: str) -> None:
        async with segstore_client.connect(address) as store:
            await wait_for_cut(store, TIMES[1], {0: EVENT_BYTES})

    async with served_stream(tmp_path, 0, **PERIOD) as stream:
        await run(write, stream.address)
        await run_client(wait, stream.address)
