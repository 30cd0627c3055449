"""Reading who is there and who has what: nodes that are missing, strange or damaged."""

from __future__ import annotations

import pytest
import trio

from pravega_cluster.nodes import find_paths, read_hosts, read_map
from pravega_cluster.records import ClusterRecordError, Host, encode_map
from support.models.memory_server import MemoryZooKeeper
from zookeeper_client.api import ANY_VERSION, ensure_path

PATHS = find_paths("test")
HOST = Host("127.0.0.1", 1)
MAP = {HOST: frozenset({0, 1})}


def test_paths_are_those_of_the_original() -> None:
    assert PATHS.hosts == "/pravega/test/cluster/hosts"
    assert PATHS.controllers == "/pravega/test/cluster/controllers"
    assert PATHS.container_map == "/pravega/test/cluster/segmentContainerHostMapping"
    assert PATHS.leader == "/pravega/test/cluster/faulthandlerleader"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_names_that_no_cluster_can_have(name: str) -> None:
    with pytest.raises(ClusterRecordError):
        find_paths(name)


async def test_hosts_are_told_by_their_names() -> None:
    session = MemoryZooKeeper().open_session()
    changed = trio.Event()
    assert await read_hosts(session, PATHS.hosts, changed.set) == frozenset()
    await session.create(f"{PATHS.hosts}/127.0.0.1:1:", b"", is_ephemeral=True)
    await session.create(f"{PATHS.hosts}/strange", b"")
    await changed.wait()
    assert await read_hosts(session, PATHS.hosts) == {HOST}


async def test_a_map_that_is_not_there_is_told_when_it_comes() -> None:
    session = MemoryZooKeeper().open_session()
    changed = trio.Event()
    assert await read_map(session, PATHS, changed.set) is None
    await session.create(PATHS.container_map, encode_map(MAP))
    await changed.wait()
    changed = trio.Event()
    assert await read_map(session, PATHS, changed.set) == (MAP, 0)
    await session.set(PATHS.container_map, encode_map({}), 0)
    await changed.wait()
    assert await read_map(session, PATHS) == ({}, 1)


async def test_a_damaged_map_is_an_error() -> None:
    session = MemoryZooKeeper().open_session()
    await ensure_path(session, PATHS.container_map)
    await session.set(PATHS.container_map, b"\0\0\1\0\0", ANY_VERSION)
    with pytest.raises(ClusterRecordError):
        await read_map(session, PATHS)
