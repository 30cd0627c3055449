"""The compose file's commands, health checks and settings, run for real: without containers.

Each service is a process on 127.0.0.1 with the command, the variables and the order that the file
says. Only what a container would have for itself is another: directories, ports, host names.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compat_harness.server import HOST, TARGET_VARIABLE
from foreign_servers.deadlines import scale
from foreign_servers.maven import resolve_class_path
from foreign_servers.tied_processes import tied

from segstore.testing.ports import free_neighbours

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(400),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SEGSTORE = Path(sys.executable).parent / "segstore"
HEALTHY_SECONDS_MAX = scale(120.0)
POLL_SECONDS = 0.5
BOOKIE_HERE = {"SET_allowLoopback": "true", "SET_listeningInterface": "lo"}


class Services:
    """The services of the compose file, each a process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        variables = {"HOST_IP": HOST, "TIER2": str(directory / "tier2")}
        self._ports = dict(
            zip(
                (*range(2181, 2182), *range(3181, 3184), *range(12345, 12348), 9090, 9091),
                range(first := free_neighbours(9), first + 9),
                strict=True,
            )
        )
        document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
        self.services: dict[str, Any] = self._translate(document, variables)["services"]
        self._jars = resolve_class_path(DEPLOY / "one_machine" / "pom.xml")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "tier2").mkdir()

    def _translate(self, value: Any, variables: dict[str, str]) -> Any:
        """Put variables in, and this machine's address and ports."""
        if isinstance(value, dict):
            return {key: self._translate(each, variables) for key, each in value.items()}
        if isinstance(value, list):
            return [self._translate(each, variables) for each in value]
        if not isinstance(value, str):
            return value
        text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: variables.get(m[1], m[2]), value)
        text = text.replace("zookeeper:2181", f"{HOST}:2181")
        ports = "|".join(map(str, self._ports))
        return re.sub(rf"\b({ports})\b", lambda m: str(self._ports[int(m[1])]), text)

    @property
    def zookeeper(self) -> str:
        return f"{HOST}:{self._ports[2181]}"

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service, with those that stand for its container."""
        data = self._directory / name
        data.mkdir(exist_ok=True)
        found = {"PATH": f"{DEPLOY / 'image'}:{SEGSTORE.parent}:{os.environ['PATH']}"}
        found |= {"HOME": str(data), **self.services[name].get("environment", {})}
        if "run-java" in self.program(name)[0]:
            number = int(name.rpartition("-")[2]) if name.startswith("bookie") else 0
            port = self._ports[3181 + number if name.startswith("bookie") else 2181]
            found |= {"DATA": str(data), "JARS": self._jars, "ZOOKEEPER": self.zookeeper}
            found |= {"PORT": str(port), "JVM": "-Xmx512m", "ADVERTISED_ADDRESS": HOST}
            found |= BOOKIE_HERE if name != "zookeeper" else {}
        else:
            found |= {"SEGSTORE_DATA_DIR": str(data), "SEGSTORE_ORIGINAL_NAMES": "1"}
        return found

    def program(self, name: str) -> list[str]:
        """Return the entry point of a service's image."""
        target = self.services[name].get("build", {}).get("target")
        return [str(DEPLOY / "image" / "run-java")] if target == "bookkeeper" else [str(SEGSTORE)]

    def start(self, name: str) -> None:
        """Start a service when what it depends on is as the file wants it."""
        for other, how in self.services[name].get("depends_on", {}).items():
            if other not in self.processes:
                self.start(other)
            if how["condition"] == "service_completed_successfully":
                assert self.processes[other].wait(HEALTHY_SECONDS_MAX) == 0, self.log(other)
            elif how["condition"] == "service_healthy":
                self.wait_healthy(other)
        self.run_again(name)

    def run_again(self, name: str) -> None:
        """Start the process of a service."""
        with (self._directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                tied([*self.program(name), *self.services[name]["command"]]),
                env=self.environment(name),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def check(self, name: str) -> subprocess.CompletedProcess[bytes]:
        """Run the health check of a service, as in its container.

        One that takes longer than the file's timeout has failed, as it has for Docker.
        """
        check = self.services[name]["healthcheck"]
        kind, *command = check["test"]
        assert kind == "CMD"
        seconds = float(check["timeout"].removesuffix("s"))
        environment = self.environment(name)
        try:
            return subprocess.run(
                command, env=environment, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"") + f"no end within {seconds} s".encode()
            return subprocess.CompletedProcess(command, -signal.SIGKILL, b"", said)

    def wait_healthy(self, name: str) -> None:
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while (done := self.check(name)).returncode != 0:
            said = done.stderr.decode(errors="replace")
            assert self.processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, f"{name}: {said}\n{self.log(name)}"
            time.sleep(POLL_SECONDS)

    def segstore(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in no container."""
        return subprocess.run(
            [str(SEGSTORE), *arguments], capture_output=True, text=True, check=False, **options
        )

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path)
    try:
        yield services
    finally:
        services.stop()


def test_the_cluster_of_the_compose_file_serves(running: Services) -> None:
    assert running.check("zookeeper").returncode != 0
    for name in running.services:
        if name not in running.processes:
            running.start(name)
    for name, service in running.services.items():
        if "healthcheck" in service:
            running.wait_healthy(name)
    where = ("--zookeeper", running.zookeeper)
    whole = ("--stores", "3", "--controllers", "2", "--bookies", "3")
    done = running.segstore("cluster", "wait", *where, *whole)
    assert done.returncode == 0, done.stderr
    # A second start of all formats again, and harms nothing.
    running.run_again("format")
    assert running.processes["format"].wait(HEALTHY_SECONDS_MAX) == 0, running.log("format")
    port = next(word for word in running.services["controller-1"]["command"] if "--port=" in word)
    controller = ("--controller", f"tcp://{HOST}:{port.partition('=')[2]}")
    for command in (("scope", "create", "demo"), ("stream", "create", "demo/orders")):
        done = running.segstore(*command, *controller)
        assert done.returncode == 0, done.stderr
    events = "".join(f"{number}\n" for number in range(1000))
    done = running.segstore("write", "demo/orders", *controller, input=events)
    assert done.returncode == 0, done.stderr
    # A store that is told to end hands over in the time that the file gives it.
    store = running.processes["store-1"]
    store.terminate()
    seconds = float(running.services["store-1"]["stop_grace_period"].removesuffix("s"))
    assert store.wait(seconds) == 0, running.log("store-1")
    assert running.check("store-1").returncode != 0
    done = running.segstore("cluster", "status", *where)
    assert done.returncode == 0, done.stderr + done.stdout
    done = running.segstore("read", "demo/orders", *controller)
    assert done.stdout == events
