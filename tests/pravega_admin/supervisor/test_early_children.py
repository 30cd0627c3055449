"""Children that are started before their settings are known, as real processes."""

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pravega_admin.cli import starts_store
from pravega_admin.serving.data_directory import open_run_directory
from pravega_admin.supervisor import early_children
from pravega_admin.supervisor.child_process import ChildSpec, start_process
from pravega_admin.supervisor.early_children import start_child
from support.processes import is_running

pytestmark = pytest.mark.processes

WAITING = """
    import sys
    from pravega_admin.supervisor.early_children import receive_settings
    text = receive_settings(int(sys.argv[1]))
    if text is None:
        sys.exit(3)
    print(len(text), text[:12], flush=True)
    if text.startswith("stay"):
        import time
        time.sleep(600)
"""


@pytest.fixture
def waiting() -> Iterator[int]:
    """The id of a child that waits for its settings; it is the early one of its kind."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = (sys.executable, "-c", textwrap.dedent(WAITING), str(theirs.fileno()))
        process = start_process(command, inherited=[theirs.fileno()])
    early_children._early["kind"] = process, ours
    yield process.pid
    early_children._early.pop("kind", None)
    ours.close()
    process.kill_group()
    process.wait()


def test_a_child_goes_on_with_the_settings_that_it_gets(waiting: int, tmp_path: Path) -> None:
    settings = "settings é" + 300_000 * "x"
    log = tmp_path / "log"
    with open_run_directory(tmp_path / "data") as directory, log.open("wb") as log_file:
        spec = ChildSpec("name", ("program", settings))
        process = start_child("kind", spec, directory, log_file=log_file.fileno())
        assert process.pid == waiting
        assert Path(directory.path, "name.pid").read_text() == f"{waiting}\n"
        assert process.wait() == 0
        os.close(process.verdict_pipe)
    assert log.read_text() == "300010 settings éxx\n"


def test_a_child_does_not_get_the_lock_with_its_settings(waiting: int, tmp_path: Path) -> None:
    holding = f"/proc/{waiting}/fd"
    log = tmp_path / "log"
    with open_run_directory(tmp_path / "data") as directory, log.open("wb") as log_file:
        spec = ChildSpec("name", ("program", "stay"))
        process = start_child("kind", spec, directory, log_file=log_file.fileno())
        while not log.stat().st_size:
            assert process.poll() is None
        held = {os.readlink(each) for each in Path(holding).iterdir()}
        assert str(log) in held
        assert str(tmp_path / "data" / "standalone.lock") not in held
        process.abandon()


def test_a_child_that_gets_no_settings_ends_without_a_word(waiting: int) -> None:
    process, channel = early_children._early.pop("kind")
    channel.close()
    assert process.wait() == 3
    os.close(process.verdict_pipe)


def test_a_child_that_has_ended_is_started_the_usual_way(waiting: int, tmp_path: Path) -> None:
    process, _ = early_children._early["kind"]
    process.kill_group()
    process.wait()
    with open_run_directory(tmp_path) as directory:
        spec = ChildSpec("name", (sys.executable, "-c", "raise SystemExit(4)"))
        again = start_child("kind", spec, directory, log_file=None)
        assert again.pid != waiting
        assert again.wait() == 4
        os.close(again.verdict_pipe)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["standalone"], True),
        (["standalone", "--data-dir", "x"], True),
        (["standalone", "-h"], False),
        (["standalone", "--port", "1", "--help"], False),
        (["server"], False),
        (["stream", "standalone"], False),
        ([], False),
    ],
)
def test_processes_are_started_early_for_a_store_alone(
    arguments: list[str], expected: bool
) -> None:
    assert starts_store(arguments) is expected


def test_nothing_stays_when_a_store_is_not_started_after_all(tmp_path: Path) -> None:
    source = """
        import sys
        sys.argv = ["segstore", "standalone", "--no-such-option"]
        from pravega_admin.supervisor import early_children
        from pravega_admin.cli import main
        try:
            main()
        finally:
            print(*(process.pid for process, _ in early_children._early.values()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr
    assert "Traceback" not in done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        for _ in range(1000):
            if not is_running(pid):
                break
            time.sleep(0.01)
        else:
            pytest.fail(f"{pid} still runs")
