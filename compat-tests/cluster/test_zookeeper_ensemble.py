"""Three ZooKeepers of the image's script, as the manifests for Kubernetes have them, for real."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat_harness.server import TARGET_VARIABLE
from foreign_servers.deadlines import scale
from foreign_servers.maven import resolve_class_path
from foreign_servers.tied_processes import tied
from kazoo.client import KazooClient

from segstore.testing.ports import free_ports

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(300),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs servers of its own"),
]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RUN_JAVA = DEPLOY / "image" / "run-java"
HOSTS = ("127.0.7.1", "127.0.7.2", "127.0.7.3")
"""The ports between them are the same on each, so each has an address of its own."""
SECONDS_MAX = scale(120.0)


class Ensemble:
    """The servers, each with the variables that its pod would have."""

    def __init__(self, directory: Path) -> None:
        jars = resolve_class_path(DEPLOY / "one_machine" / "pom.xml")
        self.environments = []
        for host, port in zip(HOSTS, free_ports(len(HOSTS)), strict=True):
            data = directory / host
            data.mkdir()
            own = {"HOSTNAME": host, "DATA": str(data), "PORT": str(port), "JARS": jars}
            shared = {"SERVERS": ",".join(HOSTS), "JVM": "-Xmx256m"}
            self.environments.append({"PATH": os.environ["PATH"], **own, **shared})
        self._processes = {number: self._start(number) for number in range(len(HOSTS))}

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{each['PORT']}" for each in self.environments]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        environment = self.environments[number]
        with (Path(environment["DATA"]) / "log").open("ab") as log:
            return subprocess.Popen(
                tied([RUN_JAVA, "zookeeper"]),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, number: int, *words: str, **variables: str) -> int:
        """Run the script beside a server; return its exit code."""
        environment = {**self.environments[number], **variables}
        return subprocess.run([RUN_JAVA, *words], env=environment, check=False).returncode

    def wait_ready(self, number: int, *, is_ready: bool = True) -> None:
        """Wait until the check of its pod says so."""
        deadline = time.monotonic() + SECONDS_MAX
        while (self.run(number, "check", "zookeeper") == 0) is not is_ready:
            log = Path(self.environments[number]["DATA"]) / "log"
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill(number)


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    opened = Ensemble(tmp_path)
    yield opened
    opened.stop()


def test_three_zookeepers_elect_a_leader_and_go_on_without_one(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    for number in range(3):
        ensemble.wait_ready(number)
    (tmp_path / "format").mkdir()
    format_variables = {
        "DATA": str(tmp_path / "format"),
        "ZOOKEEPER": ";".join(ensemble.addresses),
        "CLUSTER": "prod",
        "ADVERTISED_ADDRESS": "127.0.0.1",
        "PORT": "3181",
    }
    assert ensemble.run(0, "format", **format_variables) == 0
    ensemble.kill(0)
    for number in (1, 2):
        ensemble.wait_ready(number)
    client = KazooClient(hosts=",".join(ensemble.addresses))
    client.start(SECONDS_MAX)
    try:
        assert client.exists("/pravega/prod/bookkeeper/ledgers/INSTANCEID")
    finally:
        client.stop()
        client.close()
    # One of three is no quorum: its check fails, so that it gets no clients.
    ensemble.kill(1)
    ensemble.wait_ready(2, is_ready=False)
