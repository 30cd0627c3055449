"""The Python client, which is the Rust client in a wheel, against the server under test.

Its reader groups are table segments that it makes itself on the segment store, so reading proves
hash tables with delta iteration; its writers send one block of events at a time.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from compat_harness.server import Server
from foreign_servers.deadlines import scale

pravega_client: Any = pytest.importorskip(
    "pravega_client", reason="there is no wheel of the official Python client for this Python"
)

READ_SECONDS_MAX = scale(60.0)
SLICE_SECONDS_MAX = 3.0

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]
matrix = partial(pytest.mark.matrix, client="Python", version="0.3.8")


@pytest.fixture(scope="module")
def streams(controller_uri: str) -> Any:
    return pravega_client.StreamManager(controller_uri)


@pytest.fixture
def scope(streams: Any) -> str:
    name = f"python-{uuid.uuid4().hex[:8]}"
    assert streams.create_scope(name) is True
    return name


class Slices:
    """One reader's slices. A slice that does not come in time stays asked for: to cancel the
    client's future would lose the events it fetches."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._coming: asyncio.Future[Any] | None = None

    async def next(self) -> list[bytes]:
        """Return the events of the next slice, or none if none comes soon."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._reader.get_segment_slice_async())
        done, _ = await asyncio.wait({self._coming}, timeout=SLICE_SECONDS_MAX)
        if not done:
            return []
        slice_, self._coming = self._coming.result(), None
        if slice_ is None:
            return []
        events = [bytes(event.data()) for event in slice_]
        self._reader.release_segment(slice_)
        return events


def read_stream(
    streams: Any, scope: str, stream: str, count: int, *, reader_count: int = 1
) -> list[bytes]:
    """Read a stream with a new group until ``count`` events came and for a while none more."""
    group = streams.create_reader_group(f"group-{uuid.uuid4().hex[:8]}", scope, stream)

    async def read() -> list[bytes]:
        readers = [Slices(group.create_reader(f"reader-{each}")) for each in range(reader_count)]
        events: list[bytes] = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        more = True
        while (more or len(events) < count) and time.monotonic() < deadline:
            more = False
            for reader in readers:
                slice_ = await reader.next()
                more = more or bool(slice_)
                events += slice_
        return events

    return asyncio.run(read())


@matrix(api="stream management")
def test_scopes_and_streams_are_created_and_deleted(streams: Any, scope: str) -> None:
    assert streams.create_scope(scope) is False
    assert streams.create_stream(scope, "s", 3) is True
    assert streams.create_stream(scope, "s", 3) is False
    assert streams.seal_stream(scope, "s") is True
    assert streams.delete_stream(scope, "s") is True
    assert streams.delete_scope(scope) is True


@matrix(api="stream management")
def test_what_can_never_be_is_refused_at_once(streams: Any, scope: str) -> None:
    # The client takes a status FAILURE for a reason to try again, for a minute.
    started = time.monotonic()
    for count in (0, -1):
        with pytest.raises(Exception, match="segment"):
            streams.create_stream(scope, "never", count)
    assert time.monotonic() - started < 5


@matrix(api="stream management")
def test_streams_keep_their_tags(streams: Any, scope: str) -> None:
    policy = pravega_client.StreamScalingPolicy.fixed_scaling_policy(2)
    streams.create_stream_with_policy(
        scope_name=scope, stream_name="tagged", scaling_policy=policy, tags=["red", "green"]
    )
    assert sorted(streams.get_stream_tags(scope, "tagged")) == ["green", "red"]


@matrix(api="events")
def test_events_come_back_in_order_per_key(streams: Any, scope: str) -> None:
    streams.create_stream(scope, "events", 3)
    writer = streams.create_writer(scope, "events")
    for sequence in range(100):
        for key in range(8):
            writer.write_event(f"key-{key}:{sequence}", routing_key=f"key-{key}")
    writer.flush()
    events = read_stream(streams, scope, "events", 800)
    per_key: dict[str, list[int]] = defaultdict(list)
    for event in events:
        routing_key, number = event.decode().split(":")
        per_key[routing_key].append(int(number))
    assert per_key == {f"key-{key}": list(range(100)) for key in range(8)}


@matrix(api="events")
def test_events_of_bytes_come_back_unchanged(streams: Any, scope: str) -> None:
    streams.create_stream(scope, "bytes", 1)
    writer = streams.create_writer(scope, "bytes")
    written = [b"\x00\xff" * 10, bytes(range(256)) * 1000, b"end"]
    for event in written:
        writer.write_event_bytes(event, routing_key="key")
    writer.flush()
    assert read_stream(streams, scope, "bytes", len(written)) == written


@matrix(api="reader groups")
def test_two_readers_share_a_stream(streams: Any, scope: str) -> None:
    streams.create_stream(scope, "shared", 4)
    writer = streams.create_writer(scope, "shared")
    written = {f"event-{number}".encode() for number in range(400)}
    for event in written:
        writer.write_event_bytes(event, routing_key=event.decode())
    writer.flush()
    events = read_stream(streams, scope, "shared", len(written), reader_count=2)
    assert len(events) == len(written)
    assert set(events) == written


@matrix(api="byte streams")
def test_a_byte_stream_is_written_and_read(streams: Any, scope: str) -> None:
    streams.create_stream(scope, "file", 1)
    written = bytes(range(256)) * 500
    stream = streams.create_byte_stream(scope, "file")
    assert stream.write(written) == len(written)
    stream.flush()
    assert stream.current_tail_offset() == len(written)
    buffer = bytearray(1000)
    read = bytearray()
    while len(read) < len(written):
        count = stream.readinto(buffer)
        read += buffer[:count]
    assert bytes(read) == written
    stream.seek(1000, 0)
    assert stream.readinto(buffer) > 0
    assert buffer[0] == written[1000]
    stream.truncate(1024)
    assert stream.current_head_offset() == 1024


@matrix(api="transactions")
def test_transactions_are_read_when_they_are_committed(streams: Any, scope: str) -> None:
    assert streams.create_stream(scope, "s", 2) is True
    writer = streams.create_transaction_writer(scope, "s", 1)
    aborted, committed, later = (writer.begin_txn() for _ in range(3))
    for number in range(20):
        for transaction, name in ((aborted, "no"), (committed, "yes"), (later, "later")):
            transaction.write_event(f"{name} {number}", routing_key=f"k{number % 3}")
    assert committed.is_open()
    aborted.abort()
    committed.commit()
    later.commit_timestamp(1_000)
    assert not committed.is_open()
    with pytest.raises(pravega_client.TxnFailedException):
        aborted.commit()
    events = read_stream(streams, scope, "s", 40)
    expected = [f"{name} {number}".encode() for name in ("yes", "later") for number in range(20)]
    assert sorted(events) == sorted(expected)
    by_key: defaultdict[int, list[bytes]] = defaultdict(list)
    for event in events:
        by_key[int(event.split()[1]) % 3].append(event)
    for key in range(3):
        assert by_key[key] == [e for e in expected if int(e.split()[1]) % 3 == key]


def test_a_transaction_outlives_the_controller(tmp_path: Path) -> None:
    """The transaction was begun before: this client takes any that it resumes by an id for
    closed."""
    with Server(tmp_path) as server:
        manager = pravega_client.StreamManager(server.controller_uri)
        manager.create_scope("s")
        manager.create_stream("s", "a", 2)
        writer = manager.create_transaction_writer("s", "a", 1)
        transaction = writer.begin_txn()
        for number in range(10):
            transaction.write_event(f"before {number}", routing_key=str(number))
        server.wait_until_back(server.kill_controller())
        for number in range(10):
            transaction.write_event(f"after {number}", routing_key=str(number))
        transaction.commit()
        events = read_stream(manager, "s", "a", 20)
        assert sorted(events) == sorted(
            f"{when} {number}".encode() for when in ("before", "after") for number in range(10)
        )
