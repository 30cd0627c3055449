"""``make packages`` makes the same bytes each time, and what it makes serves without a compiler.

What a wheel depends on comes from the package index.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from foreign_servers.processes import ServerProcess

from segstore.testing.ports import free_ports

pytestmark = [
    pytest.mark.processes,
    pytest.mark.proof,
    pytest.mark.timeout(7200),
    # Two that build at once in one checkout clear each other's environments.
    pytest.mark.xdist_group("packages"),
]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {each.name for each in (ROOT / "src").iterdir() if each.name != "segstore.egg-info"}
NOT_PACKED = {".gitignore"}
NOT_INSTALLED = {".pyx", ".pxd", ".proto"}
"""Suffixes of files from which others are made."""
READY_SECONDS = 120
STOP_SECONDS = 60


def read_version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def list_tracked(*folders: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def make_packages(folder: Path, umask: int) -> Path:
    done = subprocess.run(
        ["make", "packages", f"DIST={folder}", f"PYTHON={sys._base_executable}"],
        cwd=ROOT,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of this checkout."""
    return make_packages(tmp_path_factory.mktemp("packages"), 0o022)


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    [found] = packages.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def members(wheel: Path) -> dict[str, bytes]:
    """What a wheel has, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}


def test_two_builds_have_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    again = make_packages(tmp_path, 0o077)
    names = {each.name for each in packages.iterdir()}
    assert len(names) == 3
    assert {each.name for each in again.iterdir()} == names
    differing = {name for name in names if not filecmp.cmp(packages / name, again / name, False)}
    assert differing == set()


def test_a_wheel_says_for_which_interpreter_and_c_library_it_is(wheel: Path) -> None:
    python = "cp{}{}".format(*sys.version_info[:2])
    assert re.fullmatch(
        rf"segstore-{re.escape(read_version())}-{python}-{python}-(manylinux\w+_\w+\.?)+",
        wheel.stem,
    )


def test_a_wheel_has_the_product_alone(members: dict[str, bytes]) -> None:
    tops = {PurePosixPath(name).parts[0] for name in members}
    assert tops == PACKAGES | {f"segstore-{read_version()}.dist-info"}
    packed = {name for name in members if ".dist-info/" not in name}
    sources = [PurePosixPath(name).relative_to("src") for name in list_tracked("src")]
    product = [each for each in sources if "testing" not in each.parts]
    expected = {str(each) for each in product if each.suffix not in NOT_INSTALLED}
    assert {name for name in packed if not name.endswith(".so")} == expected
    extensions = {name.partition(".")[0] for name in packed if name.endswith(".so")}
    translated = {str(each.with_suffix("")) for each in product if each.suffix == ".pyx"}
    assert extensions == translated | {"_fast/_shared", "segstore/runtime/_kernel"}


def test_a_wheel_has_its_licence_and_its_components(members: dict[str, bytes]) -> None:
    information = f"segstore-{read_version()}.dist-info"
    assert members[f"{information}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b'"bomFormat": "CycloneDX"' in members[f"{information}/sboms/segstore.cdx.json"]
    assert "pravega_controller/console/static/vendor/htmx.LICENSE.txt" in members


def test_nothing_in_a_wheel_names_the_place_where_it_was_made(members: dict[str, bytes]) -> None:
    home = str(Path(sys._base_executable).resolve().parents[1])
    places = [str(ROOT), f"{tempfile.gettempdir()}/tmp", f"{home}/include"]
    found = {
        (name, place)
        for name, content in members.items()
        for place in places
        if place.encode() in content
    }
    assert found == set()


def test_a_source_distribution_has_what_the_repository_has(packages: Path) -> None:
    name = f"segstore-{read_version()}"
    with tarfile.open(packages / f"{name}.tar.gz") as archive:
        files = [each for each in archive.getmembers() if each.isfile()]
        packed = {each.name.removeprefix(f"{name}/") for each in files}
    made = {each for each in packed if "segstore.egg-info/" in each} | {"PKG-INFO", "setup.cfg"}
    assert packed - made == set(list_tracked()) - NOT_PACKED


def test_without_a_compiler_it_is_said_before_anything_is_translated(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", f"--build-lib={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), "CC": "no-such-compiler -O2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("segstore: there is no C compiler no-such-compiler, which")
    assert list(tmp_path.iterdir()) == []


class Environment:
    """A new virtual environment whose programs are the only ones on the path: no compiler is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys._base_executable, "-m", "venv", folder / "venv"], check=True)
        self.path = str(folder / "venv" / "bin")

    def command(self, *arguments: str) -> list[str]:
        return ["/usr/bin/env", "--unset=PYTHONPATH", f"PATH={self.path}", *arguments]

    def run(self, *arguments: str, text: str = "") -> str:
        """Run a program to its end, and return what it prints."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout


def test_an_installed_wheel_serves_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    compilers = ("cc", "gcc", "clang", "make")
    assert [name for name in compilers if shutil.which(name, path=environment.path)] == []
    environment.run("pip", "install", "--quiet", "--only-binary=:all:", str(wheel))
    environment.run("pip", "check")
    assert environment.run("segstore", "--version").strip() == read_version()

    controller, store = map(str, free_ports(2))
    ports = ("--controller-port", controller, "--segment-store-port", store)
    server = ServerProcess(
        environment.command("segstore", "standalone", "--data-dir", "data", *ports),
        directory=tmp_path,
    )
    try:
        server.wait_for_text("segstore is ready", seconds_max=READY_SECONDS)
        reach = ("--controller", f"tcp://127.0.0.1:{controller}")
        environment.run("segstore", "scope", "create", "demo", *reach)
        environment.run("segstore", "stream", "create", "demo/greetings", *reach)
        write = ("segstore", "write", "demo/greetings", "--key", "greeter", *reach)
        environment.run(*write, text="hello\nworld\n")
        events = environment.run("segstore", "read", "demo/greetings", *reach)
        assert events == "hello\nworld\n"
        server.send(signal.SIGTERM)
        server.wait_for_end(seconds_max=STOP_SECONDS)
    finally:
        server.stop()
