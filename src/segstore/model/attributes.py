"""Attribute ids and the verbs that change attribute values.

Owns: the core attribute ids of the original (class ``Attributes``) and the update verbs with their
wire numbers.

Invariants:
1. An attribute id has 16 bytes, or 1 to 256 in a fixed-key table; no other is encoded. Held by
   ``test_an_attribute_id_without_a_place_in_the_format_is_refused``.
2. No key of a fixed-key table is taken for a core attribute, whose id is 0x8000000000000000 and a
   number of 8 bytes. Held by ``test_keys_of_16_bytes_are_no_core_attributes``.
3. ``NULL_ATTRIBUTE_VALUE`` means that an attribute is absent: a condition with it holds for an
   absent attribute, and writing it removes one. Held by
   ``test_the_null_value_means_absent_both_ways``.
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
"""Number of keys of a table in its indexed entries."""
TABLE_BUCKET_COUNT: Final = core_attribute(_TABLE + 2)
TABLE_TOTAL_ENTRY_COUNT: Final = core_attribute(_TABLE + 3)
"""Count of all entries between the compaction offset and the index offset, obsolete ones
included."""
TABLE_COMPACTION_OFFSET: Final = core_attribute(_TABLE + 4)
"""The offset before which all entries are obsolete."""
TABLE_INCARNATION: Final = core_attribute(_TABLE + 64)
"""Random number that distinguishes a table from earlier ones of its name; not one of the
original's."""
RECORDS_LIVE_BYTES: Final = core_attribute(_TABLE + 128)
"""Number of bytes of the records of inactive segments, without obsolete records; not one of the
original's."""


CORE_PREFIX: Final = b"\x80\0\0\0\0\0\0\0"


def is_core_attribute(attribute_id: AttributeId) -> bool:
    """Return whether the attribute is a core attribute, one of the store's own, which are in the
    segment's metadata and not in its index."""
    return len(attribute_id) == 16 and attribute_id.startswith(CORE_PREFIX)


class SegmentType(enum.IntFlag):
    """The kind of a segment: the value of its attribute ``ATTRIBUTE_SEGMENT_TYPE``."""

    STREAM = 0
    TABLE = 0x1
    FIXED_KEY_TABLE = 0x5
    INTERNAL = 0x10
    SYSTEM = 0x30
    CRITICAL = 0x40
    TRANSIENT = 0x80


_FIXED_KEY_TABLE: Final = int(SegmentType.FIXED_KEY_TABLE)


def attribute_id_bytes(values: Mapping[AttributeId, int]) -> int:
    """Return the length of the ids of a segment's extended attributes, in bytes; ``values`` are its
    core attributes.

    In a fixed-key table, the ids are the keys. Keys of 16 bytes get another byte, because they
    could be equal to ids of core attributes.
    """
    length = values.get(ATTRIBUTE_ID_LENGTH, 0)
    if not length:
        return 16
    # This is called for each attribute, and looking up a member of an enum is slow.
    if length == 16 and values.get(ATTRIBUTE_SEGMENT_TYPE, 0) & _FIXED_KEY_TABLE == (
        _FIXED_KEY_TABLE
    ):
        return 17
    return length


class AttributeUpdateType(enum.IntEnum):
    """The condition and effect of an attribute update. The numbers are those of the wire
    protocol."""

    NONE = 0
    REPLACE = 1
    REPLACE_IF_GREATER = 2
    ACCUMULATE = 3
    REPLACE_IF_EQUALS = 4


class AttributeUpdate(NamedTuple):
    """One change of one attribute. Only ``REPLACE_IF_EQUALS`` uses ``expected``."""

    attribute_id: AttributeId
    update_type: AttributeUpdateType
    value: int
    expected: int = NULL_ATTRIBUTE_VALUE
