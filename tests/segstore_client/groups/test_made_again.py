"""Groups and states whose streams were deleted, and made again under their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import segstore_client
from segstore_client import blocking
from segstore_client.errors import EarlierStreamError
from support.event_loops import RunClient
from support.served_stream import run, served_stream

EVENTS = [b"event 0", b"event 1", b"event 2"]


async def test_a_group_that_was_deleted_is_made_again(
    tmp_path: Path, run_client: RunClient
) -> None:
    """Its state was looked for in segment 0, which the new stream of the name does not have."""

    async def use(address: str) -> None:
        async with segstore_client.connect(address) as store:
            for _ in range(2):
                await store.create_group("s/group", ["s/t"])
                async with store.group("s/group").reader("one") as reader:
                    assert [(await anext(reader)).data for _ in EVENTS] == EVENTS
                await store.delete_group("s/group")

    def use_blocking(address: str) -> None:
        with blocking.connect(address) as store:
            store.create_group("s/group", ["s/t"])
            with store.group("s/group").reader("one") as reader:
                found = [reader.next_event(timeout=60) for _ in EVENTS]
            assert [event.data for event in found if event is not None] == EVENTS
            assert store.group("s/group").unread_bytes() == 0

    async with served_stream(tmp_path, len(EVENTS)) as stream:
        await run_client(use, stream.address)
        await run(use_blocking, stream.address)


async def test_a_group_with_an_end_is_told_of_a_stream_that_was_made_again(
    tmp_path: Path, run_client: RunClient
) -> None:
    """It was at its end without an event."""

    def begin(address: str) -> None:
        with blocking.connect(address) as store:
            for name in ("s/one", "s/other"):
                store.create_group(name, ["s/t"], ends="tail")

    async def read(address: str) -> None:
        async with (
            segstore_client.connect(address) as store,
            store.group("s/one").reader("a") as reader,
        ):
            with pytest.raises(EarlierStreamError):
                await reader.next_event(timeout=60)

    def read_blocking(address: str) -> None:
        with (
            blocking.connect(address) as store,
            store.group("s/other").reader("a") as reader,
            pytest.raises(EarlierStreamError),
        ):
            reader.next_event(timeout=60)

    async with served_stream(tmp_path, len(EVENTS)) as stream:
        await run(begin, stream.address)
        await stream.make_again(len(EVENTS))
        await run_client(read, stream.address)
        await run(read_blocking, stream.address)


async def test_a_state_in_a_stream_that_was_made_again_begins_anew(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def use(address: str) -> None:
        async with segstore_client.connect(address) as store:
            for value in (b"first", b"second"):
                await store.create_stream("s/state")
                async with store.synchronizer(
                    "s/state", load=bytes, apply=lambda state, update: state + update
                ) as state:
                    assert await state.begin(value)
                    assert await state.read() == value
                await store.seal_stream("s/state")
                await store.delete_stream("s/state")

    async with served_stream(tmp_path, 0) as stream:
        await run_client(use, stream.address)
