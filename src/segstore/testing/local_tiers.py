"""Real tiers in a directory, and what passes between them and a container.

Owns: ``LocalTiers``, a journal and a file system chunk storage that tests look into, in one life of
a container after another.

Invariants:
1. What is observed is what the tiers were asked for, in that order; they do the work themselves.
2. Nothing is delayed or refused unless the test says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import trio

from _fast.cache.streaming_cache import StreamingCache
from _fast.log.data_frame import FrameReader
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container, open_container
from segstore.errors import DataLogError, StorageError
from segstore.model.operations import Operation, decode_operation
from segstore.process.tier_two import EpochRecordingLogs
from segstore.throttling.throttle import ThrottlePolicy
from segstore.tiers.api import (
    Buffer,
    Check,
    ChunkInfo,
    ChunkStorage,
    DigestedEntry,
    DurableDataLog,
    DurableDataLogFactory,
    LogAddress,
    LogEntry,
    LogPart,
    OnDurable,
)
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.journal import JournalSettings, open_journal
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY, FlushPolicy

MIB = 1024 * 1024


@dataclass(slots=True)
class ObservedEntry:
    """An entry that a container gave to its log. ``durable`` is when the log has said so."""

    address: LogAddress
    data: bytes
    durable: bool = False

    @property
    def operations(self) -> list[Operation]:
        """Return the operations in it, when it has whole ones."""
        return operations_in([self.data])


class ObservedLog:
    """A log, and what was asked of it. While ``holding``, it says nothing of what is durable; when
    ``failing``, it stores nothing any more."""

    def __init__(self, log: DurableDataLog) -> None:
        self._log = log
        self._held: list[Callable[[], None]] = []
        self.entries: list[ObservedEntry] = []
        self.truncations: list[LogAddress] = []
        self.read_entries: list[bytes] = []
        self.read_count = 0
        self.holding = False
        self.failing = False

    @property
    def epoch(self) -> int:
        """See ``DurableDataLog``."""
        return self._log.epoch

    @property
    def bytes_since_truncation(self) -> int:
        """See ``DurableDataLog``."""
        return self._log.bytes_since_truncation

    @property
    def overlapping_entries(self) -> int:
        """See ``DurableDataLog``."""
        return self._log.overlapping_entries

    @property
    def held_bytes(self) -> int:
        """See ``DurableDataLog``."""
        return self._log.held_bytes

    @property
    def operations(self) -> list[Operation]:
        """Return the operations in what was appended, in that order."""
        return operations_in([entry.data for entry in self.entries])

    @property
    def read_operations(self) -> list[Operation]:
        """Return the operations in what a recovery has read."""
        return operations_in(self.read_entries)

    @property
    def held_count(self) -> int:
        """Return how many entries are durable but not completed."""
        return len(self._held)

    def release(self, count: int | None = None) -> None:
        """Complete what has become durable meanwhile: the first ``count`` entries, or all."""
        held, self._held = self._held[:count], [] if count is None else self._held[count:]
        self.holding = bool(self._held)
        for tell in held:
            tell()

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """See ``DurableDataLog``."""
        async with aclosing(self._log.read()) as found:
            async for entry in found:
                self.read_entries.append(entry.data)
                yield entry

    async def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """See ``DurableDataLog``."""
        async with aclosing(self._log.read_digests()) as found:
            async for entries in found:
                for entry in entries:
                    data = entry.data or await self._log.read_entry(entry.address)
                    self.read_entries.append(data)
                yield entries

    async def read_entry(self, address: LogAddress) -> bytes:
        """See ``DurableDataLog``."""
        self.read_count += 1
        return await self._log.read_entry(address)

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """See ``DurableDataLog``."""
        self.read_count += len(parts)
        return await self._log.read_parts(parts)

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        """See ``DurableDataLog``."""

        def tell(error: DataLogError | None) -> None:
            entry.durable = error is None
            on_durable(error)

        def note(error: DataLogError | None) -> None:
            if self.holding:
                self._held.append(lambda: tell(error))
            else:
                tell(error)

        data = b"".join(parts)
        if self.failing:
            error = DataLogError("injected: the log has failed")
            trio.lowlevel.current_trio_token().run_sync_soon(on_durable, error)
            return LogAddress(self.entries[-1].address.position + 1)
        address = self._log.append_nowait(parts, note)
        entry = ObservedEntry(address, data)
        self.entries.append(entry)
        return address

    async def truncate(self, address: LogAddress) -> None:
        """See ``DurableDataLog``."""
        self.truncations.append(address)
        await self._log.truncate(address)

    async def aclose(self) -> None:
        """See ``DurableDataLog``."""
        self.release()
        await self._log.aclose()


class ObservedLogs:
    """Opens observed logs. ``log`` is the one that was opened last, ``opened`` has all of them."""

    def __init__(self, logs: DurableDataLogFactory) -> None:
        self._logs = logs
        self.log: ObservedLog
        self.opened: dict[int, list[ObservedLog]] = {}

    async def last_epoch(self, container_id: int) -> int:
        """See ``DurableDataLogFactory``."""
        return await self._logs.last_epoch(container_id)

    async def open_log(self, container_id: int) -> ObservedLog:
        """See ``DurableDataLogFactory``."""
        self.log = ObservedLog(await self._logs.open_log(container_id))
        self.opened.setdefault(container_id, []).append(self.log)
        return self.log


@dataclass(frozen=True, slots=True)
class ChunkCall:
    """A call of tier 2 that was not refused."""

    kind: str
    name: str
    offset: int = 0
    length: int = 0


class ObservedChunks:
    """A chunk storage, and what was asked of it. Calls whose kind is in ``refused`` fail."""

    def __init__(self, chunks: ChunkStorage) -> None:
        self._chunks = chunks
        self.refused: set[str] = set()
        self.calls: list[ChunkCall] = []

    def count(self, kind: str) -> int:
        """Return how many calls of that kind there were for segments' bytes."""
        return len(self.calls_for(kind, ""))

    def calls_for(self, kind: str, segment: str) -> list[ChunkCall]:
        """Return the calls of that kind for chunks of a segment's bytes, or of all segments'."""
        return [
            call
            for call in self.calls
            if call.kind == kind and call.name.startswith(f"{segment}.S-" if segment else "")
            if not call.name.startswith("_system/chunks") and "$attributes" not in call.name
        ]

    def _begin(self, call: ChunkCall) -> None:
        if call.kind in self.refused:
            raise StorageError(f"refused: {call}")
        self.calls.append(call)

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """See ``ChunkStorage``."""
        self._begin(ChunkCall("write", name, offset, sum(map(len, data))))
        await self._chunks.write(name, offset=offset, data=data, meanwhile=meanwhile)

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        """See ``ChunkStorage``."""
        self._begin(ChunkCall("read", name, offset, length))
        return await self._chunks.read(name, offset=offset, length=length, check=check)

    async def info(self, name: str) -> ChunkInfo:
        """See ``ChunkStorage``."""
        self._begin(ChunkCall("info", name))
        return await self._chunks.info(name)

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """See ``ChunkStorage``."""
        self._begin(ChunkCall("lengths", f"{len(names)} chunks"))
        return await self._chunks.lengths(names)

    async def delete(self, name: str) -> None:
        """See ``ChunkStorage``."""
        self._begin(ChunkCall("delete", name))
        await self._chunks.delete(name)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """See ``ChunkStorage``."""
        self._begin(ChunkCall("list_chunks", prefix))
        return await self._chunks.list_chunks(prefix)


class LocalTiers:
    """Both tiers in ``path``; ``log``, ``chunks``, ``storage`` and ``cache`` are those of the
    container's present life, or of its last one. ``next_chunks`` stands in for the files."""

    def __init__(self, path: Path, next_chunks: ChunkStorage | None = None) -> None:
        self.path = path
        self._next_chunks = next_chunks
        self._logs: ObservedLogs
        self.chunks: ObservedChunks
        self.storage: ChunkedSegmentStorage
        self.cache: StreamingCache
        for name in ("journal", "chunks"):
            (path / name).mkdir(exist_ok=True)

    @property
    def log(self) -> ObservedLog:
        """Return what the container asked of its log."""
        return self._logs.log

    @asynccontextmanager
    async def container(
        self,
        *,
        crashes: bool = False,
        refused: Sequence[str] = (),
        cache_bytes: int = 32 * MIB,
        held_bytes_max: int = DEFAULT_FLUSH_POLICY.held_bytes_max,
        garbage_delay_seconds: float = 1.0,
        throttling: ThrottlePolicy | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> AsyncIterator[Container]:
        """Yield a container until the block ends. One that crashes writes nothing to tier 2 at its
        end."""
        settings = JournalSettings(file_bytes=2 * MIB)
        files = FilesystemChunkStorage(self.path / "chunks")
        self.cache = StreamingCache(cache_bytes)
        with closing(files):
            self.chunks = ObservedChunks(self._next_chunks or files)
            self.chunks.refused |= set(refused)
            async with open_journal(self.path / "journal", settings) as journal:
                logs = EpochRecordingLogs(observed := ObservedLogs(journal))
                self._logs = observed
                self.storage = ChunkedSegmentStorage(
                    self.chunks,
                    epoch=logs.epoch_now,
                    garbage_delay_seconds=garbage_delay_seconds,
                )
                logs.check_log = self.storage.check_log
                async with open_container(
                    0,
                    logs,
                    self.storage,
                    CacheManager(self.cache),
                    drain_seconds=0 if crashes else 600,
                    flush_policy=FlushPolicy(held_bytes_max=held_bytes_max),
                    throttling=throttling,
                    now_ms=now_ms,
                ) as container:
                    yield container

    async def stored(self, name: str) -> bytes:
        """Return the bytes that tier 2 has of a segment, from its start on; only one may have the
        name."""
        [storage_name] = [
            each
            for each in await self.storage.segment_names()
            if each.rpartition(".S-")[0] == name and "$" not in each
        ]
        chunks = await self.storage.chunks_of(storage_name)
        data = bytearray()
        while chunks and (offset := chunks[0].start + len(data)) < chunks[-1].end:
            data += await self.storage.read(storage_name, offset=offset, length=MIB)
        return bytes(data)


async def until(is_so: Callable[[], object]) -> None:
    """Return when it is so, however long a busy machine takes: a test's time is limited anyway."""
    while not is_so():  # noqa: ASYNC110 - what it waits for has no event
        await trio.sleep(0.5)


async def read_all(container: Container, name: str) -> bytes:
    """Return what readers see of a segment, from its start offset to its length."""
    info = container.segment_info(name)
    data = bytearray()
    while (offset := info.start_offset + len(data)) < info.length:
        data += (await container.read(name, offset=offset, length_max=MIB)).data
    return bytes(data)


def operations_in(entries: Sequence[bytes]) -> list[Operation]:
    """Return the operations in a log's entries, in order."""
    reader = FrameReader()
    return [
        decode_operation(record)
        for number, entry in enumerate(entries)
        for _, record in reader.feed(entry, number)
    ]
