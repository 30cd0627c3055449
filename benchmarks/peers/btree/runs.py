"""Starts the process that does a workload to one of the trees; every run is a process of its own.

The original gets pages of 32,767 bytes at most, as its segment store does, and is warmed up with
the same workload at a tenth of its size, which is when Java has compiled its code.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from foreign_servers.maven import compiled_class_path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SECONDS_MAX = 3600.0
PAGE_BYTES = 32_767
ORIGINAL = "original"
MAIN_CLASS = "segstore.btree.TreeDriver"


class RunFailedError(Exception):
    """The process failed; the message says how."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`kind` is sorted, random, get or grow; of get, `batch_size` is how many keys are sought."""

    kind: str
    keys: int
    batch_size: int = 1

    def arguments(self) -> list[str]:
        """Return the arguments for the command line of either side."""
        return [self.kind, str(self.keys), str(self.batch_size)]


def run(tree: str, workload: Workload) -> dict[str, float]:
    """Do a workload to a tree in a new process; what it measured, by name."""
    done = subprocess.run(
        _command(tree, workload),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise RunFailedError(f"{tree} exited with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _command(tree: str, workload: Workload) -> list[str]:
    if tree != ORIGINAL:
        return [sys.executable, "-m", "benchmarks.peers.btree.our_tree", *workload.arguments()]
    warm_up = max(workload.keys // 10, 1)
    options = [str(PAGE_BYTES), str(warm_up)]
    return [
        "java",
        "-cp",
        compiled_class_path(HERE, MAIN_CLASS),
        MAIN_CLASS,
        *workload.arguments(),
        *options,
    ]
