"""Runs many seeds in several processes: ``python -m simulation --seeds 1000 [--first 0]``,
or one of them, with everything that happened in it: ``--seed 17``."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from seeds import parse_arguments, run_seeds

from simulation.owners import OwnersError, simulate_owners
from simulation.recoveries import RecoveriesError, simulate_recoveries
from simulation.run import FailedSeedError, Report, simulate


def run_seed(seed: int) -> Report | str:
    """Run a seed; return a report, or the failure."""
    try:
        report = simulate_all(seed)
    except (FailedSeedError, OwnersError, RecoveriesError) as error:
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
        return f"{cause}\n{error}\nreplay: make sim SEED={seed}\n"
    report.lines = []
    return report


def simulate_all(seed: int) -> Report:
    """Simulate one store on its tiers, several on each other's, and one that is recovered."""
    report = simulate(seed)
    for what, simulate_more in (
        ("owners", simulate_owners),
        ("owners, tier 2 hides", partial(simulate_owners, hides=True)),
        ("recoveries", simulate_recoveries),
    ):
        with TemporaryDirectory() as folder:
            counts, _ = simulate_more(seed, Path(folder))
        report.fault_counts += Counter({f"{what}: {kind}": n for kind, n in counts.items()})
    return report


def run_one(seed: int, *, lines_max: int) -> int:
    """Replay one seed and show its trace."""
    try:
        report = simulate_all(seed)
    except (FailedSeedError, OwnersError, RecoveriesError) as error:
        traceback.print_exception(error.__cause__)
        print(error)
        return 1
    for line in report.lines[-lines_max:]:
        print(line)
    print(report)
    return 0


def run_many(first: int, count: int, processes: int) -> int:
    """Run seeds from ``first`` on; returns the exit code."""
    steps = lives = openings = 0
    simulated = 0.0
    faults: Counter[str] = Counter()
    seeds: Counter[str] = Counter()

    def add(report: Report) -> None:
        nonlocal steps, lives, openings, simulated
        steps += report.step_count
        lives += report.life_count
        openings += report.opening_count
        simulated += report.seconds
        faults.update(report.fault_counts)
        seeds.update(report.fault_counts.keys())

    ran = run_seeds(run_seed, range(first, first + count), add, processes=processes)
    each = ran.seconds * processes / max(1, ran.done)
    print(
        f"{ran.done} seeds in {ran.seconds:.0f} s ({each:.2f} s each on "
        f"{processes} processes): {steps} steps, {lives} lives, {openings} containers opened, "
        f"{simulated / 3600:.1f} simulated hours, {ran.failures} failures"
    )
    for kind in sorted(faults):
        print(f"{faults[kind]:8} x {kind}, in {seeds[kind]} seeds")
    return 1 if ran.failures else 0


def main() -> int:
    """Run the command."""
    arguments = parse_arguments("simulation", lines_max=200)
    if arguments.seed is not None:
        return run_one(arguments.seed, lines_max=arguments.lines)
    return run_many(arguments.first, arguments.seeds, arguments.processes)


if __name__ == "__main__":
    sys.exit(main())
