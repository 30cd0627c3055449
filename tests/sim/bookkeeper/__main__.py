"""Runs many seeds in several processes: ``python -m bookkeeper --seeds 1000 [--first 0]``,
or one of them: ``--seed 17``."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from bookkeeper.run import FailedSeedError, Report, simulate

FAILURES_MAX = 10


def run_seed(seed: int) -> Report | str:
    """A report, or what went wrong."""
    try:
        return simulate(seed)
    except FailedSeedError as error:
        return "".join(traceback.format_exception(error))


def run_many(seeds: range, processes: int) -> int:
    """Run these seeds; returns the exit code."""
    began = time.monotonic()
    steps = failures = done = 0
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(processes) as pool:
        for outcome in pool.map(run_seed, seeds, chunksize=10):
            done += 1
            if isinstance(outcome, str):
                failures += 1
                print(outcome, flush=True)
                if failures >= FAILURES_MAX:
                    print("enough is enough", flush=True)
                    pool.shutdown(cancel_futures=True)
                    break
                continue
            steps += outcome.step_count
            counts += outcome.counts
    seconds = time.monotonic() - began
    print(
        f"{done} seeds in {seconds:.0f} s on {processes} processes: {steps} steps,"
        f" {failures} failures"
    )
    for kind in sorted(counts):
        print(f"{counts[kind]:8} x {kind}")
    return 1 if failures else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="bookkeeper")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return run_many(range(arguments.seed, arguments.seed + 1), 1)
    return run_many(range(arguments.first, arguments.first + arguments.seeds), arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
