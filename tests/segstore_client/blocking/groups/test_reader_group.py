"""Reader groups, as programs that block use them as a whole."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from foreign_servers.deadlines import scale

from pravega_wire.reader_groups import membership
from segstore_client import Position, UsageError, blocking
from segstore_client.blocking import BlockingStore
from segstore_client.blocking.groups.group_reader import BlockingGroupReader
from segstore_client.errors import AlreadyExistsError, NotFoundError, RemovedFromGroupError
from support.served_stream import run, served_stream

SECONDS = scale(60.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers decide more often than once in a second."""
    monkeypatch.setattr(membership, "UNIT_SECONDS", 0.05)


def write(store: BlockingStore, first: int, count: int) -> None:
    with store.writer("s/t") as writer:
        for number in range(first, first + count):
            writer.submit(b"event %d" % number, key="k")


def next_of(reader: BlockingGroupReader) -> bytes:
    event = reader.next_event(timeout=SECONDS)
    assert event is not None
    return event.data


def read_on(reader: BlockingGroupReader) -> None:
    """Read until the reader fails, however long no event comes."""
    while True:
        reader.next_event(timeout=0.1)


def continue_at(address: str) -> None:
    told: list[tuple[str, Mapping[str, int]]] = []
    cuts: dict[str, Mapping[int, int]] = {}
    with blocking.connect(address) as store:
        store.create_group("s/g", ["s/t"], refresh_seconds=0.1, checkpoint_seconds=0.1)
        group = store.group("s/g")
        with group.reader("a", on_checkpoint=lambda *each: told.append(each)) as reader:
            first = next(reader)
            assert next_of(reader) == b"event 1"
            other = threading.Thread(target=lambda: cuts.update(group.checkpoint("mine")))
            other.start()
            while other.is_alive():
                reader.next_event(timeout=0.1)
            # There is an event behind the checkpoint, wherever that is.
            write(store, 4, 1)
            # Some are of the group itself: each tenth of a second.
            assert dict(told)["mine"]
            group.reset(cuts)
            with pytest.raises(RemovedFromGroupError, match="the group was reset"):
                read_on(reader)
        with group.reader("a") as reader:
            event = next(reader)
            assert event.offset == next(iter(cuts["s/t"].values())) > first.offset
        group.reset(Position.HEAD)
        with group.reader("a") as reader:
            assert next_of(reader) == b"event 0"
        group.reset(Position.TAIL)
        assert group.unread_bytes() == 0
        write(store, 5, 1)
        [lag] = group.lags()
        assert (lag.stream, lag.reader, lag.unread) == ("s/t", None, len(b"event 5") + 8)
        with group.reader("a") as reader:
            assert next_of(reader) == b"event 5"


async def test_a_group_of_programs_that_block_continues_at_a_checkpoint(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 4) as stream:
        await run(continue_at, stream.address)


def bound(address: str) -> None:
    with blocking.connect(address) as store:
        with store.reader("s/t", end=Position.TAIL) as whole:
            offsets = [event.offset for event in whole]
        cuts = {"s/t": {0: offsets[1]}}, {"s/t": {0: offsets[3]}}
        store.create_group("s/part", ["s/t"], starts=cuts[0], ends=cuts[1])
        with store.group("s/part").reader("a") as reader:
            assert [event.data for event in reader] == [b"event 1", b"event 2"]
        store.create_group("s/part", ["s/t"], exist_ok=True)
        with pytest.raises(AlreadyExistsError, match="reader group s/part exists already"):
            store.create_group("s/part", ["s/t"])
        with pytest.raises(UsageError, match="'t' is not the name of a stream"):
            store.create_group("s/other", ["t"])
        assert store.list_groups("s") == ["s/part"]
        store.delete_group("s/part")
        for use in (store.group("s/part").readers, lambda: store.group("s/part").reader("a")):
            with pytest.raises(NotFoundError, match="reader group s/part does not exist"):
                use()


async def test_a_group_of_programs_that_block_reads_from_cut_to_cut(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 4) as stream:
        await run(bound, stream.address)


async def test_a_group_and_a_file_begin_at_an_end_that_is_said_by_a_word(tmp_path: Path) -> None:
    def use(address: str) -> None:
        with blocking.connect(address) as store:
            tail = store.stream_cut("s/t", "tail")
            store.create_group("s/all", ["s/t"], starts="tail")
            store.create_group("s/each", ["s/t"], starts={"s/t": "tail"})
            store.create_group("s/none", ["s/t"], starts={"s/t": tail}, ends="tail")
            with store.writer("s/t") as writer:
                writer.write(b"new")
            for name in ("s/all", "s/each"):
                with store.group(name).reader("a") as reader:
                    found = reader.next_event(timeout=60.0)
                    assert found is not None
                    assert found.data == b"new"
            with store.group("s/none").reader("a") as reader:
                assert list(reader) == []
            store.group("s/all").reset("head")
            with store.group("s/all").reader("a") as reader:
                found = reader.next_event(timeout=60.0)
                assert found is not None
                assert found.data == b"event 0"
            with store.byte_reader("s/t", offset="tail") as file:
                assert file.tell() == file.tail()

    async with served_stream(tmp_path, 2) as stream:
        await run(use, stream.address)
