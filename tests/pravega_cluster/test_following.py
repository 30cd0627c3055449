"""Following a node: changes, damage, lost answers, sessions that end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from pravega_cluster.following import LOOK_SECONDS, RETRY_SECONDS, follow, live_in_sessions
from pravega_cluster.nodes import VersionedMap, find_paths, read_map
from pravega_cluster.records import Host, encode_map
from support.models.memory_server import Loss, MemorySession, MemoryZooKeeper
from zookeeper_client.api import (
    ANY_VERSION,
    ConnectionLostError,
    OnChange,
    SessionLostError,
    ZooKeeper,
    ensure_path,
)

PATHS = find_paths("test")
HOST = Host("127.0.0.1", 1)


class Follower:
    """Follows the map in a session, and notes what it was told to use."""

    def __init__(self, session: MemorySession) -> None:
        self.session = session
        self.used: list[VersionedMap | None] = []

    async def run(self) -> None:
        async def read(on_change: OnChange) -> VersionedMap | None:
            return await read_map(self.session, PATHS, on_change)

        await follow(self.session, read, self.used.append)


async def test_changes_are_used_at_once(autojump_clock: MockClock) -> None:
    session = MemoryZooKeeper().open_session()
    follower = Follower(session)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.run)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await session.create(PATHS.container_map, encode_map({}))
        await wait_all_tasks_blocked()
        await session.set(PATHS.container_map, encode_map({HOST: frozenset({1})}), 0)
        await wait_all_tasks_blocked()
        assert follower.used == [None, ({}, 0), ({HOST: frozenset({1})}, 1)]
        assert trio.current_time() == began
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_read_leaves_the_last_in_use(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    session = server.open_session()
    await ensure_path(session, PATHS.cluster)
    await session.create(PATHS.container_map, encode_map({}))
    follower = Follower(session)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.run)
        await wait_all_tasks_blocked()
        await session.set(PATHS.container_map, b"damaged", ANY_VERSION)
        await trio.sleep(LOOK_SECONDS)
        assert follower.used == [({}, 0)]
        server.lose_answer = lambda path: Loss.CALL
        await trio.sleep(LOOK_SECONDS)
        server.lose_answer = lambda path: Loss.NONE
        await session.set(PATHS.container_map, encode_map({}), ANY_VERSION)
        await trio.sleep(2 * RETRY_SECONDS)
        assert follower.used[-1] == ({}, 2)
        nursery.cancel_scope.cancel()


async def test_it_looks_also_when_nothing_is_told(autojump_clock: MockClock) -> None:
    session = MemoryZooKeeper().open_session()
    used: list[int] = []

    async def read(on_change: OnChange) -> int:
        await trio.lowlevel.checkpoint()
        return len(used)

    with trio.move_on_after(3.5 * LOOK_SECONDS):
        await follow(session, read, used.append)
    assert used == [0, 1, 2, 3]


async def test_it_ends_with_the_session(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    session = server.open_session()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Follower(session).run)
            await wait_all_tasks_blocked()
            server.end_session(session)
    assert caught.group_contains(SessionLostError)


async def test_a_lost_session_is_followed_by_another(autojump_clock: MockClock) -> None:
    server = MemoryZooKeeper()
    sessions: list[MemorySession] = []
    attempts = 0

    @asynccontextmanager
    async def open_session(nursery: trio.Nursery) -> AsyncIterator[MemorySession]:
        nonlocal attempts
        attempts += 1
        if attempts % 2:
            raise ConnectionLostError("nobody is there")
        session = server.open_session()
        sessions.append(session)
        yield session
        server.end_session(session)

    async def live(session: ZooKeeper) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Follower(sessions[-1]).run)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live_in_sessions, open_session, live)
        for count in (1, 2, 3):
            await trio.sleep(10 * RETRY_SECONDS)
            assert len(sessions) == count
            assert not sessions[-1].lost.is_set()
            server.end_session(sessions[-1])
        nursery.cancel_scope.cancel()
