"""Runs many seeds in several processes: ``python -m bookkeeper --seeds 1000 [--first 0]``,
or one of them: ``--seed 17``."""

from __future__ import annotations

import sys
import traceback
from collections import Counter

from seeds import parse_arguments, run_seeds

from bookkeeper.run import FailedSeedError, Report, simulate


def run_seed(seed: int) -> Report | str:
    """Run a seed; return a report, or the failure."""
    try:
        return simulate(seed)
    except FailedSeedError as error:
        return "".join(traceback.format_exception(error))


def run_many(seeds: range, processes: int) -> int:
    """Run these seeds; returns the exit code."""
    steps = 0
    counts: Counter[str] = Counter()

    def add(report: Report) -> None:
        nonlocal steps
        steps += report.step_count
        counts.update(report.counts)

    ran = run_seeds(run_seed, seeds, add, processes=processes, chunk=10)
    print(
        f"{ran.done} seeds in {ran.seconds:.0f} s on {processes} processes: {steps} steps,"
        f" {ran.failures} failures"
    )
    for kind in sorted(counts):
        print(f"{counts[kind]:8} x {kind}")
    return 1 if ran.failures else 0


def main() -> int:
    """Run the command."""
    arguments = parse_arguments("bookkeeper")
    if arguments.seed is not None:
        return run_many(range(arguments.seed, arguments.seed + 1), 1)
    return run_many(range(arguments.first, arguments.first + arguments.seeds), arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
