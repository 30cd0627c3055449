"""The messages of the command line about tier 2 in S3."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from foreign_servers.s3 import CREDENTIALS, moto_server

from pravega_admin.errors import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_USAGE
from segstore.testing.ports import free_ports

pytestmark = pytest.mark.processes

START_SECONDS_MAX = 30.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pravega_admin", *arguments],
        env={**os.environ, **CREDENTIALS},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * START_SECONDS_MAX,
    )
    assert time.monotonic() - began < START_SECONDS_MAX
    assert "Traceback" not in done.stderr
    return done


def test_a_missing_bucket_ends_the_start_of_standalone(tmp_path: Path) -> None:
    controller, segment_store = free_ports(2)
    with moto_server() as endpoint:
        done = run(
            "standalone",
            f"--data-dir={tmp_path / 'data'}",
            f"--controller-port={controller}",
            f"--segment-store-port={segment_store}",
            "--tier2=s3://no-such-bucket/store",
            f"--s3-endpoint={endpoint}",
        )
    assert done.returncode == EXIT_CONFIGURATION
    assert f"there is no bucket no-such-bucket at {endpoint}" in done.stderr


def test_a_server_says_that_nobody_is_at_the_endpoint(tmp_path: Path) -> None:
    port, silent = free_ports(2)
    done = run(
        "server",
        f"--data-dir={tmp_path / 'data'}",
        f"--port={port}",
        "--tier2=s3://bucket",
        f"--s3-endpoint=http://127.0.0.1:{silent}",
    )
    assert done.returncode == EXIT_FAILED
    assert f"http://127.0.0.1:{silent} cannot be reached" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--tier2=/var/data"], "'/var/data' is not s3://BUCKET/PREFIX"),
        (["--tier2=hdfs://namenode:8020/x"], "or webhdfs://HOST:PORT/PATH"),
        (["--tier2=webhdfs://namenode"], "names a directory below the root of HDFS"),
        (["--s3-endpoint=http://127.0.0.1:1"], "need --tier2 s3://BUCKET/PREFIX"),
        (["--tier2=webhdfs://nn/x", "--s3-region=here"], "need --tier2 s3://BUCKET/PREFIX"),
        (["--tier2=s3://bucket", "--s3-endpoint=127.0.0.1"], "is not an http:// or https:// URL"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: list[str], sentence: str
) -> None:
    for verb in ("standalone", "server"):
        done = run(verb, f"--data-dir={tmp_path / 'data'}", *options)
        assert done.returncode == EXIT_USAGE
        assert sentence in done.stderr
        assert not (tmp_path / "data").exists()
