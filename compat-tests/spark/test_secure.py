"""The data source over TLS, as users who have just the rights that they need."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compat_harness.secure import ADMINISTRATOR, SecureServer
from foreign_servers.deadlines import scale
from pyspark.sql.types import StructType

from pravega_spark.commit_log import KEY_BYTES
from pravega_spark.options import COMMIT_TABLE
from pravega_spark.reading.scan_plans import LEASE_MS, new_lease_id
from pravega_spark.source import PravegaDataSource, SlicePartition
from pravega_wire import commands as wire
from pravega_wire.names import segment_name
from segstore_client.access.settings import AccessSettings, build_access
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.errors import NoPermissionError

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(300),
    # py4j leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCOPE = "secured"
EVENTS = 600
EVENT_BYTES = 5_000
STORED_SECONDS_MAX = scale(60.0)


class Secured:
    """The store with a scope of its own, and an administrator's connection to it."""

    def __init__(self, server: SecureServer, administrator: ControllerClient) -> None:
        self.server = server
        self.administrator = administrator

    def connect(self, user: str) -> ControllerClient:
        settings = AccessSettings(
            user=user, password=self.server.passwords[user], ca=str(self.server.ca)
        )
        return ControllerClient(self.server.controller_uri, access=build_access([settings]))

    def create_stream(self, segment_count: int = 2) -> str:
        name = f"s-{uuid.uuid4().hex[:12]}"
        settings = StreamSettings(scaling=Scaling(segment_count_min=segment_count))
        self.administrator.create_stream(SCOPE, name, settings)
        return name

    def fill(self, stream: str) -> list[bytes]:
        """Write numbered events, which are returned."""
        events = [b"%06d " % number + bytes(EVENT_BYTES) for number in range(EVENTS)]
        with BlockingEventWriter(self.administrator, SCOPE, stream) as writer:
            for number, event in enumerate(events):
                writer.submit(event, key=f"key-{number % 50}")
        return events

    def add_user(self, **levels: str) -> str:
        """Add a user with a level for each of some streams; return the name."""
        name = f"u-{uuid.uuid4().hex[:12]}"
        rights = [(resource_of(stream), level) for stream, level in levels.items()]
        self.server.add_user(name, *rights)
        return name

    def options(self, user: str, stream: str, **more: object) -> dict[str, str]:
        return {
            "controller": self.server.controller_uri,
            "scope": SCOPE,
            "stream": stream,
            "user": user,
            "password_file": str(self.server.write_password(user)),
            "ca": str(self.server.ca),
            **{name: str(value) for name, value in more.items()},
        }


def resource_of(stream: str) -> str:
    return f"prn::/scope:{SCOPE}/stream:{stream}"


@pytest.fixture(scope="module")
def secured(secure_server: SecureServer) -> Iterator[Secured]:
    settings = AccessSettings(
        user=ADMINISTRATOR,
        password=secure_server.passwords[ADMINISTRATOR],
        ca=str(secure_server.ca),
    )
    access = build_access([settings])
    with ControllerClient(secure_server.controller_uri, access=access) as administrator:
        administrator.create_scope(SCOPE)
        yield Secured(secure_server, administrator)


def read_batch(spark: Any, options: dict[str, str]) -> list[bytes]:
    rows = spark.read.format("pravega").options(**options).load().select("event").collect()
    return sorted(bytes(row.event) for row in rows)


def count_planned(options: dict[str, str]) -> tuple[int, int]:
    """Return how many bytes of a stream tasks would read from tier 2, and how many in all."""
    partitions = PravegaDataSource(options).reader(StructType()).partitions()
    parts = [part for each in partitions if isinstance(each, SlicePartition) for part in each.parts]
    planned = sum(part.plan.end - part.plan.start for part in parts if part.plan)
    return planned, sum(part.piece.end - part.piece.start for part in parts)


def wait_until_stored(options: dict[str, str]) -> None:
    """Wait until most of a stream is in tier 2."""
    deadline = time.monotonic() + STORED_SECONDS_MAX
    while True:
        planned, total = count_planned(options)
        if planned >= total / 2:
            return
        assert time.monotonic() < deadline, f"{planned} of {total} bytes are in tier 2"
        time.sleep(0.2)


def test_a_reader_reads_over_the_wire_from_tier_two_and_as_a_query(
    spark: Any, secured: Secured, tmp_path: Path
) -> None:
    stream = secured.create_stream()
    events = secured.fill(stream)
    reader = secured.add_user(**{stream: "READ"})
    assert read_batch(spark, secured.options(reader, stream, read_path="wire")) == events
    direct = secured.options(reader, stream, read_path="direct")
    wait_until_stored(direct)
    assert read_batch(spark, direct) == events
    batches: list[list[Any]] = []
    query = (
        spark.readStream.format("pravega")
        .options(**secured.options(reader, stream, start_stream_cut="earliest"))
        .load()
        .writeStream.foreachBatch(lambda frame, number: batches.append(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(bytes(row.event) for rows in batches for row in rows) == events


def test_who_may_write_a_stream_alone_writes_a_frame(spark: Any, secured: Secured) -> None:
    stream = secured.create_stream()
    writer = secured.add_user(**{stream: "READ_UPDATE"})
    options = secured.options(writer, stream)
    frame = spark.range(0, 1_000, 1, 3).selectExpr("cast(id as string) as event")
    frame.write.format("pravega").options(**options).mode("append").save()
    assert read_batch(spark, options) == sorted(b"%d" % number for number in range(1_000))


def test_who_may_create_streams_in_a_scope_alone_writes_a_new_one(
    spark: Any, secured: Secured
) -> None:
    stream = f"s-{uuid.uuid4().hex[:12]}"
    writer = secured.add_user(**{stream: "READ_UPDATE"})
    secured.server.run_command("user", "grant", writer, f"prn::/scope:{SCOPE}", "READ_UPDATE")
    options = secured.options(writer, stream)
    frame = spark.range(10).selectExpr("cast(id as string) as event")
    frame.write.format("pravega").options(**options).mode("append").save()
    assert read_batch(spark, options) == [b"%d" % number for number in range(10)]


def test_a_query_with_rights_to_its_streams_and_its_table_copies_exactly_once(
    spark: Any, secured: Secured, tmp_path: Path
) -> None:
    source, target = secured.create_stream(), secured.create_stream()
    events = secured.fill(source)
    secured.administrator.create_table(
        SCOPE, COMMIT_TABLE, partitions=1, primary_key=KEY_BYTES, secondary_key=0
    )
    copier = secured.add_user(**{source: "READ", target: "READ_UPDATE"})
    table = f"prn::/scope:{SCOPE}/key-value-table:{COMMIT_TABLE}"
    secured.server.run_command("user", "grant", copier, table, "READ_UPDATE")
    for _ in range(2):
        query = (
            spark.readStream.format("pravega")
            .options(
                **secured.options(
                    copier, source, start_stream_cut="earliest", max_rows_per_trigger=200
                )
            )
            .load()
            .select("event")
            .writeStream.format("pravega")
            .options(**secured.options(copier, target))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)
    assert read_batch(spark, secured.options(copier, target)) == events


def test_who_may_not_read_is_told_in_one_sentence(
    spark: Any, secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, other = secured.create_stream(), secured.create_stream()
    stranger = secured.add_user(**{other: "READ"})
    options = secured.options(stranger, stream)
    with pytest.raises(NoPermissionError) as told:
        PravegaDataSource(options).reader(StructType()).partitions()
    sentence = str(told.value)
    assert "\n" not in sentence
    assert f"user {stranger} has no permission" in sentence
    assert f"{SCOPE}/{stream}" in sentence
    assert capsys.readouterr().err == f"pravega: {sentence}\n"
    with pytest.raises(Exception) as failed:  # noqa: PT011 - PySpark's kind depends on the place
        read_batch(spark, options)
    assert sentence in str(failed.value)
    assert secured.server.passwords[stranger] not in str(failed.value)


def test_a_plan_is_for_who_may_read_the_stream_alone(secured: Secured) -> None:
    # Where half of a stream is in tier 2, one of two segments may have nothing there.
    stream, other = secured.create_stream(segment_count=1), secured.create_stream()
    secured.fill(stream)
    reader = secured.add_user(**{stream: "READ"})
    stranger = secured.add_user(**{other: "READ_UPDATE"})
    wait_until_stored(secured.options(reader, stream, read_path="direct"))
    (segment,) = secured.administrator.current_segments(SCOPE, stream).ranges
    name = segment_name(SCOPE, stream, segment.segment_id)
    lease = new_lease_id()
    with secured.connect(stranger) as controller:
        with pytest.raises(NoPermissionError, match=f"{SCOPE}/{stream}"):
            controller.delegation_token(SCOPE, stream, Purpose.READ)
        of_another = controller.delegation_token(SCOPE, other, Purpose.READ_WRITE)
    with secured.connect(reader) as controller:
        address = controller.segment_address(SCOPE, stream, segment.segment_id)
        access = controller.store_access(SCOPE, stream, Purpose.READ)
        with access.connect(*address, timeout=30.0) as store:
            asked = (store.next_request_id(), name, 0, EVENT_BYTES, lease, LEASE_MS)
            held = (store.next_request_id(), name, lease, LEASE_MS, ())
            for token in ("", of_another):
                for request in (wire.PlanScan(*asked, token), wire.HoldChunks(*held, token)):
                    assert isinstance(store.call(request), wire.AuthTokenCheckFailed)
            plan = store.call(wire.PlanScan(*asked, access.token()))
            assert isinstance(plan, wire.ScanPlanned)
            assert plan.chunks
            assert isinstance(store.call(wire.HoldChunks(*held, access.token())), wire.ChunksHeld)
