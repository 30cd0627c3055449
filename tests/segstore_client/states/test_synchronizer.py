"""A state that programs share by a real stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import segstore_client
from pravega_wire import commands as wire
from pravega_wire.requests.store_connection import StoreConnection
from segstore_client import ConflictError, NotFoundError, PravegaError, Store, Synchronizer
from segstore_client.steps.state_steps import COMPACTION_BYTES
from support.event_loops import RunClient
from support.served_stream import served_stream

Names = list[str]


def open_names(store: Store) -> Synchronizer[Names]:
    return store.synchronizer(
        "s/t",
        load=lambda data: data.decode().split(),
        apply=lambda names, update: [*names, update.decode()],
    )


def dump(names: Names) -> bytes:
    return " ".join(names).encode()


async def change_together(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await store.create_scope("s")
        await store.create_stream("s/t")

        async def add(name: str) -> None:
            async with open_names(store) as names:
                await names.begin(b"first")
                for number in range(10):
                    text = f"{name}{number}"

                    def append(state: Names, text: str = text) -> Sequence[bytes]:
                        return [] if text in state else [text.encode(), str(len(state)).encode()]

                    assert len(await names.change(append)) == 2
                    assert not await names.change(append)

        async with anyio.create_task_group() as tasks:
            for name in "abc":
                tasks.start_soon(add, name)
        async with open_names(store) as names:
            state = await names.read()
            assert state[0] == "first"
            # Each update was decided on the state that it changed.
            assert state[2::2] == [str(number) for number in range(1, 61, 2)]
            for name in "abc":
                mine = [each for each in state[1::2] if each[0] == name]
                assert mine == [f"{name}{number}" for number in range(10)]
            assert await names.compact(dump)
            async with open_names(store) as late:
                assert not await late.begin(b"too late")
                assert await late.read() == state
                assert not late.is_long
                await late.change(lambda _: [b"x" * COMPACTION_BYTES])
                assert late.is_long
                # Another client has compacted it meanwhile.
                assert not await names.compact(dump)
                assert len(await names.read()) == len(state) + 1
                assert await names.compact(dump)
                await late.read()
                await late.find_length()


async def test_each_change_is_made_once_on_the_newest_state(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(change_together, stream.address)


async def cancel_appended(make: Callable[[], Awaitable[object]]) -> None:
    """Make an append, and cancel it when it was made."""
    call = StoreConnection.call

    async def call_and_cancel(connection: StoreConnection, request: wire.Request) -> wire.Reply:
        reply = await call(connection, request)
        if isinstance(request, wire.ConditionalAppend):
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        return reply

    with pytest.MonkeyPatch.context() as patch, anyio.CancelScope() as scope:
        patch.setattr(StoreConnection, "call", call_and_cancel)
        await make()
    assert scope.cancelled_caught


async def cancel_changes(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await store.create_scope("s")
        await store.create_stream("s/t")
        async with open_names(store) as names:
            seen = []

            def look(state: Names) -> Sequence[bytes]:
                seen.append(state)
                return []

            await cancel_appended(lambda: names.begin(b"first"))
            await names.change(look)
            await cancel_appended(lambda: names.change(lambda _: [b"second"]))
            await names.change(look)
            assert seen == [["first"], ["first", "second"]]


async def test_changes_that_are_cancelled_are_known_before_the_next(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(cancel_changes, stream.address)


async def misuse(address: str) -> None:
    async with segstore_client.connect(address) as store:
        async with open_names(store) as names:
            with pytest.raises(NotFoundError):
                await names.read()
        await store.create_scope("s")
        await store.create_stream("s/t")
        async with open_names(store) as names:
            with pytest.raises(ConflictError, match="no client has begun the state in s/t"):
                await names.read()
            with pytest.raises(ConflictError, match="no client has begun the state in s/t"):
                await names.change(lambda _: [b"one"])
        async with store.writer("s/t") as writer:
            await writer.write(b"no revision", key="k")
        async with open_names(store) as names:
            with pytest.raises(PravegaError, match="s/t has no state of its kind: a revision of"):
                await names.read()


async def test_what_is_no_state_is_told(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(misuse, stream.address)
