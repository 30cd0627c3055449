"""The official Rust client: its event, byte, index, table and synchronizer interfaces.

To build it takes minutes and the network, so it is tried with --full where cargo is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from compat_harness.secure import SECURE_API, SecureServer
from foreign_servers.deadlines import scale

HERE = Path(__file__).parent
BUILD_SECONDS_MAX = scale(3600.0)
RUN_SECONDS_MAX = scale(600.0)
VERSION = "0.3.7"

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


pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX),
]


def run_checks(
    program: Path, controller_uri: str, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the lines that all checks printed, and print what the client said besides.

    ``environment`` is added to the present one.
    """
    done = subprocess.run(
        [str(program), controller_uri],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    print(done.stderr[-5_000:])
    return done.stdout.splitlines()


@pytest.fixture(scope="session")
def said(program: Path, controller_uri: str) -> list[str]:
    """The lines that all checks printed."""
    return run_checks(program, controller_uri)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=pytest.mark.matrix(client="Rust", version=VERSION, api=api))
        for check, api in CHECKS.items()
    ],
)
def test_an_interface(check: str, said: list[str]) -> None:
    assert f"ok {check}" in said, said


@pytest.mark.matrix(client="Rust", version=VERSION, api=SECURE_API)
def test_every_interface_works_over_tls_with_a_user(
    program: Path, secure_server: SecureServer
) -> None:
    """The user may create scopes, and use those that the checks create."""
    rights = (("prn::/", "READ_UPDATE"), ("prn::/scope:rust-*", "READ_UPDATE"))
    secure_server.add_user("rust", *rights)
    environment = secure_server.official_environment("rust")
    said = run_checks(program, secure_server.controller_uri, environment)
    assert [f"ok {check}" for check in CHECKS] == said
