"""Topics of a real Kafka broker become streams, each record exactly once."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from compat_harness.server import Server
from typer.testing import CliRunner

from pravega_admin.verbs import app

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCOPE = "spark-kafka"
KEYS = 5


class Topic:
    """A topic with three partitions, written by Spark's own Kafka sink."""

    def __init__(self, spark: Any, servers: str) -> None:
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        self._spark = spark
        self._servers = servers
        java = spark._jvm
        settings = java.java.util.HashMap()
        settings.put("bootstrap.servers", servers)
        admin = java.org.apache.kafka.clients.admin.Admin.create(settings)
        topic = java.org.apache.kafka.clients.admin.NewTopic(self.name, 3, 1)
        admin.createTopics(java.java.util.Collections.singleton(topic)).all().get()
        admin.close()

    def write(self, first: int, count: int) -> None:
        """Write numbered records, each with one of some keys, and a tombstone."""
        self._spark.range(first, first + count, 1, 1).selectExpr(
            f"concat('key-', id % {KEYS}) as key",
            f"if(id = {first}, null, concat('key-', id % {KEYS}, ' ', id)) as value",
        ).write.format("kafka").option("kafka.bootstrap.servers", self._servers).option(
            "topic", self.name
        ).save()


def ingest(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["pipeline", "ingest", *arguments, "--output", "json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.stderr


def test_a_topic_becomes_a_stream_once(
    spark: Any, store: Server, kafka: str, tmp_path: Path
) -> None:
    topic = Topic(spark, kafka)
    stream = f"{SCOPE}/{topic.name}"
    source = f"kafka://{kafka}/{topic.name}"
    arguments = [source, stream, "--segments", "2", "--controller", store.controller_uri]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint")]
    topic.write(0, 301)
    assert ingest(*arguments)["records"] == 301
    assert ingest(*arguments)["records"] == 0
    topic.write(301, 101)
    assert ingest(*arguments)["records"] == 101
    options = {"controller": store.controller_uri, "scope": SCOPE, "stream": topic.name}
    rows = spark.read.format("pravega").options(**options).load().collect()
    last: dict[bytes, int] = {}
    homes: dict[bytes, set[int]] = {}
    for row in sorted(rows, key=lambda row: row.offset):
        key, number = bytes(row.event).split()
        assert int(number) > last.get(key, -1)
        last[key] = int(number)
        homes.setdefault(key, set()).add(row.segment_id)
    numbers = sorted(int(bytes(row.event).split()[1]) for row in rows)
    assert numbers == [*range(1, 301), *range(302, 402)]
    assert {len(segments) for segments in homes.values()} == {1}


@pytest.mark.parametrize(
    "source", ["kafka://", "kafka://host/topic", "kafka://host:1/", "kafka://:1/t"]
)
def test_what_is_no_topic_is_said(source: str) -> None:
    assert "write kafka://HOST:PORT/TOPIC" in ingest(source, f"{SCOPE}/t", code=2)
