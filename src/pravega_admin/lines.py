"""Splits input into lines, and notices when the input pauses.

Owns: the reading of a file, pipe or terminal, which waits only for the source itself.

Invariants:
1. Every byte but the line ends is returned once, in order; a last line needs no end.
2. ``on_pause`` is called before each wait after lines were returned.
"""

from __future__ import annotations

import io
import os
import select
from collections.abc import Callable, Iterator
from typing import BinaryIO

CHUNK_BYTES = 1024 * 1024
PAUSE_SECONDS = 0.02


class LineTooLongError(ValueError):
    """A line is longer than allowed; ``line_number`` counts from 1."""

    def __init__(self, line_number: int) -> None:
        super().__init__(f"line {line_number} is too long")
        self.line_number = line_number


def iterate_lines(
    source: BinaryIO, *, bytes_max: int, on_pause: Callable[[], None]
) -> Iterator[bytes]:
    """Yield the lines of ``source`` without ends; ``LineTooLongError`` above ``bytes_max``."""
    pieces: list[bytes] = []
    piece_bytes = 0
    number = 1
    for chunk in _chunks(source, on_pause):
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


def _chunks(source: BinaryIO, on_pause: Callable[[], None]) -> Iterator[bytes]:
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
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk
