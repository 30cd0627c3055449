"""``make proof``: everything that is long or random, step by step, with its results on a page.

``python -m gate.proof [--seed N] [--seeds N] [--minutes N] [STEP...]`` runs the named steps.

A step that fails stops nothing. The table of ``docs/performance/proof.md`` has the newest result of
each step, with its commit, date and seed. A run with the same seed draws the same faults.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path("docs/performance/proof.md")
ROW = re.compile(r"^\| `(?P<name>[a-z-]+)` \|.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Step:
    """A command of make, and what it proves."""

    name: str
    what: str
    command: Sequence[str]


@dataclass(frozen=True, slots=True)
class Result:
    """How a step ended."""

    passed: bool
    seconds: float


def list_steps(seed: int, seeds: int, minutes: float) -> tuple[Step, ...]:
    """Return the steps, the shortest first."""
    first = seed * 1000

    def simulate(name: str, what: str) -> Step:
        arguments = f"--first {first}"
        return Step(name, what, ("make", name, f"SEEDS={seeds}", f"ARGS={arguments}"))

    def pytest(name: str, what: str, marker: str, *options: str) -> Step:
        python = (sys.executable, "-m", "gate", name)
        shared = ("--dist", "loadgroup", "--durations=25")
        return Step(name, what, (*python, *options, "-m", marker, *shared))

    drawn = ("--hypothesis-profile=random", f"--hypothesis-seed={seed}")
    clients = ("compat-tests", "--full", "-n", "3", "--no-loadscope-reorder")
    compat_full = ("make", "compat-full")
    return (
        pytest("unit-random", "unit tests on new examples", "not proof", "tests", "-n2", *drawn),
        pytest("unit-proof", "long unit tests", "proof", "tests", "-n2", *drawn),
        pytest("clients-proof", "long tests of clients", "proof and not matrix", *clients),
        Step("trio-versions", "the reactor on each supported trio", ("make", "trio-versions")),
        simulate("sim-tokens", "tokens that expire among calls"),
        simulate("sim-bookkeeper", "a ledger among failing bookies"),
        simulate("sim-controllers", "two controllers that are killed and cut off"),
        simulate("sim", "containers whose disk and tiers fail"),
        simulate("sim-cluster", "stores, controllers, bookies and ZooKeeper that fail"),
        Step(
            "vortex",
            "a real store among kills, cuts, full disks and wrong clocks",
            ("make", "vortex", f"MINUTES={minutes:g}", f"SEED={seed}"),
        ),
        Step(
            "vortex-cluster",
            "a real cluster among kills, pauses, cuts and wrong clocks",
            ("make", "vortex-cluster", f"MINUTES={minutes:g}", f"SEED={seed}"),
        ),
        Step(
            "fuzz-rest",
            "ten minutes of HTTP requests, drawn from the OpenAPI document",
            ("make", "fuzz-rest", "SECONDS=600", f"SEED={seed}"),
        ),
        Step("compat-full", "the matrix of clients, here and on the original", compat_full),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the steps; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="gate.proof", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 100_000))
    parser.add_argument("--seeds", type=int, default=1000, help="of each simulation")
    parser.add_argument("--minutes", type=float, default=60.0, help="of each vortex")
    parser.add_argument("steps", nargs="*", metavar="STEP")
    options = parser.parse_args(arguments)
    steps = list_steps(options.seed, options.seeds, options.minutes)
    unknown = set(options.steps) - {step.name for step in steps}
    if unknown:
        names = ", ".join(step.name for step in steps)
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {names}")
    chosen = [step for step in steps if not options.steps or step.name in options.steps]
    print(f"seed {options.seed}", flush=True)
    failed = []
    for number, step in enumerate(chosen, 1):
        place = f"[{number}/{len(chosen)}] {step.name}"
        print(f"{place}: {step.what}", flush=True)
        result = run(step, {**os.environ, "SEGSTORE_COMPAT_SEED": str(options.seed)})
        verdict = "passed" if result.passed else "FAILED"
        print(f"{place} {verdict} after {result.seconds:.0f} s", flush=True)
        PAGE.write_text(replace_row(PAGE.read_text(), format_row(step, result, options.seed)))
        failed += [] if result.passed else [step.name]
    print(f"failed: {', '.join(failed)}" if failed else "all steps passed", flush=True)
    return 1 if failed else 0


def run(step: Step, environment: Mapping[str, str]) -> Result:
    """Run a step to its end."""
    began = time.monotonic()
    done = subprocess.run(step.command, env=environment, check=False)
    return Result(done.returncode == 0, time.monotonic() - began)


def format_row(step: Step, result: Result, seed: int) -> str:
    """Return the row of a step's newest result."""
    describe = ("git", "describe", "--always", "--dirty", "--abbrev=8")
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    cells = (
        f"`{step.name}`",
        step.what,
        "passed" if result.passed else "**failed**",
        f"{result.seconds / 60:.0f} min",
        str(seed),
        commit or "?",
        time.strftime("%Y-%m-%d"),
    )
    return f"| {' | '.join(cells)} |"


def replace_row(page: str, row: str) -> str:
    """Return the page with this row in the place of the step's former one, or at the end."""
    match = ROW.match(row)
    assert match is not None
    for former in ROW.finditer(page):
        if former["name"] == match["name"]:
            return page[: former.start()] + row + page[former.end() :]
    return page.rstrip("\n") + f"\n{row}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
