"""Declares the interfaces of tier 1 (a durable log) and of tier 2 (a chunk store).

Owns: the ``DurableDataLog`` and ``ChunkStorage`` protocols. The
implementations are in this folder; all of one protocol pass the same tests.

Invariants:
1. When an entry is durable, so is every entry appended before it to the same log: completions come
   in append order. Held by ``test_completions_come_in_append_order_and_not_within_the_append``.
2. When an owner appends after another owner opened the log, the append fails and is never stored.
   Held by ``test_an_earlier_owner_is_fenced``.
3. When an append failed, each later append to that log fails, too, and nothing is written again;
   only opening the log again shows which entries were stored. Held by
   ``test_the_journal_fails_for_ever_after_an_error`` and
   ``test_a_lost_ledger_fails_all_that_waits_in_order``.
4. When a process crashes, all entries that were acknowledged are read back after it. Held by
   ``test_a_crash_at_any_point_loses_nothing_acknowledged``.
5. When ``info`` or ``list_chunks`` reports bytes that another process wrote, these are synced
   first. Held by ``test_what_another_process_left_is_synced_before_it_is_counted``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from segstore.errors import DataLogError

Buffer = bytes | bytearray | memoryview

LOG_ENTRY_BYTES_MAX = 1024 * 1024 - 1024
"""Maximum length of a log entry, in bytes; Pravega's limit for one BookKeeper entry."""
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
"""Maximum number of bytes of a container's entries that are not durable yet."""

Check = Callable[[Buffer], None]
"""Raises an error when the bytes that were read are damaged."""

OnDurable = Callable[[DataLogError | None], None]


@dataclass(frozen=True, slots=True, order=True)
class LogAddress:
    """The place of an entry in one container's log. Each append gets a higher position; a position
    is never used twice."""

    position: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry that was read: its address and exactly the bytes that were appended."""

    address: LogAddress
    data: bytes


@dataclass(frozen=True, slots=True)
class DigestedEntry:
    """An entry during a recovery. Either ``digest`` has what the recovery needs of it, and ``data``
    is empty, or ``digest`` is None and ``data`` has the bytes."""

    address: LogAddress
    digest: bytes | None
    data: bytes


class LogPart(NamedTuple):
    """``length`` bytes of the log entry at ``position``, beginning ``start`` bytes after its first
    byte."""

    position: int
    start: int
    length: int


class OwnerProof(Protocol):
    """The means by which the owner of a log knows that no other process has opened it."""

    @property
    def owned_at(self) -> float:
        """Return the last time, by the event loop's clock, at which it was certain that no other
        process had opened the log."""
        ...

    async def prove_owner(self) -> bool:
        """Look whether anybody has; return whether that can be seen, else ``owned_at`` stays.

        Raises ``DataLogError`` when another owner has: then the log has failed.
        """
        ...


class DurableDataLog(Protocol):
    """One container's log in tier 1, which a ``DurableDataLogFactory`` opens for one owner."""

    @property
    def epoch(self) -> int:
        """Return the epoch. Each opening of the log stores a higher one, and owners with a lower
        one are fenced: their appends fail."""
        ...

    @property
    def bytes_since_truncation(self) -> int:
        """Return how many bytes a recovery would read now. Checkpoints and the throttling of
        writers depend on it."""
        ...

    @property
    def overlapping_entries(self) -> int:
        """Return how many entries should be appended before the first of them is durable.

        This is 1 where the log writes one batch after another: further entries would only wait.
        """
        ...

    @property
    def in_flight_bytes_max(self) -> int:
        """Return how many bytes may be appended and not yet durable; with more, the next entry has
        to wait."""
        ...

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of tier 1 cannot be freed until this log is truncated. These are
        more than the bytes of the log itself where logs share files: an old entry of an idle
        container keeps a file that is full of other containers' entries."""
        ...

    @property
    def delay_reason(self) -> str | None:
        """Return a sentence that says why entries do not become durable now, such as a full disk,
        or None."""
        ...

    @property
    def owner_proof(self) -> OwnerProof | None:
        """Return the proof that no other process has opened the log; None when none can, because
        this process has locked it."""
        ...

    def read(self) -> AsyncGenerator[LogEntry, None]:
        """Yield every durable entry from the truncation point on, in order.

        Call this only before the first append. A caller that stops before the end closes the
        generator. Raises ``DataLogCorruptError`` for damage, but not for a last write that a crash
        interrupted.
        """
        ...

    def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """Yield the entries like ``read``, in batches, each as a digest where the log has one."""
        ...

    async def read_entry(self, address: LogAddress) -> bytes:
        """Read one entry that was stored when the log was opened, and that was not truncated since.

        Raises ``DataLogError`` when it cannot be read.
        """
        ...

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """Read parts of entries; ``parts`` are in log order. The caller checks the bytes.

        Raises ``DataLogError`` when they cannot be read.
        """
        ...

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        """Queue one entry, the concatenation of ``parts``, at most ``LOG_ENTRY_BYTES_MAX`` bytes.

        The log reads the buffers until it calls ``on_durable`` with None or with the error. The
        call comes in the event loop's thread and never before ``append_nowait`` returns. This
        accepts any number of entries: callers limit how many bytes they append before earlier ones
        are durable.
        """
        ...

    async def truncate(self, address: LogAddress) -> None:
        """Allow the log to drop the entries before ``address``; the entry at ``address`` stays
        readable.

        This may return before space is free. After a crash the log begins either at the old or at
        the new truncation point.
        """
        ...

    async def aclose(self) -> None:
        """Wait until the queued entries are durable, then release the log. Idempotent."""
        ...


class DurableDataLogFactory(Protocol):
    """Opens the logs of containers."""

    async def last_epoch(self, container_id: int) -> int:
        """Return the epoch of the last opening of the container's log; 0 if it was never opened.

        The result may be higher, if an opening failed after it had stored its epoch. Raises
        ``DataLogError``.
        """
        ...

    async def open_log(self, container_id: int) -> DurableDataLog:
        """Open the log of a container, or create it, and fence the earlier owner."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """A chunk's name and its length in bytes."""

    name: str
    length: int


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A range of a chunk's bytes, and the file (relative to the root directory) or object with
    them. Other programs read history by this."""

    start: int
    """The offset of the range in the chunk, in bytes."""
    length: int
    path: str
    offset: int = 0
    """The offset of the range in the file or object, in bytes."""


class ChunkStorage(Protocol):
    """The interface of a tier 2: named byte sequences. A chunk's name is the name of its segment
    with a suffix."""

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write ``data`` at ``offset`` of the chunk. It is durable when the call returns.

        ``meanwhile`` is called exactly once before the data is durable, unless the write fails
        first. Long writes call it in the thread that writes, if the vendor uses threads.

        With ``offset`` 0, a missing chunk is created. Any other offset must lie within the chunk or
        at its end, else this raises ``InvalidChunkOffsetError``, or ``ChunkNotFoundError``. A write
        may overwrite bytes with the same bytes: a writer repeats its last write after a crash.
        """
        ...

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        """Read exactly ``length`` bytes, or raise ``InvalidChunkOffsetError``.

        ``check`` is called with the bytes before they are returned and may raise; it runs in the
        thread that read them, if there is one. The bytes never change afterwards. A view of them
        keeps their whole buffer in memory.
        """
        ...

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length. Raises ``ChunkNotFoundError``."""
        ...

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return the lengths of chunks in the order of the names; None for a missing chunk.

        The search for damage uses this: the lengths need not be durable, unlike those of ``info``.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete a chunk. A missing chunk is not an error."""
        ...

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List the chunks whose names start with ``prefix``, sorted by name."""
        ...
