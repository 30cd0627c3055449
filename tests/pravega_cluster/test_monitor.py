"""The map is kept: at once, not too often, by one leader, whatever gets lost."""

from __future__ import annotations

from random import Random

import pytest
import trio
from trio.testing import MockClock

from pravega_cluster.balance import balance_containers
from pravega_cluster.following import LOOK_SECONDS, RETRY_SECONDS
from pravega_cluster.monitor import FIRST_GATHER_SECONDS, GATHER_SECONDS, ContainerMonitor
from pravega_cluster.nodes import find_paths, read_map
from pravega_cluster.records import ContainerMap, Host, decode_map
from support.models.memory_server import Loss, MemorySession, MemoryZooKeeper
from zookeeper_client.api import ANY_VERSION, SessionLostError, ensure_path

PATHS = find_paths("test")
PAUSE_SECONDS = 10.0
CONTAINERS = 12


class Cluster:
    """A ZooKeeper, stores that come and go, and controllers that keep the map."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        self.looker = self.server.open_session()
        self.stores: dict[int, MemorySession] = {}
        self.random = Random(1)

    async def join(self, *numbers: int) -> None:
        for number in numbers:
            self.stores[number] = self.server.open_session()
            await ensure_path(self.looker, PATHS.hosts)
            path = f"{PATHS.hosts}/{host(number).node_name}"
            await self.stores[number].create(path, b"", is_ephemeral=True)

    def kill(self, number: int) -> None:
        self.server.end_session(self.stores.pop(number))

    def start_controller(self, nursery: trio.Nursery) -> MemorySession:
        session = self.server.open_session()

        async def run() -> None:
            monitor = ContainerMonitor(
                session,
                PATHS,
                container_count=CONTAINERS,
                pause_seconds_min=PAUSE_SECONDS,
                random=self.random,
            )
            try:
                await monitor.run()
            except* SessionLostError:
                pass

        nursery.start_soon(run)
        return session

    async def read(self) -> tuple[ContainerMap, int]:
        found = await read_map(self.looker, PATHS)
        assert found is not None
        return found

    async def assert_balanced(self) -> ContainerMap:
        containers, _ = await self.read()
        hosts = {host(number) for number in self.stores}
        assert containers.keys() == hosts
        assert balance_containers(containers, hosts, CONTAINERS) == containers
        return containers


def host(number: int) -> Host:
    return Host("127.0.0.1", 12345 + number)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_a_host_that_dies_is_replaced_at_once(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cluster.start_controller(nursery)
    await trio.sleep(1)
    await cluster.join(0, 1, 2)
    await trio.sleep(FIRST_GATHER_SECONDS * 1.1)
    before = await cluster.assert_balanced()
    await trio.sleep(PAUSE_SECONDS)
    cluster.kill(1)
    await trio.sleep(GATHER_SECONDS * 1.1)
    after = await cluster.assert_balanced()
    for number in (0, 2):
        assert before[host(number)] <= after[host(number)]


async def test_hosts_of_a_new_cluster_share_its_first_map(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cluster.start_controller(nursery)
    await trio.sleep(1)
    for number in range(3):
        await cluster.join(number)
        await trio.sleep(FIRST_GATHER_SECONDS / 4)
    await trio.sleep(FIRST_GATHER_SECONDS / 2)
    await cluster.assert_balanced()


async def test_it_does_not_move_containers_all_the_time(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cluster.start_controller(nursery)
    await cluster.join(0, 1)
    await trio.sleep(FIRST_GATHER_SECONDS * 1.1)
    _, version = await cluster.read()
    for number in range(2, 9):
        await cluster.join(number)
        await trio.sleep(1)
    _, later = await cluster.read()
    assert later == version
    await trio.sleep(PAUSE_SECONDS)
    await cluster.assert_balanced()
    _, last = await cluster.read()
    assert last == version + 1


async def test_a_host_that_is_back_at_once_keeps_its_containers(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cluster.start_controller(nursery)
    await cluster.join(0, 1)
    await trio.sleep(2 * PAUSE_SECONDS)
    before = await cluster.read()
    cluster.kill(0)
    await trio.sleep(GATHER_SECONDS / 2)
    await cluster.join(0)
    await trio.sleep(2 * PAUSE_SECONDS)
    assert await cluster.read() == before


async def test_without_hosts_the_map_stays(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cluster.start_controller(nursery)
    await trio.sleep(2 * PAUSE_SECONDS)
    assert await read_map(cluster.looker, PATHS) is None
    await cluster.join(0, 1)
    await trio.sleep(2 * PAUSE_SECONDS)
    before = await cluster.read()
    cluster.kill(0)
    cluster.kill(1)
    await trio.sleep(2 * PAUSE_SECONDS)
    assert await cluster.read() == before


async def test_a_damaged_map_is_not_written_over(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await cluster.join(0)
    await cluster.looker.create(PATHS.container_map, b"damaged")
    cluster.start_controller(nursery)
    await trio.sleep(3 * LOOK_SECONDS)
    assert (await cluster.looker.get(PATHS.container_map)).data == b"damaged"


async def test_another_leads_when_the_leader_is_lost(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    leader = cluster.start_controller(nursery)
    await trio.sleep(1)
    cluster.start_controller(nursery)
    await cluster.join(0, 1)
    await trio.sleep(FIRST_GATHER_SECONDS * 1.1)
    cluster.server.end_session(leader)
    cluster.kill(1)
    await trio.sleep(2 * GATHER_SECONDS)
    await cluster.assert_balanced()


async def test_a_leader_whose_node_is_gone_writes_no_more(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    first = cluster.start_controller(nursery)
    await cluster.join(0, 1)
    await trio.sleep(2 * PAUSE_SECONDS)
    cluster.start_controller(nursery)
    await trio.sleep(1)
    [node, _] = sorted(
        await cluster.looker.children(PATHS.leader), key=lambda name: name.rpartition("-")[2]
    )
    await cluster.looker.delete(f"{PATHS.leader}/{node}")

    async def refuse(path: str, data: bytes, version: int) -> int:
        raise AssertionError("it wrote")

    first.set = refuse  # type: ignore[method-assign]
    cluster.kill(1)
    await trio.sleep(2 * PAUSE_SECONDS)
    await cluster.assert_balanced()


async def test_a_leader_that_slept_writes_nothing_on_a_map_of_the_next(
    cluster: Cluster, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """It has read hosts and map, and is about to write when another has led and written."""
    session = cluster.start_controller(nursery)
    await cluster.join(0, 1)
    await trio.sleep(2 * PAUSE_SECONDS)
    next_map = b"\0\0\1\0\0\0\0\1\0"

    class Sleeper:
        """A session in which another leader writes after this one has read, before its own write
        arrives."""

        def __init__(self) -> None:
            self.original_set = session.set

        async def set(self, path: str, data: bytes, version: int) -> int:
            await cluster.looker.set(path, next_map, ANY_VERSION)
            session.set = self.original_set  # type: ignore[method-assign]
            return await self.original_set(path, data, version)

    session.set = Sleeper().set  # type: ignore[method-assign]
    _, version = await cluster.read()
    cluster.kill(1)
    await trio.sleep(2 * GATHER_SECONDS)
    data, after = await cluster.looker.get(PATHS.container_map)
    assert after == version + 1
    assert data == next_map
    await trio.sleep(2 * PAUSE_SECONDS)
    await cluster.assert_balanced()


@pytest.mark.parametrize("seed", range(30))
async def test_the_map_follows_the_hosts_among_losses(seed: int, autojump_clock: MockClock) -> None:
    """Each change of the map is whole and even, and at last the map fits the living."""
    cluster, random = Cluster(), Random(seed)
    losses = [Loss.NONE, Loss.NONE, Loss.NONE, Loss.ANSWER, Loss.CALL]
    async with trio.open_nursery() as nursery:
        controllers = [cluster.start_controller(nursery) for _ in range(3)]
        for _ in range(40):
            cluster.server.lose_answer = lambda path: Loss.NONE
            number = random.randrange(5)
            if number in cluster.stores:
                cluster.kill(number)
            else:
                await cluster.join(number)
            if random.random() < 0.2:
                cluster.server.end_session(controllers.pop(0))
                controllers.append(cluster.start_controller(nursery))
            if (found := await read_map(cluster.looker, PATHS)) is not None:
                assert sorted(c for each in found.containers.values() for c in each) == list(
                    range(CONTAINERS)
                )
            cluster.server.lose_answer = lambda path: random.choice(losses)
            await trio.sleep(random.choice([0.1, 1.0, 20.0]))
        cluster.server.lose_answer = lambda path: Loss.NONE
        if not cluster.stores:
            await cluster.join(0)
        await trio.sleep(3 * (PAUSE_SECONDS + RETRY_SECONDS + LOOK_SECONDS))
        await cluster.assert_balanced()
        nursery.cancel_scope.cancel()


def test_the_map_of_the_test_above_is_empty() -> None:
    assert decode_map(b"\0\0\1\0\0\0\0\1\0") == {}
