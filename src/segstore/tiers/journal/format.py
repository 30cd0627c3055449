"""Encodes and decodes the journal's bytes; docs/formats/journal.md has the grammar and an example.

Owns: the layout of file headers, batches and records, and their checksums.

Invariants:
1. When a client stores bytes that look like a batch, or a reused file has batches of its earlier
   use, they are not valid: each checksum starts from the file's random salt. Held by
   ``test_what_clients_store_cannot_pose_as_a_batch``.
2. When the last batch is torn, the one before is whole: batches share no disk sector, because each
   begins at a multiple of ``BATCH_ALIGNMENT``. Held by
   ``test_a_tail_torn_at_any_byte_recovers_to_the_last_full_batch``.
3. When a header is cut off or has any wrong bit, decoding returns None. Held by
   ``test_headers_pass_only_whole_and_unchanged``.
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
# payload length, container id, kind, (nothing), epoch, position; the checksum comes before these
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
    """The file of generation ``position`` is needed, and is older than this one."""
    FREE = 5
    """The file of generation ``position`` is not needed any more."""
    END = 6
    """Ends this file; the file of generation ``position`` follows."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file."""

    generation: int
    salt: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of a batch. An empty batch marks the journal's end; the next batch overwrites
    it."""

    batch_number: int
    durable_batch_number: int
    length: int
    record_count: int


@dataclass(slots=True)
class Record:
    """A record that is to be written."""

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
        return RECORD_HEADER_BYTES + aligned(self.length, RECORD_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record that was read, of any kind but ENTRY."""

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
    """Return the file header at the start of ``data``; None if its checksum, magic or version is
    wrong."""
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
    """Return the buffers of one batch, without zeros after it, and its length in bytes."""
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
    """Return the first 12 bytes of each batch in the file of this generation."""
    return _BATCH_HEADER.pack(BATCH_MAGIC, generation, 0, 0, 0, 0)[:12]


def decode_batch_header(data: Buffer, *, generation: int, salt: int) -> BatchHeader | None:
    """Return the batch header at the start of ``data``; None if it is damaged or belongs to another
    file."""
    if len(data) < BATCH_HEADER_BYTES:
        return None
    fields = bytes(data[: _BATCH_HEADER.size])
    (checksum,) = _CHECKSUM.unpack_from(data, _BATCH_HEADER.size)
    magic, found, number, durable, length, count = _BATCH_HEADER.unpack(fields)
    if magic != BATCH_MAGIC or found != generation or checksum != crc32c(fields, salt):
        return None
    return BatchHeader(number, durable, length, count)
