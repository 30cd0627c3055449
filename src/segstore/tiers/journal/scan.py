"""Reads journal files: batch by batch, or one container's entries.

Owns: ``scan_file``, which checks the batches of a file, and ``read_file_entries``. A batch is
*valid* if its checksums are right and its number is the next one.

Reads go through a window of ``WINDOW_BYTES``; besides it only the kept digests and the places of
entries are in memory. A scan ends at the first batch that is not valid. ``find_later_batch`` tells
whether that is an interrupted last write or damage. ``recovery`` has an example.

Invariants:
1. When a batch is incomplete or damaged, the scan ends before it, and all batches before are found.
   Held by ``test_a_tail_torn_at_any_byte_recovers_to_the_last_full_batch``.
2. When a whole batch has another number than the one after its predecessor's, the scan ends before
   it. Held by ``test_a_batch_out_of_number_does_not_pass``.
3. When an entry of a container does not follow the one before in its file, the scan reports its
   offset and position. Held by ``test_an_entry_out_of_turn_is_told``.
4. When a batch after the end of a scan says that the damaged one was durable, the damage is
   reported with file and offset. Held by
   ``test_a_flipped_bit_in_any_durable_batch_is_reported_with_file_and_offset``.
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
"""Returns the digest of an entry, or None if the recovery has to read the entry itself. The memory
that it gets is valid during the call only. Several threads call it."""


@dataclass(slots=True)
class FileScan:
    """The result of scanning one file."""

    file: JournalFile
    end_offset: int = FILE_HEADER_BYTES
    next_batch_number: int = 0
    """Number of the next batch; 0 if no batch is valid."""
    following_generation: int | None = None
    """The generation that the END record names."""
    marked: bool = False
    """True if the scan ended at an empty batch, which marks the journal's end."""
    controls: list[StoredRecord] = field(default_factory=list)
    """The records of all kinds but ENTRY, in order."""
    indexes: dict[int, EntryIndex] = field(default_factory=dict)
    """The places of the entries, by container."""
    digests: dict[int, list[bytes | None]] = field(default_factory=dict)
    """The digests of the entries by container, None for entries without one; empty unless digests
    were requested."""


class Window:
    """A part of a file in memory, which moves on as the file is read."""

    def __init__(self, disk_file: DiskFile, *, end: int) -> None:
        self._disk_file = disk_file
        self._end = end
        self._buffer = memoryview(bytearray(min(WINDOW_BYTES, max(end, 1))))
        self._start = 0
        self._filled = 0

    def view(self, offset: int, length: int) -> memoryview:
        """Return ``length`` bytes at ``offset``, or fewer at the end of the file. They are valid
        until the next call."""
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
        """Move the bytes from ``offset`` on to the beginning of the buffer; return their number."""
        skipped = offset - self._start
        if not 0 <= skipped < self._filled:
            return 0
        kept = (self._filled - skipped) // BATCH_ALIGNMENT * BATCH_ALIGNMENT
        self._buffer[:kept] = self._buffer[skipped : skipped + kept]
        return kept


def scan_file(file: JournalFile, digest: EntryDigest | None = None) -> FileScan:
    """Check a file's batches from the first one to the first that is not valid. Blocks."""
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
            break  # the batch's header gives it more bytes than the file has
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
    """Return the offset of a batch after the end of the scan which proves that the end is damage;
    None if there is none.

    Each batch has the number of a batch that was durable when it was written. If that is the number
    of the invalid batch, or a higher one, no crash can have interrupted the write of the invalid
    batch. Blocks.
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
    """Raise ``DataLogCorruptError`` unless the indexes have the container's entries from ``start``
    to before ``end``.

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
    """Yield the container's entries at positions from ``start`` to before ``end``, in lists of a
    window's content. Blocks. Raises ``DataLogCorruptError``."""
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
