"""What a store does by itself, by its streams' policies, under the official Java client.

The server works in seconds where it usually takes minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat_harness.java import JavaClient
from compat_harness.server import TARGET_VARIABLE, Server

SUITE_SECONDS_MAX = 300.0
SETTINGS = """\
[segment_store.auto_scale]
sample_seconds = 0.25
window_seconds = [1.0, 2.0, 4.0, 8.0]
cooldown_seconds = 2.0
mute_seconds = 2.0
expiry_seconds = 8.0

[controller]
request_poll_seconds = 0.2
idle_segment_seconds = 20.0
retention_period_seconds = 0.5
watermark_period_seconds = 0.5
"""


@pytest.fixture(scope="module")
def quick_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("quick")
    settings = Path(directory) / "settings.toml"
    settings.write_text(SETTINGS)
    with Server(directory, [f"--config={settings}"]) as server:
        yield server


@pytest.mark.compat
@pytest.mark.timeout(2 * SUITE_SECONDS_MAX)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a server with these settings")
@pytest.mark.parametrize("suite", ["AutoScaleTest", "RetentionTest", "WatermarkTest"])
def test_policies(java_client: JavaClient, suite: str, quick_server: Server) -> None:
    passed, output = java_client.run_suite(
        suite,
        seconds_max=SUITE_SECONDS_MAX,
        properties={"controller": quick_server.controller_uri},
    )
    print(output)
    if not passed:
        pytest.fail(
            f"{suite} failed with client {java_client.version}:\n{output}\n"
            f"{quick_server.log_tail()}",
            pytrace=False,
        )
