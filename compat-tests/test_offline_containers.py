"""A journal's disk that fails and comes back, again and again, under official clients."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from compat_harness.failing_store import FailingServer
from compat_harness.java import JavaClient
from compat_harness.server import TARGET_VARIABLE
from test_kill_nine import ACKED_BEFORE_FIRST_KILL, judge, running_workload

pytestmark = pytest.mark.proof

OUTAGE_SECONDS = (0.3, 1.0, 2.0, 4.0, 0.5)
OFFLINE_WORDS = "container failed"


@pytest.mark.compat
@pytest.mark.timeout(600)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="fails only the disk of its own server")
def test_clients_ride_through_containers_that_go_offline(
    java_client: JavaClient, tmp_path: Path
) -> None:
    with (
        FailingServer(tmp_path) as server,
        running_workload(java_client, server.controller_uri, tmp_path / "workload") as workload,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        for number, seconds in enumerate(OUTAGE_SECONDS, 1):
            before = workload.acked()
            with server.failing_disk():
                time.sleep(seconds)
            after = workload.acked()
            resumed = workload.wait_until_acked(after + 1_000)
            print(
                f"{number}: {after - before} events acknowledged in {seconds:.1f} s without half of"
                f" the containers, 1,000 more {resumed:.2f} s later"
            )
        workload.finish()
        judge(tmp_path / "workload")
        offline = server.log_path.read_text().count(OFFLINE_WORDS)
    assert offline >= len(OUTAGE_SECONDS), "the disk failed, but no container went offline"
