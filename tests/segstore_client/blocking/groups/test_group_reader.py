"""Readers of a group of a real stream that block: they share, come, go and vanish."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

import pytest
from foreign_servers.deadlines import scale

from pravega_wire.reader_groups import membership
from segstore_client import blocking
from segstore_client.blocking import BlockingStore
from segstore_client.blocking.groups.group_reader import BlockingGroupReader
from segstore_client.blocking.groups.reader_group import BlockingReaderGroup
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import (
    ConflictError,
    NotFoundError,
    PravegaError,
    RemovedFromGroupError,
    TimedOutError,
)
from segstore_client.steps.group_requests import Request
from support.served_stream import run, served_stream

SECONDS = scale(60.0)
KEYS = 8
HALVES = (0.0, 0.5), (0.5, 1.0)
QUARTERS = (0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers decide more often than once in a second."""
    monkeypatch.setattr(membership, "UNIT_SECONDS", 0.05)


class Numbers:
    """Events ``KEY-NUMBER``, written in order, and what readers got of them."""

    def __init__(self) -> None:
        self.written = 0
        self.seen: dict[str, list[str]] = {}
        self._news = threading.Condition()

    def write(self, store: BlockingStore, count: int) -> None:
        with store.writer("s/t") as writer:
            for number in range(self.written, self.written + count):
                key = f"k{number % KEYS}"
                writer.write(f"{key}-{number}".encode(), key=key)
        self.written += count

    def take(self, reader: str, data: bytes) -> None:
        with self._news:
            self.seen.setdefault(reader, []).append(data.decode())
            self._news.notify_all()

    def wait_until(self, count: int) -> None:
        """Wait until so many events were read."""
        with self._news:
            assert self._news.wait_for(lambda: self.count >= count, SECONDS)

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def check(self) -> None:
        """See that each event was read once."""
        found = [each for events in self.seen.values() for each in events]
        assert sorted(found, key=number_of) == [f"k{n % KEYS}-{n}" for n in range(self.written)]


def number_of(event: str) -> int:
    return int(event.partition("-")[2])


@contextmanager
def running(*programs: Callable[[], None]) -> Iterator[None]:
    """Run programs in threads beside the block, and raise what has ended one of them."""
    errors: list[BaseException] = []

    def guard(program: Callable[[], None]) -> None:
        try:
            program()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(SECONDS)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)


def make_group(store: BlockingStore, segments: int, **options: object) -> BlockingReaderGroup:
    store.create_scope("s")
    store.create_stream("s/t", segments=segments)
    store.create_group("s/g", ["s/t"], refresh_seconds=0.1, **options)  # type: ignore[arg-type]
    return store.group("s/g")


def next_of(reader: BlockingGroupReader) -> bytes:
    event = reader.next_event(timeout=SECONDS)
    assert event is not None
    return event.data


def fail_at(reader: BlockingGroupReader, *events: bytes) -> None:
    """Leave the reader's block by an error, after these events."""
    with reader:
        assert [next(reader).data for _ in events] == list(events)
        raise ZeroDivisionError


def read_on(reader: BlockingGroupReader) -> None:
    """Read until the reader fails, however long no event comes."""
    while True:
        reader.next_event(timeout=0.1)


def scale_stream(address: str, *ranges: tuple[float, float]) -> None:
    with ControllerClient(address) as client:
        sealed = [each.segment_id for each in client.current_segments("s", "t").ranges]
        client.scale_stream("s", "t", sealed=sealed, ranges=ranges, timeout=SECONDS)


def share(address: str) -> None:
    numbers = Numbers()
    with blocking.connect(address) as store:
        group = make_group(store, 2)

        def read_all(name: str) -> Callable[[], None]:
            def read() -> None:
                with blocking.connect(address) as mine, mine.group("s/g").reader(name) as reader:
                    for event in reader:
                        numbers.take(name, event.data)
                    assert reader.is_finished

            return read

        with running(read_all("a"), read_all("b")):
            numbers.write(store, 100)
            numbers.wait_until(100)
            with running(read_all("c")):
                scale_stream(address, *QUARTERS)
                # Four segments are enough for three readers.
                while len(numbers.seen) < 3:
                    numbers.write(store, 10)
                numbers.wait_until(numbers.written)
                scale_stream(address, *HALVES)
                numbers.write(store, 100)
                store.seal_stream("s/t")
        assert group.readers() == []
    numbers.check()
    for events in numbers.seen.values():
        for key in range(KEYS):
            mine = [number_of(each) for each in events if each.startswith(f"k{key}-")]
            assert mine == sorted(mine)


async def test_readers_that_block_share_streams_through_scalings(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(share, stream.address)


def vanish(address: str) -> None:
    with blocking.connect(address) as store:
        group = make_group(store, 2, checkpoint_seconds=None)
        numbers = Numbers()
        numbers.write(store, 20)
        gone = group.reader("gone")
        for _ in range(20):
            numbers.take("gone", next_of(gone))
        with pytest.raises(ConflictError, match="has a reader gone already"):
            group.reader("gone")
        taken: list[object] = []
        with running(lambda: taken.append(group.checkpoint("x", timeout=SECONDS))):
            while not taken:
                # Its events are done when it asks for the next one; there is none.
                assert gone.next_event(timeout=0.1) is None
        # What it reads behind the checkpoint is read again.
        numbers.write(store, 4)
        again = [next_of(gone) for _ in range(4)]
        gone.drop()
        with pytest.raises(PravegaError, match="reader gone is closed"):
            gone.next_event()
        assert group.readers() == ["gone"]
        assert group.unread_bytes() > 0
        group.remove_reader("gone")
        with pytest.raises(NotFoundError, match="reader group s/g has no reader gone"):
            group.remove_reader("gone")
        with group.reader("next") as reader:
            for _ in again:
                numbers.take("next", next_of(reader))
        numbers.check()
        assert group.unread_bytes() == 0


async def test_a_reader_that_blocks_and_vanished_is_replaced(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(vanish, stream.address)


def leave(address: str) -> None:
    with blocking.connect(address) as store:
        group = make_group(store, 1)
        numbers = Numbers()
        numbers.write(store, 4)
        with group.reader("a") as reader:
            assert next(reader).data == b"k0-0"
        with pytest.raises(ZeroDivisionError):
            fail_at(group.reader("a"), b"k1-1", b"k2-2")
        reader = group.reader("a")
        event = next(reader)
        assert (event.data, event.stream) == (b"k2-2", "s/t")
        assert list(reader.positions.values()) == [event.offset]
        # Who asks for the next one is done with it.
        assert next_of(reader) == b"k3-3"
        assert reader.next_event(timeout=0.0) is None
        assert reader.next_batch(timeout=0.2) == []
        reader.close()
        reader.close()
        numbers.write(store, 3)
        with group.reader("a") as reader:
            assert [each.data for each in next(reader.batches())] == [b"k4-4", b"k5-5", b"k6-6"]
        store.seal_stream("s/t")
        with group.reader("a") as reader:
            assert list(reader.batches()) == []
            assert reader.is_finished


async def test_a_reader_that_blocks_leaves_behind_what_it_has_done(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(leave, stream.address)


def stay_silent(address: str) -> None:
    with blocking.connect(address) as store:
        group = make_group(store, 2, checkpoint_seconds=None)
        numbers = Numbers()
        numbers.write(store, 40)
        with group.reader("a") as first:
            while len(first.positions) < 2:
                numbers.take("a", next_of(first))
            with group.reader("b") as second:
                # The first one is not asked, so it gives nothing up, nor reaches a checkpoint.
                assert second.next_event(timeout=1.0) is None
                assert len(first.positions) == 2
                late = r"checkpoint x of s/g was not reached in 0\.2 s"
                with pytest.raises(TimedOutError, match=late):
                    group.checkpoint("x", timeout=0.2)
                until = time.monotonic() + SECONDS
                while numbers.count < numbers.written or "b" not in numbers.seen:
                    assert time.monotonic() < until
                    if numbers.count == numbers.written:
                        numbers.write(store, 8)
                    for name, reader in (("a", first), ("b", second)):
                        if (event := reader.next_event(timeout=0.05)) is not None:
                            numbers.take(name, event.data)
    numbers.check()


async def test_a_reader_that_is_not_asked_keeps_its_segments(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(stay_silent, stream.address)


def read_without_waits(address: str) -> None:
    with blocking.connect(address) as store:
        group = make_group(store, 1)
        numbers = Numbers()
        numbers.write(store, 4)
        with group.reader("a") as reader:
            until = time.monotonic() + SECONDS
            while numbers.count == 0:
                assert time.monotonic() < until
                if (event := reader.next_event(timeout=0.0)) is not None:
                    numbers.take("a", event.data)
        # Other readers get the events that it had ready.
        with pytest.raises(PravegaError, match="reader a is closed"):
            next(reader)


async def test_a_reader_that_is_asked_without_a_wait_gets_on(tmp_path: Path) -> None:
    """It never asked a store."""
    async with served_stream(tmp_path) as stream:
        await run(read_without_waits, stream.address)


async def test_a_reader_that_is_interrupted_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces were on their way from the connections to the program, and changes to the group."""
    draw, interrupts = Random(1), 0
    fulfil = BlockingGroupReader._fulfil

    def fulfil_and_interrupt(self: BlockingGroupReader, request: Request) -> object:
        reply = fulfil(self, request)
        if draw.random() < 0.3:
            raise KeyboardInterrupt
        return reply

    def interrupt(frame: FrameType, kind: str, _about: object) -> None:
        """Raise what interrupts the program behind a call, where Python does so, too."""
        is_ours = frame.f_globals["__name__"] == BlockingGroupReader.__module__
        if is_ours and kind == "c_return" and draw.random() < 0.1:
            raise KeyboardInterrupt

    def read_interrupted(address: str) -> None:
        nonlocal interrupts
        numbers = Numbers()
        with (
            blocking.connect(address) as store,
            make_group(store, 3, checkpoint_seconds=0.1).reader("a") as reader,
        ):
            monkeypatch.setattr(BlockingGroupReader, "_fulfil", fulfil_and_interrupt)
            until = time.monotonic() + SECONDS
            while numbers.count < 200:
                assert time.monotonic() < until
                if numbers.count == numbers.written:
                    numbers.write(store, 10)
                try:
                    sys.setprofile(interrupt)
                    if draw.random() < 0.3:
                        events = reader.next_batch(timeout=0.1)
                    else:
                        event = reader.next_event(timeout=0.1)
                        events = [] if event is None else [event]
                except KeyboardInterrupt:
                    interrupts += 1
                    events = []
                finally:
                    sys.setprofile(None)
                for event in events:
                    numbers.take("a", event.data)
            monkeypatch.undo()
        numbers.check()

    async with served_stream(tmp_path) as stream:
        await run(read_interrupted, stream.address)
    assert interrupts > 10


def remove(address: str) -> None:
    with blocking.connect(address) as store:
        group = make_group(store, 1)
        numbers = Numbers()
        numbers.write(store, 4)
        old = group.reader("a")
        assert next_of(old) == b"k0-0"
        group.remove_reader("a")
        new = group.reader("a")
        assert next_of(new) == b"k0-0"
        for _ in range(2):
            with pytest.raises(RemovedFromGroupError, match="a is not in reader group s/g any"):
                read_on(old)
        new.drop()
        # It does not take the other one out when it goes.
        old.close()
        assert group.readers() == ["a"]


async def test_a_reader_that_blocks_and_was_removed_fails(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(remove, stream.address)
