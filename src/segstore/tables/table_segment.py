"""One table segment: its index, its queue of updates, its reads.

Owns: how updates become durable and visible, how the index comes to be, and compaction.

Invariants:
1. At most one append of a table is in flight; what arrives meanwhile goes into the next.
2. The index shows durable entries only. It is dropped when an append fails, since nobody knows what
   of it was stored, and is built from the segment again before anything else happens.
3. A compaction first makes copies of the live entries at the head durable, then truncates the head:
   whatever a crash leaves, every live entry is in the segment, and the newest by offset counts.
4. Updates have no task of their own: completions start the next append. A cancelled caller abandons
   its answer, never the update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from segstore.api import SegmentContainer, SegmentInfo
from segstore.attributes.updates import ATTRIBUTE_ID_LENGTH, SegmentType
from segstore.config import TableSettings
from segstore.errors import (
    BadOffsetError,
    ContainerOfflineError,
    InvalidRequestError,
    SegmentStoreError,
    SegmentTruncatedError,
    TableNotEmptyError,
)
from segstore.tables.entries import StoredEntry
from segstore.tables.entry_reader import EntryReader
from segstore.tables.index import HashKey, Located, TableIndex
from segstore.tables.updates import CompactionCopy, Turn, UpdateBatch, Waiting

_ATTEMPTS_MAX: Final = 3


def is_fixed_key_table(info: SegmentInfo) -> bool:
    """Tell the layout of a table segment; raises ``InvalidRequestError`` for any other segment."""
    if not info.segment_type & SegmentType.TABLE:
        raise InvalidRequestError(info.name, f"{info.name} is not a table segment")
    return info.segment_type & SegmentType.FIXED_KEY_TABLE == SegmentType.FIXED_KEY_TABLE


class TableSegment:
    """See the module. ``on_durable`` is called after every append that became durable."""

    def __init__(
        self,
        name: str,
        container: SegmentContainer,
        settings: TableSettings,
        *,
        hash_key: HashKey,
        on_durable: Callable[[TableSegment], None],
    ) -> None:
        self.name = name
        self._container = container
        self._settings = settings
        self._hash_key = hash_key
        self._on_durable = on_durable
        self._index: TableIndex | None = None
        self._loading: trio.Event | None = None
        self._queue: deque[Waiting] = deque()
        self._in_flight: UpdateBatch | None = None
        self._turn: Waiting | None = None
        self._compacting = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, in flight or being loaded."""
        return not (self._queue or self._in_flight or self._loading or self._turn)

    @property
    def memory_bytes(self) -> int:
        """About how much memory the index takes."""
        return 0 if self._index is None else self._index.memory_bytes

    def drop_index(self) -> None:
        """Forget the index; the next use builds it again."""
        self._index = None

    async def index(self) -> TableIndex:
        """The index, built now if it is not there. Valid until the next await."""
        while self._index is None:
            if self._loading is not None:
                await self._loading.wait()
                continue
            self._loading = trio.Event()
            try:
                self._index = await self._build_index()
            finally:
                self._loading.set()
                self._loading = None
        return self._index

    async def _build_index(self) -> TableIndex:
        # What is in flight (of an index dropped before) must be settled before the bytes are read.
        await self._container.wait_in_flight(self.name)
        info = self._container.segment_info(self.name)
        key_length = 0
        if is_fixed_key_table(info):
            attributes = await self._container.get_attributes(self.name, [ATTRIBUTE_ID_LENGTH])
            key_length = attributes.get(ATTRIBUTE_ID_LENGTH, 0)
        index = TableIndex(
            key_length=key_length,
            start_offset=info.start_offset,
            kept_value_bytes_max=self._settings.kept_value_bytes_max,
            hash_key=self._hash_key,
        )
        reader = self.reader(start=info.start_offset, end=info.length)
        while entries := await reader.read():
            for entry in entries:
                index.apply(entry)
        return index

    def reader(self, *, start: int, end: int) -> EntryReader:
        """Reads the entries from ``start`` to ``end``, both at a border of entries."""
        read_bytes = self._settings.read_bytes
        return EntryReader(self._container, self.name, start=start, end=end, read_bytes=read_bytes)

    # ---- Updates ---------------------------------------------------------------------------------

    async def submit(self, make: Callable[[TableIndex], Waiting]) -> Waiting:
        """Queue what ``make`` makes, wait until it is durable or refused, and return it."""
        for _ in range(_ATTEMPTS_MAX):
            member = make(await self.index())
            self._queue.append(member)
            self._start_batches()
            await member.wait()
            if not member.retry:
                return member
        assert member.error is not None
        raise member.error

    def _start_batches(self) -> None:
        """Put what waits into an append, unless one is in flight."""
        while self._queue and self._in_flight is None and self._turn is None:
            if self._index is None:
                # Those who wait come back with a new index.
                queue, self._queue = self._queue, deque()
                for member in queue:
                    member.settle(ContainerOfflineError("the table's index was lost"), retry=True)
                return
            if isinstance(self._queue[0], Turn):
                self._turn = self._queue.popleft()
                self._turn.settle(None)
                continue
            batch = self._next_batch(self._index)
            if batch.parts:
                self._in_flight = batch
                self._container.append_nowait(
                    self.name,
                    b"".join(batch.parts),
                    expected_offset=batch.start,
                    on_complete=self._complete,
                )
            else:
                for member in batch.members:
                    member.settle(None)

    def _next_batch(self, index: TableIndex) -> UpdateBatch:
        batch = UpdateBatch(index)
        room = self._settings.append_bytes_max
        while self._queue and not isinstance(self._queue[0], Turn):
            if batch.members and self._queue[0].encoded_bytes_max > room:
                break
            room -= self._queue[0].encoded_bytes_max
            batch.add(self._queue.popleft())
        return batch

    def _complete(self, error: SegmentStoreError | None, length: int) -> None:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        if error is None:
            assert length == batch.length
            batch.commit()
        else:
            self.drop_index()
        # Somebody else's append made the expected offset wrong: decide again with a new index.
        retry = isinstance(error, BadOffsetError)
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
            if len(await self.index()):
                raise TableNotEmptyError(self.name)
            await self._container.delete_segment(self.name)
        finally:
            for turn in turns:
                self._give_back(turn)

    def _give_back(self, turn: Turn) -> None:
        if self._turn is turn:
            self._turn = None
            self._start_batches()
        elif turn in self._queue:
            self._queue.remove(turn)

    # ---- Reads -----------------------------------------------------------------------------------

    async def read_value(self, key: bytes, located: Located) -> tuple[int, bytes] | None:
        """The version and value of an entry; those of a newer one if a compaction moved it."""
        current: Located | None = located
        while current is not None:
            if current.value is not None:
                return current.version, current.value
            try:
                entry = await self._read_entry(current)
            except SegmentTruncatedError:
                before, current = current, (await self.index()).get(key)
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

    # ---- Compaction ------------------------------------------------------------------------------

    def wants_compaction(self) -> bool:
        """Whether too little of the segment is live."""
        index = self._index
        if index is None:
            return False
        used = index.length - self._container.segment_info(self.name).start_offset
        percent_min = self._settings.compaction_utilization_percent_min
        return used >= self._settings.compaction_bytes_min and (
            100 * index.live_bytes < percent_min * used
        )

    async def compact(self) -> None:
        """Rewrite the live entries at the head and cut it off, until enough bytes are live."""
        if self._compacting:
            return
        self._compacting = True
        try:
            await self.index()
            while self.wants_compaction():
                await self._compact_head()
        finally:
            self._compacting = False

    async def _compact_head(self) -> None:
        index = await self.index()
        start = self._container.segment_info(self.name).start_offset
        end = start
        live: list[StoredEntry] = []
        reader = self.reader(start=start, end=index.length)
        while end - start < self._settings.compaction_step_bytes:
            entries = await reader.read()
            if not entries:
                break
            end = entries[-1].offset + entries[-1].length
            for entry in entries:
                located = index.get(entry.key)
                if located is not None and located.offset == entry.offset:
                    live.append(entry)
        await self.submit(lambda _: CompactionCopy(live))
        await self._container.truncate_segment(self.name, offset=end)
