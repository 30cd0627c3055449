"""The official Rust client: its event, byte, index, table and synchronizer interfaces.

To build it takes minutes and the network, so it is tried with --full where cargo is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILD_SECONDS_MAX = 3600.0
RUN_SECONDS_MAX = 600.0

CHECKS = {
    "manage streams": "stream management",
    "write and read events": "events",
    "read across a scale": "events",
    "share a stream among readers": "reader groups",
    "truncate a stream": "stream management",
    "commit and abort transactions": "transactions",
    "write and read bytes": "byte streams",
    "search an index": "index",
    "keep a table": "tables",
    "agree by synchronizers": "synchronizers",
}
"""The checks in ``src``, and the row of the matrix that each counts for."""


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> Path:
    """The checks in ``src``, built by cargo."""
    if not request.config.getoption("--full"):
        pytest.skip("it is built for minutes: tried with --full")
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("cargo is not installed")
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target"))
    done = subprocess.run(
        [cargo, "build", "--quiet"],
        cwd=HERE,
        env={**os.environ, "CARGO_TARGET_DIR": str(target)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"cargo cannot build the client:\n{done.stderr[-3000:]}", pytrace=False)
    return target / "debug" / "rust-client"


@pytest.fixture(scope="session")
def said(program: Path, controller_uri: str) -> list[str]:
    """The lines that all checks printed."""
    done = subprocess.run(
        [str(program), controller_uri],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.compat
@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=pytest.mark.matrix(client="Rust", version="0.3.7", api=api))
        for check, api in CHECKS.items()
    ],
)
def test_an_interface(check: str, said: list[str]) -> None:
    assert f"ok {check}" in said, said
