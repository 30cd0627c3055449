"""The index of one table: it finds the newest entry of each key.

Owns: lookups, and the steps by which entries are indexed (``index_step`` plans their changes). The
attributes of the segment have the entries up to the *index offset*; the *tail* in memory has the
entries after it (``known_entries``).

Invariants:
1. Lookups and iterations see exactly the entries in the segment's bytes up to ``length``, whether a
   key is in memory, in attributes, or both. Held by ``TestTableMachine``.
2. When a step moves an entry to the attributes while a reader waits for them, the reader still
   finds the newest entry of the key. Held by
   ``test_what_a_reader_finds_is_not_older_than_its_question``.
3. When a step gives a bucket a second key, a reader of the bucket still finds the first one:
   buckets of several keys are read only while no step is under way. Held by
   ``test_a_key_is_found_while_its_bucket_becomes_one_of_several``.
4. When a table has more keys than its memory may hold, it uses no more than ``TableSettings``
   allow. Held by ``test_memory_is_bounded_however_many_keys_there_are``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, NamedTuple, cast

import trio

from segstore.api import SegmentContainer
from segstore.errors import BadAttributeUpdateError, NoSuchSegmentError
from segstore.model.attributes import NULL_ATTRIBUTE_VALUE, AttributeId
from segstore.tables.entries import EntryHead, StoredEntry, TableDataError, parse_head
from segstore.tables.entry_reader import HEAD_BYTES, read_heads
from segstore.tables.index_step import COUNTER_IDS, Bucket, Counters, IndexStep
from segstore.tables.known_entries import UNKNOWN, KnownEntries, Located, Unknown
from segstore.tables.layouts import Layout, Ranges, backpointer, behind
from segstore.tables.settings import TableSettings

_LOOKS_NOW_MAX: Final = 128
"""Maximum count of keys that one call looks up without letting other tasks run."""
_AT_ONCE: Final = 1024
"""Maximum count of attributes in one request."""
_PAGE_READS: Final = 128
"""Maximum count of an iteration's buckets that are read at the same time."""
UNPERSISTED_MAX: Final = 32_768
"""Maximum number of changed attributes of a table that its attribute index in tier 2 lacks; above
it, the next step waits."""
_UNPERSISTED_PAUSE_SECONDS: Final = 0.05

Pages = AsyncGenerator[list[tuple[AttributeId, int]], None]


class IndexPage(NamedTuple):
    """Keys with their entries, in the layout's order, up to and including bucket ``last``. A page
    without keys is the end."""

    items: list[tuple[bytes, Located]]
    last: AttributeId


class TableIndex:
    """The index of one table. ``length`` is the offset at which the durable entries end; ``write``
    advances it."""

    def __init__(
        self,
        name: str,
        container: SegmentContainer,
        settings: TableSettings,
        layout: Layout,
        *,
        start_offset: int,
        counters: Counters,
    ) -> None:
        self.name = name
        self.layout = layout
        self._container = container
        self._settings = settings
        self.counters = counters
        self.length = max(start_offset, counters.index_offset)
        self.known = KnownEntries(
            layout,
            kept_value_bytes_max=settings.kept_value_bytes_max,
            clean_bytes_max=settings.clean_bytes_max,
        )
        self.known.index_offset = self.length
        self._unindexed: list[tuple[int, int]] = []
        self.unindexed_count = 0
        self._stepping = trio.Lock()

    @property
    def key_length(self) -> int:
        """Return the length of all keys, in bytes; 0 for the hash layout."""
        return self.layout.key_length

    @property
    def index_offset(self) -> int:
        """Return the offset up to which all entries have attributes."""
        return self.known.index_offset

    @property
    def unindexed_bytes(self) -> int:
        """Return how many bytes of the segment lie after the index offset."""
        return self.length - self.known.index_offset

    @property
    def has_room(self) -> bool:
        """Return whether the tail is below its bounds, so that updates may be appended."""
        settings = self._settings
        return (
            self.unindexed_count < settings.unindexed_count_max
            and self.unindexed_bytes < settings.unindexed_bytes_max
            and self.known.tail_count < 2 * settings.unindexed_count_max
        )

    @property
    def wants_step(self) -> bool:
        """Return whether enough entries lie after the index offset for a step."""
        settings = self._settings
        return self.unindexed_count >= settings.index_count or self.unindexed_bytes >= min(
            settings.index_bytes, settings.compaction_bytes_min
        )

    # ---- Writes ----------------------------------------------------------------------------------

    def write(
        self, changes: Iterable[tuple[bytes, int, Located | None]], *, length: int, count: int
    ) -> None:
        """Record that ``count`` more entries are durable, and that they end at offset ``length``.
        ``changes`` has the newest of them of each key, as (key, offset, entry); the entry is None
        for a removal."""
        write = self.known.write
        for key, offset, located in changes:
            write(key, offset, located)
        self.length = length
        self.unindexed_count += count
        self._unindexed.append((length, count))

    def add_entries(self, entries: Sequence[StoredEntry]) -> None:
        """Record entries that were read from the segment at ``length``."""
        located = self.known.located
        self.write(
            ((e.key, e.offset, None if e.value is None else located(e)) for e in entries),
            length=entries[-1].offset + entries[-1].length,
            count=len(entries),
        )

    # ---- Looks at keys ---------------------------------------------------------------------------

    def knows(self, keys: Collection[bytes]) -> bool:
        """Return whether the entries of all these keys are in memory, so that ``get`` can return
        them. The caller has pinned the keys."""
        look = self.find_now if len(keys) <= _LOOKS_NOW_MAX else self.known.get
        return all(look(key) is not UNKNOWN for key in keys)

    def find_now(self, key: bytes) -> Located | Unknown | None:
        """Return the entry of a key, or None if the key has none, if memory can tell; remember it.
        Return ``UNKNOWN`` if tier 2 has to be asked."""
        located = self.known.get(key)
        if located is not UNKNOWN:
            return located
        offset = self._container.attribute_now(self.name, self.layout.bucket(key))
        if offset is None:
            return UNKNOWN
        if offset == NULL_ATTRIBUTE_VALUE:
            located = None
        else:
            data = self._container.bytes_now(self.name, offset=offset, length_max=HEAD_BYTES)
            try:
                head = parse_head(self.name, data, offset=offset)
            except TableDataError:
                return UNKNOWN  # The caller then reads the entry, which raises the error.
            if isinstance(head, int) or head.is_removal or head.key != key:
                return UNKNOWN  # The key is longer than these bytes, or another key is here.
            located = self.known.located(head)
        self.known.remember(key, located)
        return located

    def get(self, key: bytes) -> Located | None:
        """Return the entry of a key that was loaded; None if the key has none."""
        located = self.known.get(key)
        assert not isinstance(located, Unknown), "load it first"
        return located

    @contextmanager
    def pinned(self, keys: Collection[bytes]) -> Iterator[None]:
        """Keep the entries of these keys in memory until the block ends."""
        self.known.pin(keys)
        try:
            yield
        finally:
            self.known.unpin(keys)

    async def find_many(self, keys: Sequence[bytes]) -> list[Located | None]:
        """Return the entries of keys, in the order of the keys; None for a key without an entry.
        All are those of one moment between call and return."""
        look = self.find_now if len(keys) <= _LOOKS_NOW_MAX else self.known.get
        found = [look(key) for key in keys]
        if not any(each is UNKNOWN for each in found):
            return cast("list[Located | None]", found)
        with self.pinned(keys):
            await self.load(keys)
            return [self.get(key) for key in keys]

    async def load(self, keys: Iterable[bytes]) -> None:
        """Read the entries of these keys, as far as they are not in memory. The caller has pinned
        the keys, so their entries stay there."""
        with self.known.hold():
            unknown = [key for key in dict.fromkeys(keys) if self.known.get(key) is UNKNOWN]
            for start in range(0, len(unknown), _AT_ONCE):
                for key, located in (
                    await self._look_up(unknown[start : start + _AT_ONCE])
                ).items():
                    self.known.remember(key, located)

    async def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, Located | None]:
        """Return the entries that the attributes have for keys; the tail may have newer ones."""
        buckets = {key: self.layout.bucket(key) for key in keys}
        values = await self.attributes(buckets.values())
        places = {key: values[bucket] for key, bucket in buckets.items() if bucket in values}
        heads = await self.heads(places.values())
        found: dict[bytes, Located | None] = dict.fromkeys(keys)
        others: list[bytes] = []
        for key, offset in places.items():
            head = heads.get(offset)
            if head is not None and head.key == key:
                found[key] = self.known.located(head)
            else:
                # The bucket leads to another key, or a compaction moved the entry meanwhile.
                others.append(key)
        if others:
            async with self._stepping:
                found.update(await self._look_up_shared(others))
        return found

    async def _look_up_shared(self, keys: Sequence[bytes]) -> dict[bytes, Located | None]:
        located: dict[bytes, Located] = {}
        for bucket in await self.buckets(map(self.layout.bucket, keys)):
            located.update((head.key, self.known.located(head)) for head in bucket.heads)
        return {key: located.get(key) for key in keys}

    # ---- Attributes and the segment --------------------------------------------------------------

    async def attributes(self, ids: Iterable[AttributeId]) -> dict[AttributeId, int]:
        """Return the values of those of the attributes that exist."""
        wanted = list(dict.fromkeys(ids))
        values: dict[AttributeId, int] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            values.update(await self._container.get_attributes(self.name, part))
        return values

    async def heads(self, offsets: Iterable[int]) -> dict[int, EntryHead]:
        """Return the entries at these offsets, by offset. Truncated entries are left out. Raises
        ``TableDataError`` if one is a removal, to which no attribute may lead."""
        heads = await read_heads(self._container, self.name, set(offsets))
        for offset, head in heads.items():
            if head.is_removal:
                raise TableDataError(self.name, offset=offset)
        return heads

    async def buckets(self, ids: Iterable[AttributeId]) -> list[Bucket]:
        """Return buckets with all their entries. When some buckets have several keys, call this
        only while no step is under way."""
        ids = list(dict.fromkeys(ids))
        values = await self.attributes(ids)
        return await self._read_buckets(
            [(each, values[each]) for each in ids if each in values], ids
        )

    async def _read_buckets(
        self, firsts: Sequence[tuple[AttributeId, int]], ids: Sequence[AttributeId] = ()
    ) -> list[Bucket]:
        places = {bucket: [offset] for bucket, offset in firsts}
        if self.counters.has_shared_buckets:
            ends = list(places.values())
            while ends:
                links = await self.attributes(backpointer(chain[-1]) for chain in ends)
                ends = [chain for chain in ends if backpointer(chain[-1]) in links]
                for chain in ends:
                    chain.append(links[backpointer(chain[-1])])
        heads = await self.heads(offset for chain in places.values() for offset in chain)
        return [
            Bucket(
                bucket,
                places.get(bucket, []),
                [heads[each] for each in places.get(bucket, ()) if each in heads],
            )
            for bucket in (ids or places)
        ]

    # ---- Iteration -------------------------------------------------------------------------------

    async def page(
        self, ranges: Ranges, *, count_max: int, bytes_max: int, with_values: bool
    ) -> IndexPage:
        """Return the next keys of the ranges, in whole buckets, until there are ``count_max`` keys
        or ``bytes_max`` bytes.

        All are those of one moment between call and return. A page has fewer only at the end of the
        ranges, and none only if no key is left.
        """
        with self.known.hold():
            if not self.counters.has_shared_buckets:
                return await self._page(ranges, count_max, bytes_max, with_values)
            async with self._stepping:
                return await self._page(ranges, count_max, bytes_max, with_values)

    async def _page(
        self, ranges: Ranges, count_max: int, bytes_max: int, with_values: bool
    ) -> IndexPage:
        found: list[Bucket] = []
        rest = ranges
        while True:
            read, end = await self._gather(rest, count_max, bytes_max, with_values)
            # From here to the return there is no ``await``. Only if the tail has removed too many
            # of the keys that were read, the loop reads on.
            found += read
            merged = self._merge(found, ranges, end)
            items: list[tuple[bytes, Located]] = []
            last, size = b"", 0
            for bucket in sorted(merged):
                pairs = sorted(merged[bucket].items())
                items += pairs
                size += sum(located.length if with_values else len(key) for key, located in pairs)
                last = bucket
                if len(items) >= count_max or size >= bytes_max:
                    return IndexPage(items, last)
            if end is None:
                return IndexPage(items, last)
            rest = behind(ranges, end)

    async def _gather(
        self, ranges: Ranges, count_max: int, bytes_max: int, with_values: bool
    ) -> tuple[list[Bucket], AttributeId | None]:
        """Read about one page of buckets from the attributes. Return them, and the last bucket that
        was read, or None if the ranges end before the page is full."""
        found: list[Bucket] = []
        count = size = 0
        for first, last in ranges:
            pages = self._container.attribute_iterator(self.name, first=first, last=last)
            async with aclosing(cast("Pages", pages)) as pages:
                async for page in pages:
                    position = 0
                    while position < len(page):
                        room = max(1, min(_PAGE_READS, count_max - count))
                        part = page[position : position + room]
                        position += len(part)
                        read = await self._read_buckets(part)
                        found += read
                        for head in (head for bucket in read for head in bucket.heads):
                            count += 1
                            size += head.length if with_values else len(head.key)
                        if count >= count_max or size >= bytes_max:
                            return found, part[-1][0]
        return found, None

    def _merge(
        self, found: list[Bucket], ranges: Ranges, end: AttributeId | None
    ) -> dict[AttributeId, dict[bytes, Located]]:
        """Combine the buckets that were read with the tail, whose entries are newer. Return the
        entries by bucket and key."""
        known = self.known
        merged: dict[AttributeId, dict[bytes, Located]] = {}
        for bucket in found:
            for head in bucket.heads:
                if known.written(head.key) is None:
                    merged.setdefault(bucket.bucket, {})[head.key] = known.located(head)
        for first, last in ranges:
            until = last if end is None else min(last, end)
            for name, key, written in known.tail_range(first, until):
                if written.located is not None:
                    merged.setdefault(name, {})[key] = written.located
        return merged

    # ---- Steps -----------------------------------------------------------------------------------

    async def count(self) -> int:
        """Return the exact count of keys."""
        if self.index_offset == self.length:
            return self.counters.entry_count
        async with self._stepping:
            return (await self._plan(self.length)).counters.entry_count

    async def _plan(self, end: int) -> IndexStep:
        count = sum(count for length, count in self._unindexed if length <= end)
        step = IndexStep(self.counters, end, count)
        step.written = self.known.unindexed(end)
        if self.layout.shares_buckets:
            await step.plan_buckets(self)
        else:
            await step.plan_keys(self)
        return step

    def _step_end(self) -> int:
        """Return the offset at which the next step ends: it is bounded, so that planning it does
        not keep other tasks from running for long."""
        total = 0
        for length, count in self._unindexed:
            total += count
            if total >= self._settings.index_count:
                return length
        return self.length

    async def follow(self) -> bool:
        """Index all entries that are durable now. Return whether that was done; False means that
        another step came first."""
        end = self.length
        while self.index_offset < end:
            if not await self.step():
                return False
        return True

    async def step(self, *, compacted: tuple[int, int] | None = None) -> bool:
        """Index a part of the tail. Return whether that was done; False means that another step
        came first and this one changed nothing.

        ``compacted`` is a pair of an offset and a count. When the whole tail is indexed, all
        entries before the offset are obsolete, and the counters still have ``count`` of them.
        Raises what ``update_attributes`` raises.
        """
        unpersisted_count = self._container.unpersisted_attribute_count
        while unpersisted_count(self.name) > UNPERSISTED_MAX:  # noqa: ASYNC110
            await trio.sleep(_UNPERSISTED_PAUSE_SECONDS)
        async with self._stepping:
            if self.length < self.counters.index_offset:
                return False  # Another owner's step is ahead of the entries that are known here.
            if self.index_offset == self.length and compacted is None:
                return True
            plan = await self._plan(self._step_end() if compacted is None else self.length)
            if compacted is not None:
                plan.compact(*compacted)
            try:
                await self._container.update_attributes(self.name, plan.updates())
            except BadAttributeUpdateError:
                await self._resync()
                return False
            self.counters = plan.counters
            self.known.publish(plan.counters.index_offset, plan.written)
            self._forget_indexed()
            return True

    async def _resync(self) -> None:
        """Read the counters again, after a step of another owner, or a step of this owner whose
        caller was cancelled before its end. Raises ``NoSuchSegmentError`` if another table has the
        name."""
        values = await self._container.get_attributes(self.name, COUNTER_IDS)
        counters = Counters.parse(values)
        if counters.incarnation != self.counters.incarnation:
            raise NoSuchSegmentError(self.name)
        self.counters = counters
        # Another owner's step may lie beyond ``length``. Then the next append fails because of its
        # expected offset, and the index is opened again.
        self.known.resync(min(self.counters.index_offset, self.length))
        self._forget_indexed()

    def _forget_indexed(self) -> None:
        start = self.index_offset
        self._unindexed = [(length, count) for length, count in self._unindexed if length > start]
        self.unindexed_count = sum(count for _, count in self._unindexed)

    async def living(self, entries: Sequence[StoredEntry]) -> list[StoredEntry]:
        """Return those of these indexed entries that are the newest of their keys. The caller has
        pinned the keys."""
        known = self.known
        with known.hold():
            unknown = [e for e in entries if known.get(e.key) is UNKNOWN]
            values = await self.attributes(self.layout.bucket(e.key) for e in unknown)
            for entry in unknown:
                if values.get(self.layout.bucket(entry.key)) == entry.offset:
                    known.remember(entry.key, known.located(entry))
            if self.counters.has_shared_buckets:
                await self.load(entry.key for entry in unknown)
        return [
            entry
            for entry in entries
            if isinstance(located := known.get(entry.key), Located)
            and located.offset == entry.offset
        ]
