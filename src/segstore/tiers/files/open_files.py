"""Files of tier 2 that stay open between calls.

Owns: ``OpenFiles``, a cache of open files, and the choice between writes past the page cache and
through it. A file has up to two descriptors, the second for transfers past the page cache.

Invariants:
1. When more than ``files_max`` files were used, the least recently used ones are closed. Held by
   ``test_open_files_are_bounded``.
2. When a file is dropped while a call uses it, it is closed as soon as that call ends. Held by
   ``test_a_dropped_file_is_closed_when_its_last_user_ends``.
3. When the file system is read-only, files are read, and written as soon as it is not: a descriptor
   that cannot write is not kept. Held by
   ``test_a_read_only_file_system_is_read_and_written_when_it_is_not``.
"""

from __future__ import annotations

import errno
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
    is_read_only: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        os.close(self.descriptor)
        if self.direct is not None:
            self.direct.close()

    def direct_file(self, staging: StagingBuffers) -> DirectFile | None:
        """Return the descriptor for transfers past the page cache, opened at the first use; None if
        the file system has none, or is read-only."""
        if self.is_read_only:
            return None
        with self.lock:  # several threads may need it at the same time
            if self.direct is None:
                self.direct = DirectFile.open(self.path, staging)
            return self.direct

    def check_writable(self) -> None:
        """Raise ``OSError`` if the file system was read-only when the file was opened."""
        if self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def write(self, data: Sequence[Buffer], offset: int, staging: StagingBuffers) -> None:
        """Write at ``offset``, which is at most the file's length. The bytes are not durable
        yet."""
        if sum(map(len, data)) >= DIRECT_BYTES_MIN:
            direct = self.direct_file(staging)
            if direct is not None:
                # Direct writes are of whole blocks: the start of the first one is written again.
                before = offset % BLOCK_BYTES
                blocks = [os.pread(self.descriptor, before, offset - before), *data]
                written = max(0, direct.write(blocks, offset - before) - before)
                data, offset = remainder(data, written), offset + written
        pwrite_all(self.descriptor, data, offset)


class OpenFiles:
    """A cache of open files that closes the least recently used ones. Used from several threads."""

    def __init__(self, root: str, *, files_max: int) -> None:
        self._root = root
        self._files_max = files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenFile] = OrderedDict()

    @contextmanager
    def use(self, path: str) -> Iterator[OpenFile]:
        """Yield a file, opened if necessary. Raises ``FileNotFoundError``."""
        entry = self._acquire(path)
        try:
            yield entry
        finally:
            with self._lock:
                entry.user_count -= 1
                self._close_if_unused(entry)

    def open(self, path: str, flags: int) -> OpenFile:
        """Open a file outside of the cache; the caller closes it."""
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
        opened = self._open_existing(path)
        opened.user_count = 1
        if opened.is_read_only:
            return opened
        with self._lock:
            other = self._open.get(path)
            if other is not None:  # another thread opened it meanwhile
                opened.dropped = True
                return opened
            self._open[path] = opened
            while len(self._open) > self._files_max:
                _, oldest = self._open.popitem(last=False)
                oldest.dropped = True
                self._close_if_unused(oldest)
            return opened

    def _open_existing(self, path: str) -> OpenFile:
        try:
            return self.open(path, 0)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        whole = f"{self._root}/{path}"
        descriptor = os.open(whole, os.O_RDONLY | os.O_CLOEXEC)
        return OpenFile(whole, descriptor, dropped=True, is_read_only=True)

    def _close_if_unused(self, entry: OpenFile) -> None:
        if entry.dropped and entry.user_count == 0:
            entry.close()
