"""The supervisor of a cluster on one machine is killed while a part starts again: nothing runs on,
and the next start is not refused.

The supervisor, the lock and the launch of parts are the real ones. The parts are commands that
sleep: ``part`` waits for a port that never opens, so that somebody waits for it as long as it runs.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from foreign_servers.tied_processes import tied

from segstore.testing.ports import free_ports

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 60.0
POLL_SECONDS = 0.001
MARK = "SEGSTORE_TEST_MARK"
SEED = "SEGSTORE_TEST_SEED"
PARTS = ("part", "other")
STEPS = ("setpriv", "sh", "bash")
"""The programs that a part is before it is its command, in their order."""

SUPERVISORS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from deploy.one_machine import __main__ as cluster
from deploy.one_machine.parts import ClusterSettings, launched_command
from pravega_admin.supervisor.child_process import ChildSpec

data_dir, port, mark = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def list_parts(*_):
    return [
        ChildSpec(name, launched_command(str(data_dir / "log" / f"{name}.log"), ["sleep", "600"],
                                         ready_port=at))
        for name, at in (("part", port), ("other", None))
    ]

cluster.list_parts = list_parts
settings = ClusterSettings(data_dir)
for number in sys.stdin:
    supervisor = os.fork()
    if supervisor == 0:
        os.environ[mark] = number.strip()
        os.dup2(2, 1)
        with cluster.open_directory(settings) as directory:
            cluster.run(settings, "jars", directory, None, restarts=True)
        os._exit(0)
    print(supervisor, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1]), flush=True)
"""
"""Becomes one supervisor after the other: one for each line of its input, which marks all that
this supervisor starts."""

HOLDING = """#!/bin/sh
if [ -e "{place}/hold-{step}" ]; then
    touch "{place}/reached"
    until [ -e "{place}/go" ]; do sleep 0.01; done
fi
exec {program} "$@"
"""
"""Stands in the path in front of a program, which it becomes: while it is held, at its word."""


class Supervisors:
    """One supervisor of a data directory after the other, each killed, and what they started."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        (self.data_dir / "log").mkdir(parents=True)
        self.place = directory / "place"
        self.place.mkdir()
        for step in STEPS:
            program = self.place / step
            real = shutil.which(step)
            program.write_text(HOLDING.format(place=self.place, step=step, program=real))
            program.chmod(0o755)
        [port] = free_ports(1)
        command = [sys.executable, "-c", SUPERVISORS, str(ROOT), str(self.data_dir), str(port)]
        self.output = directory / "output"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                tied([*command, MARK]),
                env={**os.environ, "PATH": f"{self.place}:{os.environ['PATH']}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        self.number = 0
        self.pid = 0

    def close(self) -> None:
        for pid in (self.pid, self._process.pid):
            kill(pid)
        self._process.communicate()
        for number in range(self.number + 1):
            for pid in self.left_of(number):
                kill(pid)

    def start(self) -> None:
        """Start a supervisor, and return when its parts have become their commands."""
        self.number += 1
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self.number}\n")
        self._process.stdin.flush()
        self.pid = int(self._process.stdout.readline())
        for name in PARTS:
            self.wait_until_runs(name, but=0)

    def wait_until_runs(self, name: str, *, but: int) -> int:
        """Wait until a part of this supervisor runs, in another process than ``but``."""

        def runs() -> bool:
            pid = self.pid_of(name)
            return pid != but and pid in self.left_of(self.number) and is_command(pid)

        eventually(runs, self.output)
        return self.pid_of(name)

    def pid_of(self, name: str) -> int:
        """Return the process that the pid file names; 0 while it names none."""
        try:
            return int((self.data_dir / "run" / f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def kill(self) -> int:
        """Kill the supervisor and wait for its end; return its number."""
        kill(self.pid)
        assert self._process.stdout is not None
        # Of another end, such as a refused start, the output tells.
        assert int(self._process.stdout.readline()) == -signal.SIGKILL, self.output.read_text()
        return self.number

    def left_of(self, number: int) -> list[int]:
        """Return the processes that a supervisor has started, and all that these have started."""
        mark = f"{MARK}={number}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:  # it has ended, or is somebody else's
                continue
            if mark in environment.split(b"\0"):
                found.append(int(entry.name))
        return found

    def begun_of(self, number: int) -> list[int]:
        """Return the parts of a supervisor that are their commands."""
        return [pid for pid in self.left_of(number) if is_command(pid)]


def is_command(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00"
    except OSError:
        return False


def kill(pid: int) -> None:
    # 0, where no process is known, would mean our own process group.
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def eventually(condition: Callable[[], bool], output: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(POLL_SECONDS)


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[Supervisors]:
    found = Supervisors(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_supervisor_is_killed_at_each_step_of_a_part_s_restart(
    supervisors: Supervisors, step: str
) -> None:
    """Earlier a part whose supervisor was killed at its first step ran on for ever, and had the
    cluster's lock."""
    supervisors.start()
    (supervisors.place / f"hold-{step}").touch()
    kill(supervisors.pid_of("part"))
    eventually((supervisors.place / "reached").exists, supervisors.output)
    killed = supervisors.kill()
    (supervisors.place / f"hold-{step}").unlink()
    # The next one starts while what is held is still there, if it is.
    supervisors.start()
    (supervisors.place / "go").touch()
    eventually(lambda: not supervisors.left_of(killed), supervisors.output)
    begun = supervisors.begun_of
    eventually(lambda: len(begun(supervisors.number)) == len(PARTS), supervisors.output)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_supervisor_is_killed_at_a_thousand_moments(supervisors: Supervisors) -> None:
    seed = int(os.environ.get(SEED, time.time_ns() % 1_000_000))
    print(f"{SEED}={seed}")
    rng = random.Random(seed)
    supervisors.start()
    longest = 0.0
    for _ in range(5):
        began, old = time.monotonic(), supervisors.pid_of("other")
        kill(old)
        # The first restart is without a pause: each supervisor makes one.
        supervisors.wait_until_runs("other", but=old)
        longest = max(longest, time.monotonic() - began)
        supervisors.kill()
        supervisors.start()
    for _ in range(1_000):
        kill(supervisors.pid_of(rng.choice(PARTS)))
        time.sleep(rng.uniform(0, longest))
        killed = supervisors.kill()
        supervisors.start()
        eventually(lambda killed=killed: not supervisors.left_of(killed), supervisors.output)
