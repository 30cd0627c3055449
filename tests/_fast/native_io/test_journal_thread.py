from __future__ import annotations

import errno
import mmap
import os
import resource
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.native_io.journal_thread import OUTSTANDING_MAX, JournalThread
from segstore.tiers.journal.format import Kind, Record, aligned, encode_batch

SALT = 0x1234_5678
GENERATION = 7
Taken = list[int]


def entry(position: int, *parts: bytes | bytearray | memoryview) -> Record:
    return Record(Kind.ENTRY, 3, 9, position, parts, sum(map(len, parts)))


class Written:
    """A thread, and a file that it writes."""

    def __init__(self, path: Path, event_fd: int, interval_seconds_min: float = 0.0) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.event_fd = event_fd
        self.thread = JournalThread(event_fd, interval_seconds_min)

    def close(self) -> None:
        self.thread.stop()
        os.close(self.descriptor)

    def submit(self, records: list[Record], *, offset: int = 0, **others: Any) -> int:
        length = aligned(40 + sum(record.stored_bytes for record in records), 512)
        asked = {
            "descriptor": self.descriptor,
            "length": length,
            "generation": GENERATION,
            "salt": SALT,
            "number": 5,
            "durable_number": 4,
        }
        self.thread.submit(records, offset=offset, **(asked | others))
        return length

    def fetch(self, count: int) -> Taken:
        fetched: Taken = []
        while len(fetched) < count:
            assert select.select([self.event_fd], [], [], 10)[0], "nothing was written"
            os.eventfd_read(self.event_fd)
            fetched += self.thread.fetch_results()
        return fetched


@contextmanager
def written_at(path: Path, interval_seconds_min: float = 0.0) -> Iterator[Written]:
    event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        with closing(Written(path, event_fd, interval_seconds_min)) as written:
            yield written
    finally:
        os.close(event_fd)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    with written_at(tmp_path / "file") as file:
        yield file


RECORDS = st.lists(
    st.builds(
        lambda kind, container, epoch, position, parts: Record(
            kind, container, epoch, position, parts, sum(map(len, parts))
        ),
        st.sampled_from(Kind),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.lists(st.binary(max_size=100), max_size=3),
    ),
    max_size=6,
)


@given(st.lists(RECORDS, min_size=1, max_size=5))
def test_batches_lie_in_the_file_as_the_format_says(batches: list[list[Record]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, expected = Path(directory) / "file", b""
        with written_at(path) as written:
            for number, records in enumerate(batches):
                length = written.submit(
                    records, offset=len(expected), number=number + 1, durable_number=number
                )
                buffers, _ = encode_batch(
                    records,
                    generation=GENERATION,
                    salt=SALT,
                    batch_number=number + 1,
                    durable=number,
                )
                expected += b"".join(buffers).ljust(length, b"\0")
                assert written.fetch(1) == [length]
        assert path.read_bytes() == expected


def test_a_batch_longer_than_any_before_it_is_written_whole(
    written: Written, tmp_path: Path
) -> None:
    records = [entry(position, os.urandom(100_000), b"x" * 33) for position in range(40)]
    written.submit([entry(1, b"short")], offset=0)
    length = written.submit(records, offset=512)
    assert written.fetch(2) == [512, length]
    buffers, _ = encode_batch(records, generation=GENERATION, salt=SALT, batch_number=5, durable=4)
    assert (tmp_path / "file").read_bytes()[512:] == b"".join(buffers).ljust(length, b"\0")


def test_batches_are_over_in_the_order_in_which_they_were_submitted(written: Written) -> None:
    for turn in range(50):
        lengths = [
            written.submit([entry(turn, bytes(700 * (place + 1)))], offset=place * 4096)
            for place in range(OUTSTANDING_MAX)
        ]
        fetched = written.fetch(OUTSTANDING_MAX)
        assert fetched == lengths


def test_after_a_batch_that_was_not_written_none_is_until_it_resumes(
    written: Written, tmp_path: Path
) -> None:
    device = os.open("/dev/full", os.O_RDWR)  # it knows no synced writes
    written.submit([entry(1, b"a")], descriptor=device)
    written.submit([entry(2, b"b")])
    fetched = written.fetch(2)
    written.submit([entry(3, b"c")])
    fetched += written.fetch(1)
    assert fetched == [-errno.EOPNOTSUPP, 0, 0]
    assert (tmp_path / "file").read_bytes() == b""
    written.thread.resume()
    length = written.submit([entry(1, b"a")])
    assert written.fetch(1)[0] == length
    os.close(device)


def test_an_error_is_told_by_its_number(written: Written, tmp_path: Path) -> None:
    reader = os.open(tmp_path / "file", os.O_RDONLY)
    written.submit([entry(1, b"a")], descriptor=reader)
    assert written.fetch(1)[0] == -errno.EBADF
    os.close(reader)


def test_a_write_that_was_cut_short_is_told_and_stops_those_after_it(
    written: Written, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        written.submit([entry(1, bytes(1000))])
        written.submit([entry(2, b"b")])
        assert written.fetch(2) == [600, 0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "file").stat().st_size == 600


def test_what_is_written_is_held_until_it_is_taken(written: Written) -> None:
    data = bytearray(b"some bytes")
    written.submit([entry(1, data)])
    with pytest.raises(BufferError):
        data.append(0)
    written.fetch(1)
    data.append(0)


def test_a_thread_that_is_stopped_writes_what_was_submitted(
    written: Written, tmp_path: Path
) -> None:
    data = bytearray(10)
    length = written.submit([entry(1, data)])
    written.thread.stop()
    written.thread.stop()
    assert (tmp_path / "file").stat().st_size == length
    assert written.thread.fetch_results()[0] == length
    data.append(0)
    with pytest.raises(ValueError, match="stopped"):
        written.submit([entry(1, b"a")])


def test_a_thread_that_is_forgotten_ends_and_lets_go(tmp_path: Path) -> None:
    data = bytearray(10)
    with written_at(tmp_path / "file") as written:
        written.submit([entry(1, data)])
        written.thread = JournalThread(written.event_fd)
        data.append(0)


def test_no_more_is_submitted_than_there_is_room_for(written: Written) -> None:
    for _ in range(OUTSTANDING_MAX):
        written.submit([entry(1, b"a")])
    with pytest.raises(ValueError, match="outstanding"):
        written.submit([entry(1, b"a")])
    written.fetch(OUTSTANDING_MAX)


@pytest.mark.parametrize(
    ("record", "others"),
    [
        (Record(Kind.ENTRY, 1, 1, 1, (b"abc",), 4), {}),
        (Record(Kind.ENTRY, 1, 1, 1, (b"abc",), 2), {}),
        (entry(1, bytes(1000)), {"length": 1024}),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    written: Written, record: Record, others: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="bytes"):
        written.submit([record], **others)
    length = written.submit([entry(1, b"fits")])
    assert written.fetch(1) == [length]


def test_parts_that_are_no_bytes_are_refused(written: Written) -> None:
    with pytest.raises(TypeError):
        written.submit([Record(Kind.ENTRY, 1, 1, 1, ("text",), 4)])  # type: ignore[arg-type]
    written.submit([entry(1, b"fits")])
    written.fetch(1)


def test_it_writes_while_nobody_lets_go_of_the_interpreters_lock(
    written: Written, tmp_path: Path
) -> None:
    os.ftruncate(written.descriptor, 4096)
    interval = sys.getswitchinterval()
    with mmap.mmap(written.descriptor, 4096) as memory:
        sys.setswitchinterval(1000)
        try:
            written.submit([entry(1, b"a")])
            for _ in range(50_000_000):
                if memory[0] == ord("S"):
                    break
            assert memory[:4] == b"SGJB"
        finally:
            sys.setswitchinterval(interval)
    written.fetch(1)


def test_writes_begin_an_interval_apart(tmp_path: Path) -> None:
    with written_at(tmp_path / "file", 0.05) as written:
        length = written.submit([entry(0, b"a" * 100)])
        assert written.fetch(1) == [length]
        begun_before = time.monotonic()
        for number in (1, 2, 3):
            written.submit([entry(number, b"b" * 100)], offset=number * length)
            assert written.fetch(1) == [length]
        assert time.monotonic() - begun_before >= 2 * 0.05


def test_a_thread_with_an_interval_writes_what_it_has_before_it_stops(tmp_path: Path) -> None:
    with written_at(tmp_path / "file", 0.05) as written:
        length = written.submit([entry(0, b"a" * 100)])
        written.submit([entry(1, b"b" * 100)], offset=length, number=6, durable_number=5)
        written.thread.stop()
        assert written.thread.fetch_results() == [length, length]
