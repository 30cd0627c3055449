"""Reads one container's log in the journal: all of it during a recovery, parts of it later.

Owns: ``LogReader``, which knows the places of the entries that a recovery found, and
``KeptDigests``, which limits the memory for their digests. Entries without a digest are read a
second time from their files, a few MiB at a time.

Invariants:
1. When all entries of a file have digests, a recovery reads the file once. Held by
   ``test_the_files_of_many_entries_are_read_once``.
2. When an entry was truncated and its file may have been reused, reading it raises
   ``DataLogError``. Held by ``test_parts_in_files_that_are_gone_are_an_error``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from _fast.log.journal import EntryIndex
from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.api import DigestedEntry, LogAddress, LogEntry, LogPart
from segstore.tiers.journal.disk import Disk
from segstore.tiers.journal.files import JournalFile, RunBlocking, journal_name, open_existing
from segstore.tiers.journal.format import RECORD_HEADER_BYTES
from segstore.tiers.journal.scan import EntryDigest, FileScan, read_file_entries, scan_file
from segstore.tiers.journal.state import JournalState

DIGEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum total length, in bytes, of the digests that are kept from the scan of a journal until its
containers are replayed."""
DIGEST_SHARE: Final = 4
"""Maximum share of a digest: one byte for this many bytes of its entry. A longer one is not
kept."""
DIGESTS_AT_ONCE: Final = 64
SPAN_BYTES_MAX: Final = 1024 * 1024
"""Maximum length, in bytes, of one read of several parts that lie close together."""
GAP_BYTES_MAX: Final = 64 * 1024


class KeptDigests:
    """Makes digests of entries until their total length exceeds ``bytes_max``."""

    def __init__(
        self, digest: Callable[[memoryview], bytes], *, bytes_max: int = DIGEST_BYTES_MAX
    ) -> None:
        self._digest = digest
        self._room = bytes_max

    def __call__(self, entry: memoryview) -> bytes | None:
        """Return the entry's digest, or None if the digest is too long to be useful."""
        if self._room <= 0:
            return None
        try:
            digest = self._digest(entry)
        except ValueError:
            return None  # reading the entry will raise the error
        if len(digest) * DIGEST_SHARE > len(entry):
            return None
        self._room -= len(digest)
        return digest

    def reserve(self, length: int) -> bool:
        """Count ``length`` bytes of digests that were made elsewhere; return False if they exceed
        the limit."""
        if length > self._room:
            return False
        self._room -= length
        return True


class LogReader:
    """Reads the entries of a container at positions from ``start`` to before ``end``.

    ``indexes`` has their places, by the generation of the file in ascending order.
    """

    def __init__(
        self,
        disk: Disk,
        run_blocking: RunBlocking,
        container_id: int,
        indexes: Mapping[int, EntryIndex],
        digests: Mapping[int, list[bytes | None]],
        *,
        start: int,
        end: int,
    ) -> None:
        self._disk = disk
        self._run_blocking = run_blocking
        self._container_id = container_id
        self._start = start
        self._end = end
        self._digests = dict(digests)
        self._indexes = {
            generation: index
            for generation, index in indexes.items()
            if index.end_position > start  # the file of truncated entries may be gone
        }

    @classmethod
    def of_scans(
        cls,
        disk: Disk,
        run_blocking: RunBlocking,
        container_id: int,
        state: JournalState,
        scans: Mapping[int, FileScan],
    ) -> LogReader:
        """Return a reader of the container's entries that the scans of the journal's files
        found."""
        container = state.containers[container_id]
        indexes = {
            generation: scan.indexes[container_id]
            for generation, scan in scans.items()
            if container_id in scan.indexes
        }
        start, end = container.first_position, container.next_position
        return cls(disk, run_blocking, container_id, indexes, {}, start=start, end=end)

    def truncate(self, position: int) -> None:
        """Forget the places of entries before ``position``."""
        gone = [key for key, index in self._indexes.items() if index.end_position <= position]
        for generation in gone:
            del self._indexes[generation]

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries in order."""
        for generation, index in list(self._indexes.items()):
            start = max(self._start, index.first_position)
            end = min(self._end, index.end_position)
            async with aclosing(self._read_range(generation, index, start, end)) as batches:
                async for batch in batches:
                    for entry in batch:
                        yield entry

    async def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """Yield the entries' digests in order, or the entries where those are not known."""
        for generation, index in list(self._indexes.items()):
            digests = self._digests.pop(generation, [])
            position = max(self._start, index.first_position)
            end = min(self._end, index.end_position)
            while position < end:
                stretch = _stretch(digests, position - index.first_position, end - position)
                known = digests[position - index.first_position :][:stretch]
                if known and known[0] is not None:
                    yield [
                        DigestedEntry(LogAddress(place), digest, b"")
                        for place, digest in enumerate(known, position)
                    ]
                else:
                    reading = self._read_range(generation, index, position, position + stretch)
                    async with aclosing(reading) as batches:
                        async for batch in batches:
                            yield [DigestedEntry(each.address, None, each.data) for each in batch]
                position += stretch

    async def _read_range(
        self, generation: int, index: EntryIndex, start: int, end: int
    ) -> AsyncGenerator[list[LogEntry], None]:
        try:
            file = await self._run_blocking(partial(open_named, self._disk, generation))
            entries = read_file_entries(file, self._container_id, index, start=start, end=end)
            try:
                while (batch := await self._run_blocking(partial(next, entries, None))) is not None:
                    yield batch
            finally:
                file.disk_file.close()
        except OSError as error:
            raise DataLogError(f"the journal cannot be read: {error}") from error

    async def read_entry(self, address: LogAddress) -> bytes:
        """Return one entry. Raises ``DataLogError`` when it does not exist any more."""
        position = address.position
        generation, index = self._find(position)
        found: list[LogEntry] = []
        reading = self._read_range(generation, index, position, position + 1)
        async with aclosing(reading) as batches:
            async for batch in batches:
                found += batch  # for a damaged entry, an empty batch comes before the error
        return found[0].data

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """Read parts of entries. ``parts`` are in log order. The caller verifies checksums."""
        by_file: dict[int, list[tuple[int, int]]] = {}
        for part in parts:
            generation, index = self._find(part.position)
            offset = index.offset_of(part.position) + RECORD_HEADER_BYTES + part.start
            by_file.setdefault(generation, []).append((offset, part.length))
        try:
            return await self._run_blocking(partial(_read_places, self._disk, by_file))
        except OSError as error:
            raise DataLogError(f"the journal cannot be read: {error}") from error

    def _find(self, position: int) -> tuple[int, EntryIndex]:
        for generation, index in self._indexes.items():
            if index.first_position <= position < index.end_position:
                return generation, index
        raise DataLogError(
            f"entry {position} of container {self._container_id} is not in the journal any more"
        )


def _stretch(digests: Sequence[bytes | None], begin: int, count_max: int) -> int:
    """Return how many entries from ``begin`` on all have a digest, or all have none."""
    if begin >= len(digests):
        return count_max
    known = digests[begin] is not None
    count = 1
    limit = min(count_max, len(digests) - begin, DIGESTS_AT_ONCE if known else count_max)
    while count < limit and (digests[begin + count] is not None) == known:
        count += 1
    return count


def _read_places(disk: Disk, by_file: Mapping[int, list[tuple[int, int]]]) -> list[bytes]:
    """Read bytes at (offset, length) of files, several close ones in one read."""
    found = []
    for generation, places in by_file.items():
        file = open_named(disk, generation)
        try:
            begin = 0
            while begin < len(places):
                end = _span_end(places, begin)
                found += _read_span(file, places[begin:end])
                begin = end
        finally:
            file.disk_file.close()
    return found


def _span_end(places: Sequence[tuple[int, int]], begin: int) -> int:
    first = places[begin][0]
    last = first + places[begin][1]
    end = begin + 1
    while end < len(places):
        offset, length = places[end]
        if not last <= offset <= last + GAP_BYTES_MAX or offset + length - first > SPAN_BYTES_MAX:
            break
        last = offset + length
        end += 1
    return end


def _read_span(file: JournalFile, places: Sequence[tuple[int, int]]) -> list[bytes]:
    first = places[0][0]
    span = memoryview(bytearray(places[-1][0] + places[-1][1] - first))
    count = file.disk_file.read_into(span, first)
    if count < len(span):
        raise DataLogCorruptError(
            f"journal file {file.name} ends at {first + count}, before {first + len(span)}"
        )
    return [bytes(span[offset - first : offset - first + length]) for offset, length in places]


def open_named(disk: Disk, generation: int) -> JournalFile:
    """Open a journal file. Blocks. Raises ``DataLogCorruptError`` or ``OSError``."""
    name = journal_name(generation)
    file = open_existing(disk, name)
    if file is None:
        raise DataLogCorruptError(f"journal file {name}, offset 0: the file header is damaged")
    return file


def scan_named(disk: Disk, generation: int, digest: EntryDigest | None = None) -> FileScan:
    """Scan a journal file. Blocks. Raises like ``open_named``."""
    file = open_named(disk, generation)
    try:
        return scan_file(file, digest)
    finally:
        file.disk_file.close()
