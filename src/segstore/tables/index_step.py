"""Plans the changes of one step of a table's index.

Owns: the counters that a table has in core attributes, and the changes of buckets and backpointers
in a step. A *step* makes attributes of entries that were appended since the last step; the
*index offset* is the offset up to which entries have attributes.

Invariants:
1. When another step came first, a step changes nothing: its changes and counters are one operation,
   with the condition that the index offset is still the one at which the step began. Held by
   ``test_a_step_that_was_abandoned_is_taken_note_of``.
2. When the table was deleted and another one got its name, a step changes nothing. Held by
   ``test_a_step_does_not_take_a_namesake_for_its_table``.
3. After a step, a bucket leads to the newest entry of each of its keys, once each, in descending
   order of offsets. Held by ``test_a_bucket_leads_to_its_newest_entry_and_on_to_the_others``.
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
    """A bucket in the attributes: the offsets of its entries, and those of the entries that are not
    truncated, both in descending order of offsets."""

    bucket: AttributeId
    offsets: list[int]
    heads: list[EntryHead]


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters in a table's core attributes. ``stored_offset`` is the index offset, or None
    before the first step."""

    stored_offset: int | None = None
    entry_count: int = 0
    bucket_count: int = 0
    total_count: int = 0
    compaction_offset: int = 0
    incarnation: int = NULL_ATTRIBUTE_VALUE

    @property
    def index_offset(self) -> int:
        """Return the offset up to which all entries have attributes."""
        return self.stored_offset or 0

    @property
    def is_same(self) -> AttributeUpdate:
        """Return an attribute update that changes nothing, and fails if another table has the name.

        A deletion and a creation of the name may be queued before the operation with this update.
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
        """Return the mapping of keys to attributes."""
        ...

    @property
    def counters(self) -> Counters:
        """Return the counters before the step."""
        ...

    async def attributes(self, ids: Iterable[AttributeId]) -> dict[AttributeId, int]:
        """Return the values of those of the attributes that exist."""
        ...

    async def buckets(self, ids: Iterable[AttributeId]) -> list[Bucket]:
        """Return these buckets, each with all of its entries."""
        ...


class IndexStep:
    """The planned changes of one step, which indexes ``count`` entries and ends at offset ``end``.
    ``written`` has the newest of these entries of each key."""

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
        """Plan the changes of the hash layout. Buckets are read only where it is not known in
        memory which entries they have."""
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
        """Plan the changes of one bucket, in which ``keys`` were written or removed."""
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
