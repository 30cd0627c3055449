"""Runs tests as ``make test`` does: ``python -m gate NAME PATH [OPTIONS OF PYTEST]``.

It runs in the root of the repository.

1. Pytest runs the tests. They have a temporary directory of their own, which is removed unless a
   test failed.
2. At most ``SECOND_TRIES_MAX`` tests that failed run once more, alone, after all others. If all of
   them pass, the run passes: its last lines and ``build/failed-once.jsonl`` name them, because
   each is a fault of the test or of the product.
3. There is no second try for a final failure (``gate.outcomes``), nor for a test that is new since
   the last commit that CI accepted (``gate.known_tests``).
4. Python keeps what it compiles, whatever the environment says: two workers and hundreds of
   processes import the same modules.
5. A process that outlives pytest fails the run.
6. A worker that crashes is not replaced: the run has failed, and ends when the tests that were
   begun have. With ``--dist loadgroup``, pytest-xdist waits for ever for a new worker's tests when
   another worker has ended before.

Exit codes are pytest's own; 1 where a process was left.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from foreign_servers.deadlines import FACTOR_VARIABLE

from gate.deadlines import measure_factor
from gate.known_tests import find_function, find_known_tests
from gate.process_group import adopt_orphans, end_orphans, run

SECOND_TRIES_MAX = 5
BUILD = Path("build")
FAILED_ONCE = BUILD / "failed-once.jsonl"
SEED_VARIABLE = "SEGSTORE_COMPAT_SEED"
"""Tests that kill servers at random moments draw by this seed."""
FIXED_SEED = "1"
TESTS_FAILED = 1
"""Pytest's exit code when tests failed and nothing else went wrong."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests of a folder; return the exit code."""
    name, path, *options = arguments
    adopt_orphans()
    if FACTOR_VARIABLE not in os.environ:
        factor = measure_factor()
        os.environ[FACTOR_VARIABLE] = f"{factor:.2f}"
        print(f"deadlines are multiplied by {factor:.2f}, as this machine is at work", flush=True)
    temporary = Path(tempfile.mkdtemp(prefix="seg-"))
    try:
        code = run_twice(name, path, options, temporary)
    finally:
        left = end_orphans()
    for each in left:
        print(f"left running by {path}, and killed: {each}", flush=True)
    if code == 0:
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        print(f"what the tests left is in {temporary}", flush=True)
    return code or (TESTS_FAILED if left else 0)


def run_twice(name: str, path: str, options: Sequence[str], temporary: Path) -> int:
    """Run the tests, and those that failed once more if they may; return the exit code."""
    first = BUILD / f"failures-{name}.jsonl"
    code = run_pytest([path, *options], first, temporary)
    if code != TESTS_FAILED:
        return code
    failures = read_failures(first)
    refusal = refuse_second_try(failures, find_known_tests())
    if refusal:
        print(f"no second try: {refusal}", flush=True)
        return code
    tests = list(dict.fromkeys(str(failure["test"]) for failure in failures))
    print(f"{len(tests)} failed: once more, alone", flush=True)
    second = run_pytest([*tests, "-n", "0"], BUILD / f"failures-{name}-second.jsonl", temporary)
    if second == 0:
        with FAILED_ONCE.open("a") as file:
            file.writelines(json.dumps(failure) + "\n" for failure in failures)
        for test in tests:
            print(f"failed once, passed alone: {test}", flush=True)
    return second


def run_pytest(arguments: Sequence[str], failures: Path, temporary: Path) -> int:
    """Run pytest with that temporary directory; return its exit code."""
    environment = {SEED_VARIABLE: FIXED_SEED, **os.environ, "TMPDIR": str(temporary)}
    # It led to this package. The servers that tests start find what is installed.
    environment.pop("PYTHONPATH", None)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    own = ("--failures", str(failures), "--max-worker-restart", "0")
    command = [sys.executable, "-m", "pytest", *own, *arguments]
    return run(command, environment)


def read_failures(path: Path) -> list[dict[str, object]]:
    """Return the failures that a run of pytest wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def refuse_second_try(
    failures: Sequence[dict[str, object]], known_tests: frozenset[str]
) -> str | None:
    """Return why these failures stand as they are, or None if their tests may run once more."""
    tests = dict.fromkeys(str(failure["test"]) for failure in failures)
    if not tests:
        return "pytest names no test that failed"
    if len(tests) > SECOND_TRIES_MAX:
        return f"{len(tests)} tests failed, more than {SECOND_TRIES_MAX}"
    for failure in failures:
        if failure["is_final"]:
            return f"{failure['test']} may not fail at all"
        if find_function(str(failure["test"])) not in known_tests:
            return f"{failure['test']} is new since the last accepted commit"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
