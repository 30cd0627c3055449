"""Files of tier 2 that stay open between calls.

Owns: ``OpenFiles``, and how a file is written past the page cache where that pays.

Invariants:
1. At most ``files_max`` files stay open between calls, with two descriptors each.
2. A file is closed when it was dropped and is not in use.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from segstore.tiers.api import Buffer
from segstore.tiers.direct_io import BLOCK_BYTES, DirectFile, StagingBuffers
from segstore.tiers.vectored_io import pwrite_all, remainder

DIRECT_BYTES_MIN = 256 * 1024
"""Minimum length, in bytes, of writes and reads that bypass the page cache."""


@dataclass(slots=True)
class OpenFile:
    path: str
    descriptor: int
    direct: DirectFile | None = None
    user_count: int = 0
    dropped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        os.close(self.descriptor)
        if self.direct is not None:
            self.direct.close()

    def direct_file(self, staging: StagingBuffers) -> DirectFile | None:
        """Return the second descriptor, opened when it is first needed; None where that is not
        offered."""
        with self.lock:  # readers and a writer may want it at once
            if self.direct is None:
                self.direct = DirectFile.open(self.path, staging)
            return self.direct

    def write(self, data: Sequence[Buffer], offset: int, staging: StagingBuffers) -> None:
        """Write at ``offset``, not after the file's end. Not durable yet."""
        if sum(map(len, data)) >= DIRECT_BYTES_MIN:
            direct = self.direct_file(staging)
            if direct is not None:
                # The block's beginning is written again with the rest, in one piece.
                before = offset % BLOCK_BYTES
                blocks = [os.pread(self.descriptor, before, offset - before), *data]
                written = max(0, direct.write(blocks, offset - before) - before)
                data, offset = remainder(data, written), offset + written
        pwrite_all(self.descriptor, data, offset)


class OpenFiles:
    """Open files, the least recently used closed first. Used from several threads."""

    def __init__(self, root: str, *, files_max: int) -> None:
        self._root = root
        self._files_max = files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenFile] = OrderedDict()

    @contextmanager
    def use(self, path: str) -> Iterator[OpenFile]:
        """Yield the open file, which must exist."""
        entry = self._acquire(path)
        try:
            yield entry
        finally:
            with self._lock:
                entry.user_count -= 1
                self._close_if_unused(entry)

    def open(self, path: str, flags: int) -> OpenFile:
        """Open a file for the caller alone, who closes it."""
        whole = f"{self._root}/{path}"
        return OpenFile(whole, os.open(whole, os.O_RDWR | os.O_CLOEXEC | flags, 0o644))

    def drop(self, path: str) -> None:
        """Close the file as soon as it is not in use."""
        with self._lock:
            entry = self._open.pop(path, None)
            if entry is not None:
                entry.dropped = True
                self._close_if_unused(entry)

    def drop_all(self) -> None:
        """Close everything that is not in use."""
        for path in list(self._open):
            self.drop(path)

    def _acquire(self, path: str) -> OpenFile:
        with self._lock:
            entry = self._open.get(path)
            if entry is not None:
                self._open.move_to_end(path)
                entry.user_count += 1
                return entry
        opened = self.open(path, 0)
        opened.user_count = 1
        with self._lock:
            other = self._open.get(path)
            if other is not None:  # two threads opened it
                opened.dropped = True
                return opened
            self._open[path] = opened
            while len(self._open) > self._files_max:
                _, oldest = self._open.popitem(last=False)
                oldest.dropped = True
                self._close_if_unused(oldest)
            return opened

    def _close_if_unused(self, entry: OpenFile) -> None:
        if entry.dropped and entry.user_count == 0:
            entry.close()
