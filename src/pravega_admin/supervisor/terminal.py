"""Prints lines, and drops them when a terminal or pipe does not accept them at once.

Owns: the rule that a supervisor prints what its terminal accepts at once, and drops the rest: one
that waits for a terminal that was stopped (Ctrl-S), or for a reader of a pipe, supervises nothing.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TextIO

LINE_BYTES_MAX = 4096
"""Maximum length, in bytes, of what is printed at once: a pipe that can be written to takes this
many without waiting (PIPE_BUF)."""
PATIENCE_MS = 100


def print_at_once(text: str, stream: TextIO) -> None:
    """Print a line, or drop it if the stream cannot accept it now, such as on a full disk."""
    data = text.encode(errors="replace")[: LINE_BYTES_MAX - 1] + b"\n"
    with suppress(OSError, ValueError):
        stream.flush()
        descriptor = stream.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if any(events & select.POLLOUT for _, events in poll.poll(PATIENCE_MS)):
            os.write(descriptor, data)
