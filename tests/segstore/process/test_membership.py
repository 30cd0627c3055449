"""A store follows the map of containers, through sessions that end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from pravega_cluster.nodes import ClusterPaths, find_paths
from pravega_cluster.records import Host, encode_map
from segstore.api import SegmentContainer
from segstore.process.membership import FAREWELL_SECONDS, Membership
from segstore.process.registry import ContainerRegistry
from segstore.tables.settings import TableSettings
from support.models.memory_container import MemoryContainer
from support.models.memory_server import Loss, MemorySession, MemoryZooKeeper
from zookeeper_client.api import ANY_VERSION, NoNodeError, ZooKeeper, ensure_path

HERE, THERE = Host("127.0.0.1", 12345), Host("127.0.0.1", 12346)
PATHS: ClusterPaths = find_paths("test")


class Member:
    """A member whose containers are of memory, and the ZooKeeper that it is in."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        self.server = server
        self.sessions: list[MemorySession] = []
        self.can_connect = trio.Event()
        self.can_connect.set()
        self.membership = Membership("test", HERE, self._open_session)
        self.opened: list[int] = []
        self.registry = ContainerRegistry(
            self._open_container,
            container_count=4,
            container_ids=None,
            tables=TableSettings(),
            restart_seconds_min=0.5,
            restart_seconds_max=self.membership.restart_seconds_max,
        )

    @asynccontextmanager
    async def _open_session(self, nursery: trio.Nursery) -> AsyncIterator[ZooKeeper]:
        await self.can_connect.wait()
        self.sessions.append(self.server.open_session())
        yield self.sessions[-1]
        self.server.end_session(self.sessions[-1])

    @asynccontextmanager
    async def _open_container(self, number: int) -> AsyncIterator[SegmentContainer]:
        await self.membership.wait_assigned(number)
        self.opened.append(number)
        yield MemoryContainer(number)

    def end_session(self) -> None:
        self.server.end_session(self.sessions[-1])

    @property
    def online(self) -> set[int]:
        return {n for n in self.registry.numbers() if self.registry.hosted(n).is_online}


@asynccontextmanager
async def serving(server: MemoryZooKeeper) -> AsyncIterator[Member]:
    member = Member(server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.membership.run)
        await nursery.start(member.registry.run)
        await member.membership.begin(member.registry)
        member.membership.mark_serving()
        yield member
        nursery.cancel_scope.cancel()


@pytest.fixture
async def member() -> AsyncIterator[Member]:
    async with serving(MemoryZooKeeper()) as member:
        yield member


@pytest.fixture
async def session(member: Member) -> MemorySession:
    session = member.server.open_session()
    await ensure_path(session, PATHS.cluster)
    return session


async def give(session: MemorySession, here: set[int], there: set[int]) -> None:
    data = encode_map({HERE: frozenset(here), THERE: frozenset(there)})
    try:
        await session.set(PATHS.container_map, data, ANY_VERSION)
    except NoNodeError:
        await session.create(PATHS.container_map, data)
    await wait_all_tasks_blocked()


async def add_neighbours(session: MemorySession) -> None:
    """Add another host, and a controller that leads."""
    await session.create(f"{PATHS.hosts}/{THERE.node_name}", b"", is_ephemeral=True)
    await ensure_path(session, f"{PATHS.leader}/_c_1-lock-0000000000")


async def is_registered(session: MemorySession, host: Host = HERE) -> bool:
    try:
        return host.node_name in await session.children(PATHS.hosts)
    except NoNodeError:
        return False


async def test_containers_are_what_the_map_says(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    await wait_all_tasks_blocked()
    assert await is_registered(session)
    await give(session, {0, 2}, {1, 3})
    assert member.online == {0, 2}
    await give(session, {2, 3}, {0, 1})
    assert member.online == {2, 3}
    assert sorted(member.opened) == [0, 2, 3]
    await give(session, set(), {0, 1, 2, 3})
    assert not member.online


async def test_without_a_map_nothing_stops(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    await give(session, {0, 1}, set())
    await session.delete(PATHS.container_map)
    await trio.sleep(60)
    assert member.online == {0, 1}
    await session.create(PATHS.container_map, b"damaged")
    await trio.sleep(60)
    assert member.online == {0, 1}


async def test_containers_go_on_without_a_session_and_are_looked_at_in_the_next(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    await give(session, {0, 1}, {2, 3})
    member.can_connect = trio.Event()
    member.end_session()
    assert not await is_registered(session)
    await trio.sleep(100)
    assert member.online == {0, 1}
    await give(session, {1, 2}, {0, 3})
    assert member.online == {0, 1}
    member.can_connect.set()
    await trio.sleep(5)
    assert member.online == {1, 2}
    assert await is_registered(session)
    assert len(member.sessions) == 2


async def test_the_map_is_looked_at_before_the_host_is_registered_in_each_session(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    await give(session, {0, 1}, {2, 3})
    member.server.lose_answer = lambda path: Loss.CALL if path == PATHS.container_map else Loss.NONE
    member.end_session()
    await trio.sleep(30)
    assert len(member.sessions) == 2
    assert not await is_registered(member.server.open_session())
    member.server.lose_answer = lambda path: Loss.NONE
    await trio.sleep(5)
    assert await is_registered(session)


async def test_a_damaged_map_does_not_keep_a_new_store_from_registering(
    autojump_clock: MockClock,
) -> None:
    server = MemoryZooKeeper()
    session = server.open_session()
    await ensure_path(session, PATHS.cluster)
    await session.create(PATHS.container_map, b"damaged")
    with trio.fail_after(5):
        async with serving(server) as member:
            await trio.sleep(1)
            assert await is_registered(session)
            assert not member.online
            # An operator takes it away, and the leader makes another.
            await session.delete(PATHS.container_map)
            await give(session, {1}, {0})
            await trio.sleep(1)
            assert member.online == {1}


async def test_a_failed_container_is_opened_again_only_if_it_is_still_this_hosts(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    await give(session, {0}, {1})
    member.can_connect = trio.Event()
    member.end_session()
    await give(session, {1}, {0})
    with trio.move_on_after(60):
        await member.membership.wait_assigned(0)
        raise AssertionError("another host has it")
    member.can_connect.set()
    with trio.fail_after(5):
        await member.membership.wait_assigned(1)


async def test_a_host_that_leaves_serves_until_others_have_its_containers(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    await give(session, {0, 1}, set())
    await add_neighbours(session)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.membership.hand_over)
        await wait_all_tasks_blocked()
        assert not await is_registered(session)
        assert member.online == {0, 1}
        await give(session, {1}, {0})
        assert member.online == {1}
        # The end of a session does not register it again.
        member.end_session()
        await trio.sleep(5)
        assert not await is_registered(session)
        began = trio.current_time()
        await give(session, set(), {0, 1})
    # Clients that come back to it are told to ask where their containers are.
    assert FAREWELL_SECONDS <= trio.current_time() - began < FAREWELL_SECONDS + 2


async def test_a_host_that_leaves_does_not_wait_for_ever_nor_where_nobody_is(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    await give(session, {0}, set())
    began = trio.current_time()
    await member.membership.hand_over()
    assert trio.current_time() - began < 2
    await add_neighbours(session)
    await member.membership.hand_over()
    assert trio.current_time() - began >= 30
    assert member.online == {0}


async def test_controllers_are_known_as_they_come_and_go(
    member: Member, session: MemorySession, autojump_clock: MockClock
) -> None:
    assert member.membership.controllers() == []
    one, two = Host("10.0.0.1", 9090, "a" * 32), Host("10.0.0.2", 9090, "b" * 32)
    await ensure_path(session, PATHS.controllers)
    for host in (two, one):
        await session.create(f"{PATHS.controllers}/{host.node_name}", b"", is_ephemeral=True)
    await wait_all_tasks_blocked()
    assert member.membership.controllers() == [one.address, two.address]
    await session.delete(f"{PATHS.controllers}/{one.node_name}")
    await wait_all_tasks_blocked()
    assert member.membership.controllers() == [two.address]
