"""Writes and reads notes about complete journal files, by which a start need not read these files.

Owns: ``NotedContents`` (the bytes of the notes are in ``docs/formats/journal-contents.md``), and
``ContentsNoter``, which writes them while the journal is used. A note has the places and digests of
a file's entries, and the file's salt and generation, under which its content never changes. Notes
are never synced: a note that is missing or damaged costs only the time to read its file.

Invariants:
1. When a complete file has damage, no note about it is written: the file is read back from the disk
   for it. Held by ``test_a_file_that_does_not_pass_gets_no_note``.
2. When a note is damaged, belongs to another file or contradicts the journal, the file is read
   instead. Held by ``test_a_damaged_note_is_not_used``,
   ``test_a_note_about_another_file_is_not_used`` and
   ``test_a_note_with_a_right_sum_that_cannot_be_true_is_like_none``.
3. When an entry's data are damaged in a file with a note, the next read of the data finds it: the
   digest has their checksum. Held by ``test_damage_behind_a_note_is_found_by_whoever_reads_it``.
4. When at most ``FILES_WITHOUT_NOTES`` complete files are needed, no notes are written. Held by
   ``test_few_files_are_not_noted``.
5. When files are completed quickly, no notes are written until that ends. Held by
   ``test_nothing_is_noted_while_files_are_completed_in_a_hurry``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from _fast.crc import crc32c
from _fast.log.journal import EntryIndex
from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.journal.disk import Disk
from segstore.tiers.journal.files import JournalFile, RunBlocking, journal_name
from segstore.tiers.journal.log_reader import KeptDigests, open_named
from segstore.tiers.journal.scan import FileScan, scan_file

MAGIC: Final = b"SEGJCNT\n"
VERSION: Final = 1
NO_DIGEST: Final = 0xFFFF_FFFF
DIGEST_BYTES_SHARE: Final = 16
"""Maximum share of digests in a note: one byte for this many bytes of the file. Further entries
have none."""
FILES_WITHOUT_NOTES: Final = 6
"""Maximum number of needed complete files for which no notes are written. This many are needed from
time to time even while tier 2 is fast, and a start reads them quickly."""
NEWEST_FILES: Final = 2
"""Number of the newest complete files that get no note."""
HURRY_FILES: Final = 4
HURRY_SECONDS: Final = 1.0
"""Time, in seconds: when ``HURRY_FILES`` files were completed in less, no notes are written,
because reading the files back would slow writers down."""

_HEADER = struct.Struct("<8sIIIQQQI")
_CONTAINER = struct.Struct("<IQII")
_SUM = struct.Struct("<I")
_SWAPPED = sys.byteorder == "big"

_log = structlog.get_logger(__name__)


def note_name(generation: int) -> str:
    """Return the name of the note about a file."""
    return f"{generation:020d}.contents"


class NotedContents:
    """The notes of a journal, in a directory of their own. Its methods block.

    ``digest`` returns the digest of an entry; ``digest_format`` is the version of the digest's
    format.
    """

    def __init__(
        self, disk: Disk, digest: Callable[[memoryview], bytes], *, digest_format: int
    ) -> None:
        self._disk = disk
        self._digest = digest
        self._digest_format = digest_format

    def read(self, file: JournalFile, kept: KeptDigests) -> FileScan | None:
        """Return the result that a scan of the file would have; None if there is no valid note.

        ``kept`` limits the total length of digests in memory.
        """
        try:
            data = self._read_whole(note_name(file.generation))
            if data is None or file.disk_file.length() < file.header.file_bytes:
                return None
            return self._decode(data, file, kept)
        except (OSError, ValueError, struct.error) as error:
            _log.warning("a note cannot be read", file=file.name, error=str(error))
            return None

    def _read_whole(self, name: str) -> bytes | None:
        try:
            disk_file = self._disk.open_file(name)
        except FileNotFoundError:
            return None
        try:
            buffer = memoryview(bytearray(disk_file.length()))
            return bytes(buffer[: disk_file.read_into(buffer, 0)])
        finally:
            disk_file.close()

    def write_note(self, file: JournalFile) -> None:
        """Read a complete file and write the note about it.

        Raises ``DataLogCorruptError`` when the file is damaged.
        """
        kept = KeptDigests(self._digest, bytes_max=file.header.file_bytes // DIGEST_BYTES_SHARE)
        scan = scan_file(file, kept)
        if scan.following_generation is None:
            raise DataLogCorruptError(
                f"journal file {file.name}, offset {scan.end_offset}: the batch is damaged"
            )
        name = note_name(file.generation)
        self.remove(file.generation)
        disk_file = self._disk.create_file(name)
        try:
            disk_file.write([self._encode(scan)], 0)
        finally:
            disk_file.close()

    def remove(self, generation: int) -> None:
        """Remove the note about a file, if there is one."""
        name = note_name(generation)
        if name in self._disk.list_files():
            self._disk.remove(name)

    def remove_others(self, generations: Sequence[int]) -> None:
        """Remove the notes about all files but these."""
        kept = {note_name(generation) for generation in generations}
        for name in self._disk.list_files():
            if name.endswith(".contents") and name not in kept:
                self._disk.remove(name)

    def noted_generations(self) -> set[int]:
        """Return the generations of the files that have a note."""
        names = (name.partition(".") for name in self._disk.list_files())
        return {int(number) for number, _, kind in names if kind == "contents"}

    def _encode(self, scan: FileScan) -> bytes:
        header = scan.file.header
        assert scan.following_generation is not None
        parts = [
            _HEADER.pack(
                MAGIC,
                VERSION,
                self._digest_format,
                header.salt,
                header.generation,
                header.file_bytes,
                scan.following_generation,
                len(scan.indexes),
            )
        ]
        for container_id, index in scan.indexes.items():
            digests = scan.digests[container_id]
            lengths = [NO_DIGEST if digest is None else len(digest) for digest in digests]
            parts += [
                _CONTAINER.pack(container_id, index.first_position, len(index), len(index.groups)),
                _little("I", index.places_bytes),
                *(struct.pack("<QQ", *group) for group in index.groups),
                _little("I", array("I", lengths).tobytes()),
                *(digest for digest in digests if digest is not None),
            ]
        data = b"".join(parts)
        return data + _SUM.pack(crc32c(data))

    def _decode(self, data: bytes, file: JournalFile, kept: KeptDigests) -> FileScan | None:
        if len(data) < _HEADER.size + _SUM.size:
            return None
        body = memoryview(data)[: -_SUM.size]
        magic, version, digest_format, *about, count = _HEADER.unpack_from(body)
        following = about.pop()
        header = file.header
        if (
            (magic, version, digest_format) != (MAGIC, VERSION, self._digest_format)
            or about != [header.salt, header.generation, header.file_bytes]
            or _SUM.unpack_from(data, len(body))[0] != crc32c(body)
        ):
            return None
        scan = FileScan(file, following_generation=following)
        position = _HEADER.size
        for _ in range(count):
            position = _decode_container(body, position, scan)
        if position != len(body) or len(scan.indexes) != count:
            raise ValueError("its containers do not fill it")
        lengths = [len(each) for row in scan.digests.values() for each in row if each is not None]
        return scan if kept.reserve(sum(lengths)) else None


def _decode_container(body: memoryview, position: int, scan: FileScan) -> int:
    """Decode one container's part of a note into ``scan``; return the position after it.

    Raises ``ValueError`` or ``struct.error`` for impossible values, which a note with a right
    checksum may have.
    """
    container_id, first_position, count, group_count = _CONTAINER.unpack_from(body, position)
    position += _CONTAINER.size
    places = _little("I", bytes(body[position : position + 4 * count]))
    position += 4 * count
    end = position + 16 * group_count
    groups = list(struct.iter_unpack("<QQ", body[position:end]))
    lengths = array("I", _little("I", bytes(body[end : end + 4 * count])))
    position = end + 4 * count
    digests: list[bytes | None] = []
    for length in lengths:
        if length == NO_DIGEST:
            digests.append(None)
            continue
        digests.append(bytes(body[position : position + length]))
        position += length
    starts = [start for start, _ in groups]
    if (
        len(lengths) != count
        or starts[:1] != [first_position]
        or sorted(set(starts)) != starts
        or starts[-1] >= first_position + count
    ):
        raise ValueError(f"its entries of container {container_id} make no sense")
    scan.indexes[container_id] = EntryIndex.restored(first_position, places, groups)
    scan.digests[container_id] = digests
    return position


def _little(kind: str, data: bytes) -> bytes:
    """Convert an array of numbers between little endian and the machine's byte order."""
    if not _SWAPPED:
        return data
    numbers = array(kind, data)
    numbers.byteswap()
    return numbers.tobytes()


class ContentsNoter:
    """Writes notes about files that stay needed, and removes notes about other files.

    ``complete_files`` returns the generations of the needed complete files, in ascending order.
    """

    def __init__(
        self,
        disk: Disk,
        contents: NotedContents,
        complete_files: Callable[[], Sequence[int]],
        run_blocking: RunBlocking,
    ) -> None:
        self._disk = disk
        self._contents = contents
        self._complete_files = complete_files
        self._run_blocking = run_blocking
        self._changed = trio.Event()
        self._changed.set()
        self._passed_over: set[int] = set()
        self._newest = -1
        self._completed_at: deque[float] = deque(maxlen=HURRY_FILES)

    def look(self) -> None:
        """Wake the task that writes notes. Call it when a file was completed or freed."""
        newest = max(self._complete_files(), default=self._newest)
        if newest > self._newest:
            self._newest = newest
            self._completed_at.append(trio.current_time())
        self._changed.set()

    @property
    def _is_hurried(self) -> bool:
        times = self._completed_at
        return len(times) == HURRY_FILES and trio.current_time() - times[0] < HURRY_SECONDS

    async def run(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        """Write and remove notes until the scope is cancelled."""
        with trio.CancelScope() as scope:
            task_status.started(scope)
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                try:
                    await self._catch_up()
                except OSError as error:
                    _log.warning("contents of journal files cannot be noted", error=str(error))

    async def _catch_up(self) -> None:
        """Remove unneeded notes and write missing ones, one file after the other."""
        wanted = self._complete_files()
        await self._run_blocking(partial(self._contents.remove_others, wanted))
        noted = await self._run_blocking(self._contents.noted_generations)
        while (generation := self._next(noted)) is not None:
            began = trio.current_time()
            if self._is_hurried:
                await trio.sleep(HURRY_SECONDS)
                continue
            noted.add(generation)
            await self._write_note(generation)
            # At most half of the time is spent on this, however many files there are.
            await trio.sleep(trio.current_time() - began)

    def _next(self, noted: set[int]) -> int | None:
        """Return the oldest file that needs a note and has none."""
        needed = self._complete_files()
        if len(needed) <= FILES_WITHOUT_NOTES:
            return None
        done = noted | self._passed_over
        return next((each for each in needed[:-NEWEST_FILES] if each not in done), None)

    async def _write_note(self, generation: int) -> None:
        def work() -> None:
            file = open_named(self._disk, generation)
            try:
                self._contents.write_note(file)
            finally:
                file.disk_file.close()

        try:
            await self._run_blocking(work)
        except (DataLogError, OSError) as error:
            self._passed_over.add(generation)
            if generation in self._complete_files():  # else it was being made again
                _log.error(
                    "contents of a journal file cannot be noted",
                    file=journal_name(generation),
                    error=str(error),
                )
