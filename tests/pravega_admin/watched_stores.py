"""Stores that a real Prometheus watches by the rules of ``segstore generate prometheus-alerts``,
and the commands of the runbook.

Owns: starting such a store, waiting for alerts, and running a page's command about it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from foreign_servers.deadlines import scale
from foreign_servers.prometheus import (
    PrometheusServer,
    prometheus_path,
    prometheus_server,
    wait_until,
)
from foreign_servers.tied_processes import tied

from pravega_metrics.alerts import RUNBOOK
from segstore.testing.ports import free_ports

from .conftest import Standalone

ROOT = Path(__file__).parents[2]
SECONDS_MAX = scale(120.0)
TIME_SCALE = 0.04
"""Alerts wait and look back for so much of their times: of a minute 2.4 seconds."""


def read_sections() -> dict[str, str]:
    """Return the runbook's sections of alerts and reasons, by their headings."""
    _, *found = re.split(r"^## (.+)$", (ROOT / RUNBOOK).read_text(), flags=re.M)
    return dict(zip(found[::2], found[1::2], strict=True))


class WatchedStore(Standalone):
    """A store with an HTTP port, which speaks TLS if it has the CA of its certificate."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        [self.http_port] = free_ports(1)
        self.ca: Path | None = None
        self.places: dict[str, object] = {}
        """What the runbook calls otherwise than the usual: the directory of tier 2, for example."""

    def environment(self) -> dict[str, str]:
        """Return the environment of commands that are about this store."""
        trusted = {} if self.ca is None else {"SEGSTORE_CA": str(self.ca)}
        return {**os.environ, "SEGSTORE_CONTROLLER": self.controller, **trusted}

    def run(self, *arguments: str, lines: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command about this store."""
        return subprocess.run(
            [sys.executable, "-m", "pravega_admin", *arguments],
            env=self.environment(),
            input=lines,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def make_stream(self, stream: str, *options: str) -> None:
        """Create a stream, with its scope."""
        scope, _, _ = stream.partition("/")
        for arguments in (
            ("scope", "create", scope, "--if-not-exists"),
            ("stream", "create", stream, *options),
        ):
            done = self.run(*arguments)
            assert done.returncode == 0, done.stderr

    def command_of(self, section: str, beginning: str) -> str:
        """Return the command in a section of the runbook that begins so, with the places of this
        store in place of the page's."""
        lines = re.findall(r"^\$ (.+)$", read_sections()[section], re.M)
        found = [line for line in lines if line.startswith(beginning)]
        [command] = found if len(found) == 1 else [line for line in found if line == beginning]
        places = {
            "store-1:12345": f"127.0.0.1:{self.segment_store_port}",
            "ctl-1:9090": f"127.0.0.1:{self.controller_port}",
            "ctl-1:9091": f"127.0.0.1:{self.http_port}",
            "12345": self.segment_store_port,
            "9090": self.controller_port,
            "9091": self.http_port,
            "./data": self.data_dir,
            "segstore.log": self.log,
            **self.places,
        }
        longest_first = sorted(map(re.escape, places), key=len, reverse=True)
        return re.sub("|".join(longest_first), lambda found: str(places[found[0]]), command)

    def run_page(self, section: str, beginning: str, lines: bytes = b"") -> str:
        """Run the command of ``command_of`` as a shell does; return what it prints."""
        segstore = f'segstore() {{ {sys.executable} -m pravega_admin "$@"; }}\n'
        done = subprocess.run(
            ["bash", "-c", segstore + self.command_of(section, beginning)],
            env=self.environment(),
            input=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
            check=False,
        )
        return done.stdout.decode()


class ServersOneByOne(WatchedStore):
    """A segment store and a controller that nothing starts again when they have ended."""

    def __enter__(self) -> Self:
        port = str(self.segment_store_port)
        self._running = ExitStack()
        self._store = self.run_beside(f"segstore server --data-dir {self.data_dir} --port {port}")
        self._controller = self.run_beside(
            f"segstore controller --segment-store 127.0.0.1:{port} --port {self.controller_port}"
            f" --http-port {self.http_port}"
        )
        wait_until(
            lambda: self.run("scope", "list").returncode == 0, SECONDS_MAX, lambda: "not ready"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def run_beside(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command that runs until the end of the block."""
        words = [sys.executable, "-m", "pravega_admin", *command.split()[1:]]
        process = self._running.enter_context(subprocess.Popen(tied(words)))
        self._running.callback(process.kill)
        return process

    def kill_segment_store(self) -> None:
        """Kill the segment store, and wait for its end."""
        self._store.kill()
        self._store.wait()

    def kill_controller(self) -> None:
        """Kill the controller, and wait for its end."""
        self._controller.kill()
        self._controller.wait()


@contextmanager
def started(data_dir: Path, settings: str = "") -> Iterator[WatchedStore]:
    """Start a store, and end it for certain."""
    store = WatchedStore(data_dir)
    if settings:
        store.settings = data_dir.parent / "settings.toml"
        store.settings.write_text(f"[segment_store]\n{settings}\n")
    store.start()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def watched(
    store: WatchedStore,
    directory: Path,
    *,
    scrape_seconds: int = 2,
    time_scale: float = TIME_SCALE,
) -> Iterator[PrometheusServer]:
    """Run Prometheus with the rules as the command prints them."""
    rules = store.run("generate", "prometheus-alerts", "--time-scale", str(time_scale))
    assert rules.returncode == 0, rules.stderr
    executable = prometheus_path()
    assert executable is not None
    with prometheus_server(
        executable,
        directory / "prometheus",
        f"127.0.0.1:{store.http_port}",
        rules.stdout.decode(),
        scrape_seconds=scrape_seconds,
        ca=store.ca,
    ) as server:
        yield server


def wait_for_alerts(server: PrometheusServer, *names: str) -> dict[str, str]:
    """Wait until these alerts fire; return the sentences of all that do."""
    return wait_until(
        lambda: firing if set(names) <= set(firing := server.firing()) else None,
        SECONDS_MAX,
        lambda: f"{names} do not fire together, but {server.firing()}",
    )


def wait_until_clear(server: PrometheusServer, *names: str) -> None:
    """Wait until none of these alerts fires."""
    wait_until(
        lambda: not set(names) & set(server.firing()),
        SECONDS_MAX,
        lambda: f"{names} do not clear: {server.firing()}",
    )
