"""Draws requests from the OpenAPI document of a real server, sends them, and checks the answers.

``python -m compat_harness.rest_fuzz --tool SCHEMATHESIS [--seconds N | --examples N] [--seed N]``.
See ``make fuzz-rest``.

Owns: what is checked of the answers. Schemathesis draws and sends, and compares them with the
document; here the server's log must have no failure, and the server must answer at the end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from compat_harness.server import HOST, Server
from segstore.testing.ports import free_ports

ANSWER_SECONDS_MAX = scale(60.0)
CONFIGURATION = """
# 409 and 412: the request is valid, and does not suit the present state.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "412"]

# That the one time is not after the other, no schema can say.
[[operations]]
include-path = "/v1/scopes/{scope}/streams/{stream}/scaling-events"
checks.positive_data_acceptance.enabled = false
"""


def fuzz(tool: Path, *, seed: int, bounds: Sequence[str]) -> list[str]:
    """Send a new server drawn requests; return what is wrong, in sentences. Schemathesis prints its
    findings."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="rest-fuzz-") as name:
        directory = Path(name)
        configuration = directory / "schemathesis.toml"
        configuration.write_text(CONFIGURATION)
        with Server(directory, ["--http-port", str(port)]) as server:
            command = [
                *(str(tool), "--config-file", str(configuration), "--no-color"),
                *("run", f"http://{HOST}:{port}/openapi.json", "--seed", str(seed)),
                *("--request-timeout", str(ANSWER_SECONDS_MAX), "--warnings", "off", *bounds),
            ]
            done = subprocess.run(tied(command), cwd=directory, check=False)
            found = [] if done.returncode == 0 else ["the answers are not those of the document"]
            status = ask(port, "/ready")
            if status != 200:
                found.append(f"the server is not ready: it answers {status}")
        found += [f"the log says: {line}" for line in failures_in(server.log_path)]
    return found


def ask(port: int, path: str) -> int:
    """Return the status of the answer to a request."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def failures_in(log: Path) -> Iterator[str]:
    """Yield the lines of errors, and of what is no line of the log."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            if json.loads(line)["level"] in ("error", "critical"):
                yield line
        elif "Traceback" in line:
            yield line


def main() -> int:
    """Run from the command line; return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="rest_fuzz", description=__doc__)
    parser.add_argument("--tool", type=Path, required=True, help="schemathesis")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 100_000))
    bounds = parser.add_mutually_exclusive_group()
    bounds.add_argument("--seconds", type=int, default=60)
    bounds.add_argument("--examples", type=int, help="of each operation: the same in each run")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    bound = ("--max-time", str(options.seconds))
    if options.examples is not None:
        bound = ("--max-examples", str(options.examples))
    found = fuzz(options.tool.absolute(), seed=options.seed, bounds=bound)
    for sentence in found:
        print(sentence)
    if found:
        print(f"make fuzz-rest SEED={options.seed} draws the same requests")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
