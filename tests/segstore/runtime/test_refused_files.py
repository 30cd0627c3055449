"""Explanations for users when the system refuses a file."""

import errno
import os
from pathlib import Path

import pytest

from segstore.errors import DataDirectoryError
from segstore.ownership.data_directory import DataDirectory
from segstore.runtime.refused_files import is_refusal, reason_of


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "is full; make room there"),
        (errno.EDQUOT, "is used up; make room there"),
        (errno.EROFS, "is read-only; mount it for writing"),
        (errno.EACCES, "has no permission; start as the user that owns the files"),
        (errno.EPERM, "has no permission; start as the user that owns the files"),
    ],
)
def test_the_reason_says_what_to_do(tmp_path: Path, number: int, words: str) -> None:
    error = OSError(number, os.strerror(number))
    assert is_refusal(error)
    assert words in reason_of(error, tmp_path / "not" / "there")


def test_another_error_is_told_in_the_system_s_words(tmp_path: Path) -> None:
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    assert not is_refusal(error)
    assert reason_of(error, tmp_path) == os.strerror(errno.EIO)


def test_the_place_is_where_the_file_system_is_mounted() -> None:
    assert "mounted on /proc is full" in reason_of(OSError(errno.ENOSPC, ""), Path("/proc/self/fd"))


def test_a_lock_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path)
    (tmp_path / "standalone.lock").symlink_to("/dev/full")
    with (
        pytest.raises(DataDirectoryError, match=r"standalone\.lock cannot be written: the disk"),
        directory.lock("standalone"),
    ):
        pytest.fail("locked")
