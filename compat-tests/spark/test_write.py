"""The sink writes streams from real Spark: whole or not at all, and each batch exactly once."""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from compat_harness.queries import run_query_to_its_end
from compat_harness.server import Server

from pravega_spark.commit_log import BatchState, CommitLog, query_key
from pravega_spark.committer import Attempt, Committer
from pravega_spark.errors import OptionError
from pravega_spark.options import Options
from segstore_client.blocking.transaction_writer import TransactionWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import RefusedError

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCOPE = "spark-sink"
KEYS = 20
EVENTS = int(os.environ.get("SEGSTORE_SPARK_EVENTS", "200000"))
"""Number of events that the test of volume writes and reads."""


def options_for(address: str, stream: str = "", **more: str) -> dict[str, str]:
    name = stream or f"w-{uuid.uuid4().hex[:12]}"
    return {
        "controller": address,
        "scope": SCOPE,
        "stream": name,
        "default_num_segments": "3",
        **more,
    }


def numbered(spark: Any, first: int, count: int) -> Any:
    """Make rows ``key-<n % 20> <n>`` with the key as routing key."""
    return spark.range(first, first + count, 1, 3).selectExpr(
        f"concat('key-', id % {KEYS}, ' ', id) as event",
        f"concat('key-', id % {KEYS}) as routing_key",
    )


def read_events(spark: Any, options: dict[str, str]) -> list[str]:
    rows = spark.read.format("pravega").options(**options).load().collect()
    return [bytes(row.event).decode() for row in rows]


def test_a_frame_appears_whole_with_its_keys_in_order(spark: Any, address: str) -> None:
    options = options_for(address)
    numbered(spark, 0, 3_000).write.format("pravega").options(**options).mode("append").save()
    rows = spark.read.format("pravega").options(**options).load().collect()
    events = sorted(int(bytes(row.event).split()[1]) for row in rows)
    assert events == list(range(3_000))
    homes: dict[bytes, set[int]] = defaultdict(set)
    for row in rows:
        homes[bytes(row.event).split()[0]].add(row.segment_id)
    assert {len(segments) for segments in homes.values()} == {1}
    assert len(set().union(*homes.values())) == 3


def test_a_frame_whose_task_fails_leaves_nothing(spark: Any, store: Server) -> None:
    options = options_for(store.controller_uri)
    numbered(spark, 0, 10).write.format("pravega").options(**options).mode("append").save()
    frame = spark.range(0, 1_000, 1, 4).selectExpr(
        "if(id = 990, raise_error('no such row'), cast(id as string)) as event"
    )
    with pytest.raises(Exception, match="no such row"):
        frame.write.format("pravega").options(**options).mode("append").save()
    assert len(read_events(spark, options)) == 10


@pytest.mark.proof
@pytest.mark.timeout(300 + EVENTS // 5_000)
def test_very_many_events_go_in_and_come_out(spark: Any, store: Server) -> None:
    options = options_for(store.controller_uri)
    frame = spark.range(0, EVENTS, 1, 4).selectExpr(
        "concat(id, ' ', sha2(cast(id as string), 256)) as event",
        "cast(id % 1000 as string) as routing_key",
    )
    frame.write.format("pravega").options(**options).mode("append").save()
    rows = spark.read.format("pravega").options(**options).load()
    number = "cast(substring_index(cast(event as string), ' ', 1) as bigint)"
    found = rows.selectExpr(
        "count(*) as rows",
        f"sum({number}) as total",
        f"count_if(cast(event as string) = concat({number}, ' ', sha2(cast({number} as string),"
        " 256))) as intact",
        f"count(distinct {number}) as different",
    ).first()
    total = EVENTS * (EVENTS - 1) // 2
    assert found.asDict() == {"rows": EVENTS, "total": total, "intact": EVENTS, "different": EVENTS}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["id"], "column event"),
        (["cast(id as string) as event", "id"], "there is id"),
        (["cast(id as string) as event", "id as routing_key"], "routing_key must be a string"),
    ],
)
def test_rows_that_are_no_events_are_refused(
    spark: Any, store: Server, columns: list[str], said: str
) -> None:
    frame = spark.range(3).selectExpr(*columns)
    options = options_for(store.controller_uri)
    with pytest.raises(Exception, match=said):
        frame.write.format("pravega").options(**options).mode("append").save()


def test_a_query_copies_each_batch_once(spark: Any, store: Server, tmp_path: Path) -> None:
    source, target = options_for(store.controller_uri), options_for(store.controller_uri)

    def copy() -> None:
        query = (
            spark.readStream.format("pravega")
            .options(**source, start_stream_cut="earliest", max_rows_per_trigger="400")
            .load()
            .select("event")
            .writeStream.format("pravega")
            .options(**target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        run_query_to_its_end(query.start, 200)

    numbered(spark, 0, 1_000).write.format("pravega").options(**source).mode("append").save()
    copy()
    copy()
    numbered(spark, 1_000, 200).write.format("pravega").options(**source).mode("append").save()
    copy()
    assert sorted(read_events(spark, target)) == sorted(read_events(spark, source))


def test_a_query_whose_checkpoint_was_removed_writes_everything_again(
    spark: Any, address: str, tmp_path: Path
) -> None:
    """Spark has a new query then, whatever the path; a crash between the two commits is none."""
    options = options_for(address)
    checkpoint = tmp_path / "checkpoint"

    def copy(location: str) -> None:
        query = (
            spark.readStream.format("text")
            .load(str(tmp_path / "texts"))
            .selectExpr("value as event")
            .writeStream.format("pravega")
            .options(**options)
            .option("checkpointLocation", location)
            .trigger(availableNow=True)
        )
        run_query_to_its_end(query.start, 200)

    def write(first: int, count: int) -> None:
        lines = "".join(f"{number}\n" for number in range(first, first + count))
        (tmp_path / f"{first}.new").write_text(lines)
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / f"{first}.new").rename(tmp_path / "texts" / f"{first}.txt")

    def counts() -> Counter[int]:
        return Counter(Counter(read_events(spark, options)).values())

    write(0, 30)
    copy(str(checkpoint))
    shutil.rmtree(checkpoint)
    write(30, 70)
    copy(str(checkpoint))
    assert counts() == Counter({2: 30, 1: 70})
    for each in checkpoint.rglob(".*.crc"):
        each.unlink()
    (checkpoint / "commits" / "0").unlink()
    moved = checkpoint.rename(tmp_path / "moved")
    copy(f"file://{moved}")
    assert counts() == Counter({2: 30, 1: 70})
    write(100, 10)
    copy(str(moved))
    assert counts() == Counter({2: 30, 1: 80})
    with ControllerClient(address) as client:
        client.seal_stream(SCOPE, options["stream"])
        client.delete_stream(SCOPE, options["stream"])
    last = max(int(each.name) for each in (moved / "commits").glob("[0-9]*"))
    for each in (moved / "commits").glob(f"*{last}*"):
        each.unlink()
    copy(str(moved))
    assert counts() == Counter({1: 10})


class Batch:
    """A batch of a query, written by hand: two tasks with a transaction each."""

    def __init__(self, address: str) -> None:
        self.options = Options.parse(options_for(address))
        self.query = str(uuid.uuid4())
        self.controller = ControllerClient(address)
        self.committer = Committer(self.options, self.controller)
        self.controller.ensure_scope(SCOPE)
        self.attempts = 0
        self.segments: frozenset[int] = frozenset()
        """Segments to which the last attempt wrote."""

    def log(self) -> CommitLog:
        return CommitLog(self.controller, SCOPE, self.options.commit_table)

    def record(self, transactions: dict[int, bytes]) -> None:
        """Record batch 7, and nothing more."""
        key = query_key("query", self.query, "", self.options.name)
        state = BatchState(transactions, 7, "a plan", len(transactions), self.segments)
        assert self.log().write(key, state)

    def commit(self, transactions: dict[int, bytes]) -> None:
        """Commit batch 7 with the transactions of an attempt, whatever was recorded."""
        attempt = Attempt(
            self.query, 7, transactions, len(transactions), self.segments, "a plan", run="a run"
        )
        self.committer.commit_recorded(self.log(), attempt)

    def attempt(self, tasks: int = 2) -> dict[int, bytes]:
        """Run all writing tasks and return their transactions."""
        self.attempts += 1
        found = {}
        for task in range(tasks):
            begun = self.controller.begin_transaction(SCOPE, self.options.stream, 30_000)
            writer = TransactionWriter(
                SCOPE,
                self.options.stream,
                begun,
                lambda segment: self.controller.segment_address(
                    SCOPE, self.options.stream, segment
                ),
            )
            self.segments = frozenset(item.segment_id for item in begun.ranges)
            writer.write([f"task {task} attempt {self.attempts}"], ["key"])
            writer.flush()
            writer.close()
            found[task] = begun.identifier
        return found

    def abort(self, ident: bytes) -> None:
        assert self.controller.abort_transaction(SCOPE, self.options.stream, ident)


@pytest.fixture
def batch(spark: Any, address: str) -> Any:
    batch = Batch(address)
    options = options_for(address, batch.options.stream)
    numbered(spark, 0, 0).write.format("pravega").options(**options).mode("append").save()
    with batch.controller:
        yield batch


def events_of(spark: Any, batch: Batch) -> Counter[str]:
    return Counter(read_events(spark, options_for(batch.options.controller, batch.options.stream)))


def test_a_batch_that_was_recorded_is_finished_by_its_repetition(spark: Any, batch: Batch) -> None:
    first = batch.attempt()
    batch.record(first)
    batch.committer.commit([first[0]])  # and then the driver died
    batch.commit(batch.attempt())
    assert events_of(spark, batch) == Counter(["task 0 attempt 1", "task 1 attempt 1"])
    batch.commit(batch.attempt())
    assert events_of(spark, batch) == Counter(["task 0 attempt 1", "task 1 attempt 1"])


def test_a_batch_that_was_not_recorded_counts_with_its_repetition(spark: Any, batch: Batch) -> None:
    batch.attempt()
    batch.commit(batch.attempt())
    assert events_of(spark, batch) == Counter(["task 0 attempt 2", "task 1 attempt 2"])


def test_a_recorded_transaction_that_ended_is_replaced_with_all_others(
    spark: Any, batch: Batch
) -> None:
    first = batch.attempt()
    batch.abort(first[1])
    with pytest.raises(RefusedError, match="ended before they could be committed"):
        batch.commit(first)
    assert events_of(spark, batch) == Counter()
    batch.commit(batch.attempt(3))
    assert events_of(spark, batch) == Counter(f"task {task} attempt 2" for task in range(3))


def test_beside_committed_transactions_only_those_that_ended_are_replaced(
    spark: Any, batch: Batch
) -> None:
    first = batch.attempt()
    batch.record(first)
    batch.committer.commit([first[0]])  # and then the driver died
    batch.abort(first[1])
    batch.commit(batch.attempt())
    assert events_of(spark, batch) == Counter(["task 0 attempt 1", "task 1 attempt 2"])


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_batch_that_was_divided_anew_replaces_no_single_transaction(
    tasks: int, spark: Any, batch: Batch
) -> None:
    """A task wrote other data in the earlier division than the task of its number writes now."""
    first = batch.attempt()
    batch.record(first)
    batch.committer.commit([first[1]])  # and then the driver died
    batch.abort(first[0])
    for _ in range(2):
        with pytest.raises(RefusedError, match="plan has changed"):
            batch.commit(batch.attempt(tasks))
    assert events_of(spark, batch) == Counter(["task 1 attempt 1"])


def test_a_batch_that_was_divided_anew_is_finished_if_its_transactions_live(
    spark: Any, batch: Batch
) -> None:
    first = batch.attempt()
    batch.record(first)
    batch.commit(batch.attempt(3))
    assert events_of(spark, batch) == Counter(["task 0 attempt 1", "task 1 attempt 1"])


def test_a_recorded_transaction_that_nobody_knows_any_more_is_not_replaced(
    spark: Any, batch: Batch
) -> None:
    """It may have been committed long ago."""
    forgotten = bytes(8) + os.urandom(8)
    batch.record({**batch.attempt(), 1: forgotten})
    with pytest.raises(RefusedError, match="is not known any more"):
        batch.commit(batch.attempt())
    assert events_of(spark, batch) == Counter()


def test_nothing_is_committed_of_a_frame_one_of_whose_transactions_ended(
    spark: Any, batch: Batch
) -> None:
    first = batch.attempt()
    batch.abort(first[1])
    with pytest.raises(RefusedError, match="ended before they could be committed"):
        batch.committer.commit(list(first.values()))
    assert events_of(spark, batch) == Counter()


@pytest.mark.parametrize(("partitions", "primary_key"), [(2, 32), (1, 8)])
def test_a_commit_table_of_another_make_is_refused_by_name(
    partitions: int, primary_key: int, spark: Any, batch: Batch
) -> None:
    table = f"table-{uuid.uuid4().hex[:12]}"
    batch.controller.create_table(
        SCOPE, table, partitions=partitions, primary_key=primary_key, secondary_key=0
    )
    with pytest.raises(OptionError, match=f"commit_table.*{table}"):
        CommitLog(batch.controller, SCOPE, table)
