"""A service manager listens, as systemd does: it is told once that a service is ready."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_admin.supervisor.service_manager import VARIABLE, notify_ready

READY_SECONDS_MAX = 60.0


@pytest.fixture(params=["path", "name"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket of a manager, at a path or under a name in Linux's own space."""
    name = f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(READY_SECONDS_MAX)
        receiver.bind(name if request.param == "path" else f"\0{name}")
        monkeypatch.setenv(VARIABLE, name if request.param == "path" else f"@{name}")
        yield receiver


def assert_silent(manager: socket.socket) -> None:
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_a_manager_is_told(manager: socket.socket) -> None:
    notify_ready()
    assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("path", ["", "/nobody/listens/here"])
def test_where_nobody_listens_nothing_happens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, path)
    notify_ready()


@pytest.mark.processes
def test_a_standalone_store_tells_when_all_of_it_is_ready(
    manager: socket.socket, new_store: Any
) -> None:
    store = new_store()
    store.start()
    assert manager.recv(100) == b"READY=1"
    assert_silent(manager)
    assert store.stop(signal.SIGTERM) == 0


@pytest.mark.processes
def test_a_server_tells_when_it_serves(manager: socket.socket, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    command = ["server", f"--port={port}", f"--data-dir={tmp_path / 'data'}"]
    process = subprocess.Popen([sys.executable, "-m", "pravega_admin", *command])
    try:
        assert manager.recv(100) == b"READY=1"
        check = ["check", "segment-store", f"127.0.0.1:{port}"]
        subprocess.run([sys.executable, "-m", "pravega_admin", *check], check=True)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_SECONDS_MAX) == 0
    assert_silent(manager)
