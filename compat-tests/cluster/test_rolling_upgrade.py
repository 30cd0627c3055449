"""The upgrade of a cluster from the newest release to this version, part by part, and the way back.

Owns: the proof of the sections "On one machine" and "Taking a cluster back" of the guide to
upgrades. Its commands run as they are printed, but for the port of ZooKeeper.

How: the cluster serves meanwhile under load, of the official Java client and of segstore's own of
both versions. What each mixture of versions makes, the next one reads, and goes on with it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat_harness.cluster import CONTROLLERS, STORES, Cluster
from compat_harness.guide_shell import read_steps
from compat_harness.java import NEWEST, JavaClient
from compat_harness.own_load import OwnLoad
from compat_harness.released_versions import Environments, clean_environment
from compat_harness.server import TARGET_VARIABLE
from foreign_servers.deadlines import scale
from test_kill_nine import ACKED_BEFORE_FIRST_KILL, judge, running_workload

from support.released_stores import check, fill, go_on

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.no_second_try,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
    pytest.mark.xdist_group("upgrades"),
]

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "upgrade.md"
COMMAND_SECONDS_MAX = scale(400.0)
MORE = 10


class UpgradedCluster:
    """A cluster in a directory with both versions, as the guide has it."""

    def __init__(self, cluster: Cluster, directory: Path, environments: Environments) -> None:
        self.cluster, self.environments = cluster, environments
        self._directory = directory
        self._added: dict[str, int] = {}

    def take(self, command: str) -> None:
        """Run a command of the guide, with the port of this ZooKeeper in place of the usual one."""
        done = subprocess.run(
            ["bash", "-euc", command.replace("127.0.0.1:2181", self.cluster.zookeeper)],
            cwd=self._directory,
            env=clean_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.cluster.tell()}"

    def versions(self) -> dict[str, set[str]]:
        """Return which versions the segment stores and the controllers have."""
        kinds = {"segment-store": STORES, "controller": CONTROLLERS}
        return {kind: {self._version(f"{kind}-{n}") for n in range(kinds[kind])} for kind in kinds}

    def _version(self, part: str) -> str:
        pid = self.cluster.pid_of(part)
        assert pid is not None, part
        return self.environments.name_of(pid)

    def use(self, maker: str) -> None:
        """Read what was made under all former mixtures of versions, go on with it, make more."""
        address = self.cluster.controller_uris
        for scope, added in self._added.items():
            check(address, scope=scope, added=added)
            go_on(address, scope=scope, added=added, more=MORE)
            self._added[scope] = added + MORE
            check(address, scope=scope, added=added + MORE)
        if maker not in self._added:
            fill(address, scope=maker)
            self._added[maker] = 0


@pytest.fixture
def upgraded(tmp_path: Path, environments: Environments) -> Iterator[UpgradedCluster]:
    """A cluster whose data the old version's ``make cluster`` has made, and which it serves."""
    for place in (environments.old, environments.new):
        (tmp_path / place.name).symlink_to(place)
    link, make, *_ = commands_of("On one machine")
    assert make == 'make cluster ARGS="--program current/bin/segstore"'
    environment = clean_environment(os.environ)
    cluster = Cluster(
        tmp_path,
        [f"--program={tmp_path / 'current' / 'bin' / 'segstore'}"],
        environment=environment,
        python=environments.new / "bin" / "python",
    )
    with Cluster(
        tmp_path,
        first_port=cluster.first_port,
        environment=environment,
        python=environments.old / "bin" / "python",
        root=environments.release.tree,
    ) as first:
        made = UpgradedCluster(first, tmp_path, environments)
        assert made.versions() == {"segment-store": {"old"}, "controller": {"old"}}
        made.use("made-by-old")
    made.cluster = cluster
    made.take(link)
    with cluster:
        yield made


def commands_of(heading: str) -> list[str]:
    """Return the commands below a heading of the guide."""
    return [step.text for step in read_steps(GUIDE) if step.heading == heading]


def test_a_cluster_is_upgraded_and_taken_back_part_by_part_under_load(
    upgraded: UpgradedCluster, environments: Environments, tmp_path: Path
) -> None:
    _, _, *upgrade = commands_of("On one machine")
    go_back = commands_of("Taking a cluster back")
    old, new = {"old"}, {"new"}
    assert upgraded.versions() == {"segment-store": old, "controller": old}
    address = upgraded.cluster.controller_uris
    with (
        running_workload(JavaClient.build(NEWEST), address, tmp_path / "workload") as workload,
        OwnLoad(
            address, tmp_path / "own", environments.programs, clean_environment(os.environ)
        ) as own,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        for link, first, second in (upgrade, go_back):
            upgraded.take(link)
            upgraded.take(first)
            # Either way, it is now new stores that serve old controllers.
            assert upgraded.versions() == {"segment-store": new, "controller": old}
            workload.wait_until_acked(workload.acked() + 1)
            own.wait_for_progress()
            upgraded.use("made-by-both")
            upgraded.take(second)
            reached = "new" if link == upgrade[0] else "old"
            assert upgraded.versions() == {"segment-store": {reached}, "controller": {reached}}
            workload.wait_until_acked(workload.acked() + 1)
            own.wait_for_progress()
            upgraded.use(f"made-by-{reached}")
        workload.finish()
        own.finish()
    judge(tmp_path / "workload")
