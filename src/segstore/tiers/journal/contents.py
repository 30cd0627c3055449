"""Notes about the contents of the journal's complete files, so that a start need not read these.

Owns: the notes of one journal: their bytes (``docs/formats/journal-contents.md``), reading and
writing them, and ``ContentsNoter``, which writes them while the journal is used.

Invariants:
1. A note is made of a complete file that was read back from the disk and passed from its first
   batch to its END record. Such a file never changes under its generation and salt.
2. Nothing depends on a note: one that is missing, torn, damaged, of another version or cannot be
   true is not used, and the file is read instead. Notes are therefore never synced.
3. What a note leaves out, the bodies, has sums in it. Damage there is found by the next read of
   them.
4. Notes cost nothing while tier 2 keeps up, or the disk has enough to do: files are read for them
   when many stay needed, and not in a hurry.
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
"""Part of the file that the digests in a note may have: one in so many bytes; entries beyond have
none."""
FILES_WITHOUT_NOTES: Final = 6
"""Maximum number of complete files that are needed now and then while tier 2 keeps up: a start
reads them without notes."""
NEWEST_FILES: Final = 2
"""Number of the newest files that get no note, when there are more files than
``FILES_WITHOUT_NOTES``."""
HURRY_FILES: Final = 4
HURRY_SECONDS: Final = 1.0
"""Time, in seconds, in which so many completed files mean haste: reading them back would slow
writers down."""

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

    ``digest`` makes the digest of an entry, and ``digest_format`` is the version of its format.
    """

    def __init__(
        self, disk: Disk, digest: Callable[[memoryview], bytes], *, digest_format: int
    ) -> None:
        self._disk = disk
        self._digest = digest
        self._digest_format = digest_format

    def read(self, file: JournalFile, kept: KeptDigests) -> FileScan | None:
        """Return what a scan of the file would find, or None when the file has to be scanned.

        ``kept`` bounds what is remembered of digests.
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

        Raises ``DataLogCorruptError`` when the file does not pass.
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
    """Read one container's part of a note; return where it ends.

    Raises ``ValueError`` or ``struct.error`` for what cannot be, although the note's sum is right.
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
    """Return numbers in the byte order of the note, from the machine's, or back."""
    if not _SWAPPED:
        return data
    numbers = array(kind, data)
    numbers.byteswap()
    return numbers.tobytes()


class ContentsNoter:
    """Notes the contents of files that stay needed, and removes notes about other files.

    ``complete_files`` returns the generations of the complete files that are needed, in order.
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
        """Wake the task that writes notes: a file was completed, or is not needed any more."""
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
        """Work until the scope is cancelled."""
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
