"""Segment stores of a cluster as processes, on a real ZooKeeper and real bookies.

The tests play the controller's part: they write the map of containers. A writer follows its segment
from store to store; at the end everything that was acknowledged is there, once and in order.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from compat_harness.official_bookkeeper import BookiesWithClient
from foreign_servers.deadlines import scale
from foreign_servers.processes import ServerProcess

from pravega_cluster.nodes import ClusterPaths, find_paths, read_hosts
from pravega_cluster.records import Host, encode_map
from segstore.testing.ports import free_ports
from segstore.testing.roving_writer import RovingWriter
from zookeeper_client.api import ANY_VERSION, NodeExistsError, ZooKeeper, ensure_path
from zookeeper_client.kazoo_session import open_zookeeper

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("stores of a cluster"),
]

CONTAINERS = 4
SEGMENT = "scope/stream/0.#epoch.0"
SESSION_SECONDS = 4.0
"""The least that ZooKeeper grants."""
SECONDS_MAX = scale(120.0)
GAP_SECONDS_MAX = 10.0
"""On a loaded machine. A container that moves is away for a fraction of a second."""


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookiesWithClient]:
    cluster = BookiesWithClient(Path(tmp_path_factory.mktemp("bookies")), 3)
    yield cluster
    cluster.stop()


class Store:
    """One store: a process that can be killed and stopped."""

    def __init__(self, bookies: BookiesWithClient, paths: ClusterPaths, directory: Path) -> None:
        (port,) = free_ports(1)
        self.host = Host("127.0.0.1", port)
        settings = directory / "settings.toml"
        settings.write_text(f"[segment_store.cluster]\nsession_seconds = {SESSION_SECONDS}\n")
        self.process = ServerProcess(
            [
                str(Path(sys.executable).parent / "segstore"),
                "server",
                f"--zookeeper={bookies.zookeeper}",
                f"--cluster={paths.root.rpartition('/')[2]}",
                f"--bookkeeper-ledgers={bookies.ledgers_root}",
                f"--tier2={directory / 'tier-2'}",
                f"--port={port}",
                f"--container-count={CONTAINERS}",
                f"--config={settings}",
            ],
            directory=directory,
            name=f"store-{port}",
        )

    def send(self, what: signal.Signals) -> None:
        for process_id in self.process.processes.process_ids():
            os.kill(process_id, what)


class Cluster:
    """Stores that share bookies and a directory, and the map."""

    def __init__(
        self, bookies: BookiesWithClient, zookeeper: ZooKeeper, directory: Path, name: str
    ) -> None:
        self.bookies = bookies
        self.zookeeper = zookeeper
        self.paths = find_paths(name)
        self.stores: list[Store] = []
        self._directory = directory

    async def start(self, count: int) -> list[Store]:
        """Start stores, and wait until they are registered."""
        started = [Store(self.bookies, self.paths, self._directory) for _ in range(count)]
        self.stores += started
        for store in started:
            await self.wait_registered(store)
        return started

    async def wait_registered(self, store: Store, *, is_there: bool = True) -> None:
        while True:
            hosts = await read_hosts(self.zookeeper, self.paths.hosts)
            if (store.host in hosts) is is_there:
                return
            await trio.sleep(0.05)

    async def wait_bookies(self, count: int) -> None:
        """Wait until so many bookies take writes by what ZooKeeper says."""
        available = f"{self.bookies.ledgers_root}/available"
        while True:
            names = await self.zookeeper.children(available)
            if len(set(names) - {"readonly"}) == count:
                return
            await trio.sleep(0.1)

    async def assign(self, store: Store) -> None:
        """Assign all containers to a store."""
        data = encode_map({store.host: frozenset(range(CONTAINERS))})
        await ensure_path(self.zookeeper, self.paths.cluster)
        try:
            await self.zookeeper.create(self.paths.container_map, data)
        except NodeExistsError:
            await self.zookeeper.set(self.paths.container_map, data, ANY_VERSION)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[RovingWriter]:
        """Write inside the block; at its end everything that was acknowledged is there."""
        writer = RovingWriter(SEGMENT, [store.host.address for store in self.stores])
        await writer.create()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            yield writer
            nursery.cancel_scope.cancel()
        await writer.check()


@pytest.fixture
async def cluster(
    bookies: BookiesWithClient, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Cluster]:
    async with (
        trio.open_nursery() as nursery,
        open_zookeeper(bookies.zookeeper, nursery) as zookeeper,
    ):
        cluster = Cluster(bookies, zookeeper, tmp_path, request.node.name)
        try:
            with trio.fail_after(SECONDS_MAX):
                yield cluster
        finally:
            for store in cluster.stores:
                store.process.kill()
        nursery.cancel_scope.cancel()


async def wait_written_at(writer: RovingWriter, store: Store) -> None:
    while writer.at != store.host.address:
        await writer.wait_acknowledged(1)


async def test_a_store_is_killed_and_another_goes_on(cluster: Cluster) -> None:
    one, two, three = await cluster.start(3)
    await cluster.assign(one)
    async with cluster.writing() as writer:
        await writer.wait_acknowledged(2000)
        for killed, successor in ((one, two), (two, three)):
            await trio.to_thread.run_sync(killed.process.kill)
            await cluster.assign(successor)
            await wait_written_at(writer, successor)
            await writer.wait_acknowledged(2000)


async def test_a_container_moves_without_an_error(cluster: Cluster) -> None:
    one, two = await cluster.start(2)
    await cluster.assign(one)
    async with cluster.writing() as writer:
        await writer.wait_acknowledged(2000)
        for store in (two, one, two):
            await cluster.assign(store)
            await wait_written_at(writer, store)
            await writer.wait_acknowledged(2000)
    print(f"longest gap at a move: {writer.longest_gap:.2f} s")
    assert writer.longest_gap < GAP_SECONDS_MAX


async def test_a_store_that_stood_still_acknowledges_nothing_when_it_goes_on(
    cluster: Cluster,
) -> None:
    one, two = await cluster.start(2)
    await cluster.assign(one)
    async with cluster.writing() as writer:
        await writer.wait_acknowledged(1000)
        one.send(signal.SIGSTOP)
        try:
            await cluster.assign(two)
            await wait_written_at(writer, two)
            await cluster.wait_registered(one, is_there=False)
            await writer.wait_acknowledged(1000)
        finally:
            one.send(signal.SIGCONT)
        late = RovingWriter(SEGMENT, [one.host.address], writer_id=b"another writer..")
        with trio.move_on_after(3):
            await late.run()
        assert late.acknowledged == 0
        await cluster.wait_registered(one)
        await writer.wait_acknowledged(1000)
        assert writer.at == two.host.address
        # It is as good as any other by now.
        await cluster.assign(one)
        await wait_written_at(writer, one)
        await writer.wait_acknowledged(1000)


async def test_stores_write_without_zookeeper_and_go_on_in_the_next_session(
    cluster: Cluster,
) -> None:
    one, two = await cluster.start(2)
    await cluster.assign(one)
    async with cluster.writing() as writer:
        await writer.wait_acknowledged(1000)
        cluster.bookies.pause_zookeeper()
        try:
            with trio.move_on_after(2 * SESSION_SECONDS):
                while True:
                    await writer.wait_acknowledged(10)
                    assert writer.at == one.host.address
        finally:
            cluster.bookies.resume_zookeeper()
        await writer.wait_acknowledged(1000)
        await cluster.wait_registered(one)
        await cluster.wait_registered(two)
        await cluster.assign(two)
        await wait_written_at(writer, two)
        await writer.wait_acknowledged(1000)


async def test_a_store_that_is_told_to_end_does_so(cluster: Cluster) -> None:
    one, two = await cluster.start(2)
    await ensure_path(cluster.zookeeper, f"{cluster.paths.leader}/_c_1-lock-0000000000")
    await cluster.assign(one)
    async with cluster.writing() as writer:
        await writer.wait_acknowledged(1000)
        one.send(signal.SIGTERM)
        await cluster.wait_registered(one, is_there=False)
        await writer.wait_acknowledged(100)
        assert writer.at == one.host.address
        await cluster.assign(two)
        await trio.to_thread.run_sync(lambda: one.process.wait_for_end(seconds_max=20.0))
        await writer.wait_acknowledged(1000)
        assert writer.at == two.host.address


async def test_a_store_is_killed_while_one_of_three_bookies_is_gone(cluster: Cluster) -> None:
    one, two = await cluster.start(2)
    await cluster.assign(one)
    async with cluster.writing() as writer:
        await writer.wait_acknowledged(1000)
        await trio.to_thread.run_sync(cluster.bookies.kill, 2)
        try:
            await cluster.wait_bookies(2)
            await trio.to_thread.run_sync(one.process.kill)
            await cluster.assign(two)
            await wait_written_at(writer, two)
            await writer.wait_acknowledged(1000)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(cluster.bookies.start, 2)
        await writer.wait_acknowledged(1000)
