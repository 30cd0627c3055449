"""Keeps the entries of a table that are known without reading its attributes.

Owns: the *tail* and the *clean* entries. The tail has the newest entry of each key that was written
or removed after the index offset, that is, after the last step. For a key that is not in the tail,
the attributes have the newest entry. Clean entries are copies of some of those, or record that a
key has no entry. A *pinned* entry stays in memory until each caller that pinned it unpins it.

Invariants:
1. A known entry is the newest durable entry of its key: each durable update of the table is
   recorded here. Held by ``TestTableMachine``.
2. When memory is short, only clean entries are forgotten, the least recently used first. Entries in
   the tail and pinned entries stay. Held by ``test_pinned_entries_stay_and_so_does_the_tail``.
3. While a caller holds the tail, entries that are indexed meanwhile stay in it. So a caller that
   reads attributes and then the tail misses no entry that moved from one to the other. Held by
   ``test_a_held_tail_keeps_what_the_attributes_take_over``.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from sortedcontainers import SortedList

from segstore.tables.entries import EntryHead, StoredEntry
from segstore.tables.layouts import Layout

_ENTRY_BYTES_ESTIMATE: Final = 400
_ORDER_BYTES_ESTIMATE: Final = 120


class Unknown(enum.Enum):
    """The type of ``UNKNOWN``, which means that memory does not have the entry of a key: the
    attributes have to be read."""

    UNKNOWN = 0


UNKNOWN: Final = Unknown.UNKNOWN
NOWHERE: Final = -1


class Located(NamedTuple):
    """The place of a key's entry in the segment. ``value`` is None if it is too long to be kept."""

    version: int
    offset: int
    length: int
    value: bytes | None


class Written(NamedTuple):
    """The newest entry of a key in the tail; ``located`` is None for a removal.

    ``indexed`` is the offset of the key's entry in the attributes, ``NOWHERE`` if there is none,
    and None if it is not known.
    """

    offset: int
    located: Located | None
    indexed: int | None


class KnownEntries:
    """The known entries of one table. Entries at ``index_offset`` and above are in the tail."""

    def __init__(self, layout: Layout, *, kept_value_bytes_max: int, clean_bytes_max: int) -> None:
        self._layout = layout
        self._kept_value_bytes_max = kept_value_bytes_max
        self._clean_bytes_max = clean_bytes_max
        self.index_offset = 0
        self._tail: dict[bytes, Written] = {}
        self._clean: OrderedDict[bytes, Located | None] = OrderedDict()
        self._pins: dict[bytes, int] = {}
        self._pinned: dict[bytes, Located | None] = {}
        self._tail_bytes = 0
        self._clean_bytes = 0
        self._order: SortedList[tuple[bytes, bytes]] | None = None
        self._generation = 0
        self._holds: dict[int, int] = {}
        self._published: deque[tuple[int, dict[bytes, Written]]] = deque()

    @property
    def tail_count(self) -> int:
        """Return how many keys are in the tail."""
        return len(self._tail)

    @property
    def memory_bytes(self) -> int:
        """Return the estimated memory of all known entries, in bytes."""
        ordered = 0 if self._order is None else len(self._order)
        return self._tail_bytes + self._clean_bytes + _ORDER_BYTES_ESTIMATE * ordered

    # ---- What is known ---------------------------------------------------------------------------

    def get(self, key: bytes) -> Located | Unknown | None:
        """Return the entry of a key; None if the key has none, ``UNKNOWN`` if memory cannot
        tell."""
        written = self._tail.get(key)
        if written is not None:
            return written.located
        located = self._clean.get(key, UNKNOWN)
        if located is not UNKNOWN:
            self._clean.move_to_end(key)
            return located
        return self._pinned.get(key, UNKNOWN)

    def written(self, key: bytes) -> Written | None:
        """Return the entry of a key in the tail; None if the key is not in the tail."""
        return self._tail.get(key)

    def located(self, entry: StoredEntry | EntryHead) -> Located:
        """Return the place of an entry, with its value if that is short."""
        value = entry.value
        kept = value is not None and len(value) <= self._kept_value_bytes_max
        return Located(entry.version, entry.offset, entry.length, value if kept else None)

    def remember(self, key: bytes, located: Located | None) -> None:
        """Keep a key's entry, which was read by the attributes while the tail was held. An entry in
        the tail is newer and stays."""
        if key in self._tail:
            return
        self._forget(key)
        self._clean_bytes += _memory_bytes(key, located)
        if key in self._pins:
            self._pinned[key] = located
        else:
            self._clean[key] = located
        self._evict()

    def _forget(self, key: bytes) -> Located | Unknown | None:
        located = self._clean.pop(key, UNKNOWN)
        if located is UNKNOWN:
            located = self._pinned.pop(key, UNKNOWN)
        if not isinstance(located, Unknown):
            self._clean_bytes -= _memory_bytes(key, located)
        return located

    def _evict(self) -> None:
        while self._clean_bytes > self._clean_bytes_max and self._clean:
            key, located = self._clean.popitem(last=False)
            self._clean_bytes -= _memory_bytes(key, located)

    def pin(self, keys: Collection[bytes]) -> None:
        """Keep the entries of these keys in memory, those that are known now or become known later,
        until they are unpinned."""
        pins, clean = self._pins, self._clean
        for key in keys:
            count = pins[key] = pins.get(key, 0) + 1
            if count == 1 and key in clean:
                self._pinned[key] = clean.pop(key)

    def unpin(self, keys: Collection[bytes]) -> None:
        """Undo one call of ``pin`` with these keys."""
        pins, pinned = self._pins, self._pinned
        for key in keys:
            if pins[key] > 1:
                pins[key] -= 1
                continue
            del pins[key]
            if key in pinned:
                self._clean[key] = pinned.pop(key)
        self._evict()

    # ---- The tail --------------------------------------------------------------------------------

    def write(self, key: bytes, offset: int, located: Located | None) -> None:
        """Record a new durable entry of a key at the end of the table; None removes the key."""
        before = self._tail.get(key)
        indexed: int | None
        if before is None:
            clean = self._forget(key)
            indexed = None if isinstance(clean, Unknown) else _place(clean)
            if self._order is not None:
                self._order.add((self._layout.bucket(key), key))
        else:
            self._tail_bytes -= _memory_bytes(key, before.located)
            is_indexed = before.offset < self.index_offset
            indexed = _place(before.located) if is_indexed else before.indexed
        self._tail[key] = Written(offset, located, indexed)
        self._tail_bytes += _memory_bytes(key, located)

    def unindexed(self, end: int) -> dict[bytes, Written]:
        """Return the entries of the tail from the index offset to ``end``, by key: those that a
        step up to ``end`` has to index."""
        start = self.index_offset
        return {key: each for key, each in self._tail.items() if start <= each.offset < end}

    def publish(self, index_offset: int, written: dict[bytes, Written]) -> None:
        """Record that a step is durable: it ended at ``index_offset`` and put ``written`` into the
        attributes."""
        self.index_offset = index_offset
        for key, indexed in written.items():
            present = self._tail[key]
            if present is not indexed:
                self._tail[key] = present._replace(indexed=_place(indexed.located))
        self._published.append((self._generation, written))
        self._generation += 1
        self._retire()

    def resync(self, index_offset: int) -> None:
        """Record that the attributes have all entries before ``index_offset`` through a step that
        this object did not plan."""
        written = {key: each for key, each in self._tail.items() if each.offset < index_offset}
        for key, each in self._tail.items():
            if each.offset >= index_offset:
                self._tail[key] = each._replace(indexed=None)
        self.publish(index_offset, written)

    def _retire(self) -> None:
        oldest = min(self._holds, default=self._generation)
        while self._published and self._published[0][0] < oldest:
            _, keys = self._published.popleft()
            for key, indexed in keys.items():
                written = self._tail.get(key)
                if written is not None and written.offset == indexed.offset:
                    self._remove_from_tail(key, written)
        if not self._tail:
            self._order = None

    def _remove_from_tail(self, key: bytes, written: Written) -> None:
        del self._tail[key]
        self._tail_bytes -= _memory_bytes(key, written.located)
        if self._order is not None:
            self._order.remove((self._layout.bucket(key), key))
        self.remember(key, written.located)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the entries of the tail in it until the block ends, also those that are indexed
        meanwhile."""
        generation = self._generation
        self._holds[generation] = self._holds.get(generation, 0) + 1
        try:
            yield
        finally:
            if self._holds[generation] == 1:
                del self._holds[generation]
            else:
                self._holds[generation] -= 1
            self._retire()

    def tail_range(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes, Written]]:
        """Yield (bucket, key, entry) for the tail's keys in buckets from ``first`` to ``last``, in
        the order of buckets.

        The tail may not change while the iterator is in use.
        """
        if self._order is None:
            self._order = SortedList((self._layout.bucket(key), key) for key in self._tail)
        for bucket, key in self._order.irange((first, b"")):
            if bucket > last:
                return
            yield bucket, key, self._tail[key]


def _place(located: Located | None) -> int:
    return NOWHERE if located is None else located.offset


def _memory_bytes(key: bytes, located: Located | None) -> int:
    kept = 0 if located is None or located.value is None else len(located.value)
    return _ENTRY_BYTES_ESTIMATE + len(key) + kept
