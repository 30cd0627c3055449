"""Maps a table's keys to attributes of its segment.

Owns: the two layouts. In the hash layout a *bucket* attribute is named for a key's hash and has the
offset of the newest entry in the bucket; where several keys share a bucket, a *backpointer*
attribute, named for an entry's offset, has that of the entry before. In the fixed-key layout each
key is the name of an attribute of its own.

Invariants:
1. No bucket's id is a backpointer's or a core attribute's: hashes that begin like those are bent.
2. Along the backpointers of a bucket offsets descend.
3. Attributes are in the order in which the layout is iterated.
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
    """Return the attribute with the offset of the entry that follows the one at ``offset``."""
    return struct.pack(">QQ", _BACKPOINTER, offset)


class HashLayout:
    """Keys of any length, in the order of their hashes."""

    key_length = 0
    """Length of all keys, 0 for any."""
    shares_buckets = True
    """True if several keys may be in one bucket."""

    def __init__(self, hash_key: HashKey = hash_key) -> None:
        self.bucket = hash_key

    def ranges_behind(self, bucket: AttributeId) -> Ranges:
        """Return the ranges of all buckets behind one, or of all buckets; backpointers lie between
        them."""
        first = bytes(HASH_BYTES)
        if bucket == _LAST:
            return ()
        if bucket:
            first = successor(bucket)
        behind = (max(first, _FIRST_BEHIND), _LAST)
        return (behind,) if first > _LAST_BEFORE else ((first, _LAST_BEFORE), behind)


class FixedKeyLayout:
    """Keys of one length, in their own order."""

    shares_buckets = False

    def __init__(self, key_length: int) -> None:
        self.key_length = key_length
        # See ``attribute_id_bytes``.
        self._suffix = b"\0" if key_length == HASH_BYTES else b""

    def bucket(self, key: bytes) -> AttributeId:
        """Return the key itself."""
        return key + self._suffix

    def ranges(self, from_key: bytes, to_key: bytes) -> Ranges:
        """Return the range of keys from one to the other, both included if given, of any length."""
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
    """Return the parts of the ranges that lie behind a bucket."""
    first = successor(bucket)
    return [(max(start, first), end) for start, end in ranges if first and end >= first]


def successor(name: bytes) -> bytes:
    """Return the next name of the same length; empty behind the last one."""
    number = int.from_bytes(name, "big") + 1
    return b"" if number >> (8 * len(name)) else number.to_bytes(len(name), "big")


def _predecessor(name: bytes) -> bytes:
    number = int.from_bytes(name, "big") - 1
    return b"" if number < 0 else number.to_bytes(len(name), "big")
