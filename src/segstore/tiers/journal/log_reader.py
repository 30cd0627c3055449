"""Reads of one container's log in the journal: all of it at a recovery, and parts of it later.

Owns: ``LogReader``, which knows where the entries lie that were there at the recovery, and
``KeptDigests``, which bounds what a recovery remembers of them.

Invariants:
1. The files are read once at a recovery where the digests of their entries are known and small;
   the others are read a second time, a few MiB in memory at a time.
2. Parts of entries are found until the log is truncated behind them. A file that was made again
   since is not taken for the old one: its generation is another.
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
"""Maximum of digests that are kept between the scan of a journal and the replay of its
containers."""
DIGEST_SHARE: Final = 4
"""Part of an entry, one in so many bytes, up to which its digest is kept."""
DIGESTS_AT_ONCE: Final = 64
SPAN_BYTES_MAX: Final = 1024 * 1024
"""Maximum length, in bytes, of a read of parts that are close to each other."""
GAP_BYTES_MAX: Final = 64 * 1024


class KeptDigests:
    """Digests entries while there is room for what comes of it."""

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
        """Reserve room for digests of that length, which are known already; return whether there
        was room."""
        if length > self._room:
            return False
        self._room -= length
        return True


class LogReader:
    """The entries of a container at positions from ``start`` to before ``end``.

    ``indexes`` tells where they are, by the generation of the file in ascending order.
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
            if index.end_position > start  # else truncated since: the file may be gone
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
        """Return a reader of what scans of the journal's files found of a container."""
        container = state.containers[container_id]
        indexes = {
            generation: scan.indexes[container_id]
            for generation, scan in scans.items()
            if container_id in scan.indexes
        }
        start, end = container.first_position, container.next_position
        return cls(disk, run_blocking, container_id, indexes, {}, start=start, end=end)

    def truncate(self, position: int) -> None:
        """Forget the entries before ``position``, which are not read any more."""
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
                found += batch  # an empty one comes before the error of a damaged entry
        return found[0].data

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """Return parts of entries, in log order. The caller checks their checksums."""
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
    """Return how many entries from ``begin`` on are alike: all with a digest, or all without."""
    if begin >= len(digests):
        return count_max
    known = digests[begin] is not None
    count = 1
    limit = min(count_max, len(digests) - begin, DIGESTS_AT_ONCE if known else count_max)
    while count < limit and (digests[begin + count] is not None) == known:
        count += 1
    return count


def _read_places(disk: Disk, by_file: Mapping[int, list[tuple[int, int]]]) -> list[bytes]:
    """Read (offset, length) of files, what lies close together at once."""
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
    """Open a file that must be there. Blocks."""
    name = journal_name(generation)
    file = open_existing(disk, name)
    if file is None:
        raise DataLogCorruptError(f"journal file {name}, offset 0: the file header is damaged")
    return file


def scan_named(disk: Disk, generation: int, digest: EntryDigest | None = None) -> FileScan:
    """Scan a file that must be there. Blocks."""
    file = open_named(disk, generation)
    try:
        return scan_file(file, digest)
    finally:
        file.disk_file.close()
