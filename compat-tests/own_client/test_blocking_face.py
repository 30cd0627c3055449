"""The Python client of this package for programs that block, against the server under test.

The same things as for the async face, whose operations it shares.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial

import pytest
from foreign_servers.deadlines import scale

from segstore_client import ABSENT, ConflictError, Position, blocking
from segstore_client.blocking import BlockingStore

SECONDS_MAX = scale(90.0)
EVENTS = [b"event %d" % number for number in range(50)]

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]
matrix = partial(pytest.mark.matrix, client="segstore_client", version="0.3.0")


@pytest.fixture
def store(controller_uri: str) -> Iterator[BlockingStore]:
    with blocking.connect(controller_uri) as store:
        yield store


@pytest.fixture
def scope(store: BlockingStore) -> str:
    name = f"own-{uuid.uuid4().hex[:8]}"
    store.create_scope(name)
    return name


def write_events(store: BlockingStore, stream: str) -> None:
    store.create_stream(stream, segments=2)
    with store.writer(stream) as writer:
        for event in EVENTS:
            writer.submit(event, key=event.decode())


def read_events(store: BlockingStore, stream: str) -> list[bytes]:
    with store.reader(stream, end=Position.TAIL) as reader:
        return [event.data for event in reader]


@matrix(api="events")
def test_events_are_written_and_read(store: BlockingStore, scope: str) -> None:
    write_events(store, f"{scope}/events")
    assert sorted(read_events(store, f"{scope}/events")) == sorted(EVENTS)


@matrix(api="large events")
def test_an_event_of_several_mebibytes_is_one_event(store: BlockingStore, scope: str) -> None:
    large = bytes(range(250)) * 40_000
    store.create_stream(f"{scope}/large")
    with store.writer(f"{scope}/large") as writer:
        for event in (b"before", large, b"after"):
            writer.write(event, key="key")
    assert read_events(store, f"{scope}/large") == [b"before", large, b"after"]


def give_up(store: BlockingStore, stream: str) -> None:
    with store.transaction(stream) as transaction:
        transaction.submit(b"never seen")
        raise RuntimeError("given up")


@matrix(api="transactions")
def test_a_transaction_is_seen_whole_or_never(store: BlockingStore, scope: str) -> None:
    stream = f"{scope}/events"
    store.create_stream(stream, segments=2)
    with store.transaction(stream) as transaction:
        for event in EVENTS:
            transaction.submit(event, key=event.decode())
    with pytest.raises(RuntimeError, match="given up"):
        give_up(store, stream)
    assert sorted(read_events(store, stream)) == sorted(EVENTS)


@matrix(api="reader groups")
def test_a_group_reads_each_event_once_and_begins_anew(store: BlockingStore, scope: str) -> None:
    write_events(store, f"{scope}/events")
    store.create_group(f"{scope}/group", [f"{scope}/events"])
    group = store.group(f"{scope}/group")
    for name in ("one", "two"):
        with group.reader(name) as reader:
            found = [reader.next_event(timeout=SECONDS_MAX) for _ in EVENTS]
        assert sorted(event.data for event in found if event is not None) == sorted(EVENTS)
        assert group.unread_bytes() == 0
        group.reset(Position.HEAD)


@matrix(api="state synchronizer")
def test_a_state_is_shared(store: BlockingStore, scope: str) -> None:
    store.create_stream(f"{scope}/state")
    with store.synchronizer(
        f"{scope}/state", load=bytes, apply=lambda state, update: state + update
    ) as state:
        assert state.begin(b"a")
        state.change(lambda _: [b"b"])
        assert state.read() == b"ab"


@matrix(api="byte streams")
def test_bytes_are_written_and_read(store: BlockingStore, scope: str) -> None:
    store.create_stream(f"{scope}/bytes")
    with store.byte_writer(f"{scope}/bytes") as file:
        file.write(b"some bytes")
    with store.byte_reader(f"{scope}/bytes", offset=5) as file:
        assert file.read(5) == b"bytes"


@matrix(api="key-value tables")
def test_entries_of_a_table_change_under_conditions(store: BlockingStore, scope: str) -> None:
    store.create_table(f"{scope}/table", primary_key_bytes=2)
    table = store.table(f"{scope}/table")
    version = table.put(b"k1", b"one", version=ABSENT)
    with pytest.raises(ConflictError):
        table.put(b"k1", b"two", version=ABSENT)
    table.put(b"k1", b"two", version=version)
    assert [(entry.key, entry.value) for entry in table.entries()] == [(b"k1", b"two")]
