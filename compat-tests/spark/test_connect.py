"""The data source in Spark Connect mode: a client without Java, and a real Connect server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from compat_harness.server import HOST, Server, accepts
from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from segstore.testing.ports import free_ports
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, StreamSettings

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(400)]

SCOPE = "spark-connect"
EVENTS = 2_000
START_SECONDS_MAX = scale(120.0)
PROGRAM = Path(__file__).with_name("connect_tour.py")
SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, started as ``sbin/start-connect-server.sh`` does."""
    directory = tmp_path_factory.mktemp("connect")
    (port,) = free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": HOST,
        "spark.driver.host": HOST,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[2]", "--class", SERVER_CLASS]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    log_path = directory / "log"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            tied([*command, "spark-internal"]),
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not accepts(port):
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.2)
        yield f"sc://{HOST}:{port}"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def write_events(client: ControllerClient, name: str) -> None:
    client.ensure_scope(SCOPE)
    settings = StreamSettings(scaling=Scaling(segment_count_min=2))
    client.create_stream(SCOPE, name, settings)
    with BlockingEventWriter(client, SCOPE, name) as writer:
        for number in range(EVENTS):
            writer.submit(f"event {number}".encode(), key=f"key-{number % 9}")


def test_a_connect_client_reads_follows_and_writes(
    connect_server: str, store: Server, client: ControllerClient, tmp_path: Path
) -> None:
    source, target = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("from", "to"))
    write_events(client, source)
    places = [store.controller_uri, SCOPE, source, target, str(tmp_path / "checkpoint")]
    command = [sys.executable, str(PROGRAM), connect_server, *places]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["columns"] == ["event", "scope", "stream", "segment_id", "offset"]
    assert found["read"] == EVENTS
    assert found["copied"] == [EVENTS, 0]
    copied = [f"EVENT {number}" for number in range(EVENTS)]
    assert found["written"] == sorted([*copied, "one", "two"])
    assert f"{SCOPE}/missing does not exist" in found["error"]


def test_a_job_of_the_pipeline_runs_on_a_connect_server(
    connect_server: str, store: Server, client: ControllerClient, tmp_path: Path
) -> None:
    name = f"job-{uuid.uuid4().hex[:12]}"
    write_events(client, name)
    command = [str(Path(sys.executable).parent / "segstore"), "pipeline", "archive"]
    command += [f"{SCOPE}/{name}", str(tmp_path / "archive"), "--master", connect_server]
    command += ["--controller", store.controller_uri, "--output", "json"]
    for expected in (EVENTS, 0):
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["events"] == expected
    assert list((tmp_path / "archive").glob("archived_on=*/*.parquet"))
