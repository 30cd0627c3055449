"""A stream that has to scale by load while both servers are killed: it scales and keeps all events.

Writing, reading and looking is done with the command line, so no Java is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from compat_harness.server import CONTROLLER, SEGMENT_STORE, TARGET_VARIABLE, Server
from compat_harness.suite_groups import QUICK
from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

pytestmark = pytest.mark.proof

KEYS = 16
STEP_EVENTS = 40
STEP_SECONDS = 0.1
KILLS = ((SEGMENT_STORE,), (CONTROLLER,), (SEGMENT_STORE, CONTROLLER), (CONTROLLER,))
KILL_EVERY_SECONDS = 3.0
SPLIT_SECONDS_MAX = scale(60.0)


def command(server: Server, *arguments: str) -> list[str]:
    executable = str(Path(sys.executable).parent / "segstore")
    return [executable, *arguments, "--controller", server.controller_uri]


def segment_count(server: Server) -> int:
    described = command(server, "stream", "describe", "kill/load", "-o", "json")
    found = subprocess.run(described, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return 0
    fields: dict[str, Any] = json.loads(found.stdout)
    return len(fields["segments"])


@pytest.mark.compat
@pytest.mark.timeout(240)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills only its own server")
def test_a_stream_scales_while_servers_are_killed(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(QUICK)
    with Server(tmp_path, [f"--config={settings}"]) as server:
        policy = ("--scale-by-events", "50", "--scale-factor", "2")
        for arguments in (("scope", "create", "kill"), ("stream", "create", "kill/load", *policy)):
            subprocess.run(command(server, *arguments), check=True, capture_output=True)
        writing = command(server, "write", "kill/load", "--key-field", "1", "--delimiter", " ")
        with subprocess.Popen(
            tied(writing), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as writer:
            assert writer.stdin is not None
            written = _write_and_kill(server, writer)
            writer.stdin.close()
            assert writer.wait(60) == 0
        assert segment_count(server) >= 2
        reading = command(server, "read", "kill/load")
        read = subprocess.run(reading, capture_output=True, text=True, check=True)
    events = read.stdout.splitlines()
    order: Counter[str] = Counter()
    for event in events:
        key, number = event.split()
        assert int(number) == order[key], f"after {order[key]} events of {key} comes {number}"
        order[key] += 1
    assert order == written


def _write_and_kill(server: Server, writer: subprocess.Popen[bytes]) -> Counter[str]:
    """Write until everything was killed and the stream has split; what was written, by key."""
    assert writer.stdin is not None
    written: Counter[str] = Counter()
    began = time.monotonic()
    kills = list(KILLS)
    looked = began
    while True:
        for number in range(STEP_EVENTS):
            key = f"k{number % KEYS}"
            writer.stdin.write(f"{key} {written[key]}\n".encode())
            written[key] += 1
        writer.stdin.flush()
        time.sleep(STEP_SECONDS)
        now = time.monotonic()
        if kills and now - began > KILL_EVERY_SECONDS * (len(KILLS) - len(kills) + 1):
            server.kill(*kills.pop(0))
        if not kills and now - looked > 1:
            looked = now
            if segment_count(server) >= 2:
                return written
            assert now - began < SPLIT_SECONDS_MAX, f"one segment after {now - began:.0f} s of load"
