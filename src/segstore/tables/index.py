"""The index of one table segment, in memory.

Owns: which entry of each key counts, and the order in which keys are iterated.

Invariants:
1. The index shows exactly the entries in the segment's bytes up to ``length``.
2. ``live_bytes`` is the size of the entries that count; all other bytes of the segment are dead.
3. The order costs nothing until a first iteration asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from sortedcontainers import SortedList

from segstore.tables.entries import StoredEntry

HASH_BYTES: Final = 16
_ENTRY_BYTES_ESTIMATE: Final = 320
_ORDER_BYTES_ESTIMATE: Final = 80
_LAST_HASH: Final = (1 << (8 * HASH_BYTES)) - 1

HashKey = Callable[[bytes], bytes]


def hash_key(key: bytes) -> bytes:
    """The 16 bytes by which a hash table's keys are ordered."""
    return sha256(key).digest()[:HASH_BYTES]


class Located(NamedTuple):
    """Where the entry of a key lies. ``value`` is kept only when it is small."""

    version: int
    offset: int
    length: int
    value: bytes | None


class TableIndex:
    """All keys of one table. ``key_length`` is 0 for the hash layout."""

    def __init__(
        self,
        *,
        key_length: int,
        start_offset: int,
        kept_value_bytes_max: int,
        hash_key: HashKey = hash_key,
    ) -> None:
        self.key_length = key_length
        self.length = start_offset
        self.live_bytes = 0
        self._entry_bytes = 0
        self._kept_value_bytes_max = kept_value_bytes_max
        self._hash_key = hash_key
        self._located: dict[bytes, Located] = {}
        self._order: SortedList[bytes] | None = None

    def __len__(self) -> int:
        return len(self._located)

    @property
    def memory_bytes(self) -> int:
        """About how much memory the index takes."""
        ordered = 0 if self._order is None else len(self._order)
        return self._entry_bytes + _ORDER_BYTES_ESTIMATE * ordered

    def get(self, key: bytes) -> Located | None:
        """The entry of ``key``, if there is one."""
        return self._located.get(key)

    def located(self, entry: StoredEntry) -> Located:
        """How the index remembers ``entry``."""
        value = entry.value
        kept = value is not None and len(value) <= self._kept_value_bytes_max
        return Located(entry.version, entry.offset, entry.length, value if kept else None)

    def apply(self, entry: StoredEntry) -> None:
        """Take in the entry that follows in the segment."""
        self.length = entry.offset + entry.length
        self._apply(entry.key, None if entry.value is None else self.located(entry))

    def apply_batch(self, changes: dict[bytes, Located | None], *, length: int) -> None:
        """Take in the outcome of a whole append; None removes a key."""
        for key, located in changes.items():
            self._apply(key, located)
        self.length = length

    def _apply(self, key: bytes, located: Located | None) -> None:
        before = self._located.pop(key, None)
        if before is not None:
            self.live_bytes -= before.length
            self._entry_bytes -= _memory_bytes(key, before)
        if located is not None:
            self._located[key] = located
            self.live_bytes += located.length
            self._entry_bytes += _memory_bytes(key, located)
        if self._order is not None and (before is None) != (located is None):
            if located is None:
                self._order.remove(self._sort_key(key))
            else:
                self._order.add(self._sort_key(key))

    def _sort_key(self, key: bytes) -> bytes:
        return key if self.key_length else self._hash_key(key) + key

    def _ordered(self) -> SortedList[bytes]:
        if self._order is None:
            self._order = SortedList(map(self._sort_key, self._located))
        return self._order

    def buckets_after(self, token: bytes) -> Iterator[tuple[bytes, list[tuple[bytes, Located]]]]:
        """Hash layout: (token, entries) of each bucket behind ``token`` (empty: from the start).

        The table may not change while the iterator is in use.
        """
        order = self._ordered()
        start = b""
        if token:
            last = int.from_bytes(token, "big")
            if last == _LAST_HASH:
                return
            start = (last + 1).to_bytes(HASH_BYTES, "big")
        bucket: list[tuple[bytes, Located]] = []
        bucket_hash = b""
        for sort_key in order.irange(start):
            if sort_key[:HASH_BYTES] != bucket_hash:
                if bucket:
                    yield bucket_hash, bucket
                bucket, bucket_hash = [], sort_key[:HASH_BYTES]
            key = sort_key[HASH_BYTES:]
            bucket.append((key, self._located[key]))
        if bucket:
            yield bucket_hash, bucket

    def range(self, from_key: bytes, to_key: bytes) -> Iterator[tuple[bytes, Located]]:
        """Fixed-key layout: the entries from ``from_key`` to ``to_key``, both included if given.

        The table may not change while the iterator is in use.
        """
        for key in self._ordered().irange(from_key or None, to_key or None):
            yield key, self._located[key]


def _memory_bytes(key: bytes, located: Located) -> int:
    kept = 0 if located.value is None else len(located.value)
    return _ENTRY_BYTES_ESTIMATE + len(key) + kept
