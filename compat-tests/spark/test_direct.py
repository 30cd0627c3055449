"""Reads of tier 2 past the segment store give what reads over the wire give, or a sentence."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from compat_harness.server import Server
from foreign_servers.deadlines import scale
from foreign_servers.s3 import CREDENTIALS, client_of, moto_server
from pyspark.sql.types import BinaryType, StringType, StructType

from pravega_spark.errors import DamagedError, DataLossError, PlanRefusedError, TierMissingError
from pravega_spark.source import EventReader, PravegaDataSource, SlicePartition
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient
from segstore_client.controller.scaling import plan_merge, plan_split
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.cuts.segment_info import tail_offsets

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(300),
    # py4j leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCOPE = "direct"
MIB = 1024 * 1024
EVENT_BYTES = 5_000
EVENTS = 1_000
BUCKET = "direct"
STORED_SECONDS_MAX = scale(60.0)


class Stored:
    """A store whose tier 2 this process can read."""

    def __init__(
        self, server: Server, client: ControllerClient, lose: Callable[[str], int]
    ) -> None:
        self.server = server
        self.client = client
        self.lose_chunks = lose
        """Delete a stream's chunks, as their owner does when no lease is left; returns how many."""


@pytest.fixture(scope="module")
def in_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    with Server(tmp_path_factory.mktemp("direct")) as server:

        def lose(stream: str) -> int:
            found = chunk_files(server, stream)
            for path in found:
                path.unlink()
            return len(found)

        with ControllerClient(server.controller_uri) as client:
            client.create_scope(SCOPE)
            yield Stored(server, client, lose)


@pytest.fixture(scope="module")
def in_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    environment = pytest.MonkeyPatch()
    for name, value in CREDENTIALS.items():
        environment.setenv(name, value)
    with moto_server() as endpoint, client_of(endpoint) as s3:
        s3.create_bucket(Bucket=BUCKET)
        options = [f"--tier2=s3://{BUCKET}/history", f"--s3-endpoint={endpoint}"]
        with Server(tmp_path_factory.mktemp("direct-s3"), options) as server:

            def lose(stream: str) -> int:
                prefix = f"history/{SCOPE}/{stream}/"
                listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
                for each in listed.get("Contents", ()):
                    s3.delete_object(Bucket=BUCKET, Key=each["Key"])
                return int(listed["KeyCount"])

            with ControllerClient(server.controller_uri) as client:
                client.create_scope(SCOPE)
                yield Stored(server, client, lose)
    environment.undo()


@pytest.fixture(params=["in_files", "in_s3"])
def stored(request: pytest.FixtureRequest) -> Stored:
    store: Stored = request.getfixturevalue(request.param)
    return store


def chunk_files(server: Server, stream: str) -> list[Path]:
    """Return the files of a stream's segments."""
    return sorted((server.data_dir / "storage" / SCOPE / stream).rglob("*.chunk"))


class Stream:
    """A stream whose chunks are short, of events with random bytes."""

    def __init__(self, stored: Stored, *, segments: int = 2) -> None:
        self.name = f"s-{uuid.uuid4().hex[:12]}"
        self.stored = stored
        self._random = random.Random(self.name)
        settings = StreamSettings(
            scaling=Scaling(segment_count_min=segments), rollover_size_bytes=MIB
        )
        stored.client.create_stream(SCOPE, self.name, settings)

    def options(self, **more: object) -> dict[str, str]:
        given = {
            "controller": self.stored.server.controller_uri,
            "scope": SCOPE,
            "stream": self.name,
            **more,
        }
        return {name: str(value) for name, value in given.items()}

    def _events(self, count: int) -> tuple[list[bytes], list[str]]:
        # Zeros look like headers of events.
        events = [
            self._random.randbytes(EVENT_BYTES // 2) + bytes(self._random.randrange(EVENT_BYTES))
            for _ in range(count)
        ]
        return events, [f"key-{self._random.randrange(50)}" for _ in range(count)]

    def write(self, count: int = EVENTS) -> None:
        events, keys = self._events(count)
        with BlockingEventWriter(self.stored.client, SCOPE, self.name) as writer:
            for event, key in zip(events, keys, strict=True):
                writer.submit(event, key=key)

    def write_transaction(self, count: int = EVENTS) -> None:
        events, keys = self._events(count)
        schema = StructType().add("event", BinaryType()).add("routing_key", StringType())
        sink = PravegaDataSource(self.options()).writer(schema, False)
        batch = pa.RecordBatch.from_pydict({"event": events, "routing_key": keys})
        sink.commit([sink.write(iter([batch]))])  # type: ignore[arg-type]

    def scale(self, plan: Callable[[Any], Any]) -> None:
        wanted = plan(self.stored.client.current_segments(SCOPE, self.name).ranges)
        self.stored.client.scale_stream(
            SCOPE, self.name, sealed=wanted.sealed, ranges=wanted.ranges, timeout=30
        )

    def reader(self, path: str, **more: object) -> EventReader:
        reader = PravegaDataSource(self.options(read_path=path, **more)).reader(StructType())
        assert isinstance(reader, EventReader)
        return reader

    def planned(self, path: str, **more: object) -> list[SlicePartition]:
        found = []
        for each in self.reader(path, **more).partitions():
            assert isinstance(each, SlicePartition)
            found.append(each)
        return found

    def rows(self, path: str, **more: object) -> list[tuple[Any, ...]]:
        return self.read(self.planned(path, **more), path, **more)

    def read(
        self, partitions: Sequence[SlicePartition], path: str, **more: object
    ) -> list[tuple[Any, ...]]:
        reader = self.reader(path, **more)
        rows = []
        for partition in partitions:
            for batch in reader.read(partition):
                columns = [batch.column(name).to_pylist() for name in batch.schema.names]
                rows += list(zip(*columns, strict=True))
        return sorted(rows, key=lambda row: row[3:])

    def wait_stored(self, share: float = 0.5) -> list[SlicePartition]:
        """Return partitions of which tier 2 has so much."""
        deadline = time.monotonic() + STORED_SECONDS_MAX
        while True:
            partitions = self.planned("direct")
            parts = [part for each in partitions for part in each.parts]
            planned = sum(each.plan.end - each.plan.start for each in parts if each.plan)
            total = sum(each.piece.end - each.piece.start for each in parts)
            if planned >= share * total:
                return partitions
            assert time.monotonic() < deadline, f"{planned} of {total} bytes are in tier 2"
            time.sleep(0.2)


def test_direct_and_wire_give_the_same_rows_through_merges_truncation_and_epochs(
    stored: Stored,
) -> None:
    stream = Stream(stored)
    stream.write()
    middle = tail_offsets(stored.client, SCOPE, stream.name)
    stream.write_transaction()  # its chunks are moved
    stream.scale(lambda ranges: plan_split(ranges, ranges[0].segment_id, 2))
    stream.write_transaction(20)  # its bytes are copied
    stream.write()
    stream.scale(lambda ranges: plan_merge(ranges, [each.segment_id for each in ranges[:2]]))
    stream.write()
    everything = stream.rows("wire")
    assert len(everything) == 4 * EVENTS + 20
    stored.client.truncate_stream(SCOPE, stream.name, middle)
    stream.wait_stored()
    stream.write(50)  # a tail that is not in tier 2
    wire = stream.rows("wire")
    assert EVENTS < len(wire) < len(everything) + 50
    assert stream.rows("direct") == wire
    assert stream.rows("auto") == wire
    parts = stream.planned("direct", max_partition_bytes=MIB)
    assert len(parts) > 6
    assert stream.read(parts, "direct") == wire
    cut_exactly = stream.planned("direct", min_partitions=30)
    assert len(cut_exactly) >= 30
    assert stream.read(cut_exactly, "direct") == wire


def test_after_a_restart_nearly_everything_is_direct(in_files: Stored) -> None:
    stream = Stream(in_files)
    stream.write()
    in_files.server.restart()
    wire = stream.rows("wire")
    partitions = stream.wait_stored(1.0)
    in_files.server.kill_all()
    try:
        # Nobody serves anything: what a task reads comes from files alone.
        assert stream.read(partitions, "direct") == wire
    finally:
        in_files.server.start()


def test_what_was_planned_is_read_though_the_stream_was_deleted(stored: Stored) -> None:
    stream = Stream(stored)
    stream.write()
    partitions = stream.wait_stored(1.0)
    wire = stream.rows("wire")
    stored.client.seal_stream(SCOPE, stream.name)
    stored.client.delete_stream(SCOPE, stream.name)
    assert stream.read(partitions, "direct") == wire


def test_chunks_that_went_when_the_lease_had_ended_are_not_lost_without_a_word(
    stored: Stored,
) -> None:
    stream = Stream(stored)
    stream.write()
    partitions = stream.wait_stored()
    stored.client.truncate_stream(
        SCOPE, stream.name, tail_offsets(stored.client, SCOPE, stream.name)
    )
    assert stored.lose_chunks(stream.name)
    for path in ("direct", "auto"):
        with pytest.raises(DataLossError, match="are gone: the stream was truncated"):
            stream.read(partitions, path)
        assert not stream.read(partitions, path, fail_on_data_loss="false")


def test_missing_chunks_of_a_living_segment_are_told_or_read_over_the_wire(
    in_files: Stored,
) -> None:
    stream = Stream(in_files)
    stream.write()
    partitions = stream.wait_stored()
    wire = stream.rows("wire")
    hidden = [
        (path, path.with_suffix(".hidden")) for path in chunk_files(in_files.server, stream.name)
    ]
    for path, other in hidden:
        path.rename(other)
    try:
        with pytest.raises(TierMissingError, match="is not there"):
            stream.read(partitions, "direct")
        # The store has these bytes in its cache still.
        assert stream.read(partitions, "auto") == wire
    finally:
        for path, other in hidden:
            other.rename(path)


def test_a_damaged_block_is_refused_with_a_sentence(in_files: Stored) -> None:
    stream = Stream(in_files)
    stream.write()
    partitions = stream.wait_stored()
    plan = next(part.plan for each in partitions for part in each.parts if part.plan)
    path = in_files.server.data_dir / "storage" / plan.chunks[0].objects[0].path
    data = bytearray(path.read_bytes())
    position = 300_000
    data[position] ^= 1
    path.write_bytes(data)
    try:
        for read_path in ("direct", "auto"):
            with pytest.raises(DamagedError, match="does not match its checksum; restore"):
                stream.read(partitions, read_path)
    finally:
        data[position] ^= 1
        path.write_bytes(data)
    assert stream.read(partitions, "direct") == stream.rows("wire")


def test_a_store_that_is_killed_in_the_middle_of_a_read_takes_no_row_along(
    stored: Stored,
) -> None:
    stream = Stream(stored, segments=1)
    stream.write(2 * EVENTS)
    [partition] = stream.wait_stored()
    wire = stream.rows("wire")
    batches = stream.reader("direct").read(partition)
    rows = list(zip(*(column.to_pylist() for column in next(batches).columns), strict=True))
    killed = stored.server.kill_segment_store()
    for batch in batches:
        rows += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    stored.server.wait_until_back(killed)
    assert rows == wire
    # Leases of the process that was killed are forgotten, and their chunks are still there.
    retried(lambda: in_tier_two(stream))
    assert stream.read([partition], "direct") == wire


def in_tier_two(stream: Stream) -> None:
    assert any(part.plan for each in stream.planned("direct") for part in each.parts)


def retried(function: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            function()
            return
        except RETRIED_ERRORS:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.proof
def test_spark_counts_the_same_on_both_paths(spark: Any, in_files: Stored) -> None:
    stream = Stream(in_files)
    stream.write()
    stream.wait_stored()
    sums = {}
    for path in ("direct", "wire"):
        frame = (
            spark.read.format("pravega")
            .options(**stream.options(read_path=path, max_partition_bytes=MIB))
            .load()
        )
        assert frame.rdd.getNumPartitions() > 2
        sums[path] = frame.selectExpr(
            "count(*)", "sum(crc32(event))", "sum(offset)", "sum(segment_id)"
        ).collect()
    assert sums["direct"] == sums["wire"]
    assert sums["wire"][0][0] == EVENTS


@pytest.mark.proof
def test_the_original_has_no_plans_and_is_read_over_the_wire(original: str) -> None:
    with ControllerClient(original) as client:
        name = f"s-{uuid.uuid4().hex[:12]}"
        if SCOPE not in client.list_scopes():
            client.create_scope(SCOPE)
        client.create_stream(SCOPE, name, StreamSettings())
        with BlockingEventWriter(client, SCOPE, name) as writer:
            for _ in range(1_800):
                writer.submit(bytes(EVENT_BYTES), key="key")
        options = {"controller": original, "scope": SCOPE, "stream": name}
        source = PravegaDataSource({**options, "read_path": "direct"})
        with pytest.raises(PlanRefusedError, match="does not tell"):
            source.reader(StructType()).partitions()
        reader = PravegaDataSource(options).reader(StructType())
        partitions = reader.partitions()
        parts = [part for each in partitions for part in getattr(each, "parts", ())]
        assert [part.plan for part in parts] == [None]
        assert sum(len(batch) for batch in reader.read(partitions[0])) == 1_800  # type: ignore[arg-type]
