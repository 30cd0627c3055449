"""A store that has lost a chunk and was recovered, as the official Java client sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale

RUN_SECONDS_MAX = scale(180.0)

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(600)]


def run_program(client: JavaClient, part: str, directory: Path, server: Server) -> str:
    """Run a part of ``RecoveredStore``; return what it says."""
    return client.run_program(
        "compat.RecoveredStore",
        part,
        str(directory),
        controller=server.controller_uri,
        seconds_max=RUN_SECONDS_MAX,
    )


@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="recovers only its own server")
def test_groups_writers_and_transactions_go_on_after_a_recovery(tmp_path: Path) -> None:
    """The group made before is told once that its next events are gone; a new one is not."""
    try:
        client = JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
    with Server(tmp_path) as server:
        run_program(client, "before", tmp_path, server)
        server.stop()
        stream = (tmp_path / "names").read_text().splitlines()[0]
        [chunk] = [
            path
            for path in (server.data_dir / "storage" / "recovered" / stream).rglob("*.S-*.E*")
            if "attributes" not in path.name and "#transaction" not in str(path)
        ]
        chunk.unlink()
        said = server.recover()
        assert f"has the head of recovered/{stream} there at 0: it is moved" in said
        assert "the controller's records and the store agree" in said
        server.start()
        assert "told 1 times, read 111" in run_program(client, "after", tmp_path, server)
