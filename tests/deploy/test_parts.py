"""The parts of a cluster on one machine: names, ports, settings, and how they are launched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from segstore.testing.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from deploy.one_machine.__main__ import main, open_directory, parse_arguments  # noqa: E402
from deploy.one_machine.parts import (  # noqa: E402
    LAUNCH,
    ClusterSettings,
    list_parts,
    write_settings_files,
)

from pravega_admin.errors import EXIT_CONFIGURATION, ConfigurationError  # noqa: E402
from pravega_admin.run_directory import RunDirectory  # noqa: E402
from pravega_admin.supervisor.child_process import ChildSpec  # noqa: E402
from pravega_admin.supervisor.supervisor import Supervisor  # noqa: E402

SECONDS_MAX = 60.0


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
    for part in list_parts(settings, "jars")[4:]:
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


def test_two_do_not_run_one_cluster(settings: ClusterSettings, directory: RunDirectory) -> None:
    with pytest.raises(ConfigurationError, match="in use by another"), open_directory(settings):
        pytest.fail("it has the directory")


@pytest.mark.processes
def test_a_cluster_waits_for_the_last_process_of_a_killed_one(settings: ClusterSettings) -> None:
    """Earlier a process that waited for the port held the lock: a start at once was refused."""
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
    spec = ChildSpec("part", (str(LAUNCH), str(log), str(port), sys.executable, "-c", source))
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
