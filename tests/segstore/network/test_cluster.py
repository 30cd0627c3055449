"""Stores of a cluster that share bookies and tier 2: containers move, owners are overtaken."""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from foreign_servers.s3 import CREDENTIALS, make_bucket, moto_server

from bookkeeper_client.client import BookKeeperSettings
from bookkeeper_client.connections.connections import ConnectionLimits
from pravega_cluster.nodes import find_paths, read_hosts
from pravega_cluster.records import Host, encode_map
from pravega_wire import commands as wire
from pravega_wire.names import container_of
from segstore.network.cluster import serve_in_cluster
from segstore.process.cluster_assembly import Surroundings
from segstore.process.config import MIB, ClusterSettings, SegmentStoreConfig
from segstore.process.membership import Membership
from segstore.testing.roving_writer import RovingWriter
from segstore.testing.wire_client import WireClient
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.s3.settings import S3Settings
from support.faults.fake_hdfs import fake_hdfs
from support.models.memory_bookies import (
    LEDGERS_ROOT,
    MemoryBookies,
    open_memory_bookies,
)
from support.models.memory_server import MemorySession
from zookeeper_client.api import ANY_VERSION, NodeExistsError, ZooKeeper, ensure_path

CONTAINERS = 4
SEGMENT = "scope/stream/0.#epoch.0"
PATHS = find_paths("test")
QUICK = BookKeeperSettings(
    connections=ConnectionLimits(answer_seconds_max=2.0), slow_seconds=0.05, look_seconds=0.05
)
SECONDS_MAX = 60.0


class Store:
    """One store of the cluster, with a session that can be ended and a network that can be cut."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.host = Host("127.0.0.1", port)
        self.shutdown = trio.Event()
        self.ended = trio.Event()
        self.reaches_zookeeper = trio.Event()
        self.reaches_zookeeper.set()
        self._cluster = cluster
        self._sessions: list[MemorySession] = []

    @asynccontextmanager
    async def _open_session(self, nursery: trio.Nursery) -> AsyncIterator[ZooKeeper]:
        await self.reaches_zookeeper.wait()
        zookeeper = self._cluster.bookies.zookeeper
        self._sessions.append(zookeeper.open_session())
        yield self._sessions[-1]
        zookeeper.end_session(self._sessions[-1])

    def cut_off(self) -> None:
        """End its session, and let it have no other before ``reaches_zookeeper`` is set."""
        self.reaches_zookeeper = trio.Event()
        self._cluster.bookies.zookeeper.end_session(self._sessions[-1])

    async def run(self, *, task_status: trio.TaskStatus[int]) -> None:
        config = SegmentStoreConfig(
            host=self.host.ip,
            port=self.host.port,
            data_dir=self._cluster.path / "unused",
            **self._cluster.tier,
            container_count=CONTAINERS,
            cache_bytes_max=32 * MIB,
            cluster=ClusterSettings(zookeeper="in memory", name="test", ledgers_root=LEDGERS_ROOT),
        )
        await serve_in_cluster(
            config,
            membership=Membership("test", self.host, self._open_session),
            surroundings=Surroundings(bookkeeper=QUICK),
            shutdown=self.shutdown,
            task_status=task_status,
        )
        self.ended.set()


class Cluster:
    """Bookies, a ZooKeeper and a directory, and the map, which the test writes."""

    def __init__(self, bookies: MemoryBookies, path: Path, nursery: trio.Nursery) -> None:
        self.bookies = bookies
        self.path = path
        self.tier: dict[str, Any] = {"storage_dir": path / "tier-2"}
        self.session = bookies.zookeeper.open_session()
        self._nursery = nursery

    async def start(self) -> Store:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        store = Store(self, port)
        await self._nursery.start(store.run)
        return store

    async def assign(self, store: Store) -> None:
        """Assign all containers to a store."""
        await self.assign_each({store: set(range(CONTAINERS))})

    async def assign_each(self, numbers: dict[Store, set[int]]) -> None:
        """Assign each store its containers."""
        data = encode_map({store.host: frozenset(numbers[store]) for store in numbers})
        await ensure_path(self.session, PATHS.cluster)
        try:
            await self.session.create(PATHS.container_map, data)
        except NodeExistsError:
            await self.session.set(PATHS.container_map, data, ANY_VERSION)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_memory_bookies("a", "b", "c") as bookies, trio.open_nursery() as nursery:
        with trio.fail_after(SECONDS_MAX):
            yield Cluster(bookies, tmp_path, nursery)
        nursery.cancel_scope.cancel()


async def ask(store: Store, request: wire.Request) -> wire.Command:
    async with await trio.open_tcp_stream(*store.host.address) as stream:
        return await WireClient(stream).call(request)


@asynccontextmanager
async def writing(*stores: Store) -> AsyncIterator[RovingWriter]:
    """Write inside the block; at its end everything that was acknowledged is there."""
    writer = writer_of(*stores)
    await writer.create()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        yield writer
        nursery.cancel_scope.cancel()
    await writer.check()


def writer_of(*stores: Store) -> RovingWriter:
    return RovingWriter(SEGMENT, [store.host.address for store in stores])


async def wait_written_at(writer: RovingWriter, store: Store) -> None:
    while writer.at != store.host.address:
        await writer.wait_acknowledged(1)


async def test_a_container_moves_and_the_others_say_wrong_host(cluster: Cluster) -> None:
    one, two = await cluster.start(), await cluster.start()
    create = wire.CreateSegment(7, SEGMENT, 0, 0, "")
    assert await ask(one, create) == wire.WrongHost(7, SEGMENT, "")
    await cluster.assign(one)
    async with writing(one, two) as writer:
        for owner, other in ((two, one), (one, two), (two, one)):
            await writer.wait_acknowledged(200)
            assert await ask(owner, create) == wire.WrongHost(7, SEGMENT, "")
            await cluster.assign(owner)
            await wait_written_at(writer, owner)
            assert await ask(other, create) == wire.WrongHost(7, SEGMENT, "")


async def test_a_store_that_was_cut_off_from_zookeeper_writes_until_it_is_fenced(
    cluster: Cluster,
) -> None:
    one, two = await cluster.start(), await cluster.start()
    await cluster.assign(one)
    async with writing(one, two) as writer:
        await writer.wait_acknowledged(100)
        one.cut_off()
        await writer.wait_acknowledged(100)
        assert writer.at == one.host.address
        await cluster.assign(two)
        await wait_written_at(writer, two)
        # The earlier owner gives nothing to anybody any more, and does not take the container back.
        late = writer_of(one)
        with trio.move_on_after(2):
            await late.run()
        assert late.acknowledged == 0
        await writer.wait_acknowledged(100)
        assert writer.at == two.host.address
        one.reaches_zookeeper.set()
        await writer.wait_acknowledged(100)
        assert writer.at == two.host.address
        await cluster.assign(one)
        await wait_written_at(writer, one)


async def test_a_store_that_ends_gently_hands_its_containers_over(cluster: Cluster) -> None:
    one, two = await cluster.start(), await cluster.start()
    await ensure_path(cluster.session, f"{PATHS.leader}/_c_1-lock-0000000000")
    await cluster.assign(one)
    async with writing(one, two) as writer:
        await writer.wait_acknowledged(100)
        one.shutdown.set()
        while one.host in await read_hosts(cluster.session, PATHS.hosts):
            await writer.wait_acknowledged(1)
        await writer.wait_acknowledged(100)
        assert writer.at == one.host.address
        number = container_of(SEGMENT, CONTAINERS)
        rest = set(range(CONTAINERS)) - {number}
        await cluster.assign_each({one: {number}, two: rest})
        await writer.wait_acknowledged(100)
        assert writer.at == one.host.address
        await cluster.assign(two)
        await one.ended.wait()
        await writer.wait_acknowledged(100)
        assert writer.at == two.host.address


async def test_who_writes_to_a_store_that_ends_is_told_to_ask_where_the_container_is(
    cluster: Cluster,
) -> None:
    """Connections were closed or refused: a client came back to that address, for ten seconds."""
    one, two = await cluster.start(), await cluster.start()
    await ensure_path(cluster.session, f"{PATHS.leader}/_c_1-lock-0000000000")
    await cluster.assign(one)
    await writer_of(one).create()
    async with (
        await trio.open_tcp_stream(*one.host.address) as writing_stream,
        await trio.open_tcp_stream(*one.host.address) as idle_stream,
    ):
        busy, idle = WireClient(writing_stream), WireClient(idle_stream)
        await busy.set_up(b"busy writer.....", SEGMENT)
        await idle.send(wire.SetupAppend(70, b"idle writer.....", SEGMENT, ""))
        await idle.expect(wire.AppendSetup)
        one.shutdown.set()
        while one.host in await read_hosts(cluster.session, PATHS.hosts):  # noqa: ASYNC110
            await trio.sleep(0.01)
        await cluster.assign(two)
        reply: wire.Command | None = None
        for number in itertools.count():
            await busy.append(b"busy writer.....", b"x", number=number, request_id=60)
            reply = await busy.receive()
            if not isinstance(reply, wire.DataAppended):
                break
        assert reply == wire.WrongHost(60, SEGMENT, "")
        # It still answers who comes anew, and at the end those who have not asked.
        again = wire.SetupAppend(80, b"busy writer.....", SEGMENT, "")
        assert await ask(one, again) == wire.WrongHost(80, SEGMENT, "")
        assert not one.ended.is_set()
        set_up = await ask(two, again)
        assert isinstance(set_up, wire.AppendSetup)
        assert set_up.last_event_number >= number - 1
        assert await idle.receive() == wire.WrongHost(70, SEGMENT, "")
        await idle.expect_close()
        await one.ended.wait()


async def test_all_that_was_acknowledged_is_there_after_a_start_of_all(cluster: Cluster) -> None:
    written = 0
    for _ in range(3):
        store = await cluster.start()
        await cluster.assign(store)
        async with writing(store) as writer:
            await writer.wait_acknowledged(100)
        assert writer.acknowledged > written
        written = writer.acknowledged
        store.shutdown.set()
        await store.ended.wait()


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.processes), "hdfs"])
def shared_location(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Settings of a tier 2 that all stores reach."""
    if request.param == "hdfs":
        with fake_hdfs() as hdfs:
            location = f"webhdfs://{hdfs.namenodes[0]}/shared"
            yield {"tier2": location, "hdfs": HdfsSettings(user="somebody")}
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with moto_server() as endpoint:
        make_bucket(endpoint, "shared")
        yield {"tier2": "s3://shared/test", "s3": S3Settings(endpoint_url=endpoint)}


@pytest.mark.proof
async def test_stores_share_a_tier_2_at_a_location(
    cluster: Cluster, shared_location: dict[str, Any]
) -> None:
    cluster.tier = shared_location
    one, two = await cluster.start(), await cluster.start()
    await cluster.assign(one)
    async with writing(one, two) as writer:
        for owner in (two, one):
            await writer.wait_acknowledged(200)
            await cluster.assign(owner)
            await wait_written_at(writer, owner)
    for store in (one, two):
        store.shutdown.set()
        await store.ended.wait()
    # What it had is in S3: its log is short.
    three = await cluster.start()
    await cluster.assign(three)
    last = writer_of(three)
    assert await last.check() >= writer.acknowledged
    three.shutdown.set()
    await three.ended.wait()
