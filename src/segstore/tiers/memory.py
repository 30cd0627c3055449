"""Tiers in memory, for tests and to measure the cost of the rest of the segment store.

Owns: ``MemoryDataLogFactory`` (tier 1) and ``MemoryChunkStorage`` (tier 2). Both keep their content
when containers close, and lose it when the process ends.

Invariants:
1. When ``drop_unacknowledged`` simulates a crash, queued entries are lost, and their completions
   are never called. Held by ``test_a_crash_drops_what_was_not_acknowledged``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import trio

from segstore.errors import (
    ChunkNotFoundError,
    DataLogError,
    InvalidChunkOffsetError,
    StorageFullError,
)
from segstore.tiers.api import (
    IN_FLIGHT_BYTES_MAX,
    LOG_ENTRY_BYTES_MAX,
    Buffer,
    Check,
    ChunkInfo,
    DigestedEntry,
    LogAddress,
    LogEntry,
    LogPart,
    OnDurable,
)


@dataclass(slots=True)
class _StoredLog:
    """The part of one container's log that survives its owner."""

    epoch: int = 0
    next_position: int = 1
    entries: deque[LogEntry] = field(default_factory=deque)


@dataclass(slots=True)
class _Queued:
    log: MemoryDataLog
    entry: LogEntry
    refused: bool
    on_durable: OnDurable


class MemoryDataLogFactory:
    """Opens in-memory logs; opening one again fences its earlier owner."""

    def __init__(self) -> None:
        self._stored: dict[int, _StoredLog] = {}
        self._queue: deque[_Queued] = deque()
        self._flush_scheduled = False

    async def last_epoch(self, container_id: int) -> int:
        """See ``DurableDataLogFactory``."""
        stored = self._stored.get(container_id)
        return 0 if stored is None else stored.epoch

    async def open_log(self, container_id: int) -> MemoryDataLog:
        """Open the log of a container, creating it at first, and fence any earlier owner."""
        await trio.lowlevel.checkpoint()
        stored = self._stored.setdefault(container_id, _StoredLog())
        stored.epoch += 1
        return MemoryDataLog(self, stored)

    def drop_unacknowledged(self) -> None:
        """Simulate a crash: forget the queued entries and fence every open log."""
        self._queue.clear()
        for stored in self._stored.values():
            stored.epoch += 1

    def _enqueue(self, queued: _Queued) -> None:
        self._queue.append(queued)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            trio.lowlevel.current_trio_token().run_sync_soon(self._flush)

    def _flush(self) -> None:
        """Store the entries that are queued now, and call their completions."""
        self._flush_scheduled = False
        for _ in range(len(self._queue)):
            if not self._queue:  # a completion has called ``drop_unacknowledged``
                return
            queued = self._queue.popleft()
            queued.on_durable(queued.log._store(queued))


class MemoryDataLog:
    """One container's log in memory."""

    def __init__(self, factory: MemoryDataLogFactory, stored: _StoredLog) -> None:
        self._factory = factory
        self._stored = stored
        self._epoch = stored.epoch
        self._next_position = stored.next_position
        self._bytes = sum(len(entry.data) for entry in stored.entries)
        self._queued_count = 0
        self._closed = False
        self._idle = trio.Event()
        self._idle.set()

    @property
    def epoch(self) -> int:
        """Return the epoch under which this owner appends."""
        return self._epoch

    @property
    def bytes_since_truncation(self) -> int:
        """Return the number of bytes of all stored entries."""
        return self._bytes

    @property
    def overlapping_entries(self) -> int:
        """Return 1: all queued entries are stored at once."""
        return 1

    @property
    def in_flight_bytes_max(self) -> int:
        """Return the maximum of any log: entries are stored in the next round of the event loop."""
        return IN_FLIGHT_BYTES_MAX

    @property
    def held_bytes(self) -> int:
        """Return the bytes since the truncation: logs share no memory."""
        return self._bytes

    @property
    def delay_reason(self) -> str | None:
        """Return None: nothing delays entries."""
        return None

    @property
    def owner_proof(self) -> None:
        """Return None: its owner is in this process."""
        return None

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """Yield the stored entries in order."""
        for entry in list(self._stored.entries):
            await trio.lowlevel.checkpoint()
            yield entry

    async def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """Yield the stored entries themselves: they are in memory, so digests would save
        nothing."""
        async with aclosing(self.read()) as entries:
            async for entry in entries:
                yield [DigestedEntry(entry.address, None, entry.data)]

    async def read_entry(self, address: LogAddress) -> bytes:
        """Return one stored entry."""
        await trio.lowlevel.checkpoint()
        return self._entry(address.position)

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """Return parts of stored entries."""
        await trio.lowlevel.checkpoint()
        return [self._entry(part.position)[part.start :][: part.length] for part in parts]

    def _entry(self, position: int) -> bytes:
        entries = self._stored.entries
        place = position - entries[0].address.position if entries else -1
        if not 0 <= place < len(entries):
            raise DataLogError(f"the log has no entry {position}")
        return entries[place].data

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        """Queue one entry; it completes in the event loop's next round."""
        data = b"".join(parts)
        assert len(data) <= LOG_ENTRY_BYTES_MAX, f"a log entry of {len(data)} bytes is too long"
        address = LogAddress(self._next_position)
        if not self._closed:
            self._next_position += 1
        self._queued_count += 1
        if self._idle.is_set():
            self._idle = trio.Event()
        self._factory._enqueue(_Queued(self, LogEntry(address, data), self._closed, on_durable))
        return address

    async def truncate(self, address: LogAddress) -> None:
        """Drop the entries before ``address``."""
        await trio.lowlevel.checkpoint()
        if self._stored.epoch != self._epoch:
            return
        entries = self._stored.entries
        while entries and entries[0].address < address:
            self._bytes -= len(entries.popleft().data)

    async def aclose(self) -> None:
        """Refuse further entries, and wait until the queued ones are stored."""
        self._closed = True
        if self._stored.epoch == self._epoch:
            await self._idle.wait()
        else:
            await trio.lowlevel.checkpoint()

    def _store(self, queued: _Queued) -> DataLogError | None:
        """Store a queued entry; return the error if that is not possible."""
        self._queued_count -= 1
        if self._queued_count == 0:
            self._idle.set()
        if queued.refused:
            return DataLogError("the log is closed")
        if self._stored.epoch != self._epoch:
            return DataLogError(f"the log was opened again: epoch {self._epoch} is fenced")
        self._stored.entries.append(queued.entry)
        self._stored.next_position += 1
        self._bytes += len(queued.entry.data)
        return None


class MemoryChunkStorage:
    """Chunks as byte arrays in a dictionary, ``contents``, in which tests damage them.

    With ``capacity_bytes``, writes fail when the chunks and the bytes that ``other_bytes`` returns
    would exceed it.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.contents: dict[str, bytearray] = {}
        self.capacity_bytes = capacity_bytes
        self.other_bytes: Callable[[], int] = lambda: 0
        self.refused_count = 0

    @property
    def used_bytes(self) -> int:
        """Return the length of all chunks together."""
        return sum(map(len, self.contents.values()))

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write ``data`` at ``offset``; see ``ChunkStorage.write``."""
        await trio.lowlevel.checkpoint()
        chunk = self.contents.get(name)
        if chunk is None and offset != 0:
            raise ChunkNotFoundError(f"there is no chunk {name}")
        length = 0 if chunk is None else len(chunk)
        if not 0 <= offset <= length:
            raise InvalidChunkOffsetError(f"chunk {name} has {length} bytes, not {offset}")
        joined = b"".join(data)
        self._refuse_too_many(max(0, offset + len(joined) - length))
        if chunk is None:
            chunk = self.contents[name] = bytearray()
        if meanwhile is not None:
            meanwhile()
        chunk[offset : offset + len(joined)] = joined

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> bytes:
        """Read exactly ``length`` bytes."""
        await trio.lowlevel.checkpoint()
        chunk = self._existing(name)
        if offset < 0 or length < 0 or offset + length > len(chunk):
            raise InvalidChunkOffsetError(
                f"chunk {name} has {len(chunk)} bytes: it has no range {offset}+{length}"
            )
        data = bytes(memoryview(chunk)[offset : offset + length])
        if check is not None:
            check(data)
        return data

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length."""
        await trio.lowlevel.checkpoint()
        return ChunkInfo(name, len(self._existing(name)))

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return chunks' lengths."""
        await trio.lowlevel.checkpoint()
        chunks = self.contents
        return [len(chunks[name]) if name in chunks else None for name in names]

    async def delete(self, name: str) -> None:
        """Forget a chunk."""
        await trio.lowlevel.checkpoint()
        self.contents.pop(name, None)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List chunks by prefix, sorted by name."""
        await trio.lowlevel.checkpoint()
        names = sorted(name for name in self.contents if name.startswith(prefix))
        return [ChunkInfo(name, len(self.contents[name])) for name in names]

    def _refuse_too_many(self, added_bytes: int) -> None:
        if self.capacity_bytes is not None and added_bytes:
            free_bytes = self.capacity_bytes - self.used_bytes - self.other_bytes()
            if added_bytes > free_bytes:
                self.refused_count += 1
                raise StorageFullError(f"there is no room for {added_bytes} bytes: {free_bytes}")

    def _existing(self, name: str) -> bytearray:
        chunk = self.contents.get(name)
        if chunk is None:
            raise ChunkNotFoundError(f"there is no chunk {name}")
        return chunk
