"""Hosts that are registered: kept, waited for, made again, among lost answers and lost sessions."""

from __future__ import annotations

from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from pravega_cluster.nodes import find_paths, read_hosts
from pravega_cluster.records import Host, encode_host
from pravega_cluster.registration import keep_registered, unregister
from support.models.memory_server import Loss, MemorySession, MemoryZooKeeper
from zookeeper_client.api import NoNodeError, SessionLostError

PATHS = find_paths("test")
HOST = Host("127.0.0.1", 12345)
NODE = f"{PATHS.hosts}/127.0.0.1:12345:"


async def keep(nursery: trio.Nursery, session: MemorySession) -> None:
    await nursery.start(keep_registered, session, PATHS.hosts, HOST)


async def test_a_host_is_registered(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    session = server.open_session()
    async with trio.open_nursery() as nursery:
        await keep(nursery, session)
        assert (await session.get(NODE)).data == encode_host(HOST)
        assert await read_hosts(session, PATHS.hosts) == {HOST}
        nursery.cancel_scope.cancel()
    await unregister(session, PATHS.hosts, HOST)
    await unregister(session, PATHS.hosts, HOST)
    assert await read_hosts(session, PATHS.hosts) == frozenset()


async def test_a_node_that_vanishes_is_made_again(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    session, other = server.open_session(), server.open_session()
    async with trio.open_nursery() as nursery:
        await keep(nursery, session)
        began = trio.current_time()
        await other.delete(NODE)
        await wait_all_tasks_blocked()
        assert await session.is_own(NODE)
        assert trio.current_time() - began < 1
        nursery.cancel_scope.cancel()


async def test_the_node_of_an_earlier_session_is_waited_out(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    earlier, session = server.open_session(), server.open_session()
    async with trio.open_nursery() as nursery:
        await keep(nursery, earlier)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_registered, session, PATHS.hosts, HOST)
        await trio.sleep(100)
        assert await earlier.is_own(NODE)
        await unregister(session, PATHS.hosts, HOST)
        assert await earlier.is_own(NODE)
        server.end_session(earlier)
        await wait_all_tasks_blocked()
        assert await session.is_own(NODE)
        nursery.cancel_scope.cancel()


async def test_a_lost_session_ends_it(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    session = server.open_session()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            await keep(nursery, session)
            server.end_session(session)
    assert caught.group_contains(SessionLostError)
    with pytest.raises(NoNodeError):
        await server.open_session().get(NODE)


@pytest.mark.parametrize("seed", range(20))
async def test_lost_answers_delay_it_only(seed: int, autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    session = server.open_session()
    random = Random(seed)
    losses = [Loss.NONE, Loss.ANSWER, Loss.CALL]
    server.lose_answer = lambda path: random.choice(losses)
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            await keep(nursery, session)
            server.lose_answer = lambda path: Loss.NONE
            assert await session.is_own(NODE)
            nursery.cancel_scope.cancel()
