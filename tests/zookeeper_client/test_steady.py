"""A ZooKeeper that outlives sessions: what becomes of calls and watches at their end."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from support.models.memory_server import Loss, MemoryZooKeeper
from zookeeper_client.api import ConnectionLostError, Node
from zookeeper_client.steady import WAIT_SECONDS_MAX, SteadyZooKeeper


async def test_calls_go_to_the_session_of_now() -> None:
    server, steady = MemoryZooKeeper(), SteadyZooKeeper()
    first = server.open_session()
    with steady.using(first):
        assert await steady.create("/a", b"1") == "/a"
        await steady.create("/mine", b"", is_ephemeral=True)
        server.end_session(first)
        with pytest.raises(ConnectionLostError):
            await steady.get("/a")
    with steady.using(server.open_session()):
        assert await steady.get("/a") == Node(b"1", 0)
        assert await steady.set("/a", b"2", 0) == 1
        assert await steady.children("/") == ["a"]
        await steady.delete("/a")
    assert not steady.lost.is_set()


async def test_calls_wait_for_a_session_but_not_for_ever(autojump_clock: MockClock) -> None:
    server, steady = MemoryZooKeeper(), SteadyZooKeeper()
    with pytest.raises(ConnectionLostError):
        await steady.children("/")
    assert trio.current_time() == pytest.approx(WAIT_SECONDS_MAX, abs=0.1)

    async with trio.open_nursery() as nursery:

        async def come() -> None:
            await trio.sleep(WAIT_SECONDS_MAX / 2)
            with steady.using(server.open_session()):
                await trio.sleep(1)

        nursery.start_soon(come)
        assert await steady.children("/") == []


async def test_a_watch_is_called_once_for_a_change_or_at_the_end_of_its_session() -> None:
    server, steady = MemoryZooKeeper(), SteadyZooKeeper()
    called: list[str] = []
    with steady.using(server.open_session()):
        await steady.create("/a", b"")
        await steady.get("/a", lambda: called.append("changed"))
        await steady.get("/a", lambda: called.append("changed"))
        await steady.set("/a", b"1", 0)
        await wait_all_tasks_blocked()
        assert called == ["changed", "changed"]
        await steady.children("/", lambda: called.append("ended"))
    assert called == ["changed", "changed", "ended"]


async def test_a_watch_of_a_call_that_failed_is_not_called() -> None:
    server, steady = MemoryZooKeeper(), SteadyZooKeeper()
    called: list[str] = []
    with steady.using(server.open_session()):
        server.lose_answer = lambda path: Loss.CALL
        with pytest.raises(ConnectionLostError):
            await steady.get("/", lambda: called.append("?"))
    assert not called
