"""Controllers of a cluster, on stores in memory that come, go and die, and such a ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock

from pravega_cluster.following import follow
from pravega_cluster.nodes import VersionedMap, find_paths, read_hosts, read_map
from pravega_cluster.records import Host
from pravega_cluster.registration import keep_registered
from pravega_controller.config import ConfigurationError, ControllerConfig
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.testing.memory_segment_store import MemorySegmentStore, segment_of
from pravega_wire import commands as wire
from pravega_wire import names
from support.models.memory_server import MemorySession, MemoryZooKeeper
from zookeeper_client.api import ANY_VERSION, OnChange, SessionLostError, ensure_path

CONTAINERS = 4
PATHS = find_paths("pravega-cluster")


class ClusterStore(MemorySegmentStore):
    """One of several stores of the same data, that serves what the map gives it."""

    def __init__(self, shared: MemorySegmentStore, host: Host, session: MemorySession) -> None:
        super().__init__()
        self.host = host
        self.session = session
        self.served: frozenset[int] = frozenset()
        self.asked = 0
        self.life = trio.CancelScope()
        self._shared = shared

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        async def read(on_change: OnChange) -> VersionedMap | None:
            return await read_map(self.session, PATHS, on_change)

        def use(found: VersionedMap | None) -> None:
            self.served = found.containers.get(self.host, frozenset()) if found else frozenset()

        try:
            with self.life:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.run)
                    nursery.start_soon(follow, self.session, read, use)
                    await nursery.start(keep_registered, self.session, PATHS.hosts, self.host)
                    task_status.started()
        except* SessionLostError:
            # Its connections stay, and nobody answers there any more.
            pass

    def _answer(self, request: wire.Request) -> wire.Reply | None:
        if isinstance(request, wire.Hello):
            return wire.HELLO
        segment = segment_of(request)
        self.asked += 1
        if names.container_of(segment, CONTAINERS) not in self.served:
            return wire.WrongHost(request.request_id, segment, "")  # type: ignore[attr-defined]
        return self._shared._answer(request)


class Cluster:
    """Stores, controllers, and the services that connect them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.looker = self.zookeeper.open_session()
        self.shared = MemorySegmentStore()
        self.stores: dict[tuple[str, int], ClusterStore] = {}
        self.controller_sessions: list[MemorySession] = []
        self._nursery = nursery
        self._seeds = itertools.count(7)

    async def start_store(self, port: int) -> ClusterStore:
        host = Host("10.0.0.1", port)
        store = ClusterStore(self.shared, host, self.zookeeper.open_session())
        await self._nursery.start(store.live)
        self.stores[host.address] = store
        return store

    def kill(self, store: ClusterStore) -> None:
        """Kill the store's process; ZooKeeper learns it when the session is over."""
        del self.stores[store.host.address]
        store.life.cancel()

    @asynccontextmanager
    async def open_controller(self, port: int = 9090) -> AsyncIterator[Controller]:
        async def open_stream(host: str, port: int) -> trio.abc.Stream:
            if (host, port) not in self.stores:
                raise ConnectionRefusedError("nobody listens")
            return await self.stores[host, port].open_stream(host, port)

        @asynccontextmanager
        async def open_session(nursery: trio.Nursery) -> AsyncIterator[MemorySession]:
            session = self.zookeeper.open_session()
            self.controller_sessions.append(session)
            try:
                yield session
            finally:
                self.zookeeper.end_session(session)

        config = ControllerConfig(
            port=port,
            zookeeper="in memory",
            container_count=CONTAINERS,
            reply_seconds_max=5.0,
            request_poll_seconds=0.0,
            retention_period_seconds=0.0,
            watermark_period_seconds=0.0,
        )
        environment = Environment(
            random=Random(next(self._seeds)), open_stream=open_stream, open_session=open_session
        )
        async with open_controller(config, environment) as controller:
            yield controller

    async def controllers(self) -> set[int]:
        """Return the ports of the registered controllers."""
        return {host.port for host in await read_hosts(self.looker, PATHS.controllers)}


@pytest.fixture
def cluster(nursery: trio.Nursery) -> Cluster:
    return Cluster(nursery)


def segments_of_all_containers() -> list[str]:
    found: dict[int, str] = {}
    for number in itertools.count():
        segment = f"s/a/{number}.#epoch.0"
        found.setdefault(names.container_of(segment, CONTAINERS), segment)
        if len(found) == CONTAINERS:
            return list(found.values())
    raise AssertionError


async def test_containers_are_given_out_and_used(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    stores = [await cluster.start_store(port) for port in (1, 2)]
    async with cluster.open_controller() as controller:
        await controller.scopes.create("a")
        assert [len(store.served) for store in stores] == [2, 2]
        assert all(store.asked for store in stores)
        for segment in segments_of_all_containers():
            host, port = controller.placement.address_for(segment, "dialled")
            owner = cluster.stores[host, port]
            assert names.container_of(segment, CONTAINERS) in owner.served
        await trio.sleep(1)
        assert await cluster.controllers() == {9090}
    assert await cluster.controllers() == set()


async def test_requests_go_on_when_a_store_dies(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    stores = [await cluster.start_store(port) for port in (1, 2, 3)]
    async with cluster.open_controller() as controller:
        await controller.scopes.create("a")
        await trio.sleep(20)
        cluster.kill(stores[0])
        session_seconds = 10.0

        async def end_session() -> None:
            await trio.sleep(session_seconds)
            cluster.zookeeper.end_session(stores[0].session)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_session)
            for number in range(20):
                nursery.start_soon(controller.scopes.create, f"b{number}")
        assert trio.current_time() - began < session_seconds + 3
        for segment in segments_of_all_containers():
            assert controller.placement.store_of(segment) in cluster.stores


async def test_requests_in_flight_at_a_store_that_is_cut_off_go_to_the_next(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    """The connections of the store stay, and it answers nothing: a reply would be waited for
    much longer."""
    stores = [await cluster.start_store(port) for port in (1, 2)]
    async with cluster.open_controller() as controller:
        await controller.scopes.create("a")
        await trio.sleep(20)
        for store in stores:
            if names.container_of("_system/_tables/controller/x", CONTAINERS) in store.served:
                break
        store.pause = trio.Event()
        cluster.stores.pop(store.host.address)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(controller.scopes.create, f"b{number}")
            await trio.sleep(0.1)
            cluster.zookeeper.end_session(store.session)
        assert trio.current_time() - began < 5


async def test_without_stores_nothing_is_promised(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    store = await cluster.start_store(1)
    async with cluster.open_controller() as controller:
        cluster.kill(store)
        cluster.zookeeper.end_session(store.session)
        with pytest.raises(StoreUnavailableError):
            await controller.scopes.create("a")
        await cluster.start_store(1)
        await controller.scopes.create("a")


async def test_a_controller_goes_on_in_another_session(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    await cluster.start_store(1)
    async with cluster.open_controller() as controller:
        await trio.sleep(20)
        cluster.zookeeper.end_session(cluster.controller_sessions[-1])
        assert await cluster.controllers() == set()
        await controller.scopes.create("a")
        await trio.sleep(3)
        assert await cluster.controllers() == {9090}
        await cluster.start_store(2)
        await trio.sleep(15)
        assert {len(store.served) for store in cluster.stores.values()} == {2}


async def test_the_next_controller_leads_when_the_first_ends(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    await cluster.start_store(1)
    async with cluster.open_controller(9091) as other:
        async with cluster.open_controller(9090):
            await trio.sleep(20)
            assert await cluster.controllers() == {9090, 9091}
        await cluster.start_store(2)
        await trio.sleep(20)
        assert {len(store.served) for store in cluster.stores.values()} == {2}
        assert len(other.members.living()) == 1


async def test_a_controller_with_another_number_of_containers_ends(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    """It ends at its start, or when the first store says so later."""
    await cluster.start_store(1)
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with cluster.open_controller():
            await ensure_path(cluster.looker, PATHS.identity)
            await cluster.looker.set(PATHS.identity, b"container_count = 4\n", ANY_VERSION)
            await trio.sleep(30)
            await cluster.looker.set(PATHS.identity, b"container_count = 5\n", ANY_VERSION)
            await trio.sleep_forever()
    assert caught.group_contains(ConfigurationError, match="has 5 containers, not 4")


async def test_a_damaged_identity_ends_nothing(cluster: Cluster, autojump_clock: MockClock) -> None:
    await cluster.start_store(1)
    await ensure_path(cluster.looker, PATHS.identity)
    for damaged in (b"", b"\xff", b"container_count = 'x'"):
        await cluster.looker.set(PATHS.identity, damaged, ANY_VERSION)
        async with cluster.open_controller() as controller:
            await trio.sleep(30)
            assert await controller.scopes.exists(names.INTERNAL_SCOPE)
