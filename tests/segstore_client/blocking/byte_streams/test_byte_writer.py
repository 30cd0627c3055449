"""A writer of a byte stream that blocks: to a real store, and to one that breaks connections."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segstore_client import NotFoundError, StreamSealedError, UnavailableError, UsageError, blocking
from segstore_client.blocking.byte_streams.byte_writer import BlockingByteWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.steps import byte_segment_steps
from support.byte_store import ByteStore
from support.full_store import FULL, FullStore
from support.served_stream import run, served_stream

HALVES = [(0.0, 0.5), (0.5, 1.0)]


def open_writer(controller: Any, **options: Any) -> BlockingByteWriter:
    return BlockingByteWriter(
        controller, "s", "t", **{"patience": 60.0, "on_delay": None, **options}
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_file_stores_its_bytes_once_however_connections_break(seed: int) -> None:
    draw = Random(seed)
    written = [draw.randbytes(draw.randrange(0, 300)) for _ in range(200)]
    with ByteStore(seed, breaks=6).running() as store, open_writer(store.controller) as file:
        for number, data in enumerate(written):
            assert file.write(data) == len(data)
            if number % 10 == seed:
                file.flush()
                assert store.data == b"".join(written[: number + 1])
        assert file.tell() == sum(map(len, written))
    assert store.data == b"".join(written)
    assert store.connections > 2


def test_the_bytes_of_one_write_to_a_file_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_segment_steps, "PIECE_BYTES", 1000)
    kinds = (bytes, bytearray, memoryview)
    with ByteStore(0).running() as store, open_writer(store.controller) as file:
        for number, length in enumerate((1000, 999, 0, 2500)):
            assert file.write(kinds[number % 3](bytes([number]) * length)) == length
            file.flush()
    assert [len(each) for each in store.appends[:2]] == [1000, 999]
    assert b"".join(store.appends[2:]) == b"\x03" * 2500
    assert max(map(len, store.appends)) <= 2500


def test_short_writes_to_a_file_are_sent_together() -> None:
    with ByteStore(0).running() as store, open_writer(store.controller) as file:
        for number in range(10_000):
            file.write(bytes([number % 256]))
        assert file.tell() == 10_000
    assert store.data == bytes(number % 256 for number in range(10_000))
    assert store.last_event_number <= 10


def test_a_file_says_why_a_store_waits() -> None:
    told: list[str] = []
    with ByteStore(0).running() as known, FullStore().running() as store:
        controller = known.controller
        # The length comes from one store, and what is written goes to the other.
        addresses = [known.address]
        controller.segment_address = lambda *_: addresses.pop() if addresses else store.address

        def note(sentence: str) -> None:
            told.append(sentence)
            store.has_room.set()

        with open_writer(controller, on_delay=note) as file:
            file.write(b"bytes")
    assert set(told) == {FULL}


def fail(file: BlockingByteWriter) -> None:
    with file:
        file.write(b"bytes")
        raise ZeroDivisionError


def test_a_block_that_fails_waits_for_nothing() -> None:
    with ByteStore(0).running() as store:
        file = open_writer(store.controller)
        with pytest.raises(ZeroDivisionError):
            fail(file)
        assert file.closed
        assert store.data == b""
        for use in (lambda: file.write(b"1"), file.flush, file.seal):
            with pytest.raises(ValueError, match="the file is closed"):
                use()
        file.close()


def test_a_file_that_could_not_be_written_stays_failed() -> None:
    with ByteStore(0).running() as store:
        file = open_writer(store.controller, patience=0.1)
    file.write(b"bytes")
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"could not be written to for 0\.1 s"):
            file.flush()
    with pytest.raises(UnavailableError):
        file.close()
    assert file.closed


def seal_and_truncate(address: str) -> None:
    with blocking.connect(address) as store:
        with store.byte_writer("s/t") as file:
            assert (file.tell(), file.writable(), file.readable()) == (0, True, False)
            file.write(bytes(range(100)))
            file.truncate_before(30)
            file.truncate_before(20)
            with pytest.raises(UsageError, match="t be truncated before 101: it ends at 100"):
                file.truncate_before(101)
            with pytest.raises(UsageError, match="-1 is not an offset"):
                file.truncate_before(-1)
            # What files of Python truncate is the end.
            with pytest.raises(io.UnsupportedOperation):
                file.truncate(50)
        with store.byte_writer("s/t") as file:
            assert file.tell() == 100
            file.write(b"end")
            file.seal()
            with pytest.raises(StreamSealedError, match="stream s/t is sealed"):
                file.write(b"more")
        with store.byte_reader("s/t") as reader:
            assert (reader.head(), reader.tail()) == (30, 103)
            assert reader.readall() == bytes(range(30, 100)) + b"end"
        with pytest.raises(StreamSealedError, match="stream s/t is sealed"):
            store.byte_writer("s/t")


async def test_a_file_is_sealed_and_truncated(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(seal_and_truncate, stream.address)


def misuse(address: str) -> None:
    with blocking.connect(address) as store:
        store.create_stream("s/two", segments=2)
        with pytest.raises(UsageError, match="s/two has 2 segments: a byte stream has one"):
            store.byte_writer("s/two")
        with pytest.raises(NotFoundError, match="stream s/none does not exist"):
            store.byte_writer("s/none")
        left = ExitStack()
        file = left.enter_context(store.byte_writer("s/t"))
        file.write(b"bytes")
        file.flush()
        store.seal_stream("s/t")
        file.write(b"more")
        for use in (file.flush, file.flush, file.seal, left.close):
            with pytest.raises(StreamSealedError, match="stream s/t is sealed"):
                use()
        assert file.closed


async def test_what_a_file_cannot_take_is_told(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(misuse, stream.address)


def scale_meanwhile(address: str) -> None:
    with blocking.connect(address) as store, ControllerClient(address) as client:
        file = store.byte_writer("s/t")
        file.write(b"bytes")
        file.flush()
        client.scale_stream("s", "t", sealed=[0], ranges=HALVES, timeout=60)
        file.write(b"more")
        for use in (file.flush, file.close):
            with pytest.raises(UsageError, match="stream s/t was scaled: a byte stream never is"):
                use()


async def test_a_file_whose_stream_is_scaled_meanwhile_fails(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(scale_meanwhile, stream.address)
