"""Watermarks: stream cuts with the times that writers had sent at that position.

Owns: ``Watermark`` and its bytes. Official readers read them from the stream's mark stream.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.versioned import VersionedReader, write_compact_int, write_versioned

_SEGMENT = struct.Struct(">qdd")
_INT64 = struct.Struct(">q")


@dataclass(frozen=True, slots=True, order=True)
class SegmentWithRange:
    """A segment and the keys [low, high) that it serves."""

    segment_id: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Watermark:
    """A stream cut, with the earliest and the latest of the times that writers had sent there."""

    lower: int
    upper: int
    cut: Mapping[SegmentWithRange, int]


def encode_watermark(watermark: Watermark) -> bytes:
    """Return the bytes of a watermark."""
    parts = [
        _INT64.pack(watermark.lower),
        _INT64.pack(watermark.upper),
        write_compact_int(len(watermark.cut)),
    ]
    for segment, offset in watermark.cut.items():
        parts.append(
            write_versioned([_SEGMENT.pack(segment.segment_id, segment.low, segment.high)])
        )
        parts.append(_INT64.pack(offset))
    return write_versioned([b"".join(parts)])


def decode_watermark(data: bytes) -> Watermark:
    """Return the watermark in bytes, or raise ``RemoteProtocolError``."""
    reader = VersionedReader(data).read_revision()
    lower, upper = reader.read_long(), reader.read_long()
    if upper < lower:
        raise RemoteProtocolError(f"a watermark from {lower} to {upper}")
    cut: dict[SegmentWithRange, int] = {}
    for _ in range(reader.read_compact_int()):
        segment = reader.read_revision()
        key = SegmentWithRange(segment.read_long(), segment.read_double(), segment.read_double())
        cut[key] = reader.read_long()
    return Watermark(lower, upper, cut)
