"""Lines come out whole, whatever the chunks they came in."""

import io
import os
import threading
import time
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_admin.output import lines
from pravega_admin.output.lines import LineTooLongError, iterate_lines


class _Chunked(io.RawIOBase):
    """A source without a file descriptor that hands out prepared chunks."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = [chunk for chunk in chunks if chunk]

    def read(self, size: int = -1) -> bytes:
        return self._chunks.pop(0) if self._chunks else b""


def split(source: BinaryIO, bytes_max: int = 1000) -> list[bytes]:
    return list(iterate_lines(source, bytes_max=bytes_max, on_pause=lambda: None))


@given(st.lists(st.binary(max_size=8).map(lambda data: data.replace(b"x", b"\n"))))
def test_lines_do_not_depend_on_chunks(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert split(_Chunked(chunks)) == expected  # type: ignore[arg-type]


def test_a_line_that_is_too_long_is_refused_before_it_is_complete() -> None:
    with pytest.raises(LineTooLongError) as caught:
        split(_Chunked([b"ab\ncdef", b"ghij", b"klmn"]), bytes_max=7)  # type: ignore[arg-type]
    assert caught.value.line_number == 2
    with pytest.raises(LineTooLongError):
        split(io.BytesIO(b"12345678\n"), bytes_max=7)
    assert split(io.BytesIO(b"1234567\n"), bytes_max=7) == [b"1234567"]


def test_pauses_of_a_pipe_are_noticed() -> None:
    reader, writer = os.pipe()
    seen: list[str] = []

    def feed() -> None:
        os.write(writer, b"one\n")
        time.sleep(lines.PAUSE_SECONDS * 10)
        os.write(writer, b"two\nthr")
        os.write(writer, b"ee")
        os.close(writer)

    feeder = threading.Thread(target=feed)
    feeder.start()
    with os.fdopen(reader, "rb") as source:
        for line in iterate_lines(source, bytes_max=100, on_pause=lambda: seen.append("pause")):
            seen.append(line.decode())
    feeder.join()
    assert [item for item in seen if item != "pause"] == ["one", "two", "three"]
    assert "pause" in seen[seen.index("one") : seen.index("two")]
