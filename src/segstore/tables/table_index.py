"""The index of one table: what the attributes have, and the entries behind the index offset.

Owns: lookups through memory and attributes, and the steps by which entries are indexed
(``index_step`` plans their changes).

Invariants:
1. The index shows exactly the entries in the segment's bytes up to ``length``. The attributes have
   those up to ``index_offset``, which changes together with them in one operation.
2. An answer is that of one moment between the call and the return: the results of attributes and
   segment are combined with the tail, which was held meanwhile, without an await.
3. Buckets of several keys are only read while no step is under way.
4. The memory of a table is bounded by ``TableSettings``, however many keys there are.
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
"""Maximum count of keys that are looked up without giving way to other tasks."""
_AT_ONCE: Final = 1024
"""Maximum count of attributes in one request."""
_PAGE_READS: Final = 128
"""Maximum count of an iteration's buckets that are read at the same time."""
UNPERSISTED_MAX: Final = 32_768
"""Maximum number of a table's attributes that tier 2 does not have; the next step waits above it.
"""
_UNPERSISTED_PAUSE_SECONDS: Final = 0.05

Pages = AsyncGenerator[list[tuple[AttributeId, int]], None]


class IndexPage(NamedTuple):
    """Keys in the layout's order, all up to bucket ``last``. An empty page is the end."""

    items: list[tuple[bytes, Located]]
    last: AttributeId


class TableIndex:
    """The index of one table. ``length`` is where its entries end; it grows by ``write``."""

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
        """Return the offset before which the attributes have all entries."""
        return self.known.index_offset

    @property
    def unindexed_bytes(self) -> int:
        """Return how much of the segment the attributes do not have yet."""
        return self.length - self.known.index_offset

    @property
    def has_room(self) -> bool:
        """Return whether the tail may grow."""
        settings = self._settings
        return (
            self.unindexed_count < settings.unindexed_count_max
            and self.unindexed_bytes < settings.unindexed_bytes_max
            and self.known.tail_count < 2 * settings.unindexed_count_max
        )

    @property
    def wants_step(self) -> bool:
        """Return whether there is enough to do for a step."""
        settings = self._settings
        return self.unindexed_count >= settings.index_count or self.unindexed_bytes >= min(
            settings.index_bytes, settings.compaction_bytes_min
        )

    # ---- Writes ----------------------------------------------------------------------------------

    def write(
        self, changes: Iterable[tuple[bytes, int, Located | None]], *, length: int, count: int
    ) -> None:
        """Record ``count`` durable entries that end at ``length``. ``changes`` are the newest ones,
        each as (key, offset, entry); the entry is None for a removal."""
        write = self.known.write
        for key, offset, located in changes:
            write(key, offset, located)
        self.length = length
        self.unindexed_count += count
        self._unindexed.append((length, count))

    def add_entries(self, entries: Sequence[StoredEntry]) -> None:
        """Add entries that follow in the segment."""
        located = self.known.located
        self.write(
            ((e.key, e.offset, None if e.value is None else located(e)) for e in entries),
            length=entries[-1].offset + entries[-1].length,
            count=len(entries),
        )

    # ---- Looks at keys ---------------------------------------------------------------------------

    def knows(self, keys: Collection[bytes]) -> bool:
        """Return whether ``get`` can answer for all of these keys, which the caller has pinned."""
        look = self.find_now if len(keys) <= _LOOKS_NOW_MAX else self.known.get
        return all(look(key) is not UNKNOWN for key in keys)

    def find_now(self, key: bytes) -> Located | Unknown | None:
        """Return the entry of a key, and remember it, if it can be found without waiting."""
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
                return UNKNOWN  # a read of the entry raises it
            if isinstance(head, int) or head.is_removal or head.key != key:
                return UNKNOWN  # finding it takes more reads
            located = self.known.located(head)
        self.known.remember(key, located)
        return located

    def get(self, key: bytes) -> Located | None:
        """Return the entry of a key that is known."""
        located = self.known.get(key)
        assert not isinstance(located, Unknown), "load it first"
        return located

    @contextmanager
    def pinned(self, keys: Collection[bytes]) -> Iterator[None]:
        """Keep what is known of these keys until the block ends."""
        self.known.pin(keys)
        try:
            yield
        finally:
            self.known.unpin(keys)

    async def find_many(self, keys: Sequence[bytes]) -> list[Located | None]:
        """Return the entries of keys at one moment, in their order; None where there is none."""
        look = self.find_now if len(keys) <= _LOOKS_NOW_MAX else self.known.get
        found = [look(key) for key in keys]
        if not any(each is UNKNOWN for each in found):
            return cast("list[Located | None]", found)
        with self.pinned(keys):
            await self.load(keys)
            return [self.get(key) for key in keys]

    async def load(self, keys: Iterable[bytes]) -> None:
        """Make keys known, which the caller has pinned."""
        with self.known.hold():
            unknown = [key for key in dict.fromkeys(keys) if self.known.get(key) is UNKNOWN]
            for start in range(0, len(unknown), _AT_ONCE):
                for key, located in (
                    await self._look_up(unknown[start : start + _AT_ONCE])
                ).items():
                    self.known.remember(key, located)

    async def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, Located | None]:
        """Read the keys' entries by the attributes; the tail may have newer ones."""
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
                # Another key of its bucket came, perhaps just now, or a compaction moved it.
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
        """Return those of the attributes that exist."""
        wanted = list(dict.fromkeys(ids))
        values: dict[AttributeId, int] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            values.update(await self._container.get_attributes(self.name, part))
        return values

    async def heads(self, offsets: Iterable[int]) -> dict[int, EntryHead]:
        """Return the entries at these offsets, by offset, without truncated ones."""
        heads = await read_heads(self._container, self.name, set(offsets))
        for offset, head in heads.items():
            if head.is_removal:
                raise TableDataError(self.name, offset=offset)
        return heads

    async def buckets(self, ids: Iterable[AttributeId]) -> list[Bucket]:
        """Return whole buckets; call it only while no step is under way, unless no bucket has
        several keys."""
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
        """Return about ``count_max`` keys from the ranges, at one moment, as whole buckets.

        Fewer than these or ``bytes_max`` only at the end, and none only if there are no more.
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
            # From here on nothing is awaited, unless the tail has removed some of these.
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
        """Read buckets by the attributes; return them, and up to which bucket. None means to the
        end."""
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
        """Combine the buckets that were read with the tail; return the entries by bucket and
        key."""
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
        """Return where the next step ends, so that it does not block the process for long."""
        total = 0
        for length, count in self._unindexed:
            total += count
            if total >= self._settings.index_count:
                return length
        return self.length

    async def follow(self) -> bool:
        """Bring the attributes up to all entries that there are now; return whether that was done.
        See ``step``."""
        end = self.length
        while self.index_offset < end:
            if not await self.step():
                return False
        return True

    async def step(self, *, compacted: tuple[int, int] | None = None) -> bool:
        """Index a part of the tail; return whether it was done.

        ``compacted`` is an offset before which all entries are obsolete once the whole tail is
        indexed, and the count of entries since the last one. Another step may have come first: then
        nothing was done. Raises what ``update_attributes`` raises.
        """
        unpersisted_count = self._container.unpersisted_attribute_count
        while unpersisted_count(self.name) > UNPERSISTED_MAX:  # noqa: ASYNC110
            await trio.sleep(_UNPERSISTED_PAUSE_SECONDS)
        async with self._stepping:
            if self.length < self.counters.index_offset:
                return False  # another step came first
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
        """Read the counters again, after a step that was made by another owner or was abandoned
        here."""
        values = await self._container.get_attributes(self.name, COUNTER_IDS)
        counters = Counters.parse(values)
        if counters.incarnation != self.counters.incarnation:
            raise NoSuchSegmentError(self.name)  # a namesake
        self.counters = counters
        # Another owner's step may be ahead of what is known here: the next append finds that out.
        self.known.resync(min(self.counters.index_offset, self.length))
        self._forget_indexed()

    def _forget_indexed(self) -> None:
        start = self.index_offset
        self._unindexed = [(length, count) for length, count in self._unindexed if length > start]
        self.unindexed_count = sum(count for _, count in self._unindexed)

    async def living(self, entries: Sequence[StoredEntry]) -> list[StoredEntry]:
        """Return the entries, among indexed ones, that are the newest of their keys, which are
        pinned."""
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
