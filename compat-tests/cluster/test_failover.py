"""Parts of a real cluster are killed under the official Java client, which writes and reads on.

The short form kills a store. ``--full`` kills all kinds of parts and everything at once, stops
stores for longer than their sessions last and lets them go on, and takes parts away for good.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from compat_harness.cluster import Cluster
from compat_harness.java import JavaClient
from compat_harness.server import TARGET_VARIABLE
from foreign_servers.deadlines import scale
from test_kill_nine import ACKED_BEFORE_FIRST_KILL, Workload, judge, running_workload

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

VICTIMS_IN_SHORT = ("segment-store-1",)
VICTIMS = (
    *[f"segment-store-{number}" for number in (0, 1, 2, 0, 1)],
    *[f"bookie-{number}" for number in (0, 1, 2)],
    *[f"controller-{number}" for number in (0, 1, 0)],
    "zookeeper",
)
CLIENT_BACK_SECONDS_MAX = scale(180.0)
"""The 0.13 client asks a controller again where a segment is only after 31 or 51 s."""
SESSION_SECONDS = 10.0


def wait_for_progress(workload: Workload, cluster: Cluster, what: str) -> float:
    """Wait until more is acknowledged; the seconds that took."""
    began = time.monotonic()
    acked = workload.acked()
    while workload.acked() <= acked:
        if workload.process.poll() is not None:
            pytest.fail(f"after {what} the workload ended:\n{workload.output()}", pytrace=False)
        if time.monotonic() - began > CLIENT_BACK_SECONDS_MAX:
            pytest.fail(
                f"nothing acked {CLIENT_BACK_SECONDS_MAX:.0f} s after {what}:\n{cluster.tell()}",
                pytrace=False,
            )
        time.sleep(0.02)
    return time.monotonic() - began


def draw_seed() -> random.Random:
    seed = int(os.environ.get("SEGSTORE_COMPAT_SEED", random.randrange(2**32)))
    print(f"SEGSTORE_COMPAT_SEED={seed}")
    return random.Random(seed)


@pytest.mark.timeout(1800)
def test_clients_go_on_when_parts_are_killed(
    java_client: JavaClient, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    rng = draw_seed()
    full = pytestconfig.getoption("--full")
    victims = list(VICTIMS if full else VICTIMS_IN_SHORT)
    rng.shuffle(victims)
    with (
        Cluster(tmp_path) as cluster,
        running_workload(java_client, cluster.controller_uris, tmp_path / "workload") as workload,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        for victim in victims:
            wait_for_progress(workload, cluster, "a quiet time")
            time.sleep(rng.uniform(0.2, 5.0))
            cluster.kill(victim)
            seconds = wait_for_progress(workload, cluster, f"kill -9 of {victim}")
            print(f"killed {victim}: acks came {seconds:.1f} s later")
        if full:
            cluster.kill_all()
            print(f"all killed: ready again after {cluster.start():.1f} s")
            wait_for_progress(workload, cluster, "everything was killed")
        workload.finish()
    judge(tmp_path / "workload")


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_stopped_store_that_goes_on_harms_nothing(
    java_client: JavaClient, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """Others have its containers when it wakes up: it neither acknowledges nor loses anything."""
    if not pytestconfig.getoption("--full"):
        pytest.skip("in the full form only: it takes minutes")
    with (
        Cluster(tmp_path) as cluster,
        running_workload(java_client, cluster.controller_uris, tmp_path / "workload") as workload,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        for number in range(3):
            pid = cluster.pause(f"segment-store-{number}")
            time.sleep(2 * SESSION_SECONDS + 5)
            assert f"segment-store-{number}" not in cluster.stores_in_map()
            os.kill(pid, signal.SIGCONT)
            seconds = wait_for_progress(workload, cluster, f"segment-store-{number} woke up")
            print(f"segment-store-{number} woke up: acks came {seconds:.1f} s later")
            time.sleep(SESSION_SECONDS)
        workload.finish()
    judge(tmp_path / "workload")


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_two_stores_serve_what_three_did(
    java_client: JavaClient, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    if not pytestconfig.getoption("--full"):
        pytest.skip("in the full form only: it takes minutes")
    with (
        Cluster(tmp_path, ["--no-restart"]) as cluster,
        running_workload(java_client, cluster.controller_uris, tmp_path / "workload") as workload,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        for victim in ("segment-store-0", "controller-1", "bookie-0"):
            cluster.kill(victim)
            seconds = wait_for_progress(workload, cluster, f"the end of {victim}")
            print(f"without {victim}: acks came {seconds:.1f} s later")
            time.sleep(2 * SESSION_SECONDS)
            assert cluster.stores_in_map() == ["segment-store-1", "segment-store-2"]
        workload.finish()
    judge(tmp_path / "workload")


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_a_second_start_goes_on_with_the_data(
    java_client: JavaClient, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    if not pytestconfig.getoption("--full"):
        pytest.skip("in the full form only: the short one starts again after killing everything")
    with (
        Cluster(tmp_path) as cluster,
        running_workload(java_client, cluster.controller_uris, tmp_path / "workload") as workload,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        cluster.stop()
        print(f"stopped: ready again after {cluster.start():.1f} s")
        wait_for_progress(workload, cluster, "a stop")
        workload.finish()
    judge(tmp_path / "workload")
