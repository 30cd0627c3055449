"""Parts of the original, 0.13.0, and parts of segstore in one cluster, under the official client.

Its controller gives containers to our segment store and the reverse; both keep streams in the
stores' tables and speak to them over the wire. Its stores and ours never share containers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.original_durable import OriginalDurable
from compat_harness.java import NEWEST, JavaClient
from compat_harness.server import HOST, TARGET_VARIABLE
from kazoo.client import KazooClient

from pravega_cluster.nodes import find_paths
from pravega_cluster.records import Host, decode_map, parse_node_name

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

CONTAINERS = 4
PATHS = find_paths("pravega-cluster")
SUITES = ("StreamManagementTest", "ScaleTest", "TruncationTest", "StateSynchronizerTest")
SUITES_SECONDS_MAX = 400.0
SEGSTORE = Path(sys.executable).parent / "segstore"


class OurController(OriginalDurable):
    """The original with our controller."""

    name = "original's segment store, our controller"

    def _controller(self, directory: Path, ports: Any) -> list[str]:
        return [
            str(SEGSTORE),
            "controller",
            f"--zookeeper={HOST}:{ports.zookeeper}",
            f"--container-count={CONTAINERS}",
            f"--port={ports.controller}",
        ]


def run_suites(names: Sequence[str], uri: str, directory: Path) -> None:
    """Each test of the suites passes."""
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


@pytest.fixture
def our_controller(tmp_path: Path) -> Iterator[OurController]:
    peer = OurController()
    peer.prepare()
    peer.reserve()
    yield peer
    peer.stop()


def test_our_controller_with_its_segment_store(
    our_controller: OurController, tmp_path: Path
) -> None:
    running = our_controller.start(tmp_path)
    run_suites(SUITES, running.address, tmp_path / "suites")
    assert our_controller._ports is not None
    client = KazooClient(hosts=f"{HOST}:{our_controller._ports.zookeeper}")
    client.start()
    try:
        store = Host(HOST, our_controller.segment_store_port)
        names = client.get_children(PATHS.hosts)
        assert [parse_node_name(name) for name in names] == [store]
        data, _ = client.get(PATHS.container_map)
        assert decode_map(data) == {store: frozenset(range(CONTAINERS))}
    finally:
        client.stop()
        client.close()
