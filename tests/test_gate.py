"""``make test`` tries what failed by chance once more, and hides nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from foreign_servers.deadlines import FACTOR_VARIABLE

from gate.deadlines import FACTOR_MAX, measure_factor
from gate.proof import replace_row

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TESTS = Path(__file__).resolve().parent
CONFTEST = f"""\
import sys

sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
pytest_plugins = (
    "gate.deadlines",
    "gate.folders",
    "gate.logs",
    "gate.outcomes",
    "gate.timeouts",
)
"""
FAILS_ONCE = """\
from pathlib import Path


def fail_once(name, error=AssertionError):
    flag = Path(name)
    if not flag.exists():
        flag.touch()
        raise error(name)
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose accepted commit has ``test_known``."""
    folder = tmp_path / "repository"
    for name, text in {
        "tests/conftest.py": CONFTEST,
        "tests/fails_once.py": FAILS_ONCE,
        "tests/test_known.py": "def test_known(): pass\n",
        "pytest.ini": "[pytest]\nmarkers =\n  no_second_try\npythonpath = tests\ntimeout = 7\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "tests: one"),
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    (folder / ".ci").mkdir()
    (folder / ".ci" / "accepted").write_text(head)
    (tmp_path / "temporary").mkdir()
    return folder


@pytest.fixture
def run(repository: Path, tmp_path: Path) -> Run:
    """Write the module of ``test_known`` anew, and run the tests of the repository."""

    def run_tests(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        (repository / "tests" / "test_known.py").write_text(text)
        variables = {
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
            "TMPDIR": str(tmp_path / "temporary"),
            FACTOR_VARIABLE: "2",
        }
        return subprocess.run(
            [sys.executable, "-m", "gate", "unit", "tests", *options],
            cwd=repository,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_tests


def failed_once(repository: Path) -> list[str]:
    path = repository / "build" / "failed-once.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["test"] for line in lines]


@pytest.mark.parametrize("options", [("-n", "2"), pytest.param((), marks=pytest.mark.proof)])
def test_what_fails_by_chance_passes_alone_and_is_named(
    run: Run, repository: Path, options: tuple[str, ...]
) -> None:
    done = run("from fails_once import fail_once\ndef test_known(): fail_once('known')\n", *options)
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "failed once, passed alone: tests/test_known.py::test_known"
    assert failed_once(repository) == ["tests/test_known.py::test_known"]


@pytest.mark.proof
def test_a_test_of_a_group_is_found_again(run: Run, repository: Path) -> None:
    done = run(
        "import pytest\nfrom fails_once import fail_once\n"
        "@pytest.mark.xdist_group('java 0.13.0')\n"
        "@pytest.mark.parametrize('name', ['a@b'])\n"
        "def test_known(name): fail_once('known')\n",
        "-n",
        "2",
        "--dist",
        "loadgroup",
    )
    assert done.returncode == 0, done.stdout
    assert failed_once(repository) == ["tests/test_known.py::test_known[a@b]"]


@pytest.mark.proof
def test_what_always_fails_fails(run: Run, repository: Path) -> None:
    done = run("def test_known(): assert False\n")
    assert done.returncode == 1
    assert "1 failed: once more, alone" in done.stdout
    assert failed_once(repository) == []


def test_a_new_test_has_no_second_try(run: Run) -> None:
    done = run("from fails_once import fail_once\ndef test_new(): fail_once('new')\n")
    assert done.returncode == 1
    assert "is new since the last accepted commit" in done.stdout


@pytest.mark.parametrize("options", [("-n", "2"), pytest.param((), marks=pytest.mark.proof)])
def test_a_loss_has_no_second_try(run: Run, options: tuple[str, ...]) -> None:
    done = run(
        "from fails_once import fail_once\n"
        "class Loss(Exception):\n    no_second_try = True\n"
        "def raise_group(name): raise ExceptionGroup(name, [ValueError(), Loss()])\n"
        "def test_known(): fail_once('known', raise_group)\n",
        *options,
    )
    assert done.returncode == 1
    assert "may not fail at all" in done.stdout


@pytest.mark.proof
def test_a_marked_test_has_no_second_try(run: Run) -> None:
    done = run(
        "import pytest\nfrom fails_once import fail_once\n"
        "@pytest.mark.no_second_try\ndef test_known(): fail_once('known')\n"
    )
    assert done.returncode == 1
    assert "may not fail at all" in done.stdout


@pytest.mark.proof
def test_a_crash_has_no_second_try(run: Run) -> None:
    # The other worker has ended by then. pytest-xdist would replace the one that crashed, and wait
    # for ever until the new one and the other have collected the tests.
    done = run(
        "import os, time\nfrom fails_once import fail_once\n"
        "def test_quick(): pass\n"
        "def test_more(): pass\n"
        "def test_known():\n"
        "    time.sleep(3)\n"
        "    fail_once('known', lambda name: os._exit(1))\n",
        "-n",
        "2",
        "--dist",
        "loadgroup",
    )
    assert done.returncode == 1
    assert "may not fail at all" in done.stdout


def test_more_than_five_are_no_chance(run: Run) -> None:
    done = run(
        "import pytest\nfrom fails_once import fail_once\n"
        "@pytest.mark.parametrize('name', 'abcdef')\ndef test_known(name): fail_once(name)\n"
    )
    assert done.returncode == 1
    assert "6 tests failed, more than 5" in done.stdout


@pytest.mark.proof
def test_a_process_that_is_left_fails_the_run(run: Run) -> None:
    done = run(
        "import subprocess\n"
        "def test_known():\n"
        "    subprocess.run(['sh', '-c', 'sleep 1000 >/dev/null 2>&1 &'], check=True)\n"
    )
    assert done.returncode == 1
    assert "left running by tests, and killed:" in done.stdout
    assert "sleep 1000" in done.stdout


@pytest.mark.proof
def test_what_python_compiles_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = run("import sys\ndef test_known(): assert not sys.dont_write_bytecode\n")
    assert done.returncode == 0, done.stdout


def test_a_run_that_passes_leaves_no_file(run: Run, tmp_path: Path) -> None:
    text = "def test_known(tmp_path): (tmp_path / 'a').write_text('b')\n"
    assert run(text).returncode == 0
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.proof
def test_what_a_failed_test_wrote_is_kept(run: Run, tmp_path: Path) -> None:
    text = "def test_known(tmp_path): (tmp_path / 'a').write_text('b'); assert False\n"
    assert run(text).returncode == 1
    assert len(list((tmp_path / "temporary").rglob("a"))) >= 1


@pytest.mark.proof
def test_time_limits_are_multiplied(run: Run) -> None:
    done = run(
        "import pytest\n"
        "def limit(request): return request.node.get_closest_marker('timeout').args[0]\n"
        "def test_known(request): assert limit(request) == 14\n"
        "@pytest.mark.timeout(11)\n"
        "def test_other(request): assert limit(request) == 22\n"
    )
    assert done.returncode == 0, done.stdout


WAITS = """\
import pytest, trio

async def wait_for_nothing():
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=SHIELD):
            await trio.sleep_forever()

@pytest.mark.trio
@pytest.mark.timeout(1)
async def test_known(tmp_path):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_nothing)

@pytest.mark.trio
async def test_other(): await trio.lowlevel.checkpoint()
"""


@pytest.mark.proof
def test_a_test_that_waits_too_long_in_a_loop_fails_alone(run: Run, repository: Path) -> None:
    done = run(WAITS.replace("SHIELD", "False"))
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "Timeout (>2 s)" in done.stdout
    assert "in wait_for_nothing" in done.stdout
    lines = (repository / "build" / "failures-unit.jsonl").read_text().splitlines()
    assert [json.loads(line)["test"] for line in lines] == ["tests/test_known.py::test_known"]


@pytest.mark.proof
def test_a_test_that_refuses_to_end_fails(run: Run) -> None:
    begin = "from gate import timeouts\ntimeouts.CANCEL_SECONDS_MAX = 1\n"
    done = run(begin + WAITS.replace("SHIELD", "True"))
    assert done.returncode == 1
    assert "Failed: Timeout (>2.0s)" in done.stdout


def test_a_failure_shows_the_logs_that_were_written_meanwhile(run: Run) -> None:
    done = run(
        "def test_known(tmp_path):\n"
        "    lines = '\\n'.join(f'line {number}' for number in range(100))\n"
        "    (tmp_path / 'server.log').write_text(lines)\n"
        "    (tmp_path / '0000.log').write_bytes(bytes(100))\n"
        "    assert False\n"
    )
    assert "/server.log" in done.stdout
    assert "/0000.log" not in done.stdout
    assert "line 99\n" in done.stdout
    assert "line 75\n" in done.stdout
    assert "line 74\n" not in done.stdout


FOLDERS = """
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def folder(tmp_path_factory): return tmp_path_factory.mktemp("store")

def test_known(folder): assert RIGHT
"""
LAST = """
def test_last(tmp_path): print("left:", *[each.name for each in tmp_path.parent.glob("store[0-9]")])
"""


@pytest.mark.parametrize(("is_right", "left"), [(True, ""), (False, " store0")])
def test_the_folder_of_a_fixture_goes_with_it_unless_a_test_failed(
    run: Run, repository: Path, is_right: bool, left: str
) -> None:
    (repository / "tests" / "test_last.py").write_text(LAST)
    done = run(FOLDERS.replace("RIGHT", str(is_right)), "-s", "tests/test_last.py")
    assert f"left:{left}\n" in done.stdout


def test_a_machine_has_a_factor() -> None:
    assert 1 <= measure_factor() <= FACTOR_MAX


def test_a_step_of_the_proof_has_one_row() -> None:
    page = "# Proof\n\n| step | result |\n| --- | --- |\n"
    page = replace_row(page, "| `sim` | passed |")
    page = replace_row(page, "| `vortex` | passed |")
    page = replace_row(page, "| `sim` | **failed** |")
    assert page.endswith("| --- | --- |\n| `sim` | **failed** |\n| `vortex` | passed |\n")
