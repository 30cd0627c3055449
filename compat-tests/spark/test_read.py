"""The data source reads streams on real Spark: in batches, as queries, through whatever happens."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from compat_harness.queries import run_query_to_its_end
from compat_harness.server import Server
from fastavro import schemaless_writer

from pravega_spark.options import Options
from pravega_spark.reading.stream_view import StreamView
from pravega_wire.names import mark_stream
from pravega_wire.stream_cut_text import encode_cut_text
from pravega_wire.watermarks import SegmentWithRange, Watermark, encode_watermark
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient
from segstore_client.controller.scaling import plan_merge, plan_split
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.cuts.segment_info import tail_offsets
from support.rare_parameters import mark_rare

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(300),
    # py4j leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCOPE = "spark"
KEYS = 20

T = TypeVar("T")


class Stream:
    """A stream of numbered events, each with one of some keys."""

    def __init__(self, client: ControllerClient, *, segments: int = 2) -> None:
        self.name = f"s-{uuid.uuid4().hex[:12]}"
        self.count = 0
        self._client = client
        if SCOPE not in client.list_scopes():
            client.create_scope(SCOPE)
        settings = StreamSettings(scaling=Scaling(segment_count_min=segments))
        client.create_stream(SCOPE, self.name, settings)

    def write(self, count: int) -> None:
        with retried(lambda: BlockingEventWriter(self._client, SCOPE, self.name)) as writer:
            for number in range(self.count, self.count + count):
                key = f"key-{number % KEYS}"
                writer.submit(f"{key} {number}".encode(), key=key)
        self.count += count

    def split(self) -> None:
        self._scale(lambda ranges: plan_split(ranges, ranges[0].segment_id, 2))

    def merge(self) -> None:
        self._scale(lambda ranges: plan_merge(ranges, [each.segment_id for each in ranges[:2]]))

    def _scale(self, plan: Any) -> None:
        ranges = retried(lambda: self._client.current_segments(SCOPE, self.name)).ranges
        wanted = plan(ranges)
        self._client.scale_stream(
            SCOPE, self.name, sealed=wanted.sealed, ranges=wanted.ranges, timeout=30
        )

    def options(self, store: Server, **more: object) -> dict[str, str]:
        given = {"controller": store.controller_uri, "scope": SCOPE, "stream": self.name, **more}
        return {name: str(value) for name, value in given.items()}


def retried(function: Callable[[], T]) -> T:
    """Call it until no server is away any more."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return function()
        except RETRIED_ERRORS:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def batch(spark: Any, options: dict[str, str]) -> list[Any]:
    return list(spark.read.format("pravega").options(**options).load().collect())


def numbers(rows: list[Any]) -> list[int]:
    return [int(bytes(row.event).split()[1]) for row in rows]


def run_available(
    spark: Any, options: dict[str, str], checkpoint: Path, target: list[list[Any]]
) -> None:
    """Run a query over what is there now; each batch's rows go to ``target``."""
    query = (
        spark.readStream.format("pravega")
        .options(**options)
        .load()
        .writeStream.foreachBatch(lambda frame, number: target.append(frame.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    run_query_to_its_end(query.start, 120)


def assert_keys_in_order(batches: list[list[Any]]) -> None:
    """Check that a batch's rows of a key are in the order of their segment, and batches come in
    order."""
    last: dict[str, int] = defaultdict(lambda: -1)
    for rows in batches:
        for row in sorted(rows, key=lambda row: (row.segment_id, row.offset)):
            key, number = bytes(row.event).decode().split()
            assert int(number) > last[key]
            last[key] = int(number)


def test_a_stream_without_events_has_no_rows(
    spark: Any, store: Server, client: ControllerClient
) -> None:
    stream = Stream(client)
    assert batch(spark, stream.options(store)) == []
    stream.write(100)
    assert batch(spark, stream.options(store, start_stream_cut="latest")) == []


def test_a_batch_has_every_event_once(spark: Any, store: Server, client: ControllerClient) -> None:
    stream = Stream(client)
    stream.write(5_000)
    stream.split()
    stream.write(2_000)
    stream.merge()
    stream.write(1_000)
    rows = batch(spark, stream.options(store))
    assert sorted(numbers(rows)) == list(range(8_000))
    assert {(row.scope, row.stream) for row in rows} == {(SCOPE, stream.name)}
    assert_keys_in_order([rows])
    parts = spark.read.format("pravega").options(**stream.options(store, min_partitions=9)).load()
    assert parts.rdd.getNumPartitions() >= 9
    assert sorted(numbers(parts.collect())) == list(range(8_000))


def test_a_batch_between_two_cuts_has_what_lies_between(
    spark: Any, store: Server, client: ControllerClient
) -> None:
    stream = Stream(client)
    stream.write(1_000)
    start = tail_offsets(client, SCOPE, stream.name)
    stream.split()
    stream.write(1_000)
    end = tail_offsets(client, SCOPE, stream.name)
    stream.write(1_000)
    options = stream.options(
        store, start_stream_cut=json.dumps(start), end_stream_cut=json.dumps(end)
    )
    assert sorted(numbers(batch(spark, options))) == list(range(1_000, 2_000))
    name = f"{SCOPE}/{stream.name}"
    options["start_stream_cut"] = encode_cut_text(name, start)
    options["end_stream_cut"] = encode_cut_text(name, end)
    assert sorted(numbers(batch(spark, options))) == list(range(1_000, 2_000))


def test_times_become_the_cuts_of_watermarks(store: Server, client: ControllerClient) -> None:
    stream = Stream(client)
    marks = mark_stream(stream.name)
    cuts = []
    for time_ms in (1_000, 2_000):
        stream.write(100)
        ranges = client.current_segments(SCOPE, stream.name).ranges
        cut = tail_offsets(client, SCOPE, stream.name)
        keyed = {
            SegmentWithRange(each.segment_id, each.low, each.high): cut[each.segment_id]
            for each in ranges
        }
        with BlockingEventWriter(client, SCOPE, marks) as writer:
            writer.submit(encode_watermark(Watermark(time_ms, time_ms + 10, keyed)))
        cuts.append(cut)
        stream.split()
    stream.write(100)

    def find(**times: str) -> tuple[dict[int, int], dict[int, int] | None]:
        with StreamView(Options.parse(stream.options(store, **times))) as view:
            return view.start("earliest"), view.end("unbounded")

    tail = tail_offsets(client, SCOPE, stream.name)
    assert find(start_time="1500", end_time="1970-01-01T00:00:02Z") == (cuts[0], cuts[1])
    assert find(start_time="2010", end_time="2001") == (cuts[1], tail)
    assert find(start_time="1009") == ({0: 0, 1: 0}, None)


def test_json_becomes_columns_on_the_way(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path
) -> None:
    stream = Stream(client, segments=1)
    with BlockingEventWriter(client, SCOPE, stream.name) as writer:
        for number in range(1_000):
            writer.submit(json.dumps({"n": number, "at": "2026-03-01T12:00:00Z"}).encode())
        writer.submit(b"no JSON")
    columns = "n bigint, at timestamp, _corrupt_record string"
    options = stream.options(store, schema=columns)
    frame = spark.read.format("pravega").options(**options).load()
    assert frame.columns == [
        "n",
        "at",
        "_corrupt_record",
        "scope",
        "stream",
        "segment_id",
        "offset",
    ]
    found = frame.selectExpr("sum(n) as n", "year(max(at)) as year", "max(_corrupt_record) as bad")
    assert found.first().asDict() == {"n": sum(range(1_000)), "year": 2026, "bad": "no JSON"}
    with pytest.raises(Exception, match="is not JSON of the option schema"):
        batch(spark, stream.options(store, schema="n bigint", mode="failfast"))
    dropped = batch(spark, stream.options(store, schema="n bigint", mode="dropmalformed"))
    assert [row.n for row in dropped] == list(range(1_000))
    with pytest.raises(Exception, match="has none: its writers record no times"):
        batch(spark, stream.options(store, start_time="2026-03-01"))
    batches: list[list[Any]] = []
    options = stream.options(store, schema="n bigint", start_stream_cut="earliest")
    run_available(spark, options, tmp_path / "checkpoint", batches)
    assert sum(row.n or 0 for rows in batches for row in rows) == sum(range(1_000))


@pytest.mark.parametrize("zone", mark_rare(["America/St_Johns", "UTC", "Europe/Berlin"], 1))
def test_times_without_a_zone_are_of_the_session(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path, zone: str
) -> None:
    stream = Stream(client, segments=1)
    texts = [f"2026-03-01T{hour}:{minute:02}:00" for hour in (11, 12, 13) for minute in range(6)]
    with BlockingEventWriter(client, SCOPE, stream.name) as writer:
        for text in texts:
            writer.submit(json.dumps({"at": text}).encode())
    options = stream.options(store, schema="at timestamp", start_stream_cut="earliest")
    former = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.read.format("pravega").options(**options).load()
        at_noon = frame.where("at between '2026-03-01 12:00:00' and '2026-03-01 12:59:59'")
        assert at_noon.count() == 6
        query = (
            spark.readStream.format("pravega")
            .options(**options)
            .load()
            .selectExpr("date_format(at, \"yyyy-MM-dd'T'HH:mm:ss\") as text")
            .writeStream.format("json")
            .option("path", str(tmp_path / "texts"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        run_query_to_its_end(query.start, 120)
        found = spark.read.json(str(tmp_path / "texts")).collect()
        assert sorted(row.text for row in found) == texts
    finally:
        spark.conf.set("spark.sql.session.timeZone", former)


def test_avro_becomes_columns_on_the_way(
    spark: Any, store: Server, client: ControllerClient
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        ],
    }
    stream = Stream(client, segments=1)
    with BlockingEventWriter(client, SCOPE, stream.name) as writer:
        for number in range(500):
            record = {"n": number, "at": 1_772_366_400_000, "tags": {"a": [number, 1]}}
            data = io.BytesIO()
            schemaless_writer(data, schema, record)
            writer.submit(data.getvalue())
        writer.submit(b"no record")
    options = stream.options(store, schema=json.dumps(schema))
    frame = spark.read.format("pravega").options(**options).load()
    found = frame.selectExpr(
        "sum(n) as n",
        "count(n) as good",
        "count(*) as all",
        "unix_millis(max(at)) as at",
        "sum(tags['a'][0]) as tags",
    )
    assert found.first().asDict() == {
        "n": sum(range(500)),
        "good": 500,
        "all": 501,
        "at": 1_772_366_400_000,
        "tags": sum(range(500)),
    }
    with pytest.raises(Exception, match="is not Avro of the option schema"):
        batch(spark, {**options, "mode": "failfast"})


def test_metadata_are_frames_too(spark: Any, store: Server, client: ControllerClient) -> None:
    stream = Stream(client)
    stream.write(10)
    options = stream.options(store, metadata="Streams")
    assert (SCOPE, stream.name) in {(row.scope, row.stream) for row in batch(spark, options)}
    (row,) = batch(spark, stream.options(store, metadata="StreamInfo"))
    assert json.loads(row.head_stream_cut)["cut"] == {"0": 0, "1": 0}
    tail = {str(key): value for key, value in tail_offsets(client, SCOPE, stream.name).items()}
    assert json.loads(row.tail_stream_cut)["cut"] == tail


@pytest.mark.parametrize(
    "limit", mark_rare([{"max_rows_per_trigger": 700}, {"max_bytes_per_trigger": 20_000}, {}], 1)
)
def test_a_query_goes_on_where_it_stopped_across_scales(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path, limit: dict[str, int]
) -> None:
    stream = Stream(client)
    stream.write(3_000)
    options = stream.options(store, start_stream_cut="earliest", **limit)
    batches: list[list[Any]] = []
    run_available(spark, options, tmp_path / "checkpoint", batches)
    assert sorted(n for rows in batches for n in numbers(rows)) == list(range(3_000))
    stream.split()
    stream.write(500)
    stream.merge()
    stream.write(500)
    run_available(spark, options, tmp_path / "checkpoint", batches)
    assert sorted(n for rows in batches for n in numbers(rows)) == list(range(4_000))
    assert_keys_in_order(batches)
    if "max_rows_per_trigger" in limit:
        assert max(map(len, batches)) <= 700
    if "max_bytes_per_trigger" in limit:
        sizes = [sum(len(row.event) + 8 for row in rows) for rows in batches]
        assert max(sizes) <= 20_000


def test_a_query_without_a_limit_follows_writers_and_survives_kills(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path
) -> None:
    stream = Stream(client)
    batches: list[list[Any]] = []
    query = (
        spark.readStream.format("pravega")
        .options(**stream.options(store, start_stream_cut="earliest"))
        .load()
        .writeStream.foreachBatch(lambda frame, number: batches.append(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for _ in range(3):
            stream.write(500)
            writer = threading.Thread(target=stream.write, args=[500])
            writer.start()
            store.wait_until_back(store.kill("segment-store-0", "controller"))
            writer.join()
            stream.split()
        deadline = time.monotonic() + 120
        while sum(map(len, batches)) < stream.count:
            assert query.exception() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        query.stop()
    assert sorted(n for rows in batches for n in numbers(rows)) == list(range(stream.count))
    assert_keys_in_order(batches)


def test_truncated_events_are_told_or_left_out(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path
) -> None:
    stream = Stream(client, segments=1)
    stream.write(1_000)
    batches: list[list[Any]] = []
    options = stream.options(store, start_stream_cut="earliest")
    run_available(spark, options, tmp_path / "checkpoint", batches)
    stream.write(1_000)
    cut = tail_offsets(client, SCOPE, stream.name)
    client.truncate_stream(SCOPE, stream.name, cut)
    stream.write(1_000)
    with pytest.raises(Exception, match="truncated before they were read"):
        run_available(spark, options, tmp_path / "checkpoint", batches)
    options["fail_on_data_loss"] = "false"
    run_available(spark, options, tmp_path / "checkpoint", batches)
    found = sorted(n for rows in batches for n in numbers(rows))
    assert found == [*range(1_000), *range(2_000, 3_000)]
    # A batch begins at the head, where nothing is missing.
    rows = batch(spark, stream.options(store))
    assert sorted(numbers(rows)) == list(range(2_000, 3_000))


def test_a_query_whose_stream_was_made_again_is_told_so_or_reads_the_present_one(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path
) -> None:
    """It was told of a truncation, and without ``fail_on_data_loss`` it read nothing for ever."""
    stream = Stream(client)
    stream.write(50)
    batches: list[list[Any]] = []
    options = stream.options(store, start_stream_cut="earliest")
    run_available(spark, options, tmp_path / "checkpoint", batches)
    client.seal_stream(SCOPE, stream.name)
    client.delete_stream(SCOPE, stream.name)
    settings = StreamSettings(scaling=Scaling(segment_count_min=2))
    client.create_stream(SCOPE, stream.name, settings)
    stream.write(200)
    with pytest.raises(Exception, match="this checkpoint is of an earlier stream of that name"):
        run_available(spark, options, tmp_path / "checkpoint", batches)
    options["fail_on_data_loss"] = "false"
    run_available(spark, options, tmp_path / "checkpoint", batches)
    assert sorted(n for rows in batches for n in numbers(rows)) == list(range(250))
    # From now on it is the checkpoint of the present stream.
    del options["fail_on_data_loss"]
    stream.write(50)
    run_available(spark, options, tmp_path / "checkpoint", batches)
    assert sorted(n for rows in batches for n in numbers(rows)) == list(range(300))


def test_a_sealed_stream_is_read_to_its_end(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path
) -> None:
    stream = Stream(client)
    stream.write(300)
    stream.split()
    stream.write(300)
    client.seal_stream(SCOPE, stream.name)
    assert sorted(numbers(batch(spark, stream.options(store)))) == list(range(600))
    batches: list[list[Any]] = []
    options = stream.options(store, start_stream_cut="earliest")
    run_available(spark, options, tmp_path / "checkpoint", batches)
    assert sorted(n for rows in batches for n in numbers(rows)) == list(range(600))


def test_errors_are_sentences(spark: Any, store: Server, client: ControllerClient) -> None:
    stream = Stream(client)
    missing = {**stream.options(store), "stream": "missing"}
    with pytest.raises(Exception, match=f"{SCOPE}/missing does not exist"):
        batch(spark, missing)
    with pytest.raises(Exception, match="the option scope is missing"):
        batch(spark, {"stream": "t"})
    with pytest.raises(Exception, match="is no stream cut"):
        batch(spark, stream.options(store, start_stream_cut="yesterday"))
