"""The official client of BookKeeper, and bookies that it formats.

Owns: ``OfficialClient``, and ``BookiesWithClient``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from foreign_servers.bookies import BookieCluster, small_java_command
from foreign_servers.durable_files import LEDGERS_PATH
from foreign_servers.maven import compiled_class_path
from foreign_servers.tied_processes import tied

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "compat-tests" / "bookkeeper"
POM = ROOT / "foreign_servers" / "artifacts" / "durable" / "pom.xml"
TOOL = "bookkeeper.LedgerTool"


class OfficialClient:
    """The official client, in a JVM that takes commands: see ``LedgerTool.java``."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._log = (directory / "client.log").open("wb")
        self._process = subprocess.Popen(
            tied(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
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


class BookiesWithClient(BookieCluster):
    """Bookies, and the official client as ``client``."""

    client: OfficialClient

    def __init__(self, directory: Path, count: int) -> None:
        class_path = compiled_class_path(PROJECT, TOOL, pom=POM)

        def format_ledgers(zookeeper: str) -> None:
            uri = f"zk+hierarchical://{zookeeper}{LEDGERS_PATH}"
            command = small_java_command(TOOL, uri, class_path=class_path)
            self.client = OfficialClient(command, directory)
            assert self.client.ask("format") == ["ok", "true"]

        super().__init__(directory, count, class_path=class_path, format_ledgers=format_ledgers)

    def stop(self) -> None:
        """Kill everything."""
        super().stop()
        if hasattr(self, "client"):
            self.client.stop()
