"""The jobs that the pipeline's commands would run, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pravega_admin.commands.pipelines import _size_files, app
from pravega_admin.verbs import app as root


def checkpoint_of(source: str, stream: str) -> str:
    said = CliRunner().invoke(app, ["ingest", source, stream, "--dry-run", "-o", "json"])
    assert said.exit_code == 0, said.output
    return str(json.loads(said.output)["checkpoint"])


@pytest.mark.parametrize("source", ["./texts", "kafka://localhost:9092/orders"])
def test_streams_whose_names_are_alike_have_checkpoints_of_their_own(source: str) -> None:
    """The second one would get nothing: the first one's says that all is written."""
    names = ["a-b/c", "a/b-c", "a/b.c", "a.b/c"]
    assert len({checkpoint_of(source, name) for name in names}) == len(names)
    assert checkpoint_of(source, "a/b") == checkpoint_of(source, "a/b")


def test_topics_of_the_same_name_have_checkpoints_of_their_own() -> None:
    """The offsets of one cluster would pass over records of the other."""
    one = checkpoint_of("kafka://one:9092/orders", "a/b")
    assert one != checkpoint_of("kafka://two:9092/orders", "a/b")
    assert ":" not in one


def test_the_order_of_servers_does_not_change_the_checkpoint() -> None:
    forth = checkpoint_of("kafka://one:9092,two:9092/orders", "a/b")
    assert forth == checkpoint_of("kafka://two:9092,one:9092/orders", "a/b")


STATS = ["stats", "demo/orders", "--controller", "tcp://127.0.0.1:9"]


def test_a_missing_java_is_a_sentence_and_exit_code_78() -> None:
    said = CliRunner(env={"JAVA_HOME": "/nowhere"}).invoke(root, ["pipeline", *STATS])
    assert said.exit_code == 78
    (line,) = said.stderr.splitlines()
    assert line.startswith("segstore: the data pipeline needs Java 17 or newer, and JAVA_HOME")


@pytest.mark.processes
def test_a_missing_controller_is_told_before_spark_is_started(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    # Spark would end with it.
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\ntest $1 = -version\n")
    java.chmod(0o755)
    said = CliRunner(env={"JAVA_HOME": str(tmp_path)}).invoke(root, ["pipeline", *STATS])
    assert said.exit_code == 5
    assert said.stderr == "segstore: no controller answers at 127.0.0.1:9: nothing listens there\n"


@pytest.mark.processes
def test_spark_that_cannot_start_is_told_in_one_line(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\ntest $1 = -version\n")
    java.chmod(0o755)
    command = [sys.executable, "-m", "pravega_admin", "pipeline", "compact", "from", "to"]
    said = subprocess.run(
        command,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert said.returncode == 1
    (line,) = said.stderr.splitlines()
    assert "[JAVA_GATEWAY_EXITED]" in line


def test_files_are_measured_before_they_are_read(tmp_path: Path) -> None:
    for number in range(128):
        (tmp_path / f"{number}.txt").write_text("x" * 10)
    assert _size_files(str(tmp_path), str(tmp_path / "checkpoint")) == (1280, 640)
    (tmp_path / "checkpoint").mkdir()
    # Some of them were read before.
    assert _size_files(str(tmp_path), str(tmp_path / "checkpoint")) == (None, 0)
