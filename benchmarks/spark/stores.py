"""The two servers whose data Spark reads and writes: events into them, and their names for Spark.

1. Both hold the same number of events of the same length in as many parts, written as fast as each
   takes them: ours by appends of ready blocks on the wire, Kafka by Spark's own sink.
2. Nothing here is measured.
"""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from foreign_servers.kafka_broker import KafkaBroker
from foreign_servers.peer import RunningPeer

from benchmarks.peers.segstore_standalone import SegstoreStandalone
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import AppendSetup, DataAppended, SetupAppend
from pravega_wire.connection import append_block
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, StreamSettings

SCOPE = "benchmarks"
"""Of the load driver, too."""
BLOCK_BYTES = 512 * 1024
OUTSTANDING_BLOCKS = 16
REPLY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Events:
    """The events that every store gets under one name."""

    name: str
    count: int
    event_bytes: int
    parts: int

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of all events together."""
        return self.count * self.event_bytes


class Ours:
    """Segstore with its defaults, but for ``settings``, the text of its configuration file."""

    name = "segstore"

    def __init__(self, directory: Path, settings: str = "") -> None:
        self._peer = SegstoreStandalone(settings=settings)
        self._peer.prepare()
        self.address = self._peer.reserve()
        self.running: RunningPeer = self._peer.start(directory)

    def stop(self) -> None:
        """End it."""
        self._peer.stop()

    def create(self, name: str, parts: int) -> None:
        """Make an empty stream."""
        with ControllerClient(self.address) as client:
            if SCOPE not in client.list_scopes():
                client.create_scope(SCOPE)
            settings = StreamSettings(scaling=Scaling(segment_count_min=parts))
            client.create_stream(SCOPE, name, settings)

    def fill(self, events: Events) -> None:
        """Make a stream with these events."""
        self.create(events.name, events.parts)
        with ControllerClient(self.address) as client:
            ranges = client.current_segments(SCOPE, events.name).ranges
            share, rest = divmod(events.count, events.parts)
            for number, each in enumerate(ranges):
                host, port = client.segment_address(SCOPE, events.name, each.segment_id)
                segment = f"{SCOPE}/{events.name}/{each.segment_id & 0xFFFFFFFF}.#epoch.0"
                with SegmentConnection(host, port, timeout=REPLY_SECONDS) as connection:
                    _append(connection, segment, share + (number < rest), events.event_bytes)

    def read(self, spark: Any, name: str, **options: object) -> Any:
        """Return the frame of a stream."""
        return self._named(spark.read.format("pravega"), name, options).load()

    def follow(self, spark: Any, name: str, **options: object) -> Any:
        """Return the streaming frame of a stream, from its beginning."""
        given = {"start_stream_cut": "earliest", **options}
        return self._named(spark.readStream.format("pravega"), name, given).load()

    def write(self, frame: Any, name: str) -> None:
        """Add a frame's column ``event``, exactly once."""
        writer = frame.write.format("pravega").mode("append")
        self._named(writer, name, {"query_id": name}).save()

    def _named(self, source: Any, name: str, options: dict[str, object]) -> Any:
        given = {"controller": self.address, "scope": SCOPE, "stream": name, **options}
        return source.options(**{key: str(value) for key, value in given.items()})


class Kafka:
    """Kafka with its defaults, beside Spark's own source and sink for it."""

    name = "Kafka"

    def __init__(self, directory: Path) -> None:
        self._peer = KafkaBroker(fsync=False)
        self._peer.prepare()
        self.address = self._peer.reserve()
        self.running: RunningPeer = self._peer.start(directory)

    def stop(self) -> None:
        """End it."""
        self._peer.stop()

    def create(self, spark: Any, name: str, parts: int) -> None:
        """Make an empty topic, with the client that Spark's source brings along."""
        jvm = spark.sparkContext._jvm
        settings = jvm.java.util.HashMap()
        settings.put("bootstrap.servers", self.address)
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            topic = jvm.org.apache.kafka.clients.admin.NewTopic(
                name, jvm.java.util.Optional.of(parts), jvm.java.util.Optional.empty()
            )
            admin.createTopics(jvm.java.util.Collections.singleton(topic)).all().get()
        finally:
            admin.close()

    def fill(self, spark: Any, events: Events) -> None:
        """Make a topic with these events."""
        self.create(spark, events.name, events.parts)
        self.write(made_events(spark, events.count, events.event_bytes), events.name)

    def read(self, spark: Any, name: str) -> Any:
        """Return the frame of a topic."""
        return self._named(spark.read.format("kafka"), name).load()

    def follow(self, spark: Any, name: str) -> Any:
        """Return the streaming frame of a topic."""
        source = self._named(spark.readStream.format("kafka"), name)
        return source.option("startingOffsets", "earliest").load()

    def write(self, frame: Any, name: str) -> None:
        """Add a frame's column ``event``, at least once."""
        writer = frame.selectExpr("event as value").write.format("kafka")
        writer.option("kafka.bootstrap.servers", self.address).option("topic", name).save()

    def _named(self, source: Any, name: str) -> Any:
        return source.option("kafka.bootstrap.servers", self.address).option("subscribe", name)


def made_events(spark: Any, count: int, event_bytes: int, *, partitions: int = 2) -> Any:
    """Return a frame of so many events, made by the JVM."""
    filler = f"repeat('x', {event_bytes - 20})"
    return spark.range(0, count, 1, partitions).selectExpr(
        f"cast(concat(lpad(cast(id as string), 20, '0'), {filler}) as binary) as event"
    )


def _append(connection: SegmentConnection, segment: str, count: int, event_bytes: int) -> None:
    """Append events in blocks, several of them on their way."""
    random = Random(count)
    writer_id = random.randbytes(16)
    setup = SetupAppend(connection.next_request_id(), writer_id, segment, "")
    reply = connection.call(setup)
    assert isinstance(reply, AppendSetup), reply
    block = [random.randbytes(event_bytes) for _ in range(max(1, BLOCK_BYTES // event_bytes))]
    written, waiting = 0, deque[int]()
    while written < count or waiting:
        if written < count and len(waiting) < OUTSTANDING_BLOCKS:
            part = block[: count - written]
            written += len(part)
            connection.send_bytes(
                append_block(
                    writer_id, part, last_event_number=written, request_id=setup.request_id
                )
            )
            waiting.append(written)
            continue
        answer = connection.receive(timeout=REPLY_SECONDS)
        assert isinstance(answer, DataAppended), answer
        while waiting and waiting[0] <= answer.event_number:
            waiting.popleft()
