"""Maps a table's keys to attributes of its segment.

Owns: the two layouts. In the hash layout, the id of a *bucket* attribute is the hash of a key; its
value is the offset of the newest entry of the keys with that hash. Where several keys have one
hash, the id of a *backpointer* attribute contains the offset of one entry; its value is the offset
of the next older entry in the bucket. In the fixed-key layout, each key is the id of an attribute,
whose value is the offset of the key's newest entry.

A container iterates attributes in the order of their ids. So a range of ids is a range of buckets,
or of keys in the fixed-key layout.

Invariants:
1. A bucket never has the id of a backpointer or of a core attribute. A hash that begins with the 8
   bytes of such an id begins with a neighbouring number instead. Held by
   ``test_no_bucket_has_the_id_of_a_core_attribute_or_a_backpointer``.
2. Along the backpointers of a bucket, each offset is lower than the one before. Held by
   ``test_a_bucket_leads_to_its_newest_entry_and_on_to_the_others``.
3. A range of buckets holds no backpointers and no core attributes. Held by
   ``test_hash_ranges_have_every_bucket_behind_one_and_nothing_else``.

Three entries of 19 bytes, whose keys ``a``, ``b`` and ``c`` have one hash, 0x11 16 times, take
these attributes in the hash layout:

    bucket        11111111111111111111111111111111 = 38    the entry of c, the newest
    backpointer   7fffffffffffffff0000000000000026 = 19    after the entry at 38: that of b
    backpointer   7fffffffffffffff0000000000000013 = 0     after the entry at 19: that of a
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from segstore.model.attributes import AttributeId

HASH_BYTES: Final = 16
HashKey = Callable[[bytes], bytes]
Ranges = Sequence[tuple[AttributeId, AttributeId]]
"""Adjacent ranges of ids, both ends included."""

_BACKPOINTER: Final = (1 << 63) - 1
_BACKPOINTER_HEAD: Final = _BACKPOINTER.to_bytes(8, "big")
_CORE_HEAD: Final = (1 << 63).to_bytes(8, "big")
_LAST_BEFORE: Final = (_BACKPOINTER - 1).to_bytes(8, "big") + b"\xff" * 8
_FIRST_BEHIND: Final = ((1 << 63) + 1).to_bytes(8, "big") + bytes(8)
_LAST: Final = b"\xff" * HASH_BYTES


def hash_key(key: bytes) -> bytes:
    """Return the bucket of a hash table's key: 16 bytes of its SHA-256."""
    digest = sha256(key).digest()[:HASH_BYTES]
    if digest.startswith(_CORE_HEAD):
        return _FIRST_BEHIND[:8] + digest[8:]
    if digest.startswith(_BACKPOINTER_HEAD):
        return _LAST_BEFORE[:8] + digest[8:]
    return digest


def backpointer(offset: int) -> AttributeId:
    """Return the id of the attribute that leads from the entry at ``offset`` to the next older
    entry in its bucket."""
    return struct.pack(">QQ", _BACKPOINTER, offset)


class HashLayout:
    """The layout for keys of any length, which are iterated in the order of their hashes."""

    key_length = 0
    """Length of all keys, in bytes; 0 if keys have any length."""
    shares_buckets = True
    """True if several keys may have the same hash."""

    def __init__(self, hash_key: HashKey = hash_key) -> None:
        self.bucket = hash_key

    def ranges_behind(self, bucket: AttributeId) -> Ranges:
        """Return the ranges of all ids of buckets greater than ``bucket``, or of all buckets if it
        is empty. Two ranges leave out the ids of backpointers and core attributes between them."""
        first = bytes(HASH_BYTES)
        if bucket == _LAST:
            return ()
        if bucket:
            first = successor(bucket)
        behind = (max(first, _FIRST_BEHIND), _LAST)
        return (behind,) if first > _LAST_BEFORE else ((first, _LAST_BEFORE), behind)


class FixedKeyLayout:
    """The layout for keys of one length, which are iterated in the order of their bytes."""

    shares_buckets = False

    def __init__(self, key_length: int) -> None:
        self.key_length = key_length
        # Core attributes have ids of 16 bytes; see ``attribute_id_bytes``.
        self._suffix = b"\0" if key_length == HASH_BYTES else b""

    def bucket(self, key: bytes) -> AttributeId:
        """Return the id of the attribute of a key: the key, or the key and a zero byte."""
        return key + self._suffix

    def ranges(self, from_key: bytes, to_key: bytes) -> Ranges:
        """Return the range of the keys from ``from_key`` to ``to_key``, both included. An empty
        bound means no bound; bounds may be shorter or longer than keys."""
        length = self.key_length
        first: bytes | None = from_key[:length].ljust(length, b"\0")
        if len(from_key) > length:
            first = successor(from_key[:length])
        last: bytes | None = to_key[:length].ljust(length, b"\0") if to_key else b"\xff" * length
        if 0 < len(to_key) < length:
            last = _predecessor(to_key.ljust(length, b"\0"))
        if not first or not last or first > last:
            return ()
        return ((self.bucket(first), self.bucket(last)),)


Layout = HashLayout | FixedKeyLayout
"""The mapping of a table's keys to attributes."""


def behind(ranges: Ranges, bucket: AttributeId) -> Ranges:
    """Return the parts of the ranges whose ids are greater than ``bucket``."""
    first = successor(bucket)
    return [(max(start, first), end) for start, end in ranges if first and end >= first]


def successor(name: bytes) -> bytes:
    """Return the next greater id of the same length; empty if there is none."""
    number = int.from_bytes(name, "big") + 1
    return b"" if number >> (8 * len(name)) else number.to_bytes(len(name), "big")


def _predecessor(name: bytes) -> bytes:
    number = int.from_bytes(name, "big") - 1
    return b"" if number < 0 else number.to_bytes(len(name), "big")
