"""A real ZooKeeper and real bookies, each a JVM, that can be killed, paused and started one by one.

Owns: ``BookieCluster``. Everything listens on free ports of 127.0.0.1 and keeps its files in one
directory; bookies sync their journals before they answer.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from foreign_servers.cluster import BOOKIE, READY_SECONDS_MAX, ZOOKEEPER
from foreign_servers.deadlines import scale
from foreign_servers.durable_files import (
    LEDGERS_PATH,
    write_bookie_settings,
    write_zookeeper_settings,
)
from foreign_servers.jvm import LOGBACK, java_command
from foreign_servers.pauses import pause_process
from foreign_servers.processes import ServerProcess
from segstore.testing.ports import free_ports

POLL_SECONDS = 0.05
REGISTRATION_SECONDS_MAX = scale(60.0)
"""Maximum time between the start of a bookie and its registration, or its end, in seconds: it waits
10 s for the session of its earlier life, on a machine that has other work."""
OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class BookieCluster:
    """A ZooKeeper with some bookies, started by the constructor.

    ``format_ledgers`` is called with the connect string of ZooKeeper, before the first bookie
    starts; it makes what bookies need there.
    """

    ledgers_root = LEDGERS_PATH

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        class_path: str,
        format_ledgers: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._class_path = class_path
        self._zookeeper_port, *self._ports = free_ports(count + 1)
        self._bookies: dict[int, ServerProcess] = {}
        self._kazoo = KazooClient(hosts=self.zookeeper)
        settings = directory / "zookeeper.properties"
        write_zookeeper_settings(settings, data=directory / "zookeeper", port=self._zookeeper_port)
        self._zookeeper = ServerProcess(
            self._java(ZOOKEEPER, str(settings)), directory=directory, name="zookeeper"
        )
        try:
            self._zookeeper.wait_for_port(self._zookeeper_port, seconds_max=READY_SECONDS_MAX)
            self._kazoo.start()
            format_ledgers(self.zookeeper)
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
        _pause(self._bookies[number])

    def resume(self, number: int) -> None:
        """Resume the process."""
        _resume(self._bookies[number])

    def pause_zookeeper(self) -> None:
        """Pause ZooKeeper, so that it is silent: sessions may end meanwhile."""
        _pause(self._zookeeper)

    def resume_zookeeper(self) -> None:
        """Resume ZooKeeper."""
        _resume(self._zookeeper)

    def stop(self) -> None:
        """Kill everything."""
        self._kazoo.stop()
        self._kazoo.close()
        for bookie in self._bookies.values():
            bookie.kill()
        self._zookeeper.kill()

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
        return small_java_command(main_class, *arguments, class_path=self._class_path)


def small_java_command(main_class: str, *arguments: str, class_path: str) -> list[str]:
    """Return the command that starts a small JVM, of which a test has several."""
    return java_command(
        main_class,
        *arguments,
        class_path=class_path,
        options=OPTIONS,
        properties={"logback.configurationFile": LOGBACK},
    )


def _pause(server: ServerProcess) -> None:
    for process_id in server.processes.process_ids():
        pause_process(process_id)


def _resume(server: ServerProcess) -> None:
    for process_id in server.processes.process_ids():
        os.kill(process_id, signal.SIGCONT)
