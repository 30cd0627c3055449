"""The hashes of names and keys that every peer computes alike.

Owns: the seed and the part of a 128-bit Murmur3 hash for each use.
"""

from __future__ import annotations

from functools import lru_cache

from _fast.hashing import consistent_hash, murmur3_128

__all__ = [
    "attribute_id_of_name",
    "consistent_hash",
    "container_hash",
    "murmur3_128",
    "routing_key_hash",
    "seed_of",
    "table_key_hash",
]


def seed_of(name: str) -> int:
    """Return the seed for a purpose: the 32-bit signed polynomial hash of its name."""
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
    return _fraction(_text_hash(key, _EVENT_ROUTER))


def table_key_hash(primary_key: bytes) -> float:
    """Return the position of a table's primary key in [0, 1)."""
    return _fraction(murmur3_128(primary_key, _KEY_VALUE_TABLE_ROUTER))


@lru_cache(maxsize=1024)
def container_hash(primary_segment_name: str, container_count: int) -> int:
    """Return the container of a segment, given the part of its name that chooses the container."""
    digest = _text_hash(primary_segment_name, _SEGMENT_TO_CONTAINER)
    return consistent_hash(int.from_bytes(digest[:8], "little", signed=True), container_count)


def attribute_id_of_name(name: str) -> bytes:
    """Return the 16-byte id of a segment attribute that clients know by a name."""
    return _text_hash(name, _SEGMENT_ATTRIBUTE)


def _text_hash(text: str, seed: int) -> bytes:
    return murmur3_128(text.encode("utf-16-le", "surrogatepass"), seed)


def _fraction(digest: bytes) -> float:
    """Return the upper 52 bits of the first half, as a fraction of one."""
    return (int.from_bytes(digest[:8], "little") >> 12) / 2**52
