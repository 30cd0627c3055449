"""Tests of the bounds of readers: places of a real stream that was scaled."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import segstore_client
from segstore_client import Position, UsageError, blocking
from segstore_client.cuts.bounds import At
from support.event_loops import RunClient
from support.served_stream import ServedStream, run, served_stream

EVENT_BYTES = 15
"""Length of ``event 0`` with its header, in bytes."""


async def read_both(
    run_client: RunClient, stream: ServedStream, start: At, end: At | None
) -> list[bytes]:
    """Return what both faces of the client read between two places."""

    async def read(address: str) -> list[bytes]:
        async with (
            segstore_client.connect(address) as store,
            store.reader("s/t", start=start, end=end) as reader,
        ):
            return [event.data async for event in reader]

    def read_blocking() -> list[bytes]:
        with (
            blocking.connect(stream.address) as store,
            store.reader("s/t", start=start, end=end) as reader,
        ):
            return [event.data for event in reader]

    found = await run_client(read, stream.address)
    assert sorted(await run(read_blocking)) == sorted(found)
    return found


async def test_what_lies_between_two_cuts_is_read(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path, 3) as stream:
        first, last = {0: EVENT_BYTES}, {0: 2 * EVENT_BYTES}
        assert await read_both(run_client, stream, first, last) == [b"event 1"]
        assert await read_both(run_client, stream, "head", first) == [b"event 0"]
        assert await read_both(run_client, stream, last, "tail") == [b"event 2"]
        assert await read_both(run_client, stream, "tail", Position.TAIL) == []
        await stream.scale((0.0, 0.5), (0.5, 1.0))
        await stream.write(3)
        # -1 is the end of the segment, as clients write it.
        whole = [b"event 0", b"event 1", b"event 2"]
        assert await read_both(run_client, stream, Position.HEAD, {0: -1}) == whole
        assert len(await read_both(run_client, stream, {0: -1}, Position.TAIL)) == 3
        assert len(await read_both(run_client, stream, first, Position.TAIL)) == 5


async def test_an_end_before_the_start_is_refused(tmp_path: Path, run_client: RunClient) -> None:
    """A reader went on behind the end, which it never came to."""
    async with served_stream(tmp_path, 3) as stream:
        await stream.scale((0.0, 0.5), (0.5, 1.0))
        for start in (Position.TAIL, {0: 2 * EVENT_BYTES}):
            with pytest.raises(UsageError, match="the end lies before the start"):
                await read_both(run_client, stream, start, {0: EVENT_BYTES})


async def test_places_that_a_stream_does_not_have_are_refused(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path, 3) as stream:
        for start, end in (({7: 0}, None), (Position.HEAD, {0: 0, 1: 0}), ({0: 10**9}, None)):
            with pytest.raises(UsageError, match="no stream cut of s/t"):
                await read_both(run_client, stream, start, end)
        word: Any = "end"
        with pytest.raises(UsageError, match="'end' is no end of a stream: it is head or tail"):
            await read_both(run_client, stream, word, None)
        with pytest.raises(UsageError, match="time"):
            await read_both(run_client, stream, datetime.now(UTC), None)
