"""A stream of the official Python client that is exported, deleted, and imported again.

The import is killed with ``kill -9`` and goes on. What the client then reads and writes has the
order of every key.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from compat_harness.python_events import read
from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from segstore_client.blocking.stream_sizes import measure_stream
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import NotFoundError

pravega_client: Any = pytest.importorskip(
    "pravega_client", reason="there is no wheel of the official Python client for this Python"
)

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

ROUNDS, EVENTS, KEYS = 3, 1500, 13
PAD = "x" * 400
SEGMENTS = (2, 3, 1)
STORED_SECONDS_MAX = scale(60.0)
SCALE_SECONDS_MAX = scale(60.0)


class Store:
    """The server, its official client and the command line beside it."""

    def __init__(self, controller_uri: str, scope: str) -> None:
        self.controller_uri = controller_uri
        self.scope = scope
        self.streams = pravega_client.StreamManager(controller_uri)

    def write(self, first: int) -> None:
        writer = self.streams.create_writer(self.scope, "a")
        for number in range(first, first + EVENTS):
            event = {"key": number % KEYS, "number": number, "pad": PAD}
            writer.write_event(json.dumps(event), routing_key=str(number % KEYS))
        writer.flush()

    def read_numbers(self, count: int) -> dict[int, list[int]]:
        """Return the numbers of each key's events in the order in which the client reads them."""
        group = f"g-{uuid.uuid4().hex[:8]}"
        found: dict[int, list[int]] = defaultdict(list)
        for data in read(self.streams, count, group=group, scope=self.scope):
            event = json.loads(data)
            found[event["key"]].append(event["number"])
        return found

    def command(self, *arguments: str) -> list[str]:
        options = ("--controller", self.controller_uri, "-o", "json")
        return [sys.executable, "-m", "pravega_admin", *arguments, *options]

    def run(self, *arguments: str) -> Any:
        done = subprocess.run(self.command(*arguments), capture_output=True, check=True)
        return json.loads(done.stdout)

    def kill_import(self, data: bytes) -> None:
        """Give an import a part of a file, and kill it when it has stored some of that."""
        command = self.command("import", f"{self.scope}/a", "-")
        with subprocess.Popen(tied(command), stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(data)
            process.stdin.flush()
            deadline = time.monotonic() + STORED_SECONDS_MAX
            while self.stored_bytes() < len(data) * 5 // 8:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.kill()

    def stored_bytes(self) -> int:
        with ControllerClient(self.controller_uri) as client:
            try:
                return measure_stream(client, self.scope, "a").stored_bytes
            except NotFoundError:
                return 0


@pytest.fixture
def store(controller_uri: str) -> Store:
    store = Store(controller_uri, f"exports-{uuid.uuid4().hex[:8]}")
    assert store.streams.create_scope(store.scope)
    assert store.streams.create_stream(store.scope, "a", 1)
    return store


@pytest.mark.proof
def test_a_stream_comes_back_after_a_kill_with_the_order_of_each_key(
    store: Store, tmp_path: Path
) -> None:
    name, file = f"{store.scope}/a", tmp_path / "a.avro"
    for number, segments in enumerate(SEGMENTS):
        store.write(number * EVENTS)
        store.run("stream", "scale", name, "--segments", str(segments))
    count = ROUNDS * EVENTS
    right = {key: list(range(key, count, KEYS)) for key in range(KEYS)}
    assert store.read_numbers(count) == right

    told = store.run("export", name, str(file), "--compression", "none")
    assert told["events"] == count
    store.run("stream", "delete", name, "--seal")
    data = file.read_bytes()
    store.kill_import(data[: len(data) // 2])
    store.kill_import(data[: len(data) * 4 // 5])
    told = store.run("import", name, str(file))
    assert told["events"] == count
    assert 0 < told["stored"] < count
    assert store.read_numbers(count) == right

    # What the client writes now comes behind it, key by key.
    store.write(count)
    later = {key: list(range(key, count + EVENTS, KEYS)) for key in range(KEYS)}
    assert store.read_numbers(count + EVENTS) == later
