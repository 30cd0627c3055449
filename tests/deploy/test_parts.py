"""The parts of a cluster on one machine: names, ports, settings, and how they are launched."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from segstore.testing.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from deploy.one_machine.__main__ import main, open_directory, parse_arguments  # noqa: E402
from deploy.one_machine.parts import (  # noqa: E402
    ClusterSettings,
    launched_command,
    list_parts,
    write_settings_files,
)

from pravega_admin.errors import EXIT_CONFIGURATION, ConfigurationError  # noqa: E402
from pravega_admin.supervisor.child_process import ChildSpec  # noqa: E402
from pravega_admin.supervisor.run_directory import RunDirectory  # noqa: E402
from pravega_admin.supervisor.supervisor import Supervisor  # noqa: E402

SECONDS_MAX = 60.0


def test_help_explains_each_option_and_tells_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out.partition("options:")[2]
    entries = [" ".join(entry.split()) for entry in told.split("\n  -")]
    for entry in entries[2:]:
        # A name, a value in capitals, a text in words.
        assert re.match(r"-[a-z-]+ ([A-Z=]+ )?[a-z]\w+", entry), entry
    usual = ClusterSettings(Path())
    defaults = [usual.stores, usual.controllers, usual.bookies, usual.containers, usual.name]
    defaults += [usual.zookeeper_port, usual.bookie_port, usual.store_port, usual.controller_port]
    for default in defaults:
        assert f"(default: {default})" in " ".join(told.split())


@pytest.fixture
def settings(tmp_path: Path) -> ClusterSettings:
    return ClusterSettings(tmp_path)


@pytest.fixture
def directory(settings: ClusterSettings) -> Iterator[RunDirectory]:
    with open_directory(settings) as opened:
        yield opened


def test_the_usual_cluster(tmp_path: Path) -> None:
    settings, restarts = parse_arguments(["--data-dir", str(tmp_path)])
    assert restarts
    assert settings == ClusterSettings(tmp_path)
    assert settings.controller_uri == "tcp://127.0.0.1:9090,127.0.0.1:9091"
    assert [part.name for part in list_parts(settings, "jars")] == [
        "zookeeper",
        "format",
        *(f"bookie-{number}" for number in range(3)),
        *(f"segment-store-{number}" for number in range(3)),
        *(f"controller-{number}" for number in range(2)),
    ]


@pytest.mark.parametrize(
    "arguments", [["--bookies", "2"], ["--stores", "0"], ["--containers", "x"]]
)
def test_what_is_no_cluster_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments)
    assert caught.value.code == 2


def test_all_parts_mean_the_same_zookeeper_and_ledgers(settings: ClusterSettings) -> None:
    write_settings_files(settings)
    for number in range(3):
        text = (settings.data_dir / f"bookie-{number}.properties").read_text()
        assert f"zk+hierarchical://127.0.0.1:2181{settings.ledgers_path}\n" in text
        assert f"bookiePort={3181 + number}\n" in text
    for part in list_parts(settings, "jars")[5:]:
        assert "--zookeeper=127.0.0.1:2181" in part.command
        assert "--container-count=8" in part.command


def test_processes_are_dialled_at_hosts_of_proxies(tmp_path: Path) -> None:
    detours = {
        "segment-store-1": "127.0.1.1",
        "controller-0/zookeeper": "127.0.1.2",
        "bookie-2/zookeeper": "127.0.1.3",
    }
    given = [f"--detour={name}={host}" for name, host in detours.items()]
    settings, _ = parse_arguments(["--data-dir", str(tmp_path), *given])
    write_settings_files(settings)
    commands = {part.name: part.command for part in list_parts(settings, "jars")}
    assert "--publish=127.0.1.1:12346" in commands["segment-store-1"]
    assert not any(each.startswith("--publish") for each in commands["segment-store-0"])
    assert "--zookeeper=127.0.1.2:2181" in commands["controller-0"]
    assert "--zookeeper=127.0.0.1:2181" in commands["controller-1"]
    text = (tmp_path / "bookie-2.properties").read_text()
    assert f"zk+hierarchical://127.0.1.3:2181{settings.ledgers_path}\n" in text
    with pytest.raises(SystemExit):
        parse_arguments(["--data-dir", str(tmp_path), "--detour", "segment-store-1"])


def test_a_link_to_a_program_is_looked_up_at_each_start(tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(tmp_path / "old")
    program = tmp_path / "current" / "bin" / "segstore"
    given = ["--data-dir", str(tmp_path), "--program", str(program)]
    settings, _ = parse_arguments(given)
    commands = {part.name: part.command for part in list_parts(settings, "jars")}
    for name in ("segment-store-0", "controller-1"):
        assert str(program) in commands[name]


def test_two_do_not_run_one_cluster(settings: ClusterSettings, directory: RunDirectory) -> None:
    in_use = f"the cluster in {settings.data_dir} is in use by process {os.getpid()} "
    with pytest.raises(ConfigurationError, match=re.escape(in_use)), open_directory(settings):
        pytest.fail("it has the directory")


@pytest.mark.processes
def test_a_cluster_waits_for_a_process_that_ends_with_the_lock(settings: ClusterSettings) -> None:
    with open_directory(settings) as directory:
        ending = subprocess.Popen(["sleep", "0.5"], pass_fds=[directory.lock_descriptor])
    with ending, open_directory(settings):
        assert ending.wait(0) == 0


@pytest.mark.processes
def test_a_part_logs_and_tells_when_its_port_is_open(
    tmp_path: Path, directory: RunDirectory
) -> None:
    [port] = free_ports(1)
    source = (
        "import socket, sys, time; print('hello', flush=True); time.sleep(0.3)\n"
        f"held = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
    )
    log = tmp_path / "part.log"
    spec = ChildSpec(
        "part", launched_command(str(log), [sys.executable, "-c", source], ready_port=port)
    )
    supervisor = Supervisor([spec], directory=directory, report=print)
    ready = threading.Event()
    thread = threading.Thread(target=supervisor.run, kwargs={"on_ready": ready.set})
    thread.start()
    try:
        assert ready.wait(SECONDS_MAX)
        assert log.read_text() == "hello\n"
        pid = int((tmp_path / "run" / "part.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert command[:2] == [sys.executable.encode(), b"-c"]
        os.kill(pid, signal.SIGTERM)
    finally:
        supervisor.stop()
        thread.join(SECONDS_MAX)


@pytest.mark.processes
def test_a_part_that_is_killed_before_it_listens_is_started_again(
    tmp_path: Path, directory: RunDirectory
) -> None:
    """Earlier who waited for its port held the pipe, and the supervisor waited for that end."""
    [port] = free_ports(1)
    log = tmp_path / "part.log"
    spec = ChildSpec("part", launched_command(str(log), ["sleep", "600"], ready_port=port))
    sentences: list[str] = []
    supervisor = Supervisor([spec], directory=directory, report=sentences.append, lasts=True)
    # A daemon: one that stands still fails the test, and does not hang it.
    thread = threading.Thread(target=supervisor.run, kwargs={"on_ready": print}, daemon=True)
    thread.start()
    seen: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while len(seen) < 4:
            assert time.monotonic() < deadline
            pid = _pid_of_command(tmp_path, b"sleep")
            if pid not in {None, *seen}:
                assert pid is not None
                seen.add(pid)
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    finally:
        supervisor.stop()
        thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    assert sentences[0] == "part was killed by SIGKILL; starting it again"


@pytest.mark.processes
def test_the_pid_of_a_part_is_written_before_the_part_does_anything(
    tmp_path: Path, directory: RunDirectory
) -> None:
    """Here no supervisor writes it: as where that one is slow, or ends between."""
    log = tmp_path / "log" / "part.log"
    log.parent.mkdir()
    command = launched_command(str(log), ["sh", "-c", "echo $$; cat run/part.pid"])
    subprocess.run(command, timeout=SECONDS_MAX, check=True)
    own, written = log.read_text().split()
    assert written == own


def _pid_of_command(data_dir: Path, program: bytes) -> int | None:
    """Return the process of a part that has become its command; None while there is none."""
    try:
        pid = int((data_dir / "run" / "part.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if command.startswith(program + b"\0") else None


def test_a_port_that_is_taken_is_told_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deploy.one_machine.__main__.resolve_class_path", lambda pom: "jars")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["--data-dir", str(tmp_path), "--zookeeper-port", str(port)])
    assert code == EXIT_CONFIGURATION
    assert f"port {port} on 127.0.0.1 is in use" in capsys.readouterr().err
    assert not (tmp_path / "zookeeper.properties").exists()
