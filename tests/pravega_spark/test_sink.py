"""The sink's memory of a query: the real sink with models of Spark and of the store."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pravega_spark.options import Options
from pravega_spark.sink import EventBatchSink
from segstore_client.errors import RefusedError
from support.models.memory_pravega import MemoryPravega
from support.models.spark_programs import (
    SCHEMA,
    Crash,
    DiedError,
    Plan,
    Program,
    sink_of,
    write_tasks,
)

OPTIONS = {"scope": "s", "stream": "t"}


class Scene:
    """A sink, a source, and programs that copy from one to the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoint = root / "checkpoint"
        self.pravega = MemoryPravega()
        self.pravega.create("t")
        self.source: list[str] = []
        self.plans: dict[str, Plan] = {}

    def program(self, location: str = "", *, path: Path | None = None, **options: str) -> Program:
        path = path or self.checkpoint
        location = location or str(path)
        given = {**OPTIONS, "checkpointLocation": location, **options}
        return Program(self.pravega, self.plans, path, given, path.parent)

    def run(self, location: str = "", **options: str) -> None:
        """Run a program until it has read everything."""
        program = self.program(location, **options)
        while program.step(self.source):
            pass

    def run_batches(self, count: int) -> None:
        for _ in range(count):
            self.add(1)
            self.run()

    def add(self, count: int) -> None:
        self.source += [f"event-{len(self.source) + number}" for number in range(count)]

    def counts(self) -> Counter[int]:
        """Return how many events are how often in the stream."""
        rows = Counter(str(row).split()[0] for row in self.pravega.streams["t"].events)
        return Counter(rows.values())

    def write(self, events: list[str], **options: str) -> None:
        """Write a DataFrame."""
        writer = EventBatchSink(Options.parse({**OPTIONS, **options}), SCHEMA)
        writer.commit(write_tasks(writer, events, {}))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with sink_of(scene.pravega):
        yield scene


# ---- Checkpoints that are removed, moved and spelled otherwise -----------------------------------


def test_a_query_whose_checkpoint_was_removed_writes_everything_again(scene: Scene) -> None:
    scene.add(30)
    scene.run()
    shutil.rmtree(scene.checkpoint)
    scene.add(70)
    scene.run()
    assert scene.counts() == Counter({2: 30, 1: 70})


def test_a_stream_that_was_made_again_gets_everything(scene: Scene) -> None:
    scene.add(30)
    scene.run()
    shutil.rmtree(scene.checkpoint)
    scene.pravega.delete("t")
    scene.pravega.create("t")
    scene.run()
    assert scene.counts() == Counter({1: 30})


def test_a_batch_whose_rows_are_gone_does_not_wait_for_an_earlier_stream(scene: Scene) -> None:
    """Its recorded transactions ended with the stream to which they wrote."""
    scene.add(4)
    scene.pravega.crash_at = 12  # The batch is recorded, and not committed.
    with pytest.raises(Crash):
        scene.run()
    scene.pravega.crash_at = None
    assert scene.pravega.table
    scene.pravega.delete("t")
    scene.pravega.create("t")
    scene.source = []
    scene.run()
    scene.source = ["event-0", "event-1", "event-2", "event-3", "event-4"]
    scene.run()
    assert scene.counts() == Counter({1: 1})


def test_after_many_batches_a_new_query_writes_each_of_its_own(scene: Scene) -> None:
    scene.run_batches(104)
    shutil.rmtree(scene.checkpoint)
    for count in range(104):
        program = scene.program()
        while program.step(scene.source[: count + 1]):
            pass
    assert scene.counts() == Counter({2: 104})


def test_a_batch_comes_again_after_its_epoch_was_dropped(scene: Scene) -> None:
    """Earlier the stream was taken for another one, and the batch written twice."""
    scene.run_batches(2)
    (scene.checkpoint / "commits" / "1").unlink()
    scene.pravega.scale("t")
    scene.pravega.truncate("t")
    scene.run()
    assert scene.counts() == Counter({1: 2})


@pytest.mark.parametrize("spelling", ["file:{}", "file://{}", "{}/"])
def test_a_batch_comes_again_although_the_path_is_spelled_otherwise(
    spelling: str, scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.run_batches(2)
    (scene.checkpoint / "commits" / "1").unlink()
    scene.run(spelling.format(scene.checkpoint))
    assert scene.counts() == Counter({1: 2})
    (line,) = capsys.readouterr().err.splitlines()
    assert "batch 1 of query" in line
    assert "its 1 rows are not written again" in line


def test_a_batch_comes_again_although_the_checkpoint_was_moved(scene: Scene) -> None:
    scene.run_batches(2)
    (scene.checkpoint / "commits" / "1").unlink()
    path = scene.checkpoint.rename(scene.root / "moved")
    program = scene.program(path=path)
    while program.step(scene.source):
        pass
    assert scene.counts() == Counter({1: 2})


def test_one_relative_path_in_two_directories_is_two_queries(scene: Scene) -> None:
    scene.add(10)
    for directory in ("one", "two"):
        path = scene.root / directory / "texts.ingested"
        path.mkdir(parents=True)
        program = scene.program("texts.ingested", path=path)
        while program.step(scene.source):
            pass
    assert scene.counts() == Counter({2: 10})


@pytest.mark.parametrize("batches", [1, 3])
def test_an_older_copy_of_a_checkpoint_loses_nothing(
    batches: int, scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.run_batches(2)
    shutil.copytree(scene.checkpoint, scene.root / "copy")
    scene.run_batches(batches)
    shutil.rmtree(scene.checkpoint)
    (scene.root / "copy").rename(scene.checkpoint)
    scene.run_batches(1)
    assert scene.counts() == Counter({1: 3, 2: batches})
    assert "the checkpoint is an older copy" in capsys.readouterr().err


def test_where_no_plan_can_be_read_other_rows_are_refused(scene: Scene) -> None:
    elsewhere = f"hdfs://names{scene.checkpoint}"
    scene.add(1)
    scene.run(elsewhere)
    shutil.copytree(scene.checkpoint, scene.root / "copy")
    scene.add(1)
    scene.run(elsewhere)
    shutil.rmtree(scene.checkpoint)
    (scene.root / "copy").rename(scene.checkpoint)
    scene.add(1)
    with pytest.raises(RefusedError, match="with 1 rows, and has 2 now"):
        scene.run(elsewhere)
    scene.run(elsewhere, query_id="the copy")
    assert scene.counts() == Counter({1: 2, 2: 1})


def test_where_no_plan_can_be_read_equal_rows_come_once(scene: Scene) -> None:
    elsewhere = f"hdfs://names{scene.checkpoint}"
    scene.add(5)
    scene.run(elsewhere)
    (scene.checkpoint / "commits" / "0").unlink()
    scene.run(elsewhere)
    assert scene.counts() == Counter({1: 5})


# ---- Two programs --------------------------------------------------------------------------------


def test_a_program_that_was_overtaken_is_refused(scene: Scene) -> None:
    scene.add(1)
    slow = scene.program()
    for _ in range(2):
        slow.step(scene.source)  # It plans, and its tasks write.
    scene.run()
    scene.run_batches(1)
    with pytest.raises(RefusedError, match="two programs"):
        slow.step(scene.source)
    assert scene.counts() == Counter({1: 2})


def test_a_program_whose_query_another_one_continued_is_refused(scene: Scene) -> None:
    """The sink cannot read the checkpoint, but the record names the first program's run."""
    elsewhere = f"hdfs://names{scene.checkpoint}"
    scene.add(1)
    slow = scene.program(elsewhere)
    while slow.step(scene.source):
        pass
    scene.add(1)
    for _ in range(2):
        slow.step(scene.source)
    scene.run(elsewhere)
    scene.add(1)
    scene.run(elsewhere)
    with pytest.raises(RefusedError, match="two programs"):
        slow.step(scene.source)
    assert scene.counts() == Counter({1: 3})


def test_two_programs_at_one_batch_write_it_once(scene: Scene) -> None:
    scene.add(4)
    programs = [scene.program()]
    programs[0].step(scene.source)
    programs.append(scene.program())
    for each in programs:
        each.step(scene.source)
    for each in programs:
        each.step(scene.source)
    programs[0].step(scene.source)
    with pytest.raises(DiedError):
        programs[1].step(scene.source)
    assert scene.counts() == Counter({1: 4})


# ---- Writes that ``query_id`` names --------------------------------------------------------------


def test_a_write_that_is_repeated_adds_nothing_and_says_so(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        scene.write(["a", "b"], query_id="once")
    assert scene.counts() == Counter({1: 2})
    assert "its 2 rows are not written again" in capsys.readouterr().err


def test_another_write_of_the_same_name_is_refused(scene: Scene) -> None:
    scene.write(["a", "b"], query_id="once")
    with pytest.raises(RefusedError, match="from other data"):
        scene.write(["a", "b", "c"], query_id="once")
    scene.write(["a", "b"], query_id="twice", query_content="one")
    with pytest.raises(RefusedError, match="from other data"):
        scene.write(["a", "c"], query_id="twice", query_content="two")
    assert scene.counts() == Counter({2: 2})


def test_a_write_is_repeated_in_a_stream_that_was_made_again(scene: Scene) -> None:
    for _ in range(2):
        scene.write(["a", "b"], query_id="once")
        scene.pravega.delete("t")
        scene.pravega.create("t")
    scene.write(["a", "b"], query_id="once")
    scene.pravega.scale("t")
    scene.write(["a", "b"], query_id="once")
    assert scene.counts() == Counter({1: 2})
