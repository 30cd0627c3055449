"""Reads the last lines of a child's log, to show users why it ended.

Owns: which lines are worth telling. This module imports almost nothing, see ``supervisor``.
"""

from __future__ import annotations

import os
from contextlib import suppress

LAST_BYTES_MAX = 16 * 1024
"""Maximum number of bytes at the end of a log in which the last lines are looked for."""
LAST_LINES_MAX = 5
LINE_LENGTH_MAX = 300


def length_of(path: str | None) -> int:
    """Return the present length of a log; 0 without one."""
    if path is not None:
        with suppress(OSError):
            return os.stat(path).st_size
    return 0


def read_last_lines(path: str | None, position: int) -> list[str]:
    """Return the last lines that were written to a log since it had the length ``position``."""
    if path is None:
        return []
    with suppress(OSError), open(path, "rb") as log:
        length = log.seek(0, os.SEEK_END)
        log.seek(max(position, length - LAST_BYTES_MAX))
        lines = log.read(LAST_BYTES_MAX).decode(errors="replace").splitlines()
        # The frames of a stack do not help users.
        told = [line for line in lines if line.strip() and not line.startswith(("\tat ", "\t... "))]
        return [_printable(line) for line in told[-LAST_LINES_MAX:]]
    return []


def _printable(line: str) -> str:
    # Control characters in a log must not change the terminal.
    shown = "".join(each if each.isprintable() else " " for each in line)
    return shown if len(shown) <= LINE_LENGTH_MAX else f"{shown[:LINE_LENGTH_MAX]} ..."
