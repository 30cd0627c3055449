"""``segstore group show``, ``lag`` and ``seek`` beside a reader of the official Java client."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from compat_harness.group_steps import ANSWER_SECONDS_MAX, GroupSteps, open_group
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.server import TARGET_VARIABLE, Server
from typer.testing import CliRunner

from pravega_admin.verbs import app
from pravega_wire.stream_cut_text import decode_cut_text

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    # Both tests use one server and one JVM.
    pytest.mark.xdist_group("group commands"),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a server of its own"),
]

SETTINGS = """
[controller]
watermark_period_seconds = 0.5
"""
SEGMENTS = 3


class Group:
    """A group of one reader of the Java client, see ``GroupSteps``, and the command line beside."""

    def __init__(self, server: Server, steps: GroupSteps, scope: str) -> None:
        self.stream, self.name = f"{scope}/stream", f"{scope}/group"
        self._controller = server.controller_uri
        self.step, self.read = steps.step, steps.read

    def command(self, *arguments: str, code: int = 0) -> Any:
        """Return the JSON that a command prints, or its sentence if it shall fail.

        It runs in this process: most of the time of a new one would be its imports.
        """
        options = ("--controller", self._controller, "-o", "json")
        done = CliRunner().invoke(app, [*arguments, *options])
        assert done.exit_code == code, done.output
        return done.stderr if code else json.loads(done.stdout)

    def offsets(self) -> dict[int, int]:
        """Return the positions at which the command says that readers would continue."""
        shown = self.command("group", "show", self.name)
        return {row["segment"]: row["resumes_at"] for row in shown["segments"]}

    def wait_for_watermark(self, lag_seconds: float) -> None:
        """Wait until the lag in time is this, which only tells that watermarks have come."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            (row,) = self.command("group", "lag", self.name)
            if row["lag_seconds"] == lag_seconds:
                return
            assert time.monotonic() < deadline, row
            time.sleep(0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("groups")
    settings = directory / "settings.toml"
    settings.write_text(SETTINGS)
    with Server(directory, [f"--config={settings}"]) as server:
        yield server


@pytest.fixture(scope="module")
def group(server: Server) -> Iterator[Group]:
    try:
        client = JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
    scope = f"groups-{uuid.uuid4().hex[:8]}"
    with open_group(client, server.controller_uri, scope, segments=SEGMENTS) as steps:
        yield Group(server, steps, scope)


def test_a_group_is_shown_as_the_official_client_has_it_and_moved_as_it_would(
    group: Group,
) -> None:
    assert group.step("write 0 30 1000000") == "written"
    group.wait_for_watermark(0.0)
    assert len(group.read(10)) == 10
    # The reader may read on, up to the end, before it comes to the checkpoint.
    cut, more = group.step("checkpoint").split(" ")
    left = 50 - int(more)
    assert group.step("close") == "closed"
    assert group.step("write 30 30 1090000") == "written"

    # What the official client says is what the commands say.
    unread, position = group.step("tell").split(" ")
    assert group.offsets() == decode_cut_text(position)[1]
    shown = group.command("group", "show", group.name)
    assert shown["readers"] == []
    assert shown["lag_bytes"] == int(unread) > 0
    assert {"scope": group.name.split("/")[0], "group": "group"} in group.command("group", "list")

    # The lag in time is by the writers' times.
    group.wait_for_watermark(90.0)
    (row,) = group.command("group", "lag", group.name.split("/")[0])
    assert row["lag_bytes"] == int(unread)

    # A cut as the client prints it; the reader then continues there.
    group.step("open")
    rest = group.read(left)
    assert len(rest) == left
    group.command("group", "seek", group.name, "--to", cut)
    assert group.read(left) == rest
    assert group.command("group", "show", group.name)["readers"] != []

    group.command("group", "seek", group.name, "--to", "head")
    assert group.read(60) == list(range(60))
    group.command("group", "seek", group.name, "--to", "tail")
    assert group.step("read 0") == ""
    group.step("close")
    group.step("open")
    assert group.step("write 60 5 1100000") == "written"
    assert group.read(5) == list(range(60, 65))

    # A time: no event of it, or later, is missing.
    seek = group.command("group", "seek", group.name, "--to", "1000001")
    assert set(range(30, 65)) <= set(group.read(35))

    # The client's own reset goes on from the generation that the command made.
    assert group.step("reset") == "reset"
    assert group.read(65) == list(range(65))
    shown = group.command("group", "show", group.name)
    assert shown["generation"] == seek["generation"] + 1
    assert shown["updating"] is False


def test_a_place_that_the_stream_does_not_have_is_refused(group: Group) -> None:
    before = group.offsets()
    wrong = group.command("group", "seek", group.name, "--to", "0:0", code=2)
    assert "no stream cut" in wrong
    wrong = group.command("group", "seek", group.name, "--to", "soon", code=2)
    assert "--to is head, tail, a time" in wrong
    group.command("group", "seek", f"{group.name}x", "--to", "head", code=3)
    rows = group.command("group", "seek", group.name, "--to", "tail", "--dry-run")
    assert len(rows) == SEGMENTS
    assert group.offsets() == before
