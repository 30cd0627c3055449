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
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container, open_container
from segstore.errors import DataLogError, StorageError
from segstore.process.tier_two import EpochRecordingLogs
from segstore.tiers.api import (
    IN_FLIGHT_BYTES_MAX,
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
    OwnerProof,
)
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.journal import JournalSettings, open_journal

MIB = 1024 * 1024


class ObservedLog:
    """A log, and its entries' addresses. While ``holding``, it says nothing of what is durable;
    when ``failing``, it stores nothing any more."""

    def __init__(self, log: DurableDataLog) -> None:
        self._log = log
        self._held: list[Callable[[], None]] = []
        self.entries: list[LogAddress] = []
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
    def in_flight_bytes_max(self) -> int:
        """Return that of a log whose files are as long as usual: here they are short."""
        return IN_FLIGHT_BYTES_MAX

    @property
    def held_bytes(self) -> int:
        """See ``DurableDataLog``."""
        return self._log.held_bytes

    @property
    def delay_reason(self) -> str | None:
        """See ``DurableDataLog``."""
        return self._log.delay_reason

    @property
    def owner_proof(self) -> OwnerProof | None:
        """See ``DurableDataLog``."""
        return self._log.owner_proof

    @property
    def held_count(self) -> int:
        """Return how many entries are durable but not completed."""
        return len(self._held)

    def release(self) -> None:
        """Complete what has become durable meanwhile."""
        held, self._held = self._held, []
        self.holding = False
        for tell in held:
            tell()

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """See ``DurableDataLog``."""
        async with aclosing(self._log.read()) as found:
            async for entry in found:
                yield entry

    async def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """See ``DurableDataLog``."""
        async with aclosing(self._log.read_digests()) as found:
            async for entries in found:
                yield entries

    async def read_entry(self, address: LogAddress) -> bytes:
        """See ``DurableDataLog``."""
        return await self._log.read_entry(address)

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """See ``DurableDataLog``."""
        return await self._log.read_parts(parts)

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        """See ``DurableDataLog``."""

        def note(error: DataLogError | None) -> None:
            if self.holding:
                self._held.append(lambda: on_durable(error))
            else:
                on_durable(error)

        if self.failing:
            error = DataLogError("injected: the log has failed")
            trio.lowlevel.current_trio_token().run_sync_soon(on_durable, error)
            return LogAddress(self.entries[-1].position + 1)
        address = self._log.append_nowait(parts, note)
        self.entries.append(address)
        return address

    async def truncate(self, address: LogAddress) -> None:
        """See ``DurableDataLog``."""
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

    def calls_for(self, kind: str, segment: str) -> list[ChunkCall]:
        """Return the calls of that kind for chunks of a segment's bytes."""
        return [
            call
            for call in self.calls
            if call.kind == kind and call.name.startswith(f"{segment}.S-")
            if "$attributes" not in call.name
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
    """Both tiers in ``path``; ``log`` is that of the container's present life, or of its last one.
    ``next_chunks`` stands in for the files."""

    def __init__(self, path: Path, next_chunks: ChunkStorage | None = None) -> None:
        self.path = path
        self._next_chunks = next_chunks
        self._logs: ObservedLogs
        for name in ("journal", "chunks"):
            (path / name).mkdir(exist_ok=True)

    @property
    def log(self) -> ObservedLog:
        """Return the container's log."""
        return self._logs.log

    @asynccontextmanager
    async def container(self) -> AsyncIterator[Container]:
        """Yield a container until the block ends."""
        files = FilesystemChunkStorage(self.path / "chunks")
        settings = JournalSettings(file_bytes=2 * MIB)
        with closing(files):
            async with open_journal(self.path / "journal", settings) as journal:
                logs = EpochRecordingLogs(observed := ObservedLogs(journal))
                self._logs = observed
                storage = ChunkedSegmentStorage(
                    self._next_chunks or files, epoch=logs.epoch_now, garbage_delay_seconds=1.0
                )
                logs.check_log = storage.check_log
                manager = CacheManager(StreamingCache(32 * MIB))
                async with open_container(
                    0, logs, storage, manager, drain_seconds=600
                ) as container:
                    yield container


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
