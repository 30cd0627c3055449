"""The jobs that the pipeline's commands would run, without Spark."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pravega_admin.pipeline_commands import app


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
