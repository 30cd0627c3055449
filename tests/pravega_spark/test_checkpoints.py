"""The sink reads little of Spark's checkpoints: plans, and the end of batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pravega_spark.checkpoints import Checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a checkpoint of the query ``one``, which has ended batch 0 and planned batch 1."""
    path = tmp_path / "a checkpoint%20"
    for folder, batches in (("offsets", 2), ("commits", 1)):
        (path / folder).mkdir(parents=True)
        for batch in range(batches):
            (path / folder / str(batch)).write_text(f"{folder} {batch}")
    (path / "metadata").write_text(json.dumps({"id": "one"}))
    return path


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}"])
def test_a_plan_is_the_same_however_the_path_is_spelled(spelling: str, path: Path) -> None:
    checkpoint = Checkpoint(spelling.format(path))
    assert checkpoint.has_batches()
    plans = [checkpoint.plan("one", batch) for batch in range(3)]
    assert plans[:2] == [Checkpoint(str(path)).plan("one", batch) for batch in range(2)]
    assert plans[0] != plans[1]
    assert plans[2] == ""
    assert [checkpoint.is_beyond("one", batch) for batch in range(2)] == [True, False]


def test_a_checkpoint_of_another_query_says_nothing(path: Path) -> None:
    checkpoint = Checkpoint(str(path))
    assert checkpoint.plan("two", 0) == ""
    assert not checkpoint.is_beyond("two", 0)
    (path / "metadata").write_text("[]")
    assert checkpoint.plan("one", 0) == ""


def test_a_checkpoint_elsewhere_says_nothing_and_may_have_batches() -> None:
    checkpoint = Checkpoint("hdfs://names/checkpoint")
    assert checkpoint.has_batches()
    assert checkpoint.plan("one", 0) == ""
    assert not checkpoint.is_beyond("one", 0)
    assert not Checkpoint("").has_batches()
    assert not Checkpoint("/nowhere").has_batches()
