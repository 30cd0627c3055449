"""A cluster is looked at: real segment stores and a controller, ZooKeeper and bookies in memory."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from bookkeeper_client.client import BookKeeperSettings
from bookkeeper_client.connections import ConnectionLimits
from bookkeeper_client.testing.memory_bookies import (
    LEDGERS_ROOT,
    MemoryBookies,
    open_memory_bookies,
)
from pravega_admin.cluster_state import ClusterState, Member, look_at_cluster
from pravega_admin.server_checks import ask_controller, ask_segment_store
from pravega_blocking.errors import NotFoundError, TimedOutError, UnavailableError
from pravega_cluster.nodes import find_paths
from pravega_cluster.records import Host, encode_host, encode_map
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.server import serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from segstore.network.cluster import serve_in_cluster
from segstore.process.cluster_assembly import Surroundings
from segstore.process.config import MIB, ClusterSettings, SegmentStoreConfig
from segstore.process.membership import Membership
from zookeeper_client.api import ZooKeeper, ensure_path
from zookeeper_client.testing.memory_server import MemorySession

CONTAINERS = 2
NAME = "test"
PATHS = find_paths(NAME)
ANSWER_SECONDS = 0.5
SECONDS_MAX = 60.0
QUICK = BookKeeperSettings(
    connections=ConnectionLimits(answer_seconds_max=2.0), slow_seconds=0.05, look_seconds=0.05
)


@pytest.fixture
async def bookies() -> AsyncIterator[MemoryBookies]:
    async with open_memory_bookies("a", "b", "c") as opened:
        yield opened


@pytest.fixture
def session(bookies: MemoryBookies) -> MemorySession:
    return bookies.zookeeper.open_session()


async def start_store(
    bookies: MemoryBookies, path: Path, nursery: trio.Nursery
) -> tuple[Host, trio.Event]:
    """Start a segment store; the event ends it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        host = Host("127.0.0.1", held.getsockname()[1])

    @asynccontextmanager
    async def open_session(nursery: trio.Nursery) -> AsyncIterator[ZooKeeper]:
        opened = bookies.zookeeper.open_session()
        yield opened
        bookies.zookeeper.end_session(opened)

    settings = ClusterSettings(zookeeper="in memory", name=NAME, ledgers_root=LEDGERS_ROOT)
    config = SegmentStoreConfig(
        port=host.port,
        data_dir=path / "unused",
        storage_dir=path / "tier-2",
        container_count=CONTAINERS,
        cache_bytes_max=32 * MIB,
        drain_seconds=0.1,
        cluster=settings,
    )
    shutdown = trio.Event()
    member = Membership(NAME, host, open_session, hand_over_seconds_max=0.0)
    await nursery.start(
        partial(
            serve_in_cluster,
            config,
            membership=member,
            surroundings=Surroundings(bookkeeper=QUICK),
            shutdown=shutdown,
        )
    )
    return host, shutdown


async def start_controller(session: MemorySession, nursery: trio.Nursery) -> Host:
    """Start a controller that serves, and register it."""
    store = MemorySegmentStore()
    await nursery.start(store.run)
    environment = Environment(random=Random(7), open_stream=store.open_stream)
    config = ControllerConfig(port=0, request_poll_seconds=0.0, retention_period_seconds=0.0)
    ip, port = await nursery.start(partial(serve, config, environment=environment))
    host = Host(ip, port, "0" * 32)
    await ensure_path(session, PATHS.controllers)
    await session.create(f"{PATHS.controllers}/{host.node_name}", encode_host(host))
    return host


async def look(session: MemorySession) -> ClusterState:
    return await look_at_cluster(
        session, NAME, ledgers_root=LEDGERS_ROOT, seconds_max=ANSWER_SECONDS
    )


async def look_until(
    session: MemorySession, is_wanted: Callable[[ClusterState], bool]
) -> ClusterState:
    while True:
        state = await look(session)
        if is_wanted(state):
            return state
        await trio.sleep(0.05)


async def test_a_cluster_that_is_not_there_is_not_made_by_looking(session: MemorySession) -> None:
    with pytest.raises(NotFoundError, match="no cluster test"):
        await look(session)
    with pytest.raises(NotFoundError):
        await look(session)


async def test_a_cluster_becomes_whole_and_loses_its_store(
    bookies: MemoryBookies, session: MemorySession, tmp_path: Path, nursery: trio.Nursery
) -> None:
    with trio.fail_after(SECONDS_MAX):
        host, shutdown = await start_store(bookies, tmp_path, nursery)
        address = f"127.0.0.1:{host.port}"
        controller = await start_controller(session, nursery)
        state = await look(session)
        assert state.container_count == CONTAINERS
        assert state.unserved == (0, 1)
        assert state.missing(bookies=4) == [
            "3 of 4 bookies: registered",
            "containers that no store serves: 0, 1",
            f"segment stores without containers: {address}",
        ]
        await session.create(PATHS.container_map, encode_map({host: frozenset({0, 1})}))
        state = await look_until(session, lambda state: not state.missing())
        assert state.members == (
            Member("segment store", address, "serves", (0, 1), frozenset({0, 1})),
            Member("controller", f"127.0.0.1:{controller.port}", "serves"),
            *(Member("bookie", name, "registered") for name in "abc"),
        )
        assert state.missing(stores=2) == ["1 of 2 segment stores: serves"]
        shutdown.set()
        state = await look_until(session, lambda state: state.members[0].state == "gone")
        assert state.missing() == [
            "0 of 1 segment stores: serves",
            "containers that no store serves: 0, 1",
        ]


async def test_a_host_that_is_registered_and_dead_does_not_answer(session: MemorySession) -> None:
    for path, endpoint in ((PATHS.hosts, ""), (PATHS.controllers, "0" * 32)):
        await ensure_path(session, path)
        host = Host("127.0.0.1", 9, endpoint)
        await session.create(f"{path}/{host.node_name}", encode_host(host))
    state = await look(session)
    assert [each.state for each in state.members[:2]] == ["does not answer"] * 2
    assert "no segment store has ever served" in state.missing()


def test_a_server_that_hangs_is_told_from_one_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimedOutError):
            ask_segment_store("127.0.0.1", port, seconds_max=0.1)
        with pytest.raises(TimedOutError):
            ask_controller("127.0.0.1", port, seconds_max=0.1)
    with pytest.raises(UnavailableError):
        ask_segment_store("127.0.0.1", port, seconds_max=1)
    with pytest.raises(UnavailableError):
        ask_controller("127.0.0.1", port, seconds_max=5)
