"""Writes lists of buffers with few system calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from segstore.tiers.api import Buffer

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)


def pwrite_all(descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write all the buffers one after the other at ``offset``, in as many system calls as
    needed."""
    while buffers:
        written = os.pwritev(descriptor, buffers[:IOV_MAX], offset)
        rest = remainder(buffers, written)
        if written == 0 and rest:
            raise OSError(errno.EIO, "the file accepts no more bytes")
        buffers, offset = rest, offset + written


def remainder(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """Return the buffers without their first ``written`` bytes."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
        elif written > 0:
            rest.append(memoryview(buffer)[written:])
            written = 0
        else:
            rest.append(buffer)
    return rest
