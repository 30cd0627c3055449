"""Splits input into lines, and notices when the input pauses.

Owns: the reading of a file, pipe or terminal, which waits only for the source itself.

Invariants:
1. However the input is divided into reads, the same lines come out. A last line without a line end
   is a line. Held by ``test_lines_do_not_depend_on_chunks``.
2. When the source has no more input for now, ``on_pause`` is called before the wait, if lines were
   returned since the last call. Held by ``test_pauses_of_a_pipe_are_noticed``.
"""

from __future__ import annotations

import io
import os
import select
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import BinaryIO

CHUNK_BYTES = 1024 * 1024
PAUSE_SECONDS = 0.02


class LineTooLongError(ValueError):
    """A line is longer than allowed; ``line_number`` counts from 1."""

    def __init__(self, line_number: int) -> None:
        super().__init__(f"line {line_number} is too long")
        self.line_number = line_number


def iterate_lines(
    source: BinaryIO,
    *,
    bytes_max: int,
    on_pause: Callable[[], None],
    waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[bytes]:
    """Yield the lines of ``source`` without ends; ``LineTooLongError`` above ``bytes_max``.

    ``waiting`` is entered for each wait for the source.
    """
    pieces: list[bytes] = []
    piece_bytes = 0
    number = 1
    for chunk in _chunks(source, on_pause, waiting):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if pieces:
                line = b"".join((*pieces, line))
                pieces.clear()
                piece_bytes = 0
            if len(line) > bytes_max:
                raise LineTooLongError(number)
            yield line
            number += 1
        if rest:
            pieces.append(rest)
            piece_bytes += len(rest)
            if piece_bytes > bytes_max:
                raise LineTooLongError(number)
    if pieces:
        yield b"".join(pieces)


def _chunks(
    source: BinaryIO,
    on_pause: Callable[[], None],
    waiting: Callable[[], AbstractContextManager[object]],
) -> Iterator[bytes]:
    try:
        descriptor = source.fileno()
    except io.UnsupportedOperation:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
        return
    while True:
        readable, _, _ = select.select([descriptor], [], [], PAUSE_SECONDS)
        if not readable:
            on_pause()
        with waiting():
            chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk
