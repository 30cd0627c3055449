"""Locks and ports that another process holds: they are waited for, and the process is named."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from segstore.ownership import holders
from segstore.ownership.holders import (
    HeldError,
    port_holders,
    take_lock,
    wait_for_port,
    write_holder,
)

SECONDS_MAX = 60.0

LOCKER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
FORKING_LOCKER = LOCKER.replace("sys.stdin", "if os.fork(): os._exit(0)\nsys.stdin")
LISTENER = """
import socket, sys
held = socket.create_server((sys.argv[1], 0), family=int(sys.argv[2]))
print(held.getsockname()[1], flush=True)
sys.stdin.read()
"""


class Holding:
    """A process that holds something until it is told to end."""

    def __init__(self, source: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    def tell_to_end(self) -> None:
        """Tell it to end, and do not wait for that."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        """Let it end, with what it started, and wait for that."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        # Its end is that of the last process that has it open.
        self.process.stdout.read()
        self.process.stdout.close()
        self.process.wait(SECONDS_MAX)


@pytest.fixture
def holding(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holding]:
    """A process that runs the parameter, a source, with the path of a lock."""
    held = Holding(request.param, str(tmp_path / "lock"))
    assert held.said == "held"
    yield held
    held.close()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def test_a_free_lock_is_taken_and_has_our_number(lock: int) -> None:
    take_lock(lock, "the cluster")
    write_holder(lock)
    assert os.pread(lock, 100, 0).decode().strip() == str(os.getpid())


@pytest.mark.processes
@pytest.mark.parametrize("holding", [LOCKER], ids=["locker"], indirect=True)
def test_a_lock_that_becomes_free_is_taken_without_a_word(
    holding: Holding, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(holders, "TELL_SECONDS", SECONDS_MAX)
    with pytest.raises(HeldError):
        take_lock(lock, "the cluster", wait_seconds=0)
    holding.tell_to_end()
    take_lock(lock, "the cluster", wait_seconds=SECONDS_MAX, tell=told.append)
    assert told == []


@pytest.mark.processes
@pytest.mark.parametrize("holding", [LOCKER], ids=["locker"], indirect=True)
def test_a_wait_is_told_and_its_end_names_the_process(
    holding: Holding, lock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, str]] = []
    monkeypatch.setattr(holders, "TELL_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(HeldError) as caught:
        take_lock(
            lock,
            "the cluster in /c",
            remark="; choose another",
            wait_seconds=0.5,
            tell=lambda sentence: told.append((time.monotonic() - began, sentence)),
        )
    assert time.monotonic() - began >= 0.5
    [(told_after, sentence)] = told
    assert told_after >= 0.2
    # What follows an option, here the program after -c, may be a secret.
    name = Path(sys.executable).name
    use = f"the cluster in /c is in use by process {holding.process.pid} ({name})"
    assert sentence.startswith(f"waiting: {use}")
    assert str(caught.value).startswith(use)
    assert str(caught.value).endswith("; choose another")
    assert "\n" not in str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize("holding", [FORKING_LOCKER], ids=["forks"], indirect=True)
def test_a_process_that_inherited_the_lock_is_named(holding: Holding, lock: int) -> None:
    """The kernel has the number of the process that took it, which has ended."""
    holding.process.wait(SECONDS_MAX)
    with pytest.raises(HeldError) as caught:
        take_lock(lock, "the cluster", wait_seconds=0)
    found = re.search(r"in use by process (\d+) \(", str(caught.value))
    assert found is not None
    assert int(found[1]) != holding.process.pid
    assert os.path.exists(f"/proc/{found[1]}")


def test_what_this_process_holds_is_refused_at_once(lock: int, tmp_path: Path) -> None:
    take_lock(lock, "the cluster")
    other = os.open(tmp_path / "lock", os.O_RDWR)
    began = time.monotonic()
    try:
        with pytest.raises(HeldError, match=f"in use by process {os.getpid()} "):
            take_lock(other, "the cluster", wait_seconds=SECONDS_MAX)
    finally:
        os.close(other)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(HeldError, match=f"^port {port} on localhost is in use by process"):
            wait_for_port("localhost", port, wait_seconds=SECONDS_MAX)
    assert time.monotonic() - began < SECONDS_MAX


@pytest.mark.processes
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_the_process_that_has_a_port_is_named_until_it_ends(host: str) -> None:
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = Holding(LISTENER, host, str(int(family)))
    port = int(held.said)
    try:
        asked = "::1" if ":" in host else "127.0.0.1"
        with pytest.raises(HeldError, match=f"port {port} .* process {held.process.pid} \\("):
            wait_for_port(asked, port, wait_seconds=0)
    finally:
        held.close()
    wait_for_port(asked, port, wait_seconds=SECONDS_MAX)


def test_a_port_of_another_address_is_nobody_s() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert port_holders("127.0.0.1", port) == [os.getpid()]
        assert port_holders("127.0.0.2", port) == []
        wait_for_port("127.0.0.2", port)


def test_a_socket_that_only_has_the_port_is_named_too() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        port = bound.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            ours = client.getsockname()[1]
            assert port_holders("127.0.0.1", ours) == [os.getpid()]
            with pytest.raises(HeldError, match=f"port {ours} "):
                wait_for_port("127.0.0.1", ours)


def test_a_process_that_cannot_be_seen_is_not_named() -> None:
    assert holders.describe_use("it", []) == "it is in use by a process that this one may not see"
    assert "(it has just ended)" in holders.describe_use("it", [2**22 + 1])


@pytest.mark.processes
def test_a_process_of_a_store_is_named_by_its_verb(tmp_path: Path) -> None:
    """What follows the verb is for the process alone, and long."""
    (tmp_path / "pravega_admin.py").write_text("print(flush=True); input()")
    command = [sys.executable, "-m", "pravega_admin", "supervise", '{"run_directory": "x"}']
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        told = holders.describe_use("it", [process.pid])
        process.communicate(b"\n")
    assert told == f"it is in use by process {process.pid} (segstore supervise)"


@pytest.mark.processes
def test_a_process_that_has_no_words_is_told_as_such() -> None:
    """It was named by nothing at all: a process at its very beginning, or a zombie."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        told = holders.describe_use("it", [process.pid])
    assert told == f"it is in use by process {process.pid} (it has just begun, or ended)"
