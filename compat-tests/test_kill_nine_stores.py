"""kill -9 of everything under load, and back with another number of segment stores.

What was acknowledged is read once and in order by the official Java client, which finds each
container at another port after that.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compat_harness.java import NEWEST, JavaClient
from compat_harness.server import SEGMENT_STORE, TARGET_VARIABLE
from test_kill_nine import PAUSE_SECONDS, judge, kill_under_load

pytestmark = pytest.mark.proof

STORE_COUNTS = (2, 1, 3, 2, 4, 1)
VICTIMS = (*[()] * len(STORE_COUNTS), (SEGMENT_STORE,))


@pytest.mark.compat
@pytest.mark.timeout(900)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills only a server of its own")
def test_containers_move_to_other_stores_after_kill_nine(tmp_path: Path) -> None:
    kills_with_progress = kill_under_load(
        JavaClient.build(NEWEST),
        tmp_path,
        VICTIMS,
        pause_seconds=PAUSE_SECONDS,
        store_counts=STORE_COUNTS,
    )
    judge(tmp_path / "workload")
    assert kills_with_progress >= len(VICTIMS) // 2
