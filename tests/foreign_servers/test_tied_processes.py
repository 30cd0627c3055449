"""Commands that end with the process that starts them."""

from __future__ import annotations

import ast
import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from foreign_servers.tied_processes import start_from_any_thread, tied

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 60.0
FOLDERS = ("benchmarks", "compat-tests", "deploy", "foreign_servers", "tests/support")

PARENT = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from foreign_servers.tied_processes import tied
command = tied(["sh", "-c", "echo begun; exec sleep 600"])
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_a_command_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        said, process_id = parent.stdout.readline().split()
        assert said == "begun"
        child = os.pidfd_open(int(process_id))
        try:
            parent.send_signal(signal.SIGKILL)
            assert select.select([child], [], [], SECONDS_MAX)[0], "the child lives"
        finally:
            os.close(child)


@pytest.mark.processes
def test_a_command_whose_parent_has_ended_never_begins(tmp_path: Path) -> None:
    """Earlier it ran for ever: the kernel tells nobody of a parent that has ended already."""
    begun = tmp_path / "begun"
    program, parent, *command = tied(["touch", str(begun)])
    assert parent == str(os.getpid())
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = subprocess.run([program, str(ended.pid), *command], timeout=SECONDS_MAX, check=False)
    assert done.returncode == 1
    assert not begun.exists()
    assert subprocess.run([program, parent, *command], check=True).returncode == 0
    assert begun.exists()


@pytest.mark.processes
def test_a_command_is_the_process_that_was_started() -> None:
    command = ["sh", "-c", 'echo $$ "$1"; kill -TERM $$', "name", "two words"]
    with subprocess.Popen(tied(command), stdout=subprocess.PIPE, text=True) as process:
        printed, _ = process.communicate(timeout=SECONDS_MAX)
    assert printed == f"{process.pid} two words\n"
    assert process.returncode == -signal.SIGTERM


@pytest.mark.processes
def test_a_command_outlives_the_thread_that_asked_for_it() -> None:
    """Earlier a bookie that a test had started again in a pool's thread was killed after 10 s."""

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            tied(["sh", "-c", "read line; echo $line"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    started: list[subprocess.Popen[str]] = []
    thread = threading.Thread(target=lambda: started.append(start_from_any_thread(start)))
    thread.start()
    thread.join()
    with started[0] as process:
        assert process.communicate("lives\n", timeout=SECONDS_MAX)[0] == "lives\n"


def test_a_thread_that_may_end_starts_nothing() -> None:
    with (
        ThreadPoolExecutor(1) as others,
        pytest.raises(RuntimeError, match="start_from_any_thread"),
    ):
        others.submit(tied, ["true"]).result()


def popen_calls(source: Path) -> list[ast.Call]:
    text = source.read_text()
    return [
        node
        for node in (ast.walk(ast.parse(text, filename=str(source))) if "Popen" in text else ())
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Popen"
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_process_is_tied(folder: str) -> None:
    for source in sorted((ROOT / folder).rglob("*.py")):
        for call in popen_calls(source):
            command = call.args[0]
            assert isinstance(command, ast.Call), f"{source}:{call.lineno} is not tied"
            assert ast.unparse(command.func) == "tied", f"{source}:{call.lineno} is not tied"


def test_the_kernel_is_asked_in_one_place() -> None:
    asking = [
        source
        for folder in FOLDERS
        for source in sorted((ROOT / folder).rglob("*"))
        if source.is_file() and b"pdeathsig" in source.read_bytes()
    ]
    assert asking == [ROOT / "foreign_servers" / "tied"]
