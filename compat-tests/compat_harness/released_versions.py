"""Released versions of the product, made of the repository's history, and environments to run them.

Owns: the commits of the releases, their source trees and wheels, and ``Environments``: a virtual
environment of a release, and one of this checkout.

What the product depends on is that of the environment which runs the tests: nothing is fetched.

Invariants:
1. What runs in an environment imports the product's packages of its own version alone. Held by
   ``test_each_environment_has_its_version``.
2. A version is compiled once on a machine, into ``build/released``, also when several processes ask
   at once: its commit does not change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from foreign_servers.deadlines import scale
from foreign_servers.maven import locked

from compat_harness.own_load import Program

ROOT = Path(__file__).resolve().parents[2]
COMMITS = {"0.2.0": "1b30860b0b7c62f7c1dd0c9a4b92d429487cd735"}
"""The commit of each release, by its version; the newest is the last."""
NEWEST_RELEASE = [*COMMITS][-1]
BUILD_SECONDS_MAX = scale(1800.0)
HIDDEN = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would let every interpreter import the product of one version."""


@dataclass(frozen=True, slots=True)
class Release:
    """A released version: the folder with its sources, and the wheel that was built of them."""

    version: str
    tree: Path
    wheel: Path


def build_release(version: str) -> Release:
    """Build a release from the repository's history, unless that was done; skip the test without
    that history, as in a shallow clone."""
    commit = COMMITS[version]
    if not _succeeds("git", "cat-file", "-e", f"{commit}^{{commit}}"):
        pytest.skip(f"the history of this clone lacks version {version}, commit {commit[:8]}")
    released = ROOT / "build" / "released"
    released.mkdir(parents=True, exist_ok=True)
    folder = released / f"{version}-{commit[:8]}-{sys.implementation.cache_tag}"
    with locked(folder):
        tree = folder / "tree"
        if not (found := list(folder.glob("*.whl"))):
            shutil.rmtree(tree, ignore_errors=True)
            tree.mkdir()
            archive = folder / "tree.tar"
            _run("git", "archive", f"--output={archive}", commit)
            _run("tar", "--extract", f"--file={archive}", f"--directory={tree}")
            archive.unlink()
            _pip("wheel", f"--wheel-dir={folder}", str(tree))
            found = list(folder.glob("*.whl"))
        (wheel,) = found
    return Release(version, tree, wheel)


class Environments:
    """Two virtual environments: ``old`` has a release, ``new`` has this checkout.

    ``folder`` is where both are.
    """

    def __init__(self, folder: Path, release: Release) -> None:
        self.old, self.new = folder / "old", folder / "new"
        self.release = release
        for place in (self.old, self.new):
            _run(sys.executable, "-m", "venv", "--without-pip", str(place))
            packages = place / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
            # Lines of this file become places to import from, behind those of the environment.
            (packages / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
            if place == self.new:
                # Here, too, the sources are used where they lie, as `make build` lets them.
                (packages / "checkout.pth").write_text(f"{ROOT / 'src'}\n")
                self._write_program()
        _pip(f"--python={self.old}", "install", "--ignore-installed", str(release.wheel))

    def _write_program(self) -> None:
        program = self.new / "bin" / "segstore"
        lines = [f"#!{self.new / 'bin' / 'python'}", "import sys"]
        lines += ["from pravega_admin.cli import main", "sys.exit(main())", ""]
        program.write_text("\n".join(lines))
        program.chmod(0o755)

    @property
    def programs(self) -> dict[str, Program]:
        """Return what runs the load of ``OwnLoad`` with the client of each version."""
        return {
            "old": Program(self.old / "bin" / "python", self.release.tree),
            "new": Program(self.new / "bin" / "python", ROOT),
        }

    def name_of(self, pid: int) -> str:
        """Return in which of both a process runs: ``old`` or ``new``."""
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        for place in (self.old, self.new):
            if any(Path(word).is_relative_to(place) for word in words[:2]):
                return place.name
        raise AssertionError(f"process {pid} runs {words}, in neither of both")


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that would choose the version for all interpreters."""
    return {name: value for name, value in variables.items() if name not in HIDDEN}


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def _pip(*arguments: str) -> None:
    """Run pip without an index: what is needed is there, or the test fails."""
    alone = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", *arguments, "--quiet", *alone)


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
