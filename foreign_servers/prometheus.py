"""Prometheus, which scrapes a server on this machine and evaluates rules.

Owns: starting and ending its process, and its answers to queries. It keeps nothing beyond its
directory, and listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode
from urllib.request import urlopen

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied
from segstore.testing.ports import free_ports

HOST = "127.0.0.1"
START_SECONDS_MAX = scale(60.0)
POLL_SECONDS = 0.2

T = TypeVar("T")


def prometheus_path(program: str = "prometheus") -> str | None:
    """Return the executable of Prometheus or ``promtool``: in the path, or beside Python's."""
    beside = Path(sys.executable).with_name(program)
    return shutil.which(program) or (str(beside) if beside.exists() else None)


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A running server; ``url`` is where it answers."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API. Raises ``OSError`` for a refused question."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of the series that an expression has now."""
        rows = self.ask("query", query=expression)["result"]
        return [(row["metric"], float(row["value"][1])) for row in rows]

    def firing(self) -> dict[str, str]:
        """Return the sentence of each alert that fires, by its name."""
        return {
            each["labels"]["alertname"]: each["annotations"]["summary"]
            for each in self.ask("alerts")["alerts"]
            if each["state"] == "firing"
        }

    def rules(self) -> dict[str, str]:
        """Return the health of each rule by its name: ``unknown`` before it was evaluated."""
        return {
            rule["name"]: f"{rule['health']} {rule.get('lastError', '')}".strip()
            for group in self.ask("rules")["groups"]
            for rule in group["rules"]
        }


def wait_until(found: Callable[[], T | None], seconds_max: float, why: Callable[[], object]) -> T:
    """Return what ``found`` returns as soon as that counts as true; ``why`` says what it waits
    for."""
    deadline = time.monotonic() + seconds_max
    while not (result := found()):
        assert time.monotonic() < deadline, why()
        time.sleep(POLL_SECONDS)
    return result


@contextmanager
def prometheus_server(
    executable: str,
    directory: Path,
    target: str,
    rules: str,
    *,
    scrape_seconds: int,
    ca: Path | None = None,
) -> Iterator[PrometheusServer]:
    """Run Prometheus, which scrapes ``target`` as the job ``segstore`` and evaluates ``rules``.

    With the file ``ca`` it asks by TLS, and trusts certificates of that CA.
    """
    directory.mkdir()
    (directory / "rules.yml").write_text(rules)
    interval = f"{scrape_seconds}s"
    job: dict[str, Any] = {"job_name": "segstore", "static_configs": [{"targets": [target]}]}
    if ca is not None:
        job |= {"scheme": "https", "tls_config": {"ca_file": str(ca)}}
    configuration = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": "1s",
        },
        "rule_files": ["rules.yml"],
        "scrape_configs": [job],
    }
    # JSON is YAML.
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    [port] = free_ports(1)
    command = [
        executable,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={HOST}:{port}",
    ]
    log = directory / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process,
    ):
        server = PrometheusServer(f"http://{HOST}:{port}")
        try:
            wait_until(
                lambda: process.poll() is not None or _is_ready(server),
                START_SECONDS_MAX,
                log.read_text,
            )
            assert process.poll() is None, log.read_text()
            yield server
        finally:
            process.kill()


def _is_ready(server: PrometheusServer) -> bool:
    try:
        with urlopen(f"{server.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
