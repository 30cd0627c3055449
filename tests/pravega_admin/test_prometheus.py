"""A real Prometheus scrapes a real store: panels show something, rules are right, and alerts of
certificates come and go. ``test_runbook`` has the other faults."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from foreign_servers.prometheus import prometheus_path, wait_until

from pravega_metrics.alerts import ALERTS
from pravega_metrics.dashboard import INTERVAL, ROWS

from .watched_stores import (
    SECONDS_MAX,
    WatchedStore,
    started,
    wait_for_alerts,
    wait_until_clear,
    watched,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(prometheus_path() is None, reason="Prometheus is not installed"),
]
LINE = b"x" * 990 + b"\n"
MACHINE = {alert.name for alert in ALERTS if "Disk" in alert.name or alert.severity != "critical"}
"""Alerts that a busy machine or a full disk of it makes fire."""


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


@pytest.mark.proof
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
            store.places["./security"] = security
            store.run_page(names[0], "segstore certificate create")
            wait_until_clear(server, *names)
            assert server.query(ends) == []
            assert "SegstoreControllerUnreachable" not in server.firing()
    finally:
        store.close()
