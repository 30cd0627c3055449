"""Reads journal files: batch by batch, or one container's entries.

Owns: ``scan_file``, which checks every byte that counts in a file, and ``read_file_entries``.

Invariants:
1. Memory stays bounded by one window and the digests that are kept, whatever the files hold.
2. A file's batches are numbered without gaps; the first that does not pass ends the scan. Whether
   that is a torn tail or damage is for the caller to decide, with ``find_later_batch``.
3. Entries of one container have consecutive positions within a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from _fast.log.journal import END, INCOMPLETE, MARK, BatchScan, EntryIndex, read_entries
from segstore.errors import DataLogCorruptError
from segstore.tiers.api import LogAddress, LogEntry
from segstore.tiers.journal.disk import DiskFile
from segstore.tiers.journal.files import JournalFile, journal_name
from segstore.tiers.journal.format import (
    BATCH_ALIGNMENT,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    StoredRecord,
    batch_prefix,
    decode_batch_header,
)

WINDOW_BYTES = 4 * 1024 * 1024

EntryDigest = Callable[[memoryview], bytes | None]
"""Returns the digest of an entry: what a recovery needs of it, or None where it has to read the
entry itself. The memory it gets is valid during the call only. Called from several threads."""


@dataclass(slots=True)
class FileScan:
    """The result of scanning one file."""

    file: JournalFile
    end_offset: int = FILE_HEADER_BYTES
    next_batch_number: int = 0
    """Number of the next batch; 0 when no batch passed."""
    following_generation: int | None = None
    """The generation that the END record names."""
    marked: bool = False
    """True if the scan ended at a mark of the journal's end."""
    controls: list[StoredRecord] = field(default_factory=list)
    """The records besides entries, in order."""
    indexes: dict[int, EntryIndex] = field(default_factory=dict)
    """The places of the entries, by container."""
    digests: dict[int, list[bytes | None]] = field(default_factory=dict)
    """The digests of the entries, where they are known; empty unless they were asked for."""


class Window:
    """A part of a file in memory, moved along as it is read."""

    def __init__(self, disk_file: DiskFile, *, end: int) -> None:
        self._disk_file = disk_file
        self._end = end
        self._buffer = memoryview(bytearray(min(WINDOW_BYTES, max(end, 1))))
        self._start = 0
        self._filled = 0

    def view(self, offset: int, length: int) -> memoryview:
        """Return the bytes at ``offset``, fewer at the end of the file; valid until the next
        call."""
        length = min(length, self._end - offset)
        if length <= 0:
            return memoryview(b"")
        if offset < self._start or offset + length > self._start + self._filled:
            kept = self._keep_from(offset)
            if length > len(self._buffer):
                longer = memoryview(bytearray(length))
                longer[:kept] = self._buffer[:kept]
                self._buffer = longer
            wanted = min(len(self._buffer), self._end - offset)
            self._start = offset
            read = self._disk_file.read_into(self._buffer[kept:wanted], offset + kept)
            self._filled = kept + read
        start = offset - self._start
        return self._buffer[start : min(start + length, self._filled)]

    def _keep_from(self, offset: int) -> int:
        """Move the bytes in memory from ``offset`` on to the beginning; return how many they
        are."""
        skipped = offset - self._start
        if not 0 <= skipped < self._filled:
            return 0
        kept = (self._filled - skipped) // BATCH_ALIGNMENT * BATCH_ALIGNMENT
        self._buffer[:kept] = self._buffer[skipped : skipped + kept]
        return kept


def scan_file(file: JournalFile, digest: EntryDigest | None = None) -> FileScan:
    """Check a file from its first batch to the first that does not pass. Blocks."""
    header = file.header
    window = Window(file.disk_file, end=header.file_bytes)
    batches = BatchScan(
        generation=header.generation,
        salt=header.salt,
        offset=FILE_HEADER_BYTES,
        digest=digest,
    )
    wanted = WINDOW_BYTES
    while True:
        offset = batches.end_offset
        view = window.view(offset, wanted)
        outcome = batches.run(view)
        if outcome != INCOMPLETE:
            break
        if batches.end_offset == offset and len(view) < wanted:
            break  # the batch claims to be longer than the file
        wanted = max(WINDOW_BYTES, batches.bytes_wanted)
    if batches.misplaced is not None:
        offset, container_id, position, expected = batches.misplaced
        raise DataLogCorruptError(
            f"journal file {file.name}, offset {offset}: container {container_id} has entry"
            f" {position} where {expected} was expected"
        )
    controls = [StoredRecord(*control) for control in batches.controls]
    return FileScan(
        file,
        end_offset=batches.end_offset,
        next_batch_number=batches.next_number,
        following_generation=controls[-1].position if outcome == END else None,
        marked=outcome == MARK,
        controls=controls,
        indexes=batches.indexes,
        digests=batches.digests if digest is not None else {},
    )


def find_later_batch(scan: FileScan) -> int | None:
    """Return the offset of a batch behind the end of the scan that proves this end to be damage.

    Each batch tells which batch was durable when it was written. If that is the one that does not
    pass, or a later one, then no crash can have torn it. Blocks.
    """
    header = scan.file.header
    damaged_number = scan.next_batch_number
    assert damaged_number > 0
    prefix = batch_prefix(header.generation)
    window = Window(scan.file.disk_file, end=header.file_bytes)
    offset = scan.end_offset
    while offset < header.file_bytes:
        piece = window.view(offset, WINDOW_BYTES)
        if not piece:
            break
        data = bytes(piece)
        found = data.find(prefix)
        while found >= 0:
            if (offset + found) % BATCH_ALIGNMENT == 0:
                batch = decode_batch_header(
                    data[found : found + BATCH_HEADER_BYTES],
                    generation=header.generation,
                    salt=header.salt,
                )
                if batch is not None and batch.durable_batch_number >= damaged_number:
                    return offset + found
            found = data.find(prefix, found + 1)
        offset += len(data)
    return None


def check_indexes(
    container_id: int, indexes: Mapping[int, EntryIndex], *, start: int, end: int
) -> None:
    """Raise unless the indexes hold the container's entries from ``start`` to before ``end``.

    ``indexes`` are by file generation in ascending order.
    """
    position = start
    for generation, index in indexes.items():
        if index.end_position <= start:
            continue
        if index.first_position > position or index.end_position <= position:
            raise DataLogCorruptError(
                f"journal file {journal_name(generation)}: container {container_id} goes on with"
                f" entry {index.first_position} where {position} was expected"
            )
        position = index.end_position
    if position < end:
        raise DataLogCorruptError(
            f"the journal has no entry {position} of container {container_id}, whose entries"
            f" {start} to {end - 1} are needed"
        )


def read_file_entries(
    file: JournalFile, container_id: int, index: EntryIndex, *, start: int, end: int
) -> Iterator[list[LogEntry]]:
    """Yield the container's entries at positions from ``start`` to before ``end``, a window's worth
    at a time. Blocks."""
    window = Window(file.disk_file, end=file.header.file_bytes)
    position = max(start, index.first_position)
    end = min(end, index.end_position)
    wanted = WINDOW_BYTES
    while position < end:
        offset = index.offset_of(position)
        view = window.view(offset, wanted)
        entries, more = read_entries(
            view,
            offset,
            index,
            start=position,
            end=end,
            container_id=container_id,
            salt=file.header.salt,
        )
        yield [
            LogEntry(LogAddress(place), data) for place, data in enumerate(entries, start=position)
        ]
        position += len(entries)
        if more < 0 or (not entries and len(view) < min(more, wanted)):
            raise DataLogCorruptError(
                f"journal file {file.name}, offset {index.offset_of(position)}: entry {position}"
                f" of container {container_id} is damaged"
            )
        wanted = max(WINDOW_BYTES, more)
