"""A store that has lost a chunk and was recovered, as the official Python client sees it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from compat_harness.python_events import read, write
from compat_harness.server import TARGET_VARIABLE, Server

pravega_client: Any = pytest.importorskip(
    "pravega_client", reason="there is no wheel of the official Python client for this Python"
)

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(180)]


@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="recovers only its own server")
def test_a_writer_and_groups_go_on_after_a_recovery_that_lost_a_chunk(tmp_path: Path) -> None:
    before, after = ([f"{word} {number}" for number in range(100)] for word in ("old", "new"))
    with Server(tmp_path) as server:
        streams = pravega_client.StreamManager(server.controller_uri)
        assert streams.create_scope("s")
        assert streams.create_stream("s", "a", 1)
        writer = streams.create_writer("s", "a")
        write(writer, before)
        assert read(streams, 100, group="reads on") == [each.encode() for each in before]
        server.stop()
        [chunk] = [
            path
            for path in (server.data_dir / "storage" / "s" / "a").rglob("*.S-*.E*")
            if "attributes" not in path.name
        ]
        chunk.unlink()
        said = server.recover()
        assert "the controller's records and the store agree" in said
        server.start()
        write(writer, after)
        expected = [each.encode() for each in after]
        assert read(streams, 100, group="reads on") == expected
        # This client waits for ever where others learn that a segment begins later: not so if the
        # stream's head is there.
        assert re.search(r"has the head of s/a there at 0: it is moved", said)
        assert read(streams, 100, group="made afterwards") == expected
