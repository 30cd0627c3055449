"""A real Prometheus scrapes a real store: panels show something, alerts come and go with faults.

What mends a fault is the command of the runbook's section of the alert.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from foreign_servers.prometheus import (
    PrometheusServer,
    prometheus_path,
    prometheus_server,
    wait_until,
)
from foreign_servers.tied_processes import tied

from pravega_metrics.alerts import ALERTS, RUNBOOK
from pravega_metrics.dashboard import INTERVAL, ROWS
from segstore.testing.faults.small_disk import fill_disk, mounted_disk
from segstore.testing.ports import free_ports

from .conftest import Standalone

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(prometheus_path() is None, reason="Prometheus is not installed"),
]
ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120.0
DISK_BYTES = 96 * 1024**2
TIME_SCALE = 0.04
"""Alerts wait and look back for so much of their times: of a minute 2.4 seconds."""
NO_ROOM = 75
LINE = b"x" * 990 + b"\n"
MACHINE = {alert.name for alert in ALERTS if "Disk" in alert.name or alert.severity != "critical"}
"""Alerts that a busy machine or a full disk of it makes fire."""


class WatchedStore(Standalone):
    """A store with an HTTP port, which speaks TLS if it has the CA of its certificate."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        [self.http_port] = free_ports(1)
        self.ca: Path | None = None

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

    def make_stream(self, stream: str) -> None:
        """Create a stream, with its scope."""
        scope, _, _ = stream.partition("/")
        for arguments in (
            ("scope", "create", scope, "--if-not-exists"),
            ("stream", "create", stream),
        ):
            done = self.run(*arguments)
            assert done.returncode == 0, done.stderr


class ServersOneByOne(WatchedStore):
    """A segment store and a controller that nothing starts again when they have ended."""

    def __enter__(self) -> Self:
        port = str(self.segment_store_port)
        self._running = ExitStack()
        self._store = self.run_beside(f"segstore server --data-dir {self.data_dir} --port {port}")
        self.run_beside(
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
        self._store.kill()
        self._store.wait()


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


def command_of(alert: str, beginning: str, **places: object) -> str:
    """Return the command in an alert's section of the runbook that begins so, with the places of
    this store in place of the page's."""
    text = (ROOT / RUNBOOK).read_text()
    section = text.split(f"\n## {alert}\n")[1].split("\n## ")[0]
    found = [line for line in re.findall(r"^\$ (.+)$", section, re.M) if line.startswith(beginning)]
    assert len(found) == 1, f"{alert} has {found}"
    command: str = found[0]
    for place, value in places.items():
        assert place in command or place == "segstore"
        command = command.replace(place, str(value))
    return command


def mend(store: WatchedStore, command: str) -> None:
    """Run a command of the runbook as a shell does."""
    segstore = f'segstore() {{ {sys.executable} -m pravega_admin "$@"; }}\n'
    subprocess.run(["bash", "-ec", segstore + command], env=store.environment(), check=True)


@contextmanager
def load(store: WatchedStore, stream: str) -> Iterator[None]:
    """Let clients write and read a stream, and call the controller, inside the block."""
    command = [sys.executable, "-m", "pravega_admin"]
    ended = threading.Event()
    with ExitStack() as stack:
        reader = stack.enter_context(
            subprocess.Popen(
                [*command, "read", stream, "--follow"],
                env=store.environment(),
                stdout=subprocess.DEVNULL,
            )
        )
        writer = stack.enter_context(
            subprocess.Popen(
                [*command, "write", stream], env=store.environment(), stdin=subprocess.PIPE
            )
        )
        assert writer.stdin is not None
        pipe = writer.stdin

        def write() -> None:
            while not ended.wait(0.05):
                pipe.write(LINE * 20)
                pipe.flush()

        def ask() -> None:
            while not ended.wait(0.05):
                store.run("read", stream, "--count", "1000")

        threads = [threading.Thread(target=each) for each in (write, ask)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()
            for process in (reader, writer):
                process.kill()


def test_every_panel_shows_something_under_load(tmp_path: Path) -> None:
    panels = {
        query.expression.replace("$job", "segstore")
        .replace("$host", ".*")
        .replace(INTERVAL, "20s"): panel
        for row in ROWS
        for panel in row.panels
        for query in panel.queries
    }
    with started(tmp_path / "data") as store:
        store.make_stream("demo/log")
        with watched(store, tmp_path, scrape_seconds=1) as server, load(store, "demo/log"):
            empty = dict(panels)

            def look() -> bool:
                for expression in list(empty):
                    values = [value for _, value in server.query(expression)]
                    if any(not math.isnan(value) for value in values):
                        del empty[expression]
                return all(panel.why_empty for panel in empty.values())

            wait_until(look, SECONDS_MAX, lambda: empty)
            evaluated = {alert.name: "ok" for alert in ALERTS}
            wait_until(lambda: server.rules() == evaluated, SECONDS_MAX, server.rules)
            # One that a slow scrape made fire clears with the next ones.
            wait_until(lambda: set(server.firing()) <= MACHINE, SECONDS_MAX, server.firing)


def test_promtool_finds_the_rules_right(tmp_path: Path) -> None:
    promtool = prometheus_path("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    rules = WatchedStore(tmp_path / "data").run("generate", "prometheus-alerts")
    (tmp_path / "rules.yml").write_bytes(rules.stdout)
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / "rules.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_a_certificate_that_ends_is_told_until_the_command_of_the_runbook(tmp_path: Path) -> None:
    names = ("SegstoreCertificateEnds", "SegstoreCertificateEndsSoon")
    security = tmp_path / "security"
    store = WatchedStore(tmp_path / "data")
    made = store.run("certificate", "create", str(security), "--name", "127.0.0.1", "--days", "1")
    assert made.returncode == 0, made.stderr
    store.ca, store.settings = security / "ca.pem", tmp_path / "settings.toml"
    tls = f'tls = {{ certificate = "{security}/server.pem", key = "{security}/server.key" }}'
    store.settings.write_text(
        f'[segment_store]\n{tls}\ncontroller_ca = "{store.ca}"\n'
        f'[controller]\n{tls}\nstore_tls = true\nstore_ca = "{store.ca}"\n'
    )
    ends = f"segstore_certificate_end_time_seconds - time() < {14 * 86400}"
    store.start()
    try:
        with watched(store, tmp_path, scrape_seconds=1, time_scale=0.005) as server:
            firing = wait_for_alerts(server, *names)
            assert re.search(r"ends in 2[23]h", firing[names[0]])
            components = {labels["component"] for labels, _ in server.query(ends)}
            assert components == {"controller", "segmentstore"}
            places = {"./security": security}
            mend(store, command_of(names[0], "segstore certificate create", **places))
            wait_until_clear(server, *names)
            assert server.query(ends) == []
            assert "SegstoreControllerUnreachable" not in server.firing()
    finally:
        store.close()


@pytest.mark.proof
def test_a_full_disk_is_told_and_freed_by_the_command_of_the_runbook(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    percents = [f"SegstoreDisk{percent}Percent" for percent in (80, 90, 95)]
    waits = ("SegstoreWritersStopped", "SegstoreRequestsWait")
    with mounted_disk(disk, size_bytes=DISK_BYTES) as is_mounted:
        if not is_mounted:
            pytest.skip("mounting needs root")
        with started(disk / "data", "journal_file_bytes = 8388608") as store:
            store.make_stream("demo/log")
            with watched(store, tmp_path) as server:
                # A file that is not the store's.
                fill_disk(disk / "balloon")
                firing = wait_for_alerts(server, *percents)
                assert f"of the disk of {store.data_dir}/" in firing["SegstoreDisk95Percent"]
                (disk / "balloon").unlink()
                wait_until_clear(server, *percents)
                done = store.run(
                    "write", "demo/log", "--key", "k", "--patience", "3", lines=LINE * 120_000
                )
                assert done.returncode == NO_ROOM, done.stderr
                wait_for_alerts(server, *waits)
                command = command_of("SegstoreRequestsWait", "segstore stream truncate")
                assert command == command_of("SegstoreDisk95Percent", "segstore stream truncate")
                mend(store, command)
                wait_until_clear(server, *waits)


@pytest.mark.proof
def test_a_full_tier_2_is_told_until_the_command_of_the_runbook(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    alert = "SegstoreTier2Failing"
    with mounted_disk(disk, size_bytes=DISK_BYTES // 2) as is_mounted:
        if not is_mounted:
            pytest.skip("mounting needs root")
        with started(tmp_path / "data", f'storage_dir = "{disk}"') as store:
            store.make_stream("demo/log")
            with watched(store, tmp_path) as server:
                # The journal, which is on another disk, takes what tier 2 cannot.
                done = store.run("write", "demo/log", lines=LINE * 60_000)
                assert done.returncode == 0, done.stderr
                firing = wait_for_alerts(server, alert)
                assert "write with StorageFullError" in firing[alert]
                mend(store, command_of(alert, "segstore stream truncate"))
                wait_until_clear(server, alert)


@pytest.mark.proof
def test_a_tier_2_that_became_read_only_is_told_until_it_is_mounted_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    alert = "SegstoreTier2Failing"
    with mounted_disk(disk, size_bytes=DISK_BYTES) as is_mounted:
        if not is_mounted:
            pytest.skip("mounting needs root")
        with started(tmp_path / "data", f'storage_dir = "{disk}"') as store:
            # Nothing is open for writing there yet: the mount would be refused.
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            store.make_stream("demo/log")
            with watched(store, tmp_path) as server:
                done = store.run("write", "demo/log", lines=LINE * 100)
                assert done.returncode == 0, done.stderr
                firing = wait_for_alerts(server, alert)
                assert re.search("(write|create) with ", firing[alert])
                mend(store, command_of(alert, "mount", **{"/srv/tier2": disk}))
                wait_until_clear(server, alert)
                read = store.run("read", "demo/log")
                assert read.stdout.splitlines() == [LINE[:-1]] * 100


@pytest.mark.proof
def test_a_store_that_is_gone_is_told_until_it_is_started_again(tmp_path: Path) -> None:
    names = ("SegstoreStoreDown", "SegstoreControllerNotReady")
    with ServersOneByOne(tmp_path / "data") as store:
        store.make_stream("demo/log")
        with watched(store, tmp_path, scrape_seconds=10) as server:
            store.kill_segment_store()
            firing = wait_for_alerts(server, *names)
            assert f"127.0.0.1:{store.segment_store_port}" in firing["SegstoreStoreDown"]
            places = {"./data": store.data_dir, "12345": store.segment_store_port}
            store.run_beside(command_of(names[0], "segstore server", **places))
            wait_until_clear(server, *names)
            done = store.run("write", "demo/log", lines=LINE)
            assert done.returncode == 0, done.stderr


@pytest.mark.proof
def test_a_store_that_hangs_is_told_until_it_is_killed(tmp_path: Path) -> None:
    names = ("SegstoreStoreDown", "SegstoreControllerNotReady")
    with started(tmp_path / "data") as store, watched(store, tmp_path, scrape_seconds=10) as server:
        os.kill(store.pid_of("segment-store-0"), signal.SIGSTOP)
        firing = wait_for_alerts(server, *names)
        assert f"127.0.0.1:{store.segment_store_port}" in firing["SegstoreStoreDown"]
        mend(store, command_of(names[0], "kill", **{"./data": str(store.data_dir)}))
        wait_until_clear(server, *names)
        assert server.query("segstore_store_up")[0][1] == 1
