"""The tests that are new since the last commit that CI accepted.

``.ci/accepted`` has the id of that commit. A test is known by the name of its function, wherever it
was then. Where git cannot tell (a copy without history), no test is known.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ACCEPTED = Path(".ci/accepted")
FUNCTION = r"def test_[A-Za-z0-9_]*"


def find_known_tests() -> frozenset[str]:
    """Return the names of the test functions in the accepted commit of the working directory."""
    try:
        commit = ACCEPTED.read_text().strip()
        found = subprocess.run(
            ["git", "grep", "-hoE", FUNCTION, commit, "--", "tests", "compat-tests"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return frozenset()
    return frozenset(line.removeprefix("def ") for line in found.splitlines())


def find_function(test: str) -> str:
    """Return the function's name in the id of a test, such as ``a/test_b.py::test_c[d]``."""
    match = re.search(r"::(test_[A-Za-z0-9_]*)", test)
    return match[1] if match else ""
