"""Many files are written and synced in one call, each for itself."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from _fast.native_io.chunk_files import (
    NOT_OPENED,
    NOT_RENAMED,
    NOT_STORED,
    STORED,
    TOO_SHORT,
    sync_directories,
    write_files,
)
from support.open_files import list_open_files

Request = tuple[bytes, bytes | None, int, list[bytes]]


@pytest.fixture
def length_max() -> Iterator[int]:
    """Return the maximum length of a file, which is enforced.

    The file for the output of the tests may well be long.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, before[1]))
    yield 1 << 30
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_are_made_and_appended_to(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"before")
    requests: list[Request] = [
        (os.fsencode(tmp_path / "a"), None, 6, [b", ", b"", b"after"]),
        (os.fsencode(tmp_path / "c%new"), os.fsencode(tmp_path / "c"), 0, [b"new"]),
        (os.fsencode(tmp_path / "b"), None, 3, [b"..."]),
        (os.fsencode(tmp_path / "d%new"), os.fsencode(tmp_path / "d"), 0, []),
    ]
    assert write_files(requests) == [(STORED, 0, 6), (STORED, 0, 0), (STORED, 0, 6), (STORED, 0, 0)]
    assert not list_open_files(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"before, after",
        "b": b"bef...",
        "c": b"new",
        "d": b"",
    }
    assert write_files([]) == []


def test_a_file_that_fails_keeps_no_other_from_being_written(
    tmp_path: Path, length_max: int
) -> None:
    (tmp_path / "long").touch()
    os.truncate(tmp_path / "long", length_max)
    (tmp_path / "directory" / "full").mkdir(parents=True)
    requests: list[Request] = [
        (os.fsencode(tmp_path / "missing"), None, 0, [b"x"]),
        (os.fsencode(tmp_path / "long"), None, length_max + 1, [b"x"]),
        (os.fsencode(tmp_path / "long"), None, length_max, [b"x"]),
        (os.fsencode(tmp_path / "new"), os.fsencode(tmp_path / "directory"), 0, [b"x"]),
        (os.fsencode(tmp_path / "fine%new"), os.fsencode(tmp_path / "fine"), 0, [b"fine"]),
    ]
    found = write_files(requests)
    assert found[:3] == [
        (NOT_OPENED, errno.ENOENT, 0),
        (TOO_SHORT, 0, length_max),
        (NOT_STORED, errno.EFBIG, length_max),
    ]
    assert (found[3][0], found[4]) == (NOT_RENAMED, (STORED, 0, 0))
    assert not list_open_files(tmp_path)
    assert (tmp_path / "fine").read_bytes() == b"fine"


def test_what_is_no_request_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "a")
    fine: Request = (path, path, 0, [b"x"])
    wrong: list[object] = [
        (str(tmp_path / "b"), None, 0, [b"x"]),
        (path, None, -1, [b"x"]),
        (path, None, 0, ["no bytes"]),
    ]
    for each in wrong:
        with pytest.raises((TypeError, ValueError)):
            write_files([fine, each])  # type: ignore[list-item]
    assert not list(tmp_path.iterdir())


def test_directories_are_synced_each_for_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    paths = [tmp_path, tmp_path / "missing", tmp_path / "file", tmp_path]
    found = sync_directories([os.fsencode(path) for path in paths])
    assert found == [0, errno.ENOENT, errno.ENOTDIR, 0]
    assert not list_open_files(tmp_path)
