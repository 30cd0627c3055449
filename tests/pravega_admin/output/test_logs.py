"""Log lines never end the process that writes them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import structlog

from pravega_admin.output.log_options import LogFormat, LogLevel
from pravega_admin.output.logs import configure_logs

WRITES_ON_A_FULL_DISK = """
from pravega_admin.output.log_options import LogFormat, LogLevel
from pravega_admin.output.logs import configure_logs
import structlog

configure_logs("test", level=LogLevel.INFO, format=LogFormat.JSON)
for _ in range(1000):
    structlog.get_logger().info("something happened", detail="x" * 100)
print("alive")
"""


def test_a_line_names_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        configure_logs("store-7", level=LogLevel.INFO, format=LogFormat.JSON)
        structlog.get_logger("test").info("something happened", count=3)
    finally:
        structlog.reset_defaults()
    line = json.loads(capsys.readouterr().err)
    assert line["process"] == "store-7"
    assert line["event"] == "something happened"
    assert line["count"] == 3


def test_lines_are_text_where_text_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    # Nobody watches this stream: without a choice they would be JSON.
    try:
        configure_logs("store-7", level=LogLevel.INFO, format=LogFormat.TEXT)
        structlog.get_logger("test").info("something happened", count=3)
    finally:
        structlog.reset_defaults()
    line = capsys.readouterr().err
    assert "something happened" in line
    assert "count=3" in line
    assert not line.startswith("{")


@pytest.mark.processes
def test_a_full_disk_under_the_log_file_ends_nothing() -> None:
    # Every write to /dev/full fails as on a full disk.
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", WRITES_ON_A_FULL_DISK],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == "alive\n"
