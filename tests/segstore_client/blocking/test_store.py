"""Streams, events and tables of a real store, by a program that blocks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from segstore_client import (
    ABSENT,
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    NotFoundError,
    Position,
    StreamSealedError,
    UsageError,
    blocking,
)
from segstore_client.controller.stream_settings import Retention, RetentionKind
from support.served_stream import run, served_stream

KEYS = 5


def use_streams(address: str) -> None:
    with blocking.connect(address) as store:
        store.create_scope("demo")
        store.create_scope("demo", exist_ok=True)
        with pytest.raises(AlreadyExistsError):
            store.create_scope("demo")
        retention = Retention(RetentionKind.SIZE, 1_000_000)
        store.create_stream("demo/orders", segments=3, retention=retention, tags=["fruit"])
        store.create_stream("demo/orders", exist_ok=True)
        settings = store.stream_settings("demo/orders")
        assert settings.scaling.segment_count_min == 3
        assert (settings.retention, settings.tags) == (retention, ("fruit",))
        assert store.list_streams("demo", tag="fruit") == ["demo/orders"]
        with pytest.raises(ConflictError, match="must be sealed first"):
            store.delete_stream("demo/orders")
        store.scale_stream("demo/orders", 4)
        assert len(store.stream_cut("demo/orders", Position.TAIL)) == 4
        with pytest.raises(UsageError, match="write SCOPE/STREAM"):
            store.writer("orders")
        store.seal_stream("demo/orders")
        store.delete_stream("demo/orders")
        store.delete_scope("demo")
        assert "demo" not in store.list_scopes()


async def test_scopes_and_streams_are_made_and_deleted(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(use_streams, stream.address)


def write_and_read(address: str) -> None:
    with blocking.connect(address) as store:
        store.create_stream("s/events", segments=2)
        with store.writer("s/events") as writer:
            writer.submit(b"0", key="key-0")
            writer.write(b"1", key="key-1")
            # They are stored now, for others to read.
            with store.reader("s/events", end=Position.TAIL) as reader:
                assert sorted(event.data for event in reader) == [b"0", b"1"]
            for number in range(2, 500):
                writer.submit(b"%d" % number, key=f"key-{number % KEYS}")
        with store.reader("s/events", end=Position.TAIL) as reader:
            numbers = [int(event.data) for event in reader]
        assert sorted(numbers) == list(range(500))
        for key in range(KEYS):
            mine = [number for number in numbers if number % KEYS == key]
            assert mine == sorted(mine)


async def test_events_are_written_and_read(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(write_and_read, stream.address)


def follow(address: str) -> None:
    with blocking.connect(address) as store, store.reader("s/t") as reader:
        assert next(reader).data == b"event 0"

        def write_and_seal() -> None:
            with store.writer("s/t") as writer:
                writer.write(b"last")
            store.seal_stream("s/t")

        other = threading.Thread(target=write_and_seal)
        other.start()
        assert [event.data for event in reader] == [b"last"]
        other.join()
        with pytest.raises(StreamSealedError):
            store.writer("s/t")


async def test_a_reader_waits_for_events_until_the_stream_is_sealed(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 1) as stream:
        await run(follow, stream.address)


def use_table(address: str) -> None:
    with blocking.connect(address) as store:
        store.create_scope("demo")
        with pytest.raises(NotFoundError, match="key-value table demo/prices does not exist"):
            store.table("demo/prices")
        store.create_table("demo/prices", primary_key_bytes=2, partitions=3)
        store.create_table("demo/prices", primary_key_bytes=9, exist_ok=True)
        with pytest.raises(AlreadyExistsError, match="demo/prices exists already"):
            store.create_table("demo/prices", primary_key_bytes=2)
        prices = store.table("demo/prices")
        assert prices.key_bytes == 2
        version = prices.put(b"ab", b"1", version=ABSENT)
        with pytest.raises(ConflictError):
            prices.put(b"ab", b"2", version=ABSENT)
        prices.put(b"ab", b"3", version=version)
        prices.put(b"cd", b"4")
        assert [entry and entry.value for entry in prices.get_all([b"ab", b"xx", b"cd"])] == [
            b"3",
            None,
            b"4",
        ]
        assert sorted(entry.key for entry in prices.entries()) == [b"ab", b"cd"]
        prices.remove(b"ab")
        assert prices.get(b"ab") is None
        store.delete_table("demo/prices")
        assert store.list_tables("demo") == []


async def test_a_table_is_read_and_changed(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(use_table, stream.address)


async def test_what_a_program_that_blocks_has_closed_says_so(tmp_path: Path) -> None:
    """Readers and states connected again, and nobody closed that."""

    def use(address: str) -> None:
        with blocking.connect(address) as store:
            store.create_group("s/g", ["s/t"])
            with store.reader("s/t") as reader:
                assert reader.next_event(timeout=60.0) is not None
            with store.group("s/g").reader("one") as member:
                assert member.next_event(timeout=60.0) is not None
            with store.synchronizer("s/t", load=bytes, apply=lambda state, _: state) as state:
                pass
            where = address.removeprefix("tcp://")
            assert repr(store) == f"<BlockingStore at {where}>"
            assert repr(reader) == "<BlockingEventReader of s/t>"
            assert repr(member) == "<BlockingGroupReader one of s/g>"
            assert repr(store.group("s/g")) == "<BlockingReaderGroup s/g>"
            assert repr(state) == "<BlockingSynchronizer of s/t>"
            with store.writer("s/t") as writer, store.transaction("s/t") as transaction:
                assert repr(writer) == "<BlockingEventWriter of s/t>"
                assert repr(transaction) == f"<BlockingTransaction {transaction.id} of s/t>"
            for each in (reader, member):
                for call in (each.next_event, each.next_batch, each.__next__):
                    with pytest.raises(ClosedError, match="is closed"):
                        call()
            with pytest.raises(ClosedError, match="the state in s/t is closed"):
                state.read()
        with pytest.raises(ClosedError, match="the connection to the controller"):
            store.list_scopes()

    async with served_stream(tmp_path, 3) as stream:
        await run(use, stream.address)
