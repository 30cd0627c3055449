"""Runs many seeds of a simulation in several processes: the commands of the simulations share it.

A simulation gives a function that returns the report of a seed, or the text of its failure, and
adds up the reports itself.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

FAILURES_MAX = 10

Report = TypeVar("Report")


@dataclass(frozen=True)
class Ran:
    """The end of a run of seeds."""

    done: int
    failures: int
    seconds: float
    """Real time."""


def parse_arguments(program: str, *, lines_max: int | None = None) -> argparse.Namespace:
    """Read the command line; ``--lines`` is understood if a default is given."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    if lines_max is not None:
        parser.add_argument("--lines", type=int, default=lines_max)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def run_seeds(
    run_seed: Callable[[int], Report | str],
    seeds: range,
    add: Callable[[Report], None],
    *,
    processes: int,
    chunk: int = 1,
) -> Ran:
    """Run the seeds, print failures and progress, and hand each report to ``add``.

    Stops early after 10 failures. A process takes ``chunk`` seeds at a time.
    """
    began = time.monotonic()
    failures = done = 0
    # Each life begins with a collection of garbage: not of the modules, which stay.
    with ProcessPoolExecutor(processes, initializer=gc.freeze) as pool:
        for outcome in pool.map(run_seed, seeds, chunksize=chunk):
            done += 1
            if isinstance(outcome, str):
                failures += 1
                print(outcome, flush=True)
                if failures >= FAILURES_MAX:
                    print("enough is enough", flush=True)
                    pool.shutdown(cancel_futures=True)
                    break
                continue
            add(outcome)
            if done % 100 == 0:
                print(f"{done} seeds, {time.monotonic() - began:.0f} s", flush=True)
    return Ran(done, failures, time.monotonic() - began)
