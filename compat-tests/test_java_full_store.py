"""A store whose disk fills up, as the official Java client sees it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale

from segstore.testing.faults.small_disk import mounted_disk

DISK_BYTES = 96 * 1024**2
RUN_SECONDS_MAX = scale(300.0)

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(600)]


@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="fills only its own server")
def test_a_writer_waits_while_the_disk_is_full_and_goes_on_after_a_truncation(
    tmp_path: Path,
) -> None:
    try:
        client = JavaClient.build(NEWEST)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
    disk, settings = tmp_path / "disk", tmp_path / "settings.toml"
    settings.write_text("[segment_store]\njournal_file_bytes = 8388608\n")
    with mounted_disk(disk, size_bytes=DISK_BYTES) as is_mounted:
        if not is_mounted:
            pytest.skip("mounting needs root")
        server = Server(tmp_path, [f"--config={settings}"])
        server.data_dir = disk / "data"
        with server:
            said = client.run_program(
                "compat.FullStore", controller=server.controller_uri, seconds_max=RUN_SECONDS_MAX
            )
    found = re.search(r"full after (\d+)\nwent on to (\d+), read (\d+)", said)
    assert found is not None, said
    full_after, total, read = map(int, found.groups())
    # The disk took most of what it has room for, and then what came after the truncation.
    assert full_after > 3_000
    assert 200 <= read <= total - full_after
