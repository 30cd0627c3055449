"""Stores, for later processes, which files of tier 2 may end in bytes that are not on the disk.

Owns: ``DoubtNotes``, a file with one line for each such file: its path, and how many of its first
bytes are valid. docs/formats/data-directory.md describes it. The file is in the data directory and
not in tier 2, because the disk of tier 2 has just failed.

Invariants:
1. When ``add`` has returned, the note and the name of the file of notes are durable. Held by
   ``test_a_second_note_makes_the_first_name_durable_that_failed_to``.
2. When a write of the file succeeds again from the noted length on, the note is removed, so that no
   later process cuts the new bytes off. Held by
   ``test_what_is_written_after_a_doubt_was_noted_is_not_cut_off_by_the_next_process``.
3. When a crash leaves half a line, that line is ignored and all others are read. Held by
   ``test_a_note_that_was_not_written_whole_spoils_no_other`` and
   ``test_a_note_that_a_power_cut_has_left_half_spoils_no_other``.
4. When the same write fails again and again, its note is added once. Held by
   ``test_a_note_that_is_repeated_takes_no_more_room``.
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
    """The notes, in memory and in their file: lines with a length in bytes and a path relative to
    tier 2's root. Calls block, and may raise ``OSError``. After the first ``read`` they may come
    from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._noted: dict[str, int] = {}
        self._unsure: set[str] = set()

    def read(self) -> dict[str, int]:
        """Read the notes; return the number of valid bytes of each file, by path."""
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
        """Record how many of a file's first bytes are valid; the last record of a file replaces
        earlier ones."""
        with self._lock:
            if self._noted.get(path) == length and path not in self._unsure:
                return
            self._noted[path] = length
            self._unsure.add(path)  # the line may be in the file although the call fails
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
    # It begins with a line end because the line before it may be incomplete.
    return f"\n{length} {quote(path, errors='surrogatepass')} .\n"
