"""A real store whose wall clock is set while it runs: what is done by time goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from compat_harness.server import CONTROLLER, TARGET_VARIABLE, Server
from compat_harness.wall_clock import HOLDS_SECONDS, MISSING, WallClock, find_library
from foreign_servers.deadlines import scale

from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Retention, RetentionKind, StreamSettings

PERIOD_SECONDS = 0.5
KEPT_SECONDS = 1.5
JUMP_SECONDS = 2.0
WAIT_SECONDS_MAX = scale(60.0)
HOUR, YEAR = 3600, 365 * 86_400

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="its own server has a clock to set"),
    pytest.mark.skipif(find_library() is None, reason=MISSING),
]


class Load:
    """A stream that is kept for a moment, and its writer."""

    def __init__(self, client: ControllerClient, kept_seconds: float) -> None:
        self._client = client
        client.ensure_scope("s")
        retention = Retention(RetentionKind.TIME, int(1000 * kept_seconds))
        client.ensure_stream("s", "a", StreamSettings(retention=retention))
        self._length = 0

    def write(self) -> None:
        """Write an event of 100 bytes."""
        with BlockingEventWriter(self._client, "s", "a") as writer:
            writer.submit(b"x" * 92)
        self._length += 100

    def write_until_truncated(self) -> None:
        """Write until all is truncated that was there before."""
        before, deadline = self._length, time.monotonic() + WAIT_SECONDS_MAX
        while (head := self.head()) < before:
            assert time.monotonic() < deadline, f"the head stays at {head} of {self._length} bytes"
            self.write_for(0.2)

    def write_for(self, seconds: float) -> None:
        """Write for some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.write()
            time.sleep(0.1)

    def head(self) -> int:
        """Return where the stream begins."""
        return sum(self._client.head_segments("s", "a").offsets.values())


@contextmanager
def loaded_server(tmp_path: Path, kept_seconds: float) -> Iterator[tuple[Server, WallClock, Load]]:
    """Run a server with a wall clock of its own and often a round of retention, for the block."""
    settings = tmp_path / "settings.toml"
    settings.write_text(f"[controller]\nretention_period_seconds = {PERIOD_SECONDS}\n")
    clock = WallClock(tmp_path)
    with (
        Server(tmp_path, [f"--config={settings}"], environment=clock.environment) as server,
        ControllerClient(server.controller_uri) as client,
    ):
        yield server, clock, Load(client, kept_seconds)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, YEAR, -YEAR])
def test_retention_goes_on_after_a_jump_of_the_clock(seconds: int, tmp_path: Path) -> None:
    with loaded_server(tmp_path, KEPT_SECONDS) as (server, clock, load):
        load.write()
        load.write_until_truncated()
        clock.set_ahead(seconds)
        load.write_for(HOLDS_SECONDS + JUMP_SECONDS)
        clock.set_ahead(0)
        load.write_for(HOLDS_SECONDS)
        load.write_until_truncated()
        # What is kept for a moment may be gone early when a controller begins with a wrong clock.
        clock.set_ahead(seconds)
        server.wait_until_back(server.kill(CONTROLLER))
        load.write_for(JUMP_SECONDS)
        clock.set_ahead(0)
        server.wait_until_back(server.kill(CONTROLLER))
        load.write_until_truncated()


def test_a_controller_that_begins_with_its_clock_ahead_truncates_nothing_early(
    tmp_path: Path,
) -> None:
    """Earlier it took the days by which its clock was ahead for time that had passed."""
    with loaded_server(tmp_path, 3 * HOUR) as (server, clock, load):
        load.write_for(4 * PERIOD_SECONDS)
        clock.set_ahead(YEAR)
        server.wait_until_back(server.kill(CONTROLLER))
        load.write_for(HOLDS_SECONDS + 8 * PERIOD_SECONDS)
        assert load.head() == 0
