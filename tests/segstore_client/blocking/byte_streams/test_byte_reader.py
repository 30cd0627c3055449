"""A reader of a byte stream that blocks: of a real store, and of one that breaks connections."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segstore_client import NotFoundError, RefusedError, TruncatedError, UsageError, blocking
from segstore_client.blocking.byte_streams.byte_reader import BlockingByteReader
from segstore_client.blocking.segments import segment_reads
from segstore_client.blocking.segments.segment_reads import SegmentReads
from segstore_client.positions import Position
from support.byte_store import ByteStore
from support.served_stream import run, served_stream

BYTES = Random(1).randbytes(3_000_000)


def open_reader(controller: Any, offset: int | Position = 0) -> BlockingByteReader:
    return BlockingByteReader(controller, "s", "t", offset=offset, patience=60.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_file_gives_its_bytes_once_however_connections_break(seed: int) -> None:
    draw, found = Random(seed), b""
    with (
        ByteStore(seed, breaks=6, data=BYTES).running() as store,
        open_reader(store.controller, Position.HEAD) as file,
    ):
        while piece := file.read(draw.randint(1, 200_000)):
            found += piece
            assert file.tell() == len(found)
        assert file.read(1) == b""
    assert found == BYTES
    assert store.connections > 2


@pytest.mark.parametrize("seed", range(4))
def test_a_read_of_a_file_that_is_interrupted_loses_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, draw, found = SegmentReads.receive, Random(seed), b""

    def receive_and_interrupt(self: SegmentReads[bytes], timeout: float | None) -> Any:
        pieces = receive(self, timeout)
        if draw.random() < 0.4:
            raise KeyboardInterrupt
        return pieces

    monkeypatch.setattr(SegmentReads, "receive", receive_and_interrupt)
    interrupts = 0
    with ByteStore(seed, data=BYTES).running() as store, open_reader(store.controller) as file:
        while len(found) < len(BYTES):
            try:
                found += file.read(500_000)
            except KeyboardInterrupt:
                interrupts += 1
    assert found == BYTES
    assert interrupts > 0


def test_a_file_is_read_where_it_is_sought() -> None:
    draw = Random(7)
    with (
        ByteStore(3, data=BYTES).running() as store,
        open_reader(store.controller, Position.HEAD) as file,
    ):
        for offset in [0, 10, 5, 2_999_990, *(draw.randrange(3_000_000) for _ in range(9))]:
            assert file.seek(offset) == offset
            found = file.read(10)
            assert found
            assert found == BYTES[offset : offset + len(found)]
            # What lies in the same piece needs no request.
            connections = store.connections
            assert file.seek(-len(found), os.SEEK_CUR) == offset
            assert file.peek()[: len(found)] == file.read(len(found)) == found
            assert store.connections == connections
        assert file.seek(-3, os.SEEK_END) == 2_999_997
        buffer = bytearray(10)
        count = file.readinto(buffer)
        assert 0 < count <= 3
        assert buffer[:count] == BYTES[-3:][:count]
        file.seek(0, os.SEEK_END)
        assert file.read(10) == file.peek() == b""
        assert file.readinto(buffer) == 0


def test_files_of_python_can_be_put_around_it() -> None:
    lines = [b"line %d\n" % number * (number % 50) for number in range(3000)]
    data = b"".join(lines) + b"the end"
    with ByteStore(4, data=data).running() as store:
        with open_reader(store.controller) as file:
            assert file.readline() == b"line 1\n"
            assert list(file) == data.splitlines(keepends=True)[1:]
        with io.BufferedReader(open_reader(store.controller, 7)) as buffered:
            assert buffered.read(1000) == data[7:1007]
            buffered.seek(0)
            assert buffered.read() == data
        with io.TextIOWrapper(io.BufferedReader(open_reader(store.controller))) as text:
            assert text.read() == data.decode()
        with open_reader(store.controller) as file:
            assert file.read(None) == data


def test_a_store_of_a_file_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reads, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(segment_reads, "SILENCE_SECONDS_MAX", 0.1)
    with ByteStore(0, data=b"bytes").running() as store, open_reader(store.controller) as file:
        store.is_silent = True
        assert file.readall() == b"bytes"


def follow(address: str) -> None:
    with blocking.connect(address) as store, store.byte_writer("s/t") as file:
        file.write(b"before")
        file.flush()
        with store.byte_reader("s/t", offset=Position.TAIL) as reader:
            assert reader.tell() == reader.tail() == 6

            def write() -> None:
                file.write(b"after")
                file.flush()

            other = threading.Thread(target=write)
            other.start()
            assert reader.read(3) == b"aft"
            other.join()
            assert reader.read(3) == b"er"
            # Bytes behind the tail are waited for, too.
            reader.seek(12)
            file.write(b"0123")
            file.seal()
            assert reader.readall() == b"123"
            reader.seek(100)
            with pytest.raises(RefusedError, match="is sealed at 15, before offset 100"):
                reader.read(1)


async def test_a_file_at_the_tail_waits_until_the_stream_is_sealed(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(follow, stream.address)


def truncate(address: str) -> None:
    with blocking.connect(address) as store, store.byte_writer("s/t") as file:
        file.write(bytes(range(100)))
        with store.byte_reader("s/t", offset=10) as early:
            file.truncate_before(60)
            for _ in range(2):
                with pytest.raises(TruncatedError, match="it begins at 60 now") as raised:
                    early.read(10)
                assert raised.value.head == early.head() == 60
            early.seek(raised.value.head)
            assert early.read(10) == bytes(range(60, 70))
        with store.byte_reader("s/t") as late:
            assert late.tell() == 60
            # A piece that has been read already is not taken away.
            assert late.read(1) == b"\x3c"
            file.truncate_before(100)
            assert late.read(100) == bytes(range(61, 100))


async def test_truncated_bytes_of_a_file_are_told_with_the_new_head(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(truncate, stream.address)


def misuse(address: str) -> None:
    with blocking.connect(address) as store:
        store.create_stream("s/two", segments=2)
        with pytest.raises(UsageError, match="s/two has 2 segments: a byte stream has one"):
            store.byte_reader("s/two")
        with pytest.raises(NotFoundError, match="stream s/none does not exist"):
            store.byte_reader("s/none")
        with pytest.raises(UsageError, match="-1 is not an offset"):
            store.byte_reader("s/t", offset=-1)
        file = store.byte_reader("s/t")
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        assert file.read(0) == b""
        with pytest.raises(UsageError, match="9 is none of SEEK_SET"):
            file.seek(0, 9)
        store.seal_stream("s/t")
        store.delete_stream("s/t")
        for call in (lambda: file.read(1), file.tail):
            with pytest.raises(NotFoundError, match="stream s/t does not exist"):
                call()
        file.close()
        file.close()
        for use in (lambda: file.read(1), lambda: file.seek(0), file.peek, file.head):
            with pytest.raises(ValueError, match="the file is closed"):
                use()


async def test_what_a_file_cannot_give_is_told(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(misuse, stream.address)
