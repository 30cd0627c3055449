"""The record of an inactive segment: its metadata while they are not in memory.

Owns: ``SegmentRecord`` and its bytes (``docs/formats/segment-records.md``).

Invariants:
1. When a segment has a record, tier 2 has all its bytes, and its index all attributes except for
   the core ones, which the record has. Held by ``test_what_tier_2_lacks_keeps_a_segment``.
2. A record that is truncated, or has a wrong byte, raises ``RecordDamagedError``. Held by
   ``test_a_cut_or_changed_record_is_damage``.
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
"""Length, in bytes, of the key of a name: the whole SHA-256, so that no two names have one key."""
RECORD_BYTES_MAX: Final = 16 * 1024
"""Maximum length, in bytes, of a record. Names and core attributes need less, so a longer record is
damaged."""
_HEADER: Final = struct.Struct(">II")
HEADER_BYTES: Final = _HEADER.size


class RecordDamagedError(ValueError):
    """Raised for bytes that are not a record."""


class SegmentRecord(msgspec.Struct, array_like=True, frozen=True):
    """The metadata of an inactive segment. ``core`` has the values of its core attributes, by their
    numbers."""

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
    """Return the id of the attribute, of the segment of records, whose value is the offset of a
    name's record."""
    return sha256(name.encode(errors="surrogatepass")).digest()


def core_number(attribute_id: AttributeId) -> int:
    """Return the number of a core attribute."""
    return int.from_bytes(attribute_id[8:], "big")


def encode_record(record: SegmentRecord) -> bytes:
    """Return the bytes of a record, which begin with their length and checksum."""
    data = _encoder.encode(record)
    return _HEADER.pack(len(data), crc32c(data)) + data


def record_end(data: Buffer, position: int) -> int:
    """Return the end of the record that begins at ``position``, by its header; ``data`` may end
    before.

    Raises ``RecordDamagedError``.
    """
    if position + HEADER_BYTES > len(data):
        raise RecordDamagedError("it ends in a header")
    length, _ = _HEADER.unpack_from(data, position)
    if not 0 < length <= RECORD_BYTES_MAX:
        raise RecordDamagedError(f"a record of {length} bytes")
    return position + HEADER_BYTES + int(length)


def decode_record(data: Buffer, position: int) -> tuple[SegmentRecord, int]:
    """Return the record at ``position``, and its end. Raises ``RecordDamagedError``."""
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
