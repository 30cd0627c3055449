"""Attribute ids and the verbs that change attribute values.

Owns: the core attribute ids of the original (class ``Attributes``) and the update verbs with their
wire numbers.

Invariants:
1. An attribute id is 16 bytes, or 1..256 bytes for fixed-key tables; core ids have 16 and start
   with ``0x8000000000000000``.
2. A value is a signed 64-bit integer; ``NULL_ATTRIBUTE_VALUE`` means absent, and writing it
   removes the attribute.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

AttributeId = bytes

NULL_ATTRIBUTE_VALUE: Final = -(2**63)


def core_attribute(number: int) -> AttributeId:
    """Return the id of core attribute ``number``."""
    return struct.pack(">QQ", 1 << 63, number)


CREATION_TIME: Final = core_attribute(0)
EVENT_COUNT: Final = core_attribute(1)
SCALE_POLICY_TYPE: Final = core_attribute(2)
SCALE_POLICY_RATE: Final = core_attribute(3)
ROLLOVER_SIZE: Final = core_attribute(4)
ATTRIBUTE_SEGMENT_ROOT_POINTER: Final = core_attribute(7)
ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO: Final = core_attribute(8)
ATTRIBUTE_SEGMENT_TYPE: Final = core_attribute(9)
ATTRIBUTE_ID_LENGTH: Final = core_attribute(12)

_TABLE: Final = 1 << 20
TABLE_INDEX_OFFSET: Final = core_attribute(_TABLE)
"""The offset up to which a table's entries are indexed; absent before the first index step."""
TABLE_ENTRY_COUNT: Final = core_attribute(_TABLE + 1)
"""Number of keys that the attributes lead to."""
TABLE_BUCKET_COUNT: Final = core_attribute(_TABLE + 2)
TABLE_TOTAL_ENTRY_COUNT: Final = core_attribute(_TABLE + 3)
"""Count of all entries between the compaction offset and the index offset, obsolete ones
included."""
TABLE_COMPACTION_OFFSET: Final = core_attribute(_TABLE + 4)
"""The offset before which all entries are obsolete."""
TABLE_INCARNATION: Final = core_attribute(_TABLE + 64)
"""Number that tells a table from others that had its name before; not the original's."""
RECORDS_LIVE_BYTES: Final = core_attribute(_TABLE + 128)
"""Bytes of the records that names lead to, in the segment of records; not one of the original's."""


CORE_PREFIX: Final = b"\x80\0\0\0\0\0\0\0"


def is_core_attribute(attribute_id: AttributeId) -> bool:
    """Return whether the attribute is one of the store's own, which stay with the segment's
    metadata."""
    return len(attribute_id) == 16 and attribute_id.startswith(CORE_PREFIX)


class SegmentType(enum.IntFlag):
    """The kind of a segment, kept in its ``ATTRIBUTE_SEGMENT_TYPE`` attribute."""

    STREAM = 0
    TABLE = 0x1
    FIXED_KEY_TABLE = 0x5
    INTERNAL = 0x10
    SYSTEM = 0x30
    CRITICAL = 0x40
    TRANSIENT = 0x80


_FIXED_KEY_TABLE: Final = int(SegmentType.FIXED_KEY_TABLE)


def attribute_id_bytes(values: Mapping[AttributeId, int]) -> int:
    """Return the length of the ids of a segment's extended attributes, by its core attributes.

    A fixed-key table's ids are its keys. Keys of 16 bytes could be core attributes' ids: such a
    table's ids are a byte longer.
    """
    length = values.get(ATTRIBUTE_ID_LENGTH, 0)
    if not length:
        return 16
    # Members of an enum are slow, and this is asked for every attribute.
    if length == 16 and values.get(ATTRIBUTE_SEGMENT_TYPE, 0) & _FIXED_KEY_TABLE == (
        _FIXED_KEY_TABLE
    ):
        return 17
    return length


class AttributeUpdateType(enum.IntEnum):
    """The way in which an update treats the present value. The numbers are those of the wire
    protocol."""

    NONE = 0
    REPLACE = 1
    REPLACE_IF_GREATER = 2
    ACCUMULATE = 3
    REPLACE_IF_EQUALS = 4


class AttributeUpdate(NamedTuple):
    """One change of one attribute. ``expected`` only matters to ``REPLACE_IF_EQUALS``."""

    attribute_id: AttributeId
    update_type: AttributeUpdateType
    value: int
    expected: int = NULL_ATTRIBUTE_VALUE
