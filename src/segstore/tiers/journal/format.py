"""The journal's byte format; docs/formats/journal.md has the grammar and an example.

Owns: the layout of file headers, batches and records, and their checksums.

Invariants:
1. Every checksum starts from the file's salt, a random number that is new each time a file is
   written anew: bytes of an earlier use of the file, or bytes that a client chose, do not pass.
2. A batch lies in one file and starts at a multiple of ``BATCH_ALIGNMENT``, so that it shares no
   disk sector with the batch before it.
3. Decoding never raises on any bytes: what does not pass is ``None``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from _fast.crc import crc32c
from segstore.tiers.api import Buffer, OnDurable

FORMAT_VERSION = 1
FILE_MAGIC = b"SEGJRNL\n"
FILE_HEADER_BYTES = 4096
BATCH_MAGIC = 0x42_4A_47_53  # b"SGJB" in the file
BATCH_ALIGNMENT = 512
RECORD_ALIGNMENT = 8

# magic, version, salt, generation, file length; the checksum follows
_FILE_HEADER = struct.Struct("<8sIIQQ")
_CHECKSUM = struct.Struct("<I")
# magic, generation, batch number, durable batch number, length of the records, their count
_BATCH_HEADER = struct.Struct("<IQQQII")
BATCH_HEADER_BYTES = 40
# payload length, container id, kind, (nothing), epoch, position; the checksum stands before it
_RECORD_HEADER = struct.Struct("<IIHHQQ")
RECORD_HEADER_BYTES = 32
_RECORD_PREFIX = struct.Struct("<I")

assert _BATCH_HEADER.size + _CHECKSUM.size == BATCH_HEADER_BYTES
assert _RECORD_HEADER.size + _RECORD_PREFIX.size == RECORD_HEADER_BYTES


class Kind(IntEnum):
    """The kinds of records. ``position`` has a different meaning for each kind."""

    ENTRY = 1
    """One log entry of a container, at ``position`` of its log."""
    OPEN = 2
    """The container's log was opened under ``epoch``; its next entry gets ``position``."""
    TRUNCATE = 3
    """Entries of the container before ``position`` are not needed."""
    LIVE = 4
    """The file of generation ``position`` is needed, besides this one."""
    FREE = 5
    """The file of generation ``position`` is not needed any more."""
    END = 6
    """The end of this file; the file of generation ``position`` follows."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file."""

    generation: int
    salt: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of a batch. A batch without records marks the journal's end, and is overwritten by
    the next one."""

    batch_number: int
    durable_batch_number: int
    length: int
    record_count: int


@dataclass(slots=True)
class Record:
    """One record on its way into the journal."""

    kind: Kind
    container_id: int
    epoch: int
    position: int
    parts: Sequence[Buffer] = ()
    length: int = 0
    on_durable: OnDurable | None = None

    @property
    def stored_bytes(self) -> int:
        """Return how many bytes of a batch the record takes."""
        # Like ``aligned``: this is asked for three times for every entry.
        return RECORD_HEADER_BYTES + (self.length + RECORD_ALIGNMENT - 1 & -RECORD_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record that is no entry, as read back."""

    kind: int
    container_id: int
    epoch: int
    position: int


def aligned(length: int, alignment: int) -> int:
    """Round ``length`` up to a multiple of ``alignment``."""
    return (length + alignment - 1) // alignment * alignment


def encode_file_header(header: FileHeader) -> bytes:
    """Return the first ``FILE_HEADER_BYTES`` of a file."""
    fields = _FILE_HEADER.pack(
        FILE_MAGIC,
        FORMAT_VERSION,
        header.salt,
        header.generation,
        header.file_bytes,
    )
    checked = fields + _CHECKSUM.pack(crc32c(fields))
    return checked + bytes(FILE_HEADER_BYTES - len(checked))


def decode_file_header(data: Buffer) -> FileHeader | None:
    """Read a file header, or None when its checksum or version does not pass."""
    if len(data) < _FILE_HEADER.size + _CHECKSUM.size:
        return None
    fields = bytes(data[: _FILE_HEADER.size])
    (checksum,) = _CHECKSUM.unpack_from(data, _FILE_HEADER.size)
    magic, version, salt, generation, file_bytes = _FILE_HEADER.unpack(fields)
    if magic != FILE_MAGIC or checksum != crc32c(fields) or version != FORMAT_VERSION:
        return None
    return FileHeader(generation, salt, file_bytes)


def encode_batch(
    records: Sequence[Record], *, generation: int, salt: int, batch_number: int, durable: int
) -> tuple[list[Buffer], int]:
    """Return the buffers of one batch, unpadded, and their length in all."""
    buffers: list[Buffer] = [b""]
    length = 0
    padding = b""
    for record in records:
        fields = _RECORD_HEADER.pack(
            record.length, record.container_id, record.kind, 0, record.epoch, record.position
        )
        checksum = crc32c(fields, salt)
        for part in record.parts:
            checksum = crc32c(part, checksum)
        buffers.append(padding + _RECORD_PREFIX.pack(checksum) + fields)
        buffers.extend(record.parts)
        stored = record.stored_bytes
        padding = bytes(stored - RECORD_HEADER_BYTES - record.length)
        length += stored
    if padding:
        buffers.append(padding)
    fields = _BATCH_HEADER.pack(
        BATCH_MAGIC, generation, batch_number, durable, length, len(records)
    )
    buffers[0] = fields + _CHECKSUM.pack(crc32c(fields, salt))
    return buffers, BATCH_HEADER_BYTES + length


def batch_prefix(generation: int) -> bytes:
    """Return the bytes with which every batch of a file begins."""
    return _BATCH_HEADER.pack(BATCH_MAGIC, generation, 0, 0, 0, 0)[:12]


def decode_batch_header(data: Buffer, *, generation: int, salt: int) -> BatchHeader | None:
    """Read a batch header, or None when it is damaged or of another file or generation."""
    if len(data) < BATCH_HEADER_BYTES:
        return None
    fields = bytes(data[: _BATCH_HEADER.size])
    (checksum,) = _CHECKSUM.unpack_from(data, _BATCH_HEADER.size)
    magic, found, number, durable, length, count = _BATCH_HEADER.unpack(fields)
    if magic != BATCH_MAGIC or found != generation or checksum != crc32c(fields, salt):
        return None
    return BatchHeader(number, durable, length, count)
