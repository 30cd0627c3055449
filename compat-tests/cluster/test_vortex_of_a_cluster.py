"""The vortex of a cluster in its short form: some faults, and the checker content.

`make vortex-cluster MINUTES=60` is the long form.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from compat_harness.server import TARGET_VARIABLE
from vortex.cluster import FAULTS, open_cluster
from vortex.run import Run

pytestmark = pytest.mark.proof

SHORT = (
    "kill a segment store",
    "cut a segment store off from ZooKeeper",
    "end a segment store the gentle way",
    "kill a segment store while a bookie is paused",
    "reset all connections",
)


@pytest.mark.compat
@pytest.mark.timeout(900)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own")
def test_a_cluster_survives_one_fault_after_the_other(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEGSTORE_COMPAT_SEED", random.randrange(2**32)))
    print(f"SEGSTORE_COMPAT_SEED={seed}")
    faults = tuple(FAULTS) if pytestconfig.getoption("--full") else SHORT
    run = Run(tmp_path, seed=seed, say=print, open_subject=open_cluster)
    outcome = run.execute(seconds=0.0, faults=faults)
    for line in outcome.lines():
        print(line)
    assert sum(outcome.faults.values()) == len(faults)
