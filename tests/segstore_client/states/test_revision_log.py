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
from pravega_wire.requests.store_connection import StoreConnection
from pravega_wire.sessions.steps import run_steps_async
from segstore_client import NotFoundError, UnavailableError
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


async def read(log: RevisionLog) -> tuple[bool, list[bytes]]:
    """Return whether the log was read from its beginning, and the revisions that are new."""
    found: tuple[bool, list[bytes]] = await log.repeat(log.session.read)
    return found


async def append(log: RevisionLog, revision: bytes) -> bool:
    """Append a revision if none was since the log was read; return whether it was appended."""
    is_appended: bool = await log.repeat(log.session.append(revision))
    return is_appended


async def compact(log: RevisionLog, revision: bytes) -> bool:
    """Append a revision that replaces all before it; return whether it was appended."""
    return await run_steps_async(log.session.compact(revision), log.repeat)


async def append_in_turn(address: str) -> None:
    async with open_logs(address) as (first, second):
        assert await read(first) == (True, [])
        assert await read(second) == (True, [])
        assert await append(first, b"one")
        assert not await append(second, b"not read before")
        assert await read(second) == (False, [b"one"])
        assert await append(second, b"two")
        assert await append(second, b"three")
        assert await read(first) == (False, [b"two", b"three"])
        assert await read(first) == (False, [])
        # The connection is made again when it is needed.
        await first.aclose()
        assert await append(first, b"four")
        assert await read(second) == (False, [b"four"])


async def test_a_revision_is_appended_only_behind_what_was_read(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(append_in_turn, stream.address)


async def compact_in_turn(address: str) -> None:
    async with open_logs(address, 3) as (first, second, third):
        await read(first)
        for number in range(3):
            assert await append(first, b"%d" % number)
        await read(second)
        assert await compact(first, b"whole")
        assert first.session.bytes_since_mark == len(frame_events([b"whole"]))
        assert await read(second) == (False, [b"whole"])
        assert await read(third) == (True, [b"whole"])
        await third.repeat(third.session.read_mark)
        assert third.session.bytes_since_mark == first.session.bytes_since_mark
        await append(first, b"4")
        # What was before the mark before is gone after the next one.
        assert await compact(first, b"whole again")
        await append(first, b"6")
        assert await compact(first, b"once more")
        assert await read(second) == (True, [b"once more"])
        assert await append(second, b"8")
        assert await read(first) == (False, [b"8"])


async def test_a_log_that_is_truncated_is_read_anew(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(compact_in_turn, stream.address)


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

    async def append_all(address: str) -> None:
        async with open_logs(address) as (first, second):
            await read(first)
            await read(second)
            for number in range(20):
                assert await append(first, b"%d" % number)
                if number % 3 == 0:
                    assert not await append(second, b"behind")
                await read(second)
            async with aclosing(first):
                first.session.offset = None
                assert (await read(first))[1] == [b"%d" % number for number in range(20)]

    monkeypatch.setattr(StoreConnection, "call", call_and_break)
    async with served_stream(tmp_path) as stream:
        await run_client(append_all, stream.address)
    assert {"before", "after"} <= set(broken)


async def test_a_log_that_cannot_be_reached_is_told(tmp_path: Path, run_client: RunClient) -> None:
    async def ask(address: str) -> None:
        async with open_logs(address) as (first, _):
            await read(first)
        with ControllerClient(address) as controller:
            log = RevisionLog(controller, "s", "none", patience=0.2)
            with pytest.raises(NotFoundError):
                await read(log)
            log = RevisionLog(controller, "s", "t", patience=0.2)
            await read(log)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(StoreConnection, "call", lose)
                with pytest.raises(UnavailableError, match=r"s/t could not be reached for 0\.2 s"):
                    await append(log, b"one")
            await log.aclose()

    async with served_stream(tmp_path) as stream:
        await run_client(ask, stream.address)


async def lose(connection: StoreConnection, request: wire.Request) -> wire.Reply:
    raise ConnectionLostError("lost")
