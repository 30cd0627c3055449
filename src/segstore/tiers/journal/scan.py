"""Reads journal files: batch by batch, or one container's entries.

Owns: ``scan_file``, which checks every byte that counts in a file, and ``read_extent``.

Invariants:
1. Memory stays bounded by one window, whatever the files hold.
2. A file's batches are numbered without gaps; the first that does not pass ends the scan. Whether
   that is a torn tail or damage is for the caller to decide, with ``find_later_batch``.
3. Entries of one container have consecutive positions within a file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from segstore.errors import DataLogCorruptError
from segstore.tiers.api import LogAddress, LogEntry
from segstore.tiers.journal.byte_count import ByteCount
from segstore.tiers.journal.disk import DiskFile
from segstore.tiers.journal.files import JournalFile, journal_name
from segstore.tiers.journal.format import (
    BATCH_ALIGNMENT,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RECORD_ALIGNMENT,
    RECORD_HEADER_BYTES,
    BatchHeader,
    Kind,
    StoredRecord,
    aligned,
    batch_prefix,
    decode_batch_header,
    decode_record,
    decode_records,
)

WINDOW_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Extent:
    """Where the entries of one container lie in one file: ``places`` are file offsets of their
    records in units of ``RECORD_ALIGNMENT``; the first has ``first_position``."""

    first_position: int
    places: array[int] = field(default_factory=lambda: array("I"))
    byte_count: ByteCount = field(default_factory=ByteCount)

    @property
    def end_position(self) -> int:
        """The position behind the last entry."""
        return self.first_position + len(self.places)


@dataclass(slots=True)
class FileScan:
    """What a scan found in one file."""

    file: JournalFile
    end_offset: int
    next_batch_number: int | None = None
    following_generation: int | None = None
    """The generation that the END record names."""
    marked: bool = False
    """Whether the scan ended at a mark of the journal's end."""
    extents: dict[int, Extent] = field(default_factory=dict)


class Window:
    """A part of a file in memory, moved along as it is read."""

    def __init__(self, disk_file: DiskFile, *, end: int) -> None:
        self._disk_file = disk_file
        self._end = end
        self._buffer = memoryview(bytearray(min(WINDOW_BYTES, max(end, 1))))
        self._start = 0
        self._filled = 0

    def view(self, offset: int, length: int) -> memoryview:
        """The bytes at ``offset``, fewer at the end of the file; valid until the next call."""
        length = min(length, self._end - offset)
        if length <= 0:
            return memoryview(b"")
        if offset < self._start or offset + length > self._start + self._filled:
            if length > len(self._buffer):
                self._buffer = memoryview(bytearray(length))
            wanted = min(len(self._buffer), self._end - offset)
            self._start = offset
            self._filled = self._disk_file.read_into(self._buffer[:wanted], offset)
        start = offset - self._start
        return self._buffer[start : min(start + length, self._filled)]


def scan_file(
    file: JournalFile, on_record: Callable[[StoredRecord], None] | None = None
) -> FileScan:
    """Check a file from its first batch to the first that does not pass. Blocks."""
    header = file.header
    window = Window(file.disk_file, end=header.file_bytes)
    scan = FileScan(file, FILE_HEADER_BYTES)
    while scan.following_generation is None:
        batch = _next_batch(window, scan)
        if batch is None:
            break
        if batch.record_count == 0:
            scan.marked = True
            break
        start = scan.end_offset + BATCH_HEADER_BYTES
        body = window.view(start, batch.length)
        records = decode_records(body, batch.record_count, salt=header.salt)
        if len(body) < batch.length or records is None:
            break
        for record in records:
            if record.kind == Kind.ENTRY:
                _index(scan, record, start)
            elif record.kind == Kind.END:
                scan.following_generation = record.position
            if on_record is not None:
                on_record(record)
        scan.next_batch_number = batch.batch_number + 1
        scan.end_offset = aligned(start + batch.length, BATCH_ALIGNMENT)
    return scan


def _next_batch(window: Window, scan: FileScan) -> BatchHeader | None:
    header = scan.file.header
    batch = decode_batch_header(
        window.view(scan.end_offset, BATCH_HEADER_BYTES),
        generation=header.generation,
        salt=header.salt,
    )
    if batch is None:
        return None
    if scan.next_batch_number not in (None, batch.batch_number):
        return None
    return batch


def _index(scan: FileScan, record: StoredRecord, start: int) -> None:
    """Note where an entry lies."""
    extent = scan.extents.get(record.container_id)
    if extent is None:
        extent = scan.extents[record.container_id] = Extent(record.position)
    offset = start + record.start - RECORD_HEADER_BYTES
    if record.position != extent.end_position:
        raise DataLogCorruptError(
            f"journal file {scan.file.name}, offset {offset}: container {record.container_id} has"
            f" entry {record.position} where {extent.end_position} was expected"
        )
    extent.places.append(offset // RECORD_ALIGNMENT)
    extent.byte_count.add(record.position, record.length)


def find_later_batch(scan: FileScan) -> int | None:
    """The offset of a batch behind the scan's end that proves the scan's end to be damage.

    A batch tells which batch was durable when it was written. If that is the one that does not
    pass, or a later one, then no crash can have torn it. Blocks.
    """
    header = scan.file.header
    damaged_number = scan.next_batch_number
    assert damaged_number is not None
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


def check_extents(
    container_id: int, extents: Mapping[int, Extent], *, start: int, end: int
) -> None:
    """Raise unless the extents hold the container's entries from ``start`` to before ``end``.

    ``extents`` are by file generation in ascending order.
    """
    position = start
    for generation, extent in extents.items():
        if extent.end_position <= start:
            continue
        if extent.first_position > position or extent.end_position <= position:
            raise DataLogCorruptError(
                f"journal file {journal_name(generation)}: container {container_id} goes on with"
                f" entry {extent.first_position} where {position} was expected"
            )
        position = extent.end_position
    if position < end:
        raise DataLogCorruptError(
            f"the journal has no entry {position} of container {container_id}, whose entries"
            f" {start} to {end - 1} are needed"
        )


def read_extent(
    file: JournalFile, container_id: int, extent: Extent, *, start: int, end: int
) -> Iterator[list[LogEntry]]:
    """Yield the container's entries at positions from ``start`` to before ``end``, a window's worth
    at a time. Blocks."""
    window = Window(file.disk_file, end=file.header.file_bytes)
    batch: list[LogEntry] = []
    batch_bytes = 0
    first = max(0, start - extent.first_position)
    for index in range(first, min(len(extent.places), end - extent.first_position)):
        offset = extent.places[index] * RECORD_ALIGNMENT
        position = extent.first_position + index
        record_bytes = _stored_bytes(window, offset)
        view = window.view(offset, record_bytes)
        record = decode_record(view, 0, salt=file.header.salt)
        if (
            record is None
            or record.kind != Kind.ENTRY
            or record.container_id != container_id
            or record.position != position
        ):
            raise DataLogCorruptError(
                f"journal file {file.name}, offset {offset}: entry {position} of container"
                f" {container_id} is damaged"
            )
        data = bytes(view[record.start : record.start + record.length])
        batch.append(LogEntry(LogAddress(position), data))
        batch_bytes += len(data)
        if batch_bytes >= WINDOW_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _stored_bytes(window: Window, offset: int) -> int:
    """How many bytes a record takes, by its own word; a damaged length fails its checksum."""
    prefix = window.view(offset, RECORD_HEADER_BYTES)
    if len(prefix) < RECORD_HEADER_BYTES:
        return RECORD_HEADER_BYTES
    return RECORD_HEADER_BYTES + int.from_bytes(prefix[4:8], "little")
