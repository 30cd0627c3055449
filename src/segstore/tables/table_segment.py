"""One table segment: its index, its queue of updates, its reads.

Owns: how updates become durable and visible, how the index is opened, and compaction.

Invariants:
1. At most one append of a table is in flight; updates that come meanwhile go into the next one.
2. The index shows durable entries only. After a failed append it is unknown which entries were
   stored: the index is dropped and opened again before anything else happens, from the attributes
   and the segment's bytes behind the index offset.
3. A compaction first copies the live entries at the head to the end, durably, then lets the
   attributes lead to the copies, and then truncates the head. After any crash every live entry is
   in the segment, and the newest by offset counts.
4. Updates have no task of their own: completions start the next append. A cancelled caller loses
   its answer; its update happens all the same, unless the index was still being read for it.
5. Updates of a key keep their order (see ``update_queue``). All updates wait for room in the tail.
6. The object belongs to the segment with its id: requests after another segment has taken the name
   are refused, and no answer combines both.
7. When a compaction ends, enough entries are live; or there is a tail, whose next step asks for
   another compaction; or the whole table was scanned and nothing was written meanwhile.
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

# Members of an enum are slow, and this is asked with every request.
_TABLE: Final = int(SegmentType.TABLE)
_FIXED_KEY_TABLE: Final = int(SegmentType.FIXED_KEY_TABLE)
_ATTEMPTS_MAX: Final = 3
_ROOM_PAUSE_SECONDS: Final = 0.05
"""Pause before the next look for room, while a short tail is held."""
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
        """Lock of an update that takes long to come to the queue: others stay behind it."""
        self._queue = UpdateQueue()
        self._in_flight: UpdateBatch | None = None
        self._turn: Waiting | None = None
        self._compacting = False
        self._is_frozen = False
        self._news = 0
        self._compacted_in_vain: tuple[TableIndex, int] | None = None

    def check_same(self) -> None:
        """Raise ``NoSuchSegmentError`` if the segment has gone, though a namesake may have come."""
        if self._container.segment_info(self.name).segment_id != self.segment_id:
            raise NoSuchSegmentError(self.name)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is queued, in flight or being opened."""
        return not (self._queue or self._in_flight or self._turn or self._opening.locked())

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory the index takes."""
        return 0 if self._index is None else self._index.known.memory_bytes

    def drop_index(self) -> None:
        """Forget the index; the next use opens it again."""
        self._index = None
        self._is_frozen = False
        self._compacted_in_vain = None

    async def index(self) -> TableIndex:
        """Return the index, and open it first if it is not open. It is valid until the next await.

        Those who wait for it go on in the order in which they came.
        """
        if self._index is None or self._opening.locked():
            async with self._opening:
                if self._index is None:
                    self._index = await self._open_index()
                return self._index
        return self._index

    async def _open_index(self) -> TableIndex:
        # Appends in flight, of an index that was dropped, must end before the bytes are read.
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
        return index

    async def _catch_up(self, index: TableIndex) -> None:
        """Index a part of the tail while opening. Only tables that were never indexed, or are
        sealed, have more than a tail may have."""
        try:
            await index.step()
        except SegmentSealedError:
            return

    def reader(self, *, start: int, end: int) -> EntryReader:
        """Return a reader of the entries from ``start`` to ``end``, both at a border of entries."""
        read_bytes = self._settings.read_bytes
        return EntryReader(self._container, self.name, start=start, end=end, read_bytes=read_bytes)

    # ---- Updates ---------------------------------------------------------------------------------

    async def submit(self, make: Callable[[TableIndex], Waiting]) -> Waiting:
        """Queue what ``make`` makes, wait until it is durable or refused, and return it."""
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
        """Wait for a member's outcome, and do meanwhile what keeps it from its turn."""
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
                # The caller would not learn whether it happened, so it must not happen later.
                if self._withdraw(index, member):
                    raise

    def _withdraw(self, index: TableIndex, member: Waiting) -> bool:
        """Remove a member from the queue; return whether it waited there."""
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
        # Also when another task made the room: a compaction does, and starts no append.
        self._start_batches()

    def _start_batches(self) -> None:
        """Append what waits, unless an append is in flight."""
        while self._queue and self._in_flight is None and self._turn is None:
            index = self._index
            if index is None:
                # The members that wait come back with a new index.
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
                # No update may have its turn, or there is no room: wake the updates that make room.
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
        # Somebody else's append made the expected offset wrong, or a namesake has taken the place
        # of a table that was as empty: decide again with a new index.
        retry = isinstance(error, BadOffsetError | BadAttributeUpdateError)
        for member in batch.members:
            member.settle(error, retry=retry)
        self._start_batches()
        if error is None:
            self._on_durable(self)

    async def delete_if_empty(self) -> None:
        """Delete the segment unless it holds entries, else ``TableNotEmptyError``."""
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
        """Return the version and value of an entry, or of the newer one if a compaction moved
        it."""
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
        """Return whether enough of the tail is not indexed for a step."""
        return self._index is not None and self._index.wants_step and not self._is_frozen

    def has_tail(self) -> bool:
        """Return whether any entry is not indexed."""
        index = self._index
        return index is not None and index.unindexed_bytes > 0 and not self._is_frozen

    async def follow(self) -> None:
        """Index everything that is in the tail now, if the index is open."""
        if self._index is not None:
            try:
                await self._index.follow()
            except SegmentSealedError:
                self._is_frozen = True
            self._start_batches()

    def wants_compaction(self) -> bool:
        """Return whether too few of the indexed entries are live."""
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
        """Rewrite the live entries at the head and cut it off, until enough entries count."""
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
        """Compact until enough entries are live, also of those that are written meanwhile: without
        a tail nothing would ask for another compaction."""
        while True:
            index = await self.index()
            await index.follow()
            news = self._news
            # At most once over the table, whatever the counters say.
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
        """Do one step over entries before ``end``; return whether there may be more."""
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
