"""A file is read in pieces, exactly and no further than the memory goes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from _fast.native_io.paced_read import read_in_pieces


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 5000])
@pytest.mark.parametrize("offset", [0, 1, 999, 3999, 4000, 9000])
def test_memory_has_what_the_file_has(tmp_path: Path, piece_bytes: int, offset: int) -> None:
    data = Random(1).randbytes(4000)
    path = tmp_path / "file"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    for length in (0, 1, 1000, 4500):
        memory = bytearray(b"-" * (length + 10))
        view = memoryview(memory)[:length]
        count = read_in_pieces(descriptor, view, offset, piece_bytes)
        expected = data[offset : offset + length]
        assert count == len(expected)
        assert memory == expected + b"-" * (len(memory) - count)
    os.close(descriptor)


def test_an_error_is_told_with_its_number(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        read_in_pieces(descriptor, bytearray(10), 0, 5)
    assert caught.value.errno == errno.EISDIR
    os.close(descriptor)


def test_memory_that_cannot_be_written_and_no_pieces_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(BufferError):
        read_in_pieces(descriptor, b"fixed", 0, 5)
    with pytest.raises(ValueError, match="pieces"):
        read_in_pieces(descriptor, bytearray(1), 0, 0)
    os.close(descriptor)
