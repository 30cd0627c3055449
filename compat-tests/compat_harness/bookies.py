"""A real ZooKeeper, real bookies, and the official client of BookKeeper, each a JVM.

Owns: ``BookieCluster``. Everything listens on free ports of 127.0.0.1 and keeps its files in one
directory; bookies sync their journals before they answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.maven import compiled_class_path
from benchmarks.peers.cluster import BOOKIE, READY_SECONDS_MAX, ZOOKEEPER
from benchmarks.peers.durable_files import (
    LEDGERS_PATH,
    write_bookie_settings,
    write_zookeeper_settings,
)
from benchmarks.peers.jvm import LOGBACK, java_command
from benchmarks.peers.processes import ServerProcess
from kazoo.client import KazooClient

from segstore.testing.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "compat-tests" / "bookkeeper"
POM = ROOT / "benchmarks" / "peers" / "durable" / "pom.xml"
TOOL = "bookkeeper.LedgerTool"
POLL_SECONDS = 0.05
REGISTRATION_SECONDS_MAX = 40.0
"""Maximum time between the start of a bookie and its registration, or its end, in seconds: it waits
10 s for the session of its earlier life, on a machine that has other work."""
OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class OfficialClient:
    """The official client, in a JVM that takes commands: see ``LedgerTool.java``."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._log = (directory / "client.log").open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def ask(self, *words: object) -> list[str]:
        """Send a command.

        Return the words of the answer, of which the first is ``ok`` or ``error``.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith(("ok", "error")):
                return line.split()
        raise AssertionError(f"the official client ended: {self._process.wait()}")

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


class BookieCluster:
    """A ZooKeeper with some bookies, started by the constructor."""

    ledgers_root = LEDGERS_PATH

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._class_path = compiled_class_path(PROJECT, TOOL, pom=POM)
        self._zookeeper_port, *self._ports = free_ports(count + 1)
        self._bookies: dict[int, ServerProcess] = {}
        self._client: OfficialClient | None = None
        self._kazoo = KazooClient(hosts=self.zookeeper)
        settings = directory / "zookeeper.properties"
        write_zookeeper_settings(settings, data=directory / "zookeeper", port=self._zookeeper_port)
        self._zookeeper = ServerProcess(
            self._java(ZOOKEEPER, str(settings)), directory=directory, name="zookeeper"
        )
        try:
            self._zookeeper.wait_for_port(self._zookeeper_port, seconds_max=READY_SECONDS_MAX)
            self._kazoo.start()
            assert self.client.ask("format") == ["ok", "true"]
            for number in range(count):
                self._launch(number)
            for number in range(count):
                self._wait(number, None)
        except BaseException:
            self.stop()
            raise

    @property
    def zookeeper(self) -> str:
        """Return the connect string."""
        return f"127.0.0.1:{self._zookeeper_port}"

    @property
    def client(self) -> OfficialClient:
        """Return the official client, started when it is first needed."""
        if self._client is None:
            uri = f"zk+hierarchical://{self.zookeeper}{LEDGERS_PATH}"
            self._client = OfficialClient(self._java(TOOL, uri), self._directory)
        return self._client

    def bookie_id(self, number: int) -> str:
        """Return the id of a bookie."""
        return f"127.0.0.1:{self._ports[number]}"

    def number_of(self, bookie: str) -> int:
        """Return the number of the bookie with this id."""
        return self._ports.index(int(bookie.rpartition(":")[2]))

    def kill(self, number: int) -> None:
        """Kill a bookie as ``kill -9`` does."""
        self._bookies.pop(number).kill()

    def start(self, number: int) -> None:
        """Start a bookie that was killed, and wait until it takes writes."""
        earlier = self._registered_session(number)
        self._launch(number)
        self._wait(number, earlier)

    def pause(self, number: int) -> None:
        """Stop a bookie without ending it: it holds its connections and is silent."""
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Resume the process."""
        self._signal(number, signal.SIGCONT)

    def pause_zookeeper(self) -> None:
        """Pause ZooKeeper, so that it is silent: sessions may end meanwhile."""
        self._send(self._zookeeper, signal.SIGSTOP)

    def resume_zookeeper(self) -> None:
        """Resume ZooKeeper."""
        self._send(self._zookeeper, signal.SIGCONT)

    def stop(self) -> None:
        """Kill everything."""
        self._kazoo.stop()
        self._kazoo.close()
        if self._client is not None:
            self._client.stop()
        for bookie in self._bookies.values():
            bookie.kill()
        self._zookeeper.kill()

    def _signal(self, number: int, what: signal.Signals) -> None:
        self._send(self._bookies[number], what)

    @staticmethod
    def _send(process: ServerProcess, what: signal.Signals) -> None:
        for process_id in process.processes.process_ids():
            os.kill(process_id, what)

    def _launch(self, number: int) -> None:
        settings = self._directory / f"bookie-{number}.properties"
        write_bookie_settings(
            settings,
            data=self._directory / f"bookie-{number}",
            port=self._ports[number],
            zookeeper_port=self._zookeeper_port,
        )
        self._bookies[number] = ServerProcess(
            self._java(BOOKIE, "--conf", str(settings)),
            directory=self._directory,
            name=f"bookie-{number}",
        )

    def _wait(self, number: int, earlier: int | None) -> None:
        """Wait until a bookie has registered: before that nobody finds it, though it listens.

        The node of a life that was killed stays until its session is over. A bookie waits for that
        for one session's time and then ends, so it is started again, as a supervisor does. Now and
        then one hangs at that end: it is killed before.
        """
        deadline = time.monotonic() + READY_SECONDS_MAX
        launched = time.monotonic()
        while self._registered_session(number) in (None, earlier):
            assert time.monotonic() < deadline, f"bookie {number} does not register"
            hangs = time.monotonic() > launched + REGISTRATION_SECONDS_MAX
            if hangs:
                self.kill(number)
            if hangs or self._bookies[number].has_ended:
                self._launch(number)
                launched = time.monotonic()
            time.sleep(POLL_SECONDS)

    def _registered_session(self, number: int) -> int | None:
        """Return the session of ZooKeeper by which a bookie is registered."""
        node = self._kazoo.exists(f"{LEDGERS_PATH}/available/{self.bookie_id(number)}")
        return None if node is None else int(node.ephemeralOwner)

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        return java_command(
            main_class,
            *arguments,
            class_path=self._class_path,
            options=OPTIONS,
            properties={"logback.configurationFile": LOGBACK},
        )
