"""A stream that has dropped epochs, as the official Python client and the command line see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from compat_harness.python_events import read, write
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale

from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import NotFoundError

pravega_client: Any = pytest.importorskip(
    "pravega_client", reason="there is no wheel of the official Python client for this Python"
)

AT_ONCE = "[controller]\nhistory_period_seconds = 0.2\nhistory_seconds_min = 0.0\n"
SEGMENTS = 100
SCALE_SECONDS_MAX = scale(60.0)
DROP_SECONDS_MAX = scale(60.0)

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(180)]


def scale(client: ControllerClient, count: int) -> None:
    """Replace all segments of the stream by so many."""
    active = client.current_segments("s", "a").ranges
    bounds = [number / count for number in range(count + 1)]
    sealed = [segment.segment_id for segment in active]
    ranges = list(pairwise(bounds))
    client.scale_stream("s", "a", sealed=sealed, ranges=ranges, timeout=SCALE_SECONDS_MAX)


@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="its own server drops epochs at once")
def test_a_stream_that_has_dropped_its_epochs_is_written_scaled_and_read(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(AT_ONCE)
    with Server(tmp_path, [f"--config={settings}"]) as server:
        streams = pravega_client.StreamManager(server.controller_uri)
        assert streams.create_scope("s")
        assert streams.create_stream("s", "a", 1)
        write(streams.create_writer("s", "a"), ["old"])
        with ControllerClient(server.controller_uri) as client:
            for count in (SEGMENTS, 1) * 3:
                scale(client, count)
            # It stays open while the epochs before go, and follows the stream after that.
            writer = streams.create_writer("s", "a")
            write(writer, ["first"])
            (active,) = client.current_segments("s", "a").ranges
            client.truncate_stream("s", "a", {active.segment_id: 0})
            wait_until_dropped(client)
            write(writer, ["second"])
            scale(client, 2)
            write(writer, ["third", "fourth"])
            with pytest.raises(NotFoundError):
                client.successors("s", "a", 0)
        assert sorted(read(streams, 4)) == [b"first", b"fourth", b"second", b"third"]
        described = [Path(sys.executable).parent / "segstore", "stream", "describe", "s/a"]
        options = ["--epochs", "100", "-o", "json", "--controller", server.controller_uri]
        shown = subprocess.run([*described, *options], capture_output=True, check=True)
        assert [row["epoch"] for row in json.loads(shown.stdout)["epochs"]] == [6, 7]


def wait_until_dropped(client: ControllerClient) -> None:
    deadline = time.monotonic() + DROP_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            client.epoch_segments("s", "a", 5)
        except NotFoundError:
            return
        time.sleep(0.1)
    pytest.fail("the epochs are still there")
