"""The Python client's whole API, with each Python that it has wheels for.

The running Python is always tried; the others, where they are installed, in the full form: each
gets a virtual environment with the client alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from foreign_servers.deadlines import scale

pytestmark = pytest.mark.proof

CLIENT = "pravega==0.3.8"
TOUR = Path(__file__).with_name("api_tour.py")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
SECONDS_MAX = scale(300.0)


def find_python(version: str) -> str | None:
    """Find an interpreter of that version, from the path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for candidate in candidates:
        # What is found on the path may be a shim that finds nothing itself.
        if candidate and _runs(str(candidate)):
            return str(candidate)
    return None


def _runs(python: str) -> bool:
    done = subprocess.run([python, "-c", ""], capture_output=True, check=False)
    return done.returncode == 0


def install_client(version: str, directory: Path) -> str:
    """Install the client in a virtual environment; return its interpreter.

    Skips the test without one.
    """
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    subprocess.run([python, "-m", "venv", directory], check=True, timeout=SECONDS_MAX)
    installed = directory / "bin" / "python"
    command = [installed, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", CLIENT]
    subprocess.run(command, check=True, timeout=SECONDS_MAX)
    return str(installed)


@pytest.mark.compat
@pytest.mark.timeout(3 * SECONDS_MAX)
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(
            version,
            marks=pytest.mark.matrix(
                client="Python", version="0.3.8", api=f"all of it, with Python {version}"
            ),
        )
        for version in ("3.8", "3.9", "3.10", "3.11")
    ],
)
def test_the_whole_api(
    version: str, controller_uri: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if version == RUNNING:
        python = sys.executable
    elif request.config.getoption("--full"):
        python = install_client(version, tmp_path / "environment")
    else:
        pytest.skip("other Pythons are tried with --full")
    done = subprocess.run(
        [python, str(TOUR), controller_uri],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "ok use a byte stream"
