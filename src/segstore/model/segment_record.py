"""The metadata that are kept of a segment while it is not in memory.

Owns: ``SegmentRecord`` and its bytes (``docs/formats/segment-records.md``).

Invariants:
1. Tier 2 has all bytes of a segment with a record: its length is its stored length. Its attributes
   are in its index, except for the core ones.
2. Any bytes are either a record or raise ``RecordDamagedError``; a truncated record never passes.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final

import msgspec

from _fast.crc import crc32c
from segstore.model.attributes import AttributeId, core_attribute
from segstore.tiers.api import Buffer

KEY_BYTES: Final = 32
"""Length, in bytes, of a name's key: all of its SHA-256, so no two names have the same one."""
RECORD_BYTES_MAX: Final = 16 * 1024
"""Maximum length, in bytes, of a record: names and core attributes need less, so a longer one is
damaged."""
_HEADER: Final = struct.Struct(">II")
HEADER_BYTES: Final = _HEADER.size


class RecordDamagedError(ValueError):
    """Bytes that are no record."""


class SegmentRecord(msgspec.Struct, array_like=True, frozen=True):
    """A segment's metadata. ``core`` has its core attributes' values by their numbers."""

    segment_id: int
    name: str
    length: int
    start_offset: int
    sealed: bool
    last_modified_ms: int
    core: dict[int, int]

    @property
    def attributes(self) -> dict[AttributeId, int]:
        """Return the core attributes by their ids."""
        return {core_attribute(number): value for number, value in self.core.items()}


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SegmentRecord)


def record_key(name: str) -> AttributeId:
    """Return the attribute of the records' segment in which the offset of a name's record is
    stored."""
    return sha256(name.encode(errors="surrogatepass")).digest()


def core_number(attribute_id: AttributeId) -> int:
    """Return the number of a core attribute."""
    return int.from_bytes(attribute_id[8:], "big")


def encode_record(record: SegmentRecord) -> bytes:
    """Return the record's bytes, with their length and checksum in front."""
    data = _encoder.encode(record)
    return _HEADER.pack(len(data), crc32c(data)) + data


def record_end(data: Buffer, position: int) -> int:
    """Return where the record ends that begins at ``position``, even if its bytes are not all
    there.

    Raises ``RecordDamagedError``.
    """
    if position + HEADER_BYTES > len(data):
        raise RecordDamagedError("it ends in a header")
    length, _ = _HEADER.unpack_from(data, position)
    if not 0 < length <= RECORD_BYTES_MAX:
        raise RecordDamagedError(f"a record of {length} bytes")
    return position + HEADER_BYTES + int(length)


def decode_record(data: Buffer, position: int) -> tuple[SegmentRecord, int]:
    """Return the record at ``position``, and where it ends. Raises ``RecordDamagedError``."""
    end = record_end(data, position)
    if end > len(data):
        raise RecordDamagedError(f"it ends at byte {end} of {len(data)}")
    _, checksum = _HEADER.unpack_from(data, position)
    content = memoryview(data)[position + HEADER_BYTES : end]
    if crc32c(content) != checksum:
        raise RecordDamagedError("its checksum is wrong")
    try:
        return _decoder.decode(content), end
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordDamagedError(str(error)) from error
