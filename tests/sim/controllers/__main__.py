"""Runs many seeds in several processes: ``python -m controllers --seeds 1000 [--first 0]``,
or one of them, with everything that happened in it: ``--seed 17``."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from controllers.run import FailedSeedError, Report, simulate

FAILURES_MAX = 10


def run_seed(seed: int) -> Report | str:
    """A report, or what went wrong."""
    try:
        report = simulate(seed)
    except FailedSeedError as error:
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
        return f"{cause}\n{error}\nreplay: make sim-controllers SEED={seed}\n"
    report.lines = []
    return report


def run_one(seed: int) -> int:
    """Replay one seed and show its trace."""
    try:
        report = simulate(seed)
    except FailedSeedError as error:
        traceback.print_exception(error.__cause__)
        print(error)
        return 1
    for line in report.lines:
        print(line)
    print(f"{report.step_count} steps in {report.seconds:.0f} simulated seconds: {report.counts}")
    return 0


def run_many(first: int, count: int, processes: int) -> int:
    """Run seeds from ``first`` on; returns the exit code."""
    began = time.monotonic()
    steps = failures = done = 0
    counts: Counter[str] = Counter()
    simulated = 0.0
    with ProcessPoolExecutor(processes) as pool:
        for outcome in pool.map(run_seed, range(first, first + count)):
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
            simulated += outcome.seconds
            if done % 100 == 0:
                print(f"{done} seeds, {time.monotonic() - began:.0f} s", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{done} seeds in {seconds:.0f} s on {processes} processes: {steps} steps, "
        f"{simulated / 3600:.1f} simulated hours, {failures} failures"
    )
    for kind in sorted(counts):
        print(f"{counts[kind]:8} x {kind}")
    return 1 if failures else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="controllers")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return run_one(arguments.seed)
    return run_many(arguments.first, arguments.seeds, arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
