"""Runs many seeds in several processes: ``python -m tokens --seeds 1000 [--first 0]``,
or one of them, with everything that happened in it: ``--seed 17``."""

from __future__ import annotations

import sys
import traceback
from collections import Counter

from seeds import parse_arguments, run_seeds

from tokens.run import FailedSeedError, Report, simulate


def run_seed(seed: int) -> Report | str:
    """Run a seed; return its report, or a text that says what went wrong."""
    try:
        report = simulate(seed)
    except FailedSeedError as error:
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
        return f"{cause}\n{error}\nreplay: make sim-tokens SEED={seed}\n"
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
    steps, simulated = 0, 0.0
    counts: Counter[str] = Counter()

    def add(report: Report) -> None:
        nonlocal steps, simulated
        steps += report.step_count
        simulated += report.seconds
        counts.update(report.counts)

    ran = run_seeds(run_seed, range(first, first + count), add, processes=processes)
    print(
        f"{ran.done} seeds in {ran.seconds:.0f} s on {processes} processes: {steps} steps, "
        f"{simulated / 3600:.1f} simulated hours, {ran.failures} failures"
    )
    for kind in sorted(counts):
        print(f"{counts[kind]:8} x {kind}")
    return 1 if ran.failures else 0


def main() -> int:
    """Run the command; return its exit code."""
    arguments = parse_arguments("tokens")
    if arguments.seed is not None:
        return run_one(arguments.seed)
    return run_many(arguments.first, arguments.seeds, arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
