"""A log of revisions in a segment of a real store, by two clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

import segstore_client
from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.event_framing import frame_events
from segstore_client import NotFoundError, UnavailableError
from segstore_client.connections.connection import StoreConnection
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.states.revision_log import RevisionLog
from support.event_loops import RunClient
from support.served_stream import served_stream


@asynccontextmanager
async def open_logs(address: str, count: int = 2) -> AsyncIterator[list[RevisionLog]]:
    """Make the stream ``s/t``, and open its log so many times."""
    async with segstore_client.connect(address) as store:
        await store.create_scope("s")
        await store.create_stream("s/t")
    with ControllerClient(address) as controller:
        logs = [RevisionLog(controller, "s", "t", patience=30.0) for _ in range(count)]
        yield logs
        for log in logs:
            await log.aclose()


async def append_in_turn(address: str) -> None:
    async with open_logs(address) as (first, second):
        assert await first.read() == (True, [])
        assert await second.read() == (True, [])
        assert await first.append(b"one")
        assert not await second.append(b"not read before")
        assert await second.read() == (False, [b"one"])
        assert await second.append(b"two")
        assert await second.append(b"three")
        assert await first.read() == (False, [b"two", b"three"])
        assert await first.read() == (False, [])
        # The connection is made again when it is needed.
        await first.aclose()
        assert await first.append(b"four")
        assert await second.read() == (False, [b"four"])


async def test_a_revision_is_appended_only_behind_what_was_read(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(append_in_turn, stream.address)


async def compact(address: str) -> None:
    async with open_logs(address, 3) as (first, second, third):
        await first.read()
        for number in range(3):
            assert await first.append(b"%d" % number)
        await second.read()
        assert await first.compact(b"whole")
        assert first.bytes_since_mark == len(frame_events([b"whole"]))
        assert await second.read() == (False, [b"whole"])
        assert await third.read() == (True, [b"whole"])
        await third.update_mark()
        assert third.bytes_since_mark == first.bytes_since_mark
        await first.append(b"4")
        # What was before the mark before is gone after the next one.
        assert await first.compact(b"whole again")
        await first.append(b"6")
        assert await first.compact(b"once more")
        assert await second.read() == (True, [b"once more"])
        assert await second.append(b"8")
        assert await first.read() == (False, [b"8"])


async def test_a_log_that_is_truncated_is_read_anew(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(compact, stream.address)


async def test_an_append_whose_answer_is_lost_is_appended_once(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections break before and after it is stored."""
    random, call = Random(1), StoreConnection.call
    broken: list[str] = []

    async def call_and_break(connection: StoreConnection, request: wire.Request) -> wire.Reply:
        fate = random.choice(["kept", "before", "after"])
        if not isinstance(request, wire.ConditionalAppend) or fate == "kept":
            return await call(connection, request)
        broken.append(fate)
        if fate == "after":
            await call(connection, request)
        raise ConnectionLostError("lost")

    async def append(address: str) -> None:
        async with open_logs(address) as (first, second):
            await first.read()
            await second.read()
            for number in range(20):
                assert await first.append(b"%d" % number)
                if number % 3 == 0:
                    assert not await second.append(b"behind")
                await second.read()
            async with aclosing(first):
                first.session.offset = None
                assert (await first.read())[1] == [b"%d" % number for number in range(20)]

    monkeypatch.setattr(StoreConnection, "call", call_and_break)
    async with served_stream(tmp_path) as stream:
        await run_client(append, stream.address)
    assert {"before", "after"} <= set(broken)


async def test_a_log_that_cannot_be_reached_is_told(tmp_path: Path, run_client: RunClient) -> None:
    async def ask(address: str) -> None:
        async with open_logs(address) as (first, _):
            await first.read()
        with ControllerClient(address) as controller:
            log = RevisionLog(controller, "s", "none", patience=0.2)
            with pytest.raises(NotFoundError):
                await log.read()
            log = RevisionLog(controller, "s", "t", patience=0.2)
            await log.read()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(StoreConnection, "call", lose)
                with pytest.raises(UnavailableError, match=r"s/t could not be reached for 0\.2 s"):
                    await log.append(b"one")
            await log.aclose()

    async with served_stream(tmp_path) as stream:
        await run_client(ask, stream.address)


async def lose(connection: StoreConnection, request: wire.Request) -> wire.Reply:
    raise ConnectionLostError("lost")
