"""Plans the changes of one step of a table's index.

Owns: the counters that a table has in core attributes, and the changes of buckets and backpointers
by which the attributes index a part of the tail.

Invariants:
1. All changes of a step and the counters after it are one operation. Its condition is that the
   index offset is still the one at which the step began, and the table the same, not another with
   its name.
2. A bucket leads to the newest entry of each of its keys, once each, the newest entry first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from segstore.model.attributes import (
    NULL_ATTRIBUTE_VALUE,
    TABLE_BUCKET_COUNT,
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_INCARNATION,
    TABLE_INDEX_OFFSET,
    TABLE_TOTAL_ENTRY_COUNT,
    AttributeId,
    AttributeUpdate,
    AttributeUpdateType,
)
from segstore.tables.entries import EntryHead
from segstore.tables.known_entries import Written
from segstore.tables.layouts import Layout, backpointer

COUNTER_IDS: Final = (
    TABLE_INDEX_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_BUCKET_COUNT,
    TABLE_TOTAL_ENTRY_COUNT,
    TABLE_COMPACTION_OFFSET,
    TABLE_INCARNATION,
)


class Bucket(NamedTuple):
    """A bucket as the attributes have it: the offsets of its entries, the newest first, and the
    heads of the entries that are not truncated.

    The newest entries come first.
    """

    bucket: AttributeId
    offsets: list[int]
    heads: list[EntryHead]


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters in a table's core attributes. ``stored_offset`` is None when there are none."""

    stored_offset: int | None = None
    entry_count: int = 0
    bucket_count: int = 0
    total_count: int = 0
    compaction_offset: int = 0
    incarnation: int = NULL_ATTRIBUTE_VALUE

    @property
    def index_offset(self) -> int:
        """Return the offset before which the attributes have all entries."""
        return self.stored_offset or 0

    @property
    def is_same(self) -> AttributeUpdate:
        """Return an update that changes nothing, and fails where another table has the name now.

        A namesake may be made, not yet durably, by what waits in front of an operation.
        """
        compare = AttributeUpdateType.REPLACE_IF_EQUALS
        return AttributeUpdate(TABLE_INCARNATION, compare, self.incarnation, self.incarnation)

    @property
    def has_shared_buckets(self) -> bool:
        """Return whether some bucket has several keys: there are backpointers."""
        return self.entry_count != self.bucket_count

    @classmethod
    def parse(cls, values: Mapping[AttributeId, int]) -> Counters:
        """Make the counters from core attributes."""
        return cls(
            values.get(TABLE_INDEX_OFFSET),
            values.get(TABLE_ENTRY_COUNT, 0),
            values.get(TABLE_BUCKET_COUNT, 0),
            values.get(TABLE_TOTAL_ENTRY_COUNT, 0),
            values.get(TABLE_COMPACTION_OFFSET, 0),
            values.get(TABLE_INCARNATION, NULL_ATTRIBUTE_VALUE),
        )


class SteppedIndex(Protocol):
    """The index that a step changes; ``TableIndex`` implements it."""

    @property
    def layout(self) -> Layout:
        """Return how keys become buckets."""
        ...

    @property
    def counters(self) -> Counters:
        """Return the counters before the step."""
        ...

    async def attributes(self, ids: Iterable[AttributeId]) -> dict[AttributeId, int]:
        """Return the attributes of those ids that exist."""
        ...

    async def buckets(self, ids: Iterable[AttributeId]) -> list[Bucket]:
        """Return whole buckets."""
        ...


class IndexStep:
    """A step of the index up to ``end``, over ``count`` entries. ``written`` are the newest entries
    by key."""

    def __init__(self, before: Counters, end: int, count: int) -> None:
        self._before = before
        self.counters = replace(before, stored_offset=end, total_count=before.total_count + count)
        self.written: dict[bytes, Written] = {}
        self._changes: dict[AttributeId, int] = {}

    def _count(self, entries: int, buckets: int) -> None:
        self.counters = replace(
            self.counters,
            entry_count=self.counters.entry_count + entries,
            bucket_count=self.counters.bucket_count + buckets,
        )

    async def plan_keys(self, index: SteppedIndex) -> None:
        """Plan the changes of the fixed-key layout, in which every key has its own attribute."""
        ids = {key: index.layout.bucket(key) for key in self.written}
        present = await index.attributes(ids.values())
        added = 0
        for key, written in self.written.items():
            if written.located is not None:
                added += ids[key] not in present
                self._changes[ids[key]] = written.offset
            elif ids[key] in present:
                added -= 1
                self._changes[ids[key]] = NULL_ATTRIBUTE_VALUE
        self._count(added, added)

    async def plan_buckets(self, index: SteppedIndex) -> None:
        """Plan for the hash layout. A bucket is read only where its content is not known."""
        buckets: dict[AttributeId, list[bytes]] = {}
        for key in self.written:
            buckets.setdefault(index.layout.bucket(key), []).append(key)
        present = await index.attributes(buckets)
        to_read = []
        entries = added = 0
        for bucket, keys in buckets.items():
            written = self.written[keys[0]]
            first = present.get(bucket)
            if len(keys) > 1 or (
                first is not None
                and (index.counters.has_shared_buckets or written.indexed != first)
            ):
                to_read.append(bucket)
            elif written.located is not None:
                self._changes[bucket] = written.offset
                entries += first is None
                added += first is None
            elif first is not None:
                self._changes[bucket] = NULL_ATTRIBUTE_VALUE
                entries -= 1
                added -= 1
        self._count(entries, added)
        for read in await index.buckets(to_read):
            self._change_bucket(read, buckets[read.bucket])

    def _change_bucket(self, before: Bucket, keys: list[bytes]) -> None:
        """Put the keys' newest entries, or their absence, into a bucket."""
        kept = [head.offset for head in before.heads if head.key not in self.written]
        new = [self.written[key].offset for key in keys if self.written[key].located is not None]
        offsets = sorted([*new, *kept], reverse=True)
        links = dict(pairwise(offsets))
        old_links = dict(pairwise(before.offsets))
        for offset in old_links.keys() - links.keys():
            self._changes[backpointer(offset)] = NULL_ATTRIBUTE_VALUE
        for offset, following in links.items():
            if old_links.get(offset) != following:
                self._changes[backpointer(offset)] = following
        if offsets[:1] != before.offsets[:1]:
            self._changes[before.bucket] = offsets[0] if offsets else NULL_ATTRIBUTE_VALUE
        self._count(len(offsets) - len(before.offsets), bool(offsets) - bool(before.offsets))

    def compact(self, offset: int, count: int) -> None:
        """Record that all entries before an offset are obsolete, and how many they were."""
        self.counters = replace(
            self.counters,
            compaction_offset=offset,
            total_count=max(self.counters.total_count - count, self.counters.entry_count),
        )

    def updates(self) -> list[AttributeUpdate]:
        """Return the attribute updates of the step's operation."""
        put, compare = AttributeUpdateType.REPLACE, AttributeUpdateType.REPLACE_IF_EQUALS
        before, after = self._before, self.counters
        expected = NULL_ATTRIBUTE_VALUE if before.stored_offset is None else before.stored_offset
        return [
            before.is_same,
            AttributeUpdate(TABLE_INDEX_OFFSET, compare, after.index_offset, expected),
            AttributeUpdate(TABLE_ENTRY_COUNT, put, after.entry_count),
            AttributeUpdate(TABLE_BUCKET_COUNT, put, after.bucket_count),
            AttributeUpdate(TABLE_TOTAL_ENTRY_COUNT, put, after.total_count),
            AttributeUpdate(TABLE_COMPACTION_OFFSET, put, after.compaction_offset),
            *(AttributeUpdate(each, put, value) for each, value in self._changes.items()),
        ]
