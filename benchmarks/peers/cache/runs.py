"""Starts the process that does a workload to one of the caches.

1. Every run is a process of its own, warmed up on a scratch cache before anything is measured.
2. Before the cache proper is made, another process uses as much memory and lets it go: on a virtual
   machine the first use of memory that its host has taken back costs more than anything measured.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from foreign_servers.maven import compiled_class_path
from foreign_servers.tied_processes import tied

from benchmarks.peers.cache.workload import Workload

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SECONDS_MAX = 1800.0
TOUCH = """
import mmap, sys
with mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
    memory.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, len(memory), 4096):
        memory[page] = 1
"""

ORIGINAL = "original"
MAIN_CLASS = "segstore.cache.CacheBench"
STORES = (ORIGINAL, "ours", "dictionary", "rocksdb")


class RunFailedError(Exception):
    """The process failed; the message says how."""


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of a run: for each pass and each part of it, nanoseconds of wall and CPU."""

    digest: int
    passes: tuple[dict[str, dict[str, int]], ...]

    def fresh(self, part: str, clock: str = "wall_ns") -> float:
        """Return nanoseconds per operation in the first pass, whose memory was never used
        before."""
        return self.passes[0][part][clock] / self.passes[0][part]["count"]

    def reused(self, part: str, clock: str = "wall_ns") -> float:
        """Return nanoseconds per operation in the best of the other passes, if there are others."""
        return min(one[part][clock] / one[part]["count"] for one in self.passes[1:] or self.passes)


def is_missing(store: str) -> str | None:
    """Return the reason why a store cannot be measured here, or None if it can."""
    if store == "rocksdb" and find_spec("rocksdict") is None:
        return "the package rocksdict is not installed"
    return None


def run(store: str, workload: Workload) -> Run:
    """Do a workload to a store, in a new process."""
    process = subprocess.Popen(
        tied(_command(store, workload)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    with process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() == "ready":
                _use_memory(workload.capacity)
            output, errors = process.communicate("g", timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise RunFailedError(f"{store} took more than {SECONDS_MAX:g} s") from error
        finally:
            process.kill()
    if process.returncode != 0:
        raise RunFailedError(f"{store} exited with {process.returncode}: {errors[-2000:]}")
    result = json.loads(output)
    return Run(result["digest"], tuple(result["passes"]))


def _use_memory(length: int) -> None:
    subprocess.run([sys.executable, "-c", TOUCH, str(length)], check=True, timeout=SECONDS_MAX)


def _command(store: str, workload: Workload) -> list[str]:
    if store != ORIGINAL:
        module = "benchmarks.peers.cache.python_caches"
        return [sys.executable, "-m", module, store, *workload.arguments()]
    direct_mib = (workload.capacity + workload.warmup_capacity) // 2**20 + 64
    return [
        "java",
        "-Xmx1g",
        f"-XX:MaxDirectMemorySize={direct_mib}m",
        "-cp",
        compiled_class_path(HERE, MAIN_CLASS),
        MAIN_CLASS,
        *workload.arguments(),
    ]
