"""Remembers, beyond the process, files of tier 2 that have bytes which the disk may not have.

Owns: ``DoubtNotes``; docs/formats/data-directory.md describes the file. It is in the data directory
and not in tier 2, whose disk has just failed.

Invariants:
1. A note that was added is durable. It stays until the file is as long as the note says, or until
   all of it counts again: a note that stayed longer would cost what was written since.
2. A line without its end was never added: its writer was told so, or lost its power before.
3. A note is added once, however often the same write fails.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from segstore.runtime.durable_files import sync_directory

_LINE: Final = re.compile(r"([0-9]{1,18}) (\S+) \.", re.ASCII)


class DoubtNotes:
    """Lines of a length and a path relative to tier 2's root. Calls block, and may raise
    ``OSError``; they may come from several threads, after the first ``read``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._noted: dict[str, int] = {}
        self._unsure: set[str] = set()

    def read(self) -> dict[str, int]:
        """Return the notes: by path, how many bytes of a file count."""
        try:
            text = self._path.read_text("ascii", errors="replace")
        except FileNotFoundError:
            return {}
        noted: dict[str, int] = {}
        for line in text.splitlines():
            if match := _LINE.fullmatch(line):
                noted[unquote(match[2], errors="surrogatepass")] = int(match[1])
        self._noted, self._unsure = dict(noted), set(noted)
        return noted

    def add(self, path: str, length: int) -> None:
        """Record how many bytes of a file count; the last record of a file is valid."""
        with self._lock:
            if self._noted.get(path) == length and path not in self._unsure:
                return
            self._noted[path] = length
            self._unsure.add(path)  # if this fails the file may have it
            self._write(_line(path, length), os.O_APPEND)
            self._sync_directory()
            self._unsure.discard(path)

    def clear(self, path: str) -> None:
        """Remove the record of a file, durably."""
        with self._lock:
            if path in self._noted:
                self._replace({each: self._noted[each] for each in self._noted if each != path})

    def replace(self, noted: dict[str, int]) -> None:
        """Replace all records."""
        with self._lock:
            self._replace(noted)

    def _replace(self, noted: dict[str, int]) -> None:
        self._unsure.update(self._noted)
        if not noted:
            self._path.unlink(missing_ok=True)
        else:
            unfinished = DoubtNotes(self._path.with_name(self._path.name + ".new"))
            text = "".join(_line(path, length) for path, length in noted.items())
            unfinished._write(text, os.O_TRUNC)
            os.rename(unfinished._path, self._path)
        self._sync_directory()
        self._noted, self._unsure = dict(noted), set()

    def _write(self, text: str, flags: int) -> None:
        flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o644)
        try:
            data = text.encode("ascii")
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self._path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_directory(self) -> None:
        sync_directory(self._path.parent)


def _line(path: str, length: int) -> str:
    # The line before may not be whole.
    return f"\n{length} {quote(path, errors='surrogatepass')} .\n"
