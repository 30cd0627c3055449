"""The pipeline's jobs: files to a stream, to Parquet, to fewer files, and back to a stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from compat_harness.server import Server
from typer.testing import CliRunner

from pravega_admin.verbs import app
from pravega_spark.jobs.compact import compact
from pravega_spark.jobs.replay import replay

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCOPE = "spark-pipeline"
KEY = "split(value, ' ')[0]"


def segstore(*arguments: str, controller: str, code: int = 0) -> Any:
    """Run ``segstore pipeline`` in our session; return its JSON, or its words if it was to fail."""
    command = ["pipeline", *arguments, "--output", "json", "--controller", controller]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.stderr


def segstore_process(*arguments: str, controller: str) -> Any:
    """Start the same in a process with a session of its own, as users run it."""
    command = [str(Path(sys.executable).parent / "segstore"), "pipeline", *arguments]
    command += ["--master", "local[2]", "--output", "json", "--controller", controller]
    # No environment is active: Spark's workers use our interpreter nevertheless.
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    # Neither Spark's warnings nor its own bar.
    assert done.stderr == ""
    return json.loads(done.stdout)


def write_lines(path: Path, first: int, count: int) -> list[str]:
    lines = [f"key-{number % 7} line {number}" for number in range(first, first + count)]
    path.with_suffix(".new").write_text("\n".join(lines) + "\n")
    path.with_suffix(".new").rename(path)
    return lines


@pytest.mark.proof
def test_files_become_a_stream_an_archive_and_a_stream_again(
    spark: Any, store: Server, tmp_path: Path
) -> None:
    address = store.controller_uri
    source, archive = tmp_path / "logs", tmp_path / "archive"
    source.mkdir()
    name = f"{SCOPE}/p-{uuid.uuid4().hex[:12]}"
    lines = write_lines(source / "one.txt", 0, 500)
    ingest = ["ingest", str(source), name, "--key", KEY, "--segments", "2"]
    said = segstore(*ingest, "--dry-run", controller=address)
    assert said["to"] == name
    assert not list(tmp_path.glob("*ingested*"))
    assert segstore_process(*ingest, controller=address)["lines"] == 500
    assert segstore("archive", name, str(archive), controller=address)["events"] == 500
    lines += write_lines(source / "two.txt", 500, 100)
    assert segstore(*ingest, controller=address)["lines"] == 100
    assert segstore("archive", name, str(archive), controller=address)["events"] == 100
    assert segstore("archive", name, str(archive), controller=address)["events"] == 0
    rows = spark.read.parquet(str(archive)).collect()
    assert sorted(bytes(row.event).decode() for row in rows) == sorted(lines)
    counted = segstore("stats", name, controller=address)
    assert sum(row["events"] for row in counted) == 600
    assert sum(row["bytes"] for row in counted) == sum(map(len, lines))

    compacted = str(tmp_path / "compacted")
    before, after = compact(spark, source=str(archive), output=compacted)
    assert (before > after, after) == (True, 1)
    assert spark.read.parquet(compacted).count() == 600
    back = f"r-{uuid.uuid4().hex[:12]}"
    for _ in range(2):
        count = replay(
            spark,
            controller=address,
            scope=SCOPE,
            stream=back,
            source=compacted,
            key="split(cast(event as string), ' ')[0]",
            segments=3,
        )
        assert count == 600
        options = {"controller": address, "scope": SCOPE, "stream": back}
        rows = spark.read.format("pravega").options(**options).load().collect()
        assert sorted(bytes(row.event).decode() for row in rows) == sorted(lines)
        last: dict[str, int] = {}
        for row in sorted(rows, key=lambda row: (row.segment_id, row.offset)):
            key, _, number = bytes(row.event).decode().split()
            assert int(number) > last.get(key, -1)
            last[key] = int(number)


@pytest.mark.proof
def test_an_archive_is_replayed_once_wherever_it_is(
    spark: Any, store: Server, tmp_path: Path
) -> None:
    address = store.controller_uri
    source, archive, copy = (tmp_path / name for name in ("logs", "archive", "copy"))
    source.mkdir()
    name, back = (f"{SCOPE}/{each}-{uuid.uuid4().hex[:12]}" for each in ("p", "r"))
    ingest = ["ingest", str(source), name, "--checkpoint", str(tmp_path / "ingested")]

    def count() -> int:
        options = {"controller": address, "scope": SCOPE, "stream": back.split("/")[1]}
        return int(spark.read.format("pravega").options(**options).load().count())

    def archive_lines(first: int, number: int) -> None:
        write_lines(source / f"{first}.txt", first, number)
        segstore(*ingest, controller=address)
        segstore("archive", name, str(archive), controller=address)

    archive_lines(0, 50)
    compact(spark, source=str(archive), output=str(copy))
    segstore("replay", str(copy), back, controller=address)
    moved = copy.rename(tmp_path / "moved")
    segstore("replay", str(moved), back, controller=address)
    assert count() == 50
    # Another archive takes its place.
    compact(spark, source=str(archive), output=str(copy))
    segstore("replay", str(copy), back, controller=address)
    assert count() == 100
    segstore("replay", str(archive), back, controller=address)
    assert count() == 150
    archive_lines(50, 5)
    said = segstore("replay", str(archive), back, controller=address, code=1)
    assert "from other data" in said
    assert count() == 150
    segstore("replay", str(archive), back, "--again", "grown", controller=address)
    assert count() == 150 + 55


def test_what_is_wrong_is_said_in_one_sentence(spark: Any, store: Server) -> None:
    said = segstore("stats", f"{SCOPE}/missing", controller=store.controller_uri, code=3)
    assert said.splitlines()[-1].startswith(f"segstore: stream {SCOPE}/missing does not exist")
    assert "Traceback" not in said


def test_a_mistyped_option_is_refused_with_the_nearest_name(spark: Any, store: Server) -> None:
    options = {"controller": store.controller_uri, "scope": SCOPE, "stream": "any"}
    with pytest.raises(Exception, match="no option start_streamcut: did you mean start_stream_cut"):
        spark.read.format("pravega").options(**options, start_streamcut="latest").load()
    rows = spark.range(1).selectExpr("cast(id as string) as event")
    writer = rows.write.format("pravega").options(**options, query_di="once").mode("append")
    with pytest.raises(Exception, match="no option query_di: did you mean query_id"):
        writer.save()


@pytest.mark.proof
def test_a_wrong_port_of_the_controller_is_told_soon(spark: Any) -> None:
    began = time.monotonic()
    options = {"controller": "tcp://127.0.0.1:9", "scope": SCOPE, "stream": "any"}
    with pytest.raises(Exception, match=r"no controller answers at 127\.0\.0\.1:9") as caught:
        spark.read.format("pravega").options(**options).load().count()
    # It takes 11 s on a quiet machine; the patience of a job that runs is a minute.
    assert time.monotonic() - began < 30
    assert len(str(caught.value).splitlines()) <= 9
    assert "direct cause" not in str(caught.value)
