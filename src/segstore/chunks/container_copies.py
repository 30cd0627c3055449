"""Encodes the copy of a container's snapshot in tier 2, which a recovery without the log reads.

Owns: the frame around the snapshot; docs/formats/chunk-metadata.md describes it.
"""

from __future__ import annotations

import struct
from typing import Final

from _fast.crc import crc32c
from segstore.tiers.api import Buffer

_CONTAINER_HEADER: Final = struct.Struct(">4sHQI")
_CONTAINER_MAGIC: Final = b"SGCN"


def encode_copy(snapshot: bytes, sequence_number: int) -> list[Buffer]:
    """Return the copy of a snapshot that has all operations up to ``sequence_number``."""
    head = _CONTAINER_HEADER.pack(_CONTAINER_MAGIC, 1, sequence_number, len(snapshot))
    checksum = crc32c(snapshot, crc32c(head)).to_bytes(4, "big")
    return [head, snapshot, checksum]


def decode_copy(data: bytes) -> bytes | None:
    """Return the snapshot that a copy contains; None if the copy is damaged or not complete."""
    if len(data) < _CONTAINER_HEADER.size + 4:
        return None
    magic, version, _, length = _CONTAINER_HEADER.unpack_from(data)
    end = _CONTAINER_HEADER.size + length
    if (magic, version) != (_CONTAINER_MAGIC, 1) or len(data) != end + 4:
        return None
    if crc32c(data[:end]) != int.from_bytes(data[end:], "big"):
        return None
    return data[_CONTAINER_HEADER.size : end]
