"""One table segment: its index, its queue of updates, its reads.

Owns: how updates become durable and visible, how the index is opened, and compaction.

Invariants:
1. While an append of the table is in flight, no other one begins; updates that come meanwhile share
   the next append. Held by ``test_updates_that_wait_share_one_append``.
2. Readers see an update only when it is durable. Held by
   ``test_readers_see_nothing_before_it_is_durable``.
3. When an append fails, it is unknown which entries were stored. So the index is dropped and made
   again, from the attributes and the segment's bytes after the index offset, before the next
   request is answered. Held by ``test_a_foreign_append_makes_the_index_new``.
4. When the process dies during a compaction, no live entry is lost and no version changes. A
   compaction first appends copies of the live entries at the head, then lets the attributes lead to
   the copies, and then truncates the head. Held by
   ``test_a_crash_anywhere_in_a_compaction_loses_nothing``.
5. When a caller is cancelled while its update is queued, the update happens all the same. Held by
   ``test_a_cancelled_update_still_happens``. When its keys were still being looked up, the update
   is withdrawn. Held by ``test_a_cancelled_update_that_waits_for_its_keys_keeps_nobody_back``.
6. While the tail is full, updates wait until a step made room, and keep their order. Held by
   ``test_the_tail_is_bounded_and_updates_keep_their_order``.
7. When the table is deleted and another one gets its name while a request waits, the request fails
   with ``NoSuchSegmentError``, and its answer never mixes the two tables. Held by
   ``test_what_waits_while_a_namesake_replaces_its_table_takes_neither_for_the_other``.
8. When entries are overwritten during a compaction, and no tail is left that would ask for another
   one, the compaction continues until enough entries are live. Held by
   ``test_what_is_written_during_a_compaction_is_compacted_though_no_tail_is_left``.
9. When the counters claim more entries than the table has, a compaction scans the table once, and
   not again before the next update. Held by
   ``test_a_table_whose_counters_lie_is_not_compacted_again_and_again``.

A compaction of the first 200 bytes. Entries begin at 0 (key a), 100 (b), 200 (a again) and 300 (c);
each has 100 bytes.

    append a copy of b            it begins at 400, and has the version of the entry at 100
    change the attribute of b     readers of b get the entry at 400
    truncate the segment at 200   nobody needs the first two entries: a has a newer one at 200
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from segstore.api import SegmentContainer, SegmentInfo
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    TableNotEmptyError,
)
from segstore.model.attributes import ATTRIBUTE_ID_LENGTH, SegmentType
from segstore.tables.entries import StoredEntry
from segstore.tables.entry_reader import EntryReader
from segstore.tables.index_step import COUNTER_IDS, Counters
from segstore.tables.known_entries import Located
from segstore.tables.layouts import FixedKeyLayout, HashKey, HashLayout, Layout
from segstore.tables.settings import TableSettings
from segstore.tables.table_index import TableIndex
from segstore.tables.update_queue import UpdateQueue
from segstore.tables.updates import CompactionCopy, Turn, UpdateBatch, Waiting

# Each request uses these, and looking up a member of an enum is slow.
_TABLE: Final = int(SegmentType.TABLE)
_FIXED_KEY_TABLE: Final = int(SegmentType.FIXED_KEY_TABLE)
_ATTEMPTS_MAX: Final = 3
_ROOM_PAUSE_SECONDS: Final = 0.05
"""Pause, in seconds, before the next attempt to make room, while readers hold the tail."""
_COPIES_MAX: Final = 4_096
"""Maximum count of entries in one step of a compaction."""


def is_fixed_key_table(info: SegmentInfo) -> bool:
    """Return whether a table segment has the fixed-key layout. Raises ``InvalidRequestError`` for
    any other segment."""
    if not info.segment_type & _TABLE:
        raise InvalidRequestError(info.name, f"{info.name} is not a table segment")
    return info.segment_type & _FIXED_KEY_TABLE == _FIXED_KEY_TABLE


class TableSegment:
    """One table segment. ``on_durable`` is called after every append that became durable."""

    def __init__(
        self,
        name: str,
        segment_id: int,
        container: SegmentContainer,
        settings: TableSettings,
        *,
        hash_key: HashKey,
        on_durable: Callable[[TableSegment], None],
    ) -> None:
        self.name = name
        self.segment_id = segment_id
        self._container = container
        self._settings = settings
        self._hash_key = hash_key
        self._on_durable = on_durable
        self._index: TableIndex | None = None
        self._opening = trio.Lock()
        self._making_room = trio.Lock()
        self.entering = trio.Lock()
        """Lock that a long update holds while it is encoded, so that later updates do not overtake
        it."""
        self._queue = UpdateQueue()
        self._in_flight: UpdateBatch | None = None
        self._turn: Waiting | None = None
        self._compacting = False
        self._is_frozen = False
        self._news = 0
        self._compacted_in_vain: tuple[TableIndex, int] | None = None

    def check_same(self) -> None:
        """Raise ``NoSuchSegmentError`` if the segment was deleted, also if another one has its
        name."""
        if self._container.segment_info(self.name).segment_id != self.segment_id:
            raise NoSuchSegmentError(self.name)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is queued, in flight or being opened."""
        return not (self._queue or self._in_flight or self._turn or self._opening.locked())

    @property
    def memory_bytes(self) -> int:
        """Return the estimated memory of the index, in bytes."""
        return 0 if self._index is None else self._index.known.memory_bytes

    def drop_index(self) -> None:
        """Drop the index; the next use opens it again."""
        self._index = None
        self._is_frozen = False
        self._compacted_in_vain = None

    async def index(self) -> TableIndex:
        """Return the index, and open it first if it is not open. It is valid until the next await.

        Callers that wait for it continue in the order of their calls.
        """
        if self._index is None or self._opening.locked():
            async with self._opening:
                if self._index is None:
                    self._index = await self._open_index()
                return self._index
        return self._index

    async def _open_index(self) -> TableIndex:
        # An index that was dropped may have an append in flight, which must end before the bytes
        # are read.
        await self._container.wait_in_flight(self.name)
        info = self._container.segment_info(self.name)
        ids = (ATTRIBUTE_ID_LENGTH, *COUNTER_IDS)
        attributes = await self._container.get_attributes(self.name, ids)
        layout: Layout = HashLayout(self._hash_key)
        if is_fixed_key_table(info):
            layout = FixedKeyLayout(attributes.get(ATTRIBUTE_ID_LENGTH, 0))
        index = TableIndex(
            self.name,
            self._container,
            self._settings,
            layout,
            start_offset=info.start_offset,
            counters=Counters.parse(attributes),
        )
        reader = self.reader(start=index.length, end=info.length)
        while entries := await reader.read():
            index.add_entries(entries)
            if not index.has_room:
                await self._catch_up(index)
        if index.length < info.length:  # The reader left out a lost range at the end.
            index.write((), length=info.length, count=0)
        return index

    async def _catch_up(self, index: TableIndex) -> None:
        """Index a part of the tail while the index is opened. Only a table that was never indexed,
        or is sealed, has more entries without attributes than the tail may have."""
        try:
            await index.step()
        except SegmentSealedError:
            return

    def reader(self, *, start: int, end: int) -> EntryReader:
        """Return a reader of the entries from ``start`` to ``end``."""
        read_bytes = self._settings.read_bytes
        return EntryReader(self._container, self.name, start=start, end=end, read_bytes=read_bytes)

    # ---- Updates ---------------------------------------------------------------------------------

    async def submit(self, make: Callable[[TableIndex], Waiting]) -> Waiting:
        """Queue the member that ``make`` returns, wait until it is durable, and return it. Raises
        the error with which it was refused."""
        for _ in range(_ATTEMPTS_MAX):
            index = await self.index()
            member = make(index)
            index.known.pin(member.keys)
            member.is_ready = index.knows(member.keys)
            self._queue.append(member)
            self._start_batches()
            try:
                await self._see_through(index, member)
            finally:
                if not member.is_ready:
                    self._withdraw(index, member)
            member.check()
            if not member.retry:
                return member
        assert member.error is not None
        raise member.error

    async def _see_through(self, index: TableIndex, member: Waiting) -> None:
        """Wait for a member's outcome. Meanwhile, load the entries that its conditions need, and
        make room in the tail."""
        if not member.is_ready:
            await index.load(member.keys)
            self._queue.make_ready(member)
            self._start_batches()
        while not member.is_settled:
            if index.has_room or member not in self._queue:
                await member.wait_news()
                continue
            try:
                await self._make_room(index)
            except SegmentStoreError:
                # The caller gets this error, so the update must not happen afterwards.
                if self._withdraw(index, member):
                    raise

    def _withdraw(self, index: TableIndex, member: Waiting) -> bool:
        """Remove a member from the queue. Return whether it was in the queue."""
        if not self._queue.discard(member):
            return False
        index.known.unpin(member.keys)
        self._start_batches()
        return True

    async def _make_room(self, index: TableIndex) -> None:
        async with self._making_room:
            if not index.has_room:
                await index.step()
                if not index.has_room:
                    await trio.sleep(_ROOM_PAUSE_SECONDS)
        # A compaction may have made the room; it starts no append.
        self._start_batches()

    def _start_batches(self) -> None:
        """Append the updates that are ready, unless an append is in flight."""
        while self._queue and self._in_flight is None and self._turn is None:
            index = self._index
            if index is None:
                # The callers open a new index and queue their updates again.
                self._refuse_queued(ContainerOfflineError("the table's index was lost"), retry=True)
                return
            try:
                self.check_same()
            except SegmentStoreError as error:
                self.drop_index()
                self._refuse_queued(error)
                return
            if isinstance(self._queue.first, Turn):
                self._turn = self._queue.pop()
                self._turn.settle(None)
                continue
            batch = self._next_batch(index)
            if batch.parts:
                self._in_flight = batch
                self._container.append_nowait(
                    self.name,
                    b"".join(batch.parts),
                    attribute_updates=[] if batch.start else [index.counters.is_same],
                    expected_offset=batch.start,
                    on_complete=self._complete,
                )
            elif batch.members:
                for member in batch.members:
                    member.settle(None)
            else:
                # No update is ready, or the tail is full. If the tail is full, wake a caller to
                # make room.
                if not index.has_room:
                    self._queue.wake()
                return

    def _refuse_queued(self, error: SegmentStoreError, *, retry: bool = False) -> None:
        for member in self._queue.clear():
            member.settle(error, retry=retry)

    def _next_batch(self, index: TableIndex) -> UpdateBatch:
        batch = UpdateBatch(index)
        room = self._settings.append_bytes_max if index.has_room else 0
        while room > 0 and (member := self._queue.first) is not None:
            if isinstance(member, Turn):
                break
            if batch.members and member.encoded_bytes_max > room:
                break
            room -= member.encoded_bytes_max
            batch.add(self._queue.pop())
            index.known.unpin(member.keys)
        return batch

    def _complete(self, error: SegmentStoreError | None, length: int) -> None:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        if error is None:
            assert length == batch.length
            batch.commit()
            self._news += batch.has_news
        else:
            self.drop_index()
        # Another writer's append made the expected offset wrong, or another table, as empty as this
        # one, has the name now. Check the conditions again with a new index.
        retry = isinstance(error, BadOffsetError | BadAttributeUpdateError)
        for member in batch.members:
            member.settle(error, retry=retry)
        self._start_batches()
        if error is None:
            self._on_durable(self)

    async def delete_if_empty(self) -> None:
        """Delete the table. Raises ``TableNotEmptyError`` if it has a key after all queued
        updates."""
        turns: list[Turn] = []

        def make(_: TableIndex) -> Turn:
            turns.append(Turn())
            return turns[-1]

        try:
            await self.submit(make)
            if await (await self.index()).count():
                raise TableNotEmptyError(self.name)
            self.check_same()
            await self._container.delete_segment(self.name)
        finally:
            for turn in turns:
                self._return_turn(turn)

    def _return_turn(self, turn: Turn) -> None:
        if self._turn is turn:
            self._turn = None
            self._start_batches()
        elif self._queue.discard(turn):
            self._start_batches()

    # ---- Reads -----------------------------------------------------------------------------------

    async def read_value(self, key: bytes, located: Located) -> tuple[int, bytes] | None:
        """Return the version and value of an entry. If it was truncated meanwhile, return those of
        the key's newest entry, or None if the key was removed."""
        current: Located | None = located
        while current is not None:
            if current.value is not None:
                return current.version, current.value
            try:
                entry = await self._read_entry(current)
            except SegmentTruncatedError:
                before = current
                [current] = await (await self.index()).find_many([key])
                if current is not None and current.offset == before.offset:
                    raise
                continue
            assert entry.value is not None
            return current.version, entry.value
        return None

    async def _read_entry(self, located: Located) -> StoredEntry:
        end = located.offset + located.length
        [entry] = await self.reader(start=located.offset, end=end).read()
        return entry

    # ---- The index step and compaction -----------------------------------------------------------

    def wants_step(self) -> bool:
        """Return whether enough entries lack attributes for a step."""
        return self._index is not None and self._index.wants_step and not self._is_frozen

    def has_tail(self) -> bool:
        """Return whether any entry lacks an attribute."""
        index = self._index
        return index is not None and index.unindexed_bytes > 0 and not self._is_frozen

    async def follow(self) -> None:
        """Index all entries that are durable now, if the index is open."""
        if self._index is not None:
            try:
                await self._index.follow()
            except SegmentSealedError:
                self._is_frozen = True
            self._start_batches()

    def wants_compaction(self) -> bool:
        """Return whether too few of the indexed entries are the newest of their keys."""
        index = self._index
        if index is None or self._is_frozen or self._compacted_in_vain == (index, self._news):
            return False
        counters, settings = index.counters, self._settings
        percent_min = settings.compaction_utilization_percent_min
        if 100 * counters.entry_count >= percent_min * counters.total_count:
            return False
        used = index.index_offset - self._compacted_until(index)
        return used >= settings.compaction_bytes_min

    def _compacted_until(self, index: TableIndex) -> int:
        start = self._container.segment_info(self.name).start_offset
        return max(start, index.counters.compaction_offset)

    async def compact(self) -> None:
        """Copy the live entries at the head to the end and truncate the head, until enough of the
        table's entries are live."""
        if self._compacting:
            return
        self._compacting = True
        try:
            await self._compact_until_enough_counts()
        except SegmentSealedError:
            self._is_frozen = True
        finally:
            self._compacting = False

    async def _compact_until_enough_counts(self) -> None:
        """Compact until enough entries are live, also if more are overwritten meanwhile. When no
        entry is left to be indexed, no later step would ask for another compaction."""
        while True:
            index = await self.index()
            await index.follow()
            news = self._news
            # The table is scanned at most once, even if the counters are wrong.
            end = self._container.segment_info(self.name).length
            while self.wants_compaction():
                if not await self._compact_head(end):
                    break
            if self._news != news and self.wants_compaction():
                continue
            if self._index is index and self._compacted_until(index) >= end:
                self._compacted_in_vain = index, news
            return

    async def _compact_head(self, end: int) -> bool:
        """Compact ``compaction_step_bytes`` of entries at the head, but none after ``end``. Return
        whether there may be more to compact."""
        index = await self.index()
        start = position = self._compacted_until(index)
        reader = self.reader(start=start, end=min(end, index.index_offset))
        found: list[StoredEntry] = []
        while position - start < self._settings.compaction_step_bytes and len(found) < _COPIES_MAX:
            entries = await reader.read()
            if not entries:
                break
            position = entries[-1].offset + entries[-1].length
            found += entries
        if not found:
            return False
        keys = [entry.key for entry in found]
        with index.pinned(keys):
            live = await index.living(found)
        if live:
            await self.submit(lambda _: CompactionCopy(live))
        # The attributes lead to the copies before the originals are truncated.
        if self._index is not index or not await index.step(compacted=(position, len(found))):
            return False
        await self._container.truncate_segment(self.name, offset=position)
        return True
