"""Parts of the original, 0.13.0, and parts of segstore in one cluster, under the official client.

Its controller gives containers to our segment store and the reverse; both keep streams in the
stores' tables and speak to them over the wire. Its stores and ours never share containers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.peers.segstore_cluster import controller_command, segment_store_command
from compat_harness.java import NEWEST, JavaClient
from compat_harness.server import HOST, TARGET_VARIABLE
from foreign_servers.deadlines import scale
from foreign_servers.original_durable import OriginalDurable
from kazoo.client import KazooClient

from pravega_cluster.nodes import find_paths
from pravega_cluster.records import Host, decode_map, parse_node_name

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

PATHS = find_paths("pravega-cluster")
SUITES = ("StreamManagementTest", "ScaleTest", "TruncationTest", "ByteStreamTest")
SUITES_SECONDS_MAX = scale(400.0)


class OurController(OriginalDurable):
    """The original with our controller."""

    name = "original's segment store, our controller"

    def _controller(self, directory: Path) -> list[str]:
        return controller_command(self)


class OurSegmentStore(OriginalDurable):
    """The original with our segment store."""

    name = "original's controller, our segment store"

    def _segment_store(self, directory: Path, number: int) -> list[str]:
        return segment_store_command(self, directory, number)


def run_suites(names: Sequence[str], uri: str, directory: Path) -> None:
    """Run the suites and check that each of their tests passes."""
    run = JavaClient.build(NEWEST).run_suites(
        names,
        directory,
        side_by_side=2,
        seconds_max=SUITES_SECONDS_MAX,
        properties={"controller": uri},
    )
    try:
        tests = [test for name in names for test in run.wait_for(name)]
    finally:
        run.stop()
    failed = [f"{each.suite}.{each.test}: {each.note}" for each in tests if each.result != "passed"]
    assert tests
    assert not failed, "\n".join(failed)


@contextmanager
def running(peer: OriginalDurable, directory: Path) -> Iterator[str]:
    """Run the peer; yield the controller's address."""
    peer.prepare()
    peer.reserve()
    try:
        yield peer.start(directory).address
    finally:
        peer.stop()


@pytest.mark.parametrize("kind", [OurController, OurSegmentStore])
def test_parts_of_the_original_work_with_ours(
    kind: type[OriginalDurable], pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    if not pytestconfig.getoption("--full"):
        pytest.skip("in the full form only: it takes minutes")
    peer = kind()
    with running(peer, tmp_path) as uri:
        run_suites(SUITES, uri, tmp_path / "suites")
        client = KazooClient(hosts=peer.zookeeper)
        client.start()
        try:
            store = Host(HOST, peer.segment_store_port)
            assert list(map(parse_node_name, client.get_children(PATHS.hosts))) == [store]
            assert len(client.get_children(PATHS.controllers)) == 1
            data, _ = client.get(PATHS.container_map)
            assert decode_map(data) == {store: frozenset(range(peer.shape.containers))}
        finally:
            client.stop()
            client.close()
