"""The entries of a table segment and their bytes.

Owns: the format of ``docs/formats/table-segments.md``.

Invariants:
1. When a key has several entries, the one at the highest offset counts, also after a restart. Held
   by ``test_the_index_is_built_from_the_segment``.
2. When a compaction copies an entry to a higher offset, the copy keeps the version of the original,
   which is the offset at which the value was first written. Held by
   ``test_compaction_keeps_entries_and_versions_and_frees_the_head``.
3. When the bytes of an entry are malformed, parsing raises ``TableDataError`` with the offset of
   that entry. Held by ``test_a_malformed_header_is_reported_with_its_offset``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pravega_wire.commands import NO_VERSION
from segstore.errors import SegmentError
from segstore.tiers.api import Buffer

FORMAT_VERSION: Final = 0
REMOVAL: Final = -1
"""The value length that marks a removal."""

_HEADER: Final = struct.Struct(">Biiq")
HEADER_BYTES: Final = _HEADER.size
KEY_BYTES_MAX: Final = 8 * 1024
ENTRY_BYTES_MAX: Final = 1024 * 1024
"""Maximum length, in bytes, of key and value together."""


class TableDataError(SegmentError):
    """Raised when a table segment holds bytes that are not table entries. ``offset`` is theirs."""

    def __init__(self, segment: str, *, offset: int) -> None:
        super().__init__(segment, f"{segment} holds no table entry at offset {offset}")
        self.offset = offset


class StoredEntry(NamedTuple):
    """One entry of the segment, ``length`` bytes from ``offset``. ``value`` is None for a
    removal."""

    key: bytes
    value: bytes | None
    version: int
    offset: int
    length: int


def encode_entry(key: bytes, value: bytes | None, *, version: int = NO_VERSION) -> bytes:
    """Return the bytes of an entry; one without value removes the key. Only copies, which a
    compaction makes, have a ``version``."""
    if value is None:
        return _HEADER.pack(FORMAT_VERSION, len(key), REMOVAL, version) + key
    return b"".join((_HEADER.pack(FORMAT_VERSION, len(key), len(value), version), key, value))


def encoded_length(key: bytes, value: bytes | None) -> int:
    """Return the number of bytes that ``encode_entry`` returns for this key and value."""
    return HEADER_BYTES + len(key) + (0 if value is None else len(value))


class EntryHead(NamedTuple):
    """An entry of which all bytes were read, or only the first ones. ``value`` is None when it was
    not read whole, and for a removal."""

    key: bytes
    value: bytes | None
    version: int
    offset: int
    length: int
    is_removal: bool


def parse_head(segment: str, data: Buffer, *, offset: int) -> EntryHead | int:
    """Return the entry at the start of ``data``, which begins at ``offset`` of the segment. If
    ``data`` ends before the key does, return how many bytes are needed at least.

    Raises ``TableDataError`` when the header is malformed.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return HEADER_BYTES
    key_length, value_length, version = _parse_header(segment, view, 0, offset)
    value_start = HEADER_BYTES + key_length
    if len(view) < value_start:
        return value_start
    end = value_start + max(value_length, 0)
    return EntryHead(
        bytes(view[HEADER_BYTES:value_start]),
        bytes(view[value_start:end]) if value_length >= 0 and len(view) >= end else None,
        version,
        offset,
        end,
        value_length == REMOVAL,
    )


def parse_entries(segment: str, data: Buffer, *, offset: int) -> Iterator[StoredEntry]:
    """Yield the whole entries in ``data``, which begins with an entry at ``offset`` of the segment.

    An incomplete last entry is left out. Raises ``TableDataError`` when a header is malformed.
    """
    view = memoryview(data)
    position = 0
    while len(view) - position >= HEADER_BYTES:
        key_length, value_length, version = _parse_header(segment, view, position, offset)
        value_start = position + HEADER_BYTES + key_length
        end = value_start + max(value_length, 0)
        if end > len(view):
            return
        yield StoredEntry(
            bytes(view[position + HEADER_BYTES : value_start]),
            None if value_length == REMOVAL else bytes(view[value_start:end]),
            version,
            offset + position,
            end - position,
        )
        position = end


def _parse_header(
    segment: str, view: memoryview, position: int, offset: int
) -> tuple[int, int, int]:
    """Return key length, value length and version of the entry at ``position``."""
    format_version, key_length, value_length, version = _HEADER.unpack_from(view, position)
    if (
        format_version != FORMAT_VERSION
        or not 0 < key_length <= KEY_BYTES_MAX
        or not REMOVAL <= value_length <= ENTRY_BYTES_MAX
        or (version < 0 and version != NO_VERSION)
    ):
        raise TableDataError(segment, offset=offset + position)
    return key_length, value_length, offset + position if version == NO_VERSION else version
