"""The interfaces of tier 1 (a durable log) and of tier 2 (a chunk store).

Owns: the ``DurableDataLog`` and ``ChunkStorage`` protocols. Vendors live beside this module; one
behaviour suite per protocol runs over all of them.

Invariants:
1. A log entry is durable exactly when its ``on_durable(None)`` is called, and completions come in
   append order: when one entry is durable, so is every entry appended before it.
2. After a failed append every later append of that log fails too; only opening it again tells
   what was stored. A vendor never tries a failed write or sync again.
3. A chunk operation that returned is durable, and so is what ``info`` and ``list_chunks`` report.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from segstore.errors import DataLogError

Buffer = bytes | bytearray | memoryview

LOG_ENTRY_BYTES_MAX = 1024 * 1024 - 1024
"""Longest log entry in bytes; the original's limit for one BookKeeper entry."""

Check = Callable[[Buffer], None]
"""Raises an error when read bytes differ from what they should be."""

OnDurable = Callable[[DataLogError | None], None]


@dataclass(frozen=True, slots=True, order=True)
class LogAddress:
    """The place of an entry in one container's log. Positions grow with every append, and never
    repeat."""

    position: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry as read back: exactly the bytes that were appended."""

    address: LogAddress
    data: bytes


@dataclass(frozen=True, slots=True)
class DigestedEntry:
    """An entry as a recovery sees it first: its digest, or else its bytes."""

    address: LogAddress
    digest: bytes | None
    data: bytes


class LogPart(NamedTuple):
    """``length`` bytes from ``start`` on of the log entry at ``position``."""

    position: int
    start: int
    length: int


class DurableDataLog(Protocol):
    """One container's log in tier 1. Opened by a ``DurableDataLogFactory``, used by one owner."""

    @property
    def epoch(self) -> int:
        """Return the epoch, which grows durably each time the log is opened; earlier owners are
        fenced."""
        ...

    @property
    def bytes_since_truncation(self) -> int:
        """Return how many bytes a recovery would read now; feeds checkpoints and throttling."""
        ...

    @property
    def overlapping_entries(self) -> int:
        """Return how many entries are best on their way at the same time, to be durable soonest.

        1 where the log writes one batch after another, and what comes meanwhile waits anyway.
        """
        ...

    @property
    def held_bytes(self) -> int:
        """Return how much of tier 1 cannot be freed before this log is truncated; at least its own
        bytes.

        Logs share files: the few entries of a quiet container hold the files of busy ones.
        """
        ...

    def read(self) -> AsyncGenerator[LogEntry, None]:
        """Yield every durable entry from the truncation point on, in order.

        Only before the first append. Who does not read to the end closes the generator. Raises
        ``DataLogCorruptError`` for damage that is not a torn tail.
        """
        ...

    def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """Yield the entries like ``read``, many at a time, with their digests where the log has
        them."""
        ...

    async def read_entry(self, address: LogAddress) -> bytes:
        """Read one entry that was there when the log was opened and was not truncated since.

        Raises ``DataLogError`` when it cannot be read.
        """
        ...

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """Read parts of entries, given in log order. The caller checks the bytes.

        Raises ``DataLogError`` when they cannot be read.
        """
        ...

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        """Queue one entry, the concatenation of ``parts``, at most ``LOG_ENTRY_BYTES_MAX`` bytes.

        The buffers belong to the log until ``on_durable`` is called, in the event loop's thread,
        with ``None`` or with the error, and never within this call. When there is no room the call
        is simply late: whoever appends bounds what is outstanding.
        """
        ...

    async def truncate(self, address: LogAddress) -> None:
        """Allow entries before ``address`` to be dropped; ``address`` itself stays readable.

        May return before space is free. After a crash the truncation may be forgotten, never torn.
        """
        ...

    async def aclose(self) -> None:
        """Release the log after the queued entries are durable. Idempotent."""
        ...


class DurableDataLogFactory(Protocol):
    """Opens the logs of containers; the local journal shares one fsync among all of them."""

    async def last_epoch(self, container_id: int) -> int:
        """Return the epoch under which the container's log was opened last; 0 if it never was.

        A later one may be told, under which no owner has begun. Raises ``DataLogError``.
        """
        ...

    async def open_log(self, container_id: int) -> DurableDataLog:
        """Open (creating it at first) the log of a container and fence any earlier owner."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """A chunk's name and its length in bytes."""

    name: str
    length: int


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Bytes of a chunk as others find them: in a file below the directory, or in an object."""

    start: int
    """The offset in the chunk."""
    length: int
    path: str
    offset: int = 0
    """The offset in the file or object."""


class ChunkStorage(Protocol):
    """Tier 2's vendor interface: named byte sequences. Names are segment names plus a suffix."""

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write ``data`` at ``offset`` of the chunk, durable on return.

        ``meanwhile`` is called once before that, and may be when the write fails: in the thread
        that writes, if there is one and there is much to write.

        ``offset`` 0 creates the chunk if it is missing; any other must lie within the chunk or at
        its end (else ``InvalidChunkOffsetError``, or ``ChunkNotFoundError``). Writing bytes again
        over themselves is allowed: a writer that crashed repeats its last write.
        """
        ...

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        """Read exactly ``length`` bytes, or raise ``InvalidChunkOffsetError``.

        ``check`` gets them first, in the thread that read them if there is one, and may raise. They
        do not change any more; as long as a view of them exists, memory is held for them.
        """
        ...

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length. Raises ``ChunkNotFoundError``."""
        ...

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return the lengths of chunks in the order of the names; None for a missing chunk.

        This is for the search for damage: unlike the lengths of ``info``, these need not be
        durable.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete a chunk; deleting a missing one is fine."""
        ...

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List the chunks whose names start with ``prefix``, sorted by name."""
        ...
