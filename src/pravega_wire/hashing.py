"""The hashes of names and keys. Clients and servers must compute the same values.

Owns: for each use, the seed of the 128-bit Murmur3 hash, and the bits of the hash that count.
"""

from __future__ import annotations

from functools import lru_cache

from _fast.hashing import consistent_hash, murmur3_128, place_text

__all__ = [
    "REVISION_MARK",
    "attribute_id_of_name",
    "consistent_hash",
    "container_hash",
    "murmur3_128",
    "routing_key_hash",
    "seed_of",
    "table_key_hash",
]


def seed_of(name: str) -> int:
    """Return the hash seed of official clients for a purpose: Java's ``hashCode`` of its name."""
    value = 0
    for character in name:
        value = (31 * value + ord(character)) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


_EVENT_ROUTER = seed_of("EventRouter")
_KEY_VALUE_TABLE_ROUTER = seed_of("KeyValueTableRouter")
_SEGMENT_TO_CONTAINER = seed_of("SegmentToContainerMapper")
_SEGMENT_ATTRIBUTE = seed_of("SegmentAttribute")


def routing_key_hash(key: str) -> float:
    """Return the position of an event's routing key in [0, 1)."""
    return place_text(key, _EVENT_ROUTER)


def table_key_hash(primary_key: bytes) -> float:
    """Return the position of a table's primary key in [0, 1)."""
    return _fraction(murmur3_128(primary_key, _KEY_VALUE_TABLE_ROUTER))


@lru_cache(maxsize=1024)
def container_hash(primary_segment_name: str, container_count: int) -> int:
    """Return the number of a segment's container.

    ``primary_segment_name`` is the part of the segment's name that ``names.primary_segment_name``
    returns: segments with an equal part are in one container.
    """
    digest = _text_hash(primary_segment_name, _SEGMENT_TO_CONTAINER)
    return consistent_hash(int.from_bytes(digest[:8], "little", signed=True), container_count)


def attribute_id_of_name(name: str) -> bytes:
    """Return the 16-byte id of a segment attribute that clients know by a name."""
    return _text_hash(name, _SEGMENT_ATTRIBUTE)


def _text_hash(text: str, seed: int) -> bytes:
    return murmur3_128(text.encode("utf-16-le", "surrogatepass"), seed)


REVISION_MARK = attribute_id_of_name("RevisionStreamClientMark")
"""Id of the attribute of a segment of revisions whose value is the offset at which clients begin to
read."""


def _fraction(digest: bytes) -> float:
    """Return the upper 52 bits of the hash's first 8 bytes, as a number in [0, 1)."""
    return (int.from_bytes(digest[:8], "little") >> 12) / 2**52
