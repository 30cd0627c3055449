"""The bytes of records that have versions: watermarks, and events between controllers.

Owns: the reading and writing of that layout.

    record = [ byte 0 | byte version | byte revision count | revision ... ]
    revision = [ byte revision | int32 length | data ]

Numbers are big-endian. A later revision only adds data, so a reader reads the revisions that it
knows and skips the others; another version is another layout, which it refuses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.fields import decode_text, encode_text

FORMAT = 0
VERSION = 0
_HEAD = struct.Struct(">BBB")
_REVISION = struct.Struct(">Bi")
COMPACT_INT_MAX = 0x3FFF_FFFE
"""Maximum number that ``write_compact_int`` encodes."""
COMPACT_LONG_MAX = 0x3FFF_FFFF_FFFF_FFFE
"""Maximum number that ``write_compact_long`` encodes."""
_COMPACT_LONG_BYTES = (1, 2, 4, 8)
"""Length of an encoded number, in bytes, by the value of its first two bits."""


def write_versioned(revisions: Iterable[bytes], *, version: int = VERSION) -> bytes:
    """Return a record: the given data are those of revisions 0, 1 and so on."""
    parts = list(revisions)
    body = b"".join(_REVISION.pack(n, len(data)) + data for n, data in enumerate(parts))
    return _HEAD.pack(FORMAT, version, len(parts)) + body


def write_text(text: str) -> bytes:
    """Return two bytes with the length of a text, then its bytes: at most 65,535."""
    data = encode_text(text)
    return struct.pack(">H", len(data)) + data


def write_compact_int(value: int) -> bytes:
    """Return a number from 0 to ``COMPACT_INT_MAX`` in one, two or four bytes."""
    if not 0 <= value <= COMPACT_INT_MAX:
        raise ValueError(f"{value} has no compact form")
    if value <= 0x7F:
        return value.to_bytes(1, "big")
    if value <= 0x3FFF:
        return (value | 0x8000).to_bytes(2, "big")
    return (value | 0xC000_0000).to_bytes(4, "big")


def write_compact_long(value: int) -> bytes:
    """Return a number from 0 to ``COMPACT_LONG_MAX`` in one, two, four or eight bytes."""
    if not 0 <= value <= COMPACT_LONG_MAX:
        raise ValueError(f"{value} has no compact form")
    fits = (value < 1 << 8 * length - 2 for length in _COMPACT_LONG_BYTES)
    kind = list(fits).index(True)
    length = _COMPACT_LONG_BYTES[kind]
    return (kind << 8 * length - 2 | value).to_bytes(length, "big")


def write_compact_signed_long(value: int) -> bytes:
    """Return a number of at most 61 bits, which may be negative, in one, two, four or eight bytes.

    The first bit is the sign, the next two are the length.
    """
    sign, rest = (1, -value - 1) if value < 0 else (0, value)
    fits = [rest < 1 << 8 * length - 3 for length in _COMPACT_LONG_BYTES]
    if True not in fits:
        raise ValueError(f"{value} has no compact form")
    kind = fits.index(True)
    length = _COMPACT_LONG_BYTES[kind]
    return ((sign << 2 | kind) << 8 * length - 3 | rest).to_bytes(length, "big")


class VersionedReader:
    """Reads values one after the other. Raises ``RemoteProtocolError`` if the bytes end early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read_revision(self) -> VersionedReader:
        """Return a reader of revision 0 of the record at this position; advance past the record."""
        return self.read_revisions()[0]

    def read_revisions(self, *, version: int = VERSION) -> dict[int, VersionedReader]:
        """Return a reader of each revision, by number; there is a revision 0."""
        found_format, found_version, count = self._unpack(_HEAD)
        if found_format != FORMAT or found_version != version or count < 1:
            raise RemoteProtocolError(
                f"a record of format {found_format}, version {found_version} with {count} revisions"
            )
        revisions: dict[int, VersionedReader] = {}
        for _ in range(count):
            revision, length = self._unpack(_REVISION)
            revisions[revision] = VersionedReader(self.read_bytes(length))
        if 0 not in revisions:
            raise RemoteProtocolError("a record without its first revision")
        return revisions

    def read_bytes(self, length: int) -> bytes:
        end = self.position + length
        if length < 0 or end > len(self._data):
            raise RemoteProtocolError(f"{length} bytes wanted at {self.position}, there are fewer")
        data = self._data[self.position : end]
        self.position = end
        return data

    def read_byte(self) -> int:
        return self.read_bytes(1)[0]

    def read_int(self) -> int:
        return int.from_bytes(self.read_bytes(4), "big", signed=True)

    def read_long(self) -> int:
        return int.from_bytes(self.read_bytes(8), "big", signed=True)

    def read_double(self) -> float:
        value: float
        (value,) = struct.unpack(">d", self.read_bytes(8))
        return value

    def read_text(self) -> str:
        return decode_text(self.read_bytes(int.from_bytes(self.read_bytes(2), "big")))

    def read_compact_int(self) -> int:
        first = self.read_byte()
        if first < 0x80:
            return first
        if first < 0xC0:
            return (first & 0x3F) << 8 | self.read_byte()
        return (first & 0x3F) << 24 | int.from_bytes(self.read_bytes(3), "big")

    def read_compact_long(self) -> int:
        first = self.read_byte()
        length = _COMPACT_LONG_BYTES[first >> 6]
        rest = self.read_bytes(length - 1)
        return int.from_bytes(bytes([first & 0x3F]) + rest, "big")

    def read_compact_signed_long(self) -> int:
        first = self.read_byte()
        length = _COMPACT_LONG_BYTES[first >> 5 & 0x3]
        rest = self.read_bytes(length - 1)
        value = int.from_bytes(bytes([first & 0x1F]) + rest, "big")
        return -value - 1 if first & 0x80 else value

    def _unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.read_bytes(layout.size))
