"""Updates of one table, and the batch that makes several of them durable with one append.

Owns: the conditions of the table protocol, and the batch.

Invariants:
1. An update is decided against the committed index and all updates before it in its batch, without
   an await: its turn comes when the entries of its keys are known.
2. All entries of one update are in one append; so are all updates of a batch, in order.
3. No outcome is told, not even a refusal, before everything that it depends on is durable.
4. Conditions on keys are checked first: a missing key, then a wrong version; then the condition on
   the segment's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import trio

from pravega_wire.commands import NO_VERSION, NOT_EXISTS
from segstore.errors import (
    BadOffsetError,
    SegmentStoreError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from segstore.tables.entries import StoredEntry, encode_entry
from segstore.tables.known_entries import Located
from segstore.tables.table_index import TableIndex


class Change(NamedTuple):
    """One key of an update. ``value`` is None for a removal."""

    key: bytes
    version: int
    value: bytes | None


class Waiting:
    """Something that has its turn in a table's queue of updates, and its outcome.

    ``keys`` are pinned in the index while it waits; it is ready when they are known.
    """

    keys: Sequence[bytes] = ()

    @property
    def ordered_keys(self) -> Sequence[bytes] | None:
        """Return the keys whose other updates it may not overtake; None: it overtakes nothing at
        all."""
        return None

    def __init__(self) -> None:
        self._news = trio.Event()
        self.is_settled = False
        self.is_ready = True
        self.error: SegmentStoreError | None = None
        self.retry = False

    @property
    def encoded_bytes_max(self) -> int:
        """Return how many bytes it adds to an append at most."""
        return 0

    def prepare(self, batch: UpdateBatch) -> None:
        """Add the entries to the batch, or raise a ``SegmentError`` and add nothing."""

    def settle(self, error: SegmentStoreError | None, *, retry: bool = False) -> None:
        """Make the outcome known. A refusal noted by the batch stands unless there is an error."""
        self.error = error or self.error
        self.retry = retry
        self.is_settled = True
        self._news.set()

    def wake(self) -> None:
        """Wake the waiting caller: there may be something to do for this update."""
        self._news.set()

    async def wait_news(self) -> None:
        """Return when the outcome is known, or there may be something to do for it."""
        await self._news.wait()
        if not self.is_settled:
            self._news = trio.Event()

    def check(self) -> None:
        """Raise the error of the outcome, if there is one."""
        if self.error is not None and not self.retry:
            raise self.error


class UpdateBatch:
    """The effects of some updates on top of the committed index: offset and entry by key."""

    def __init__(self, index: TableIndex) -> None:
        self._index = index
        self.start = index.length
        self.length = index.length
        self.parts: list[bytes] = []
        self.changes: dict[bytes, tuple[int, Located | None]] = {}
        self.members: list[Waiting] = []
        self.has_news = False
        """True if something was written that is no copy."""

    def add(self, member: Waiting) -> None:
        """Run ``member`` in its turn; a refusal is kept until the batch is durable."""
        try:
            member.prepare(self)
        except SegmentStoreError as error:
            member.error = error
        self.members.append(member)

    def get(self, key: bytes) -> Located | None:
        """Return the entry of ``key``, which is known, after everything prepared so far."""
        change = self.changes.get(key)
        return self._index.get(key) if change is None else change[1]

    def write(
        self,
        key: bytes,
        value: bytes | None,
        encoded: bytes,
        *,
        version: int = NO_VERSION,
    ) -> int:
        """Write one entry, which is ``encoded`` like that; returns its version."""
        offset = self.length
        written = offset if version == NO_VERSION else version
        self.has_news |= version == NO_VERSION
        entry = StoredEntry(key, value, written, offset, len(encoded))
        self.changes[key] = offset, None if value is None else self._index.known.located(entry)
        self.parts.append(encoded)
        self.length += len(encoded)
        return written

    def commit(self) -> None:
        """Publish the durable append in the index."""
        self._index.write(
            ((key, *change) for key, change in self.changes.items()),
            length=self.length,
            count=len(self.parts),
        )


class TableUpdate(Waiting):
    """Updates or removals of keys, all or nothing. ``versions`` are those written."""

    def __init__(
        self,
        segment: str,
        changes: Sequence[Change],
        encoded: Sequence[bytes],
        *,
        segment_offset: int,
        encoded_bytes: int,
    ) -> None:
        super().__init__()
        self._segment = segment
        self._changes = changes
        self._encoded = encoded
        self._segment_offset = segment_offset
        self._encoded_bytes = encoded_bytes
        self.keys = [
            change.key for change in changes if change.version != NO_VERSION or change.value is None
        ]
        self.versions: list[int] = []

    @property
    def ordered_keys(self) -> Sequence[bytes] | None:
        if self._segment_offset >= 0:
            return None
        return [change.key for change in self._changes]

    @property
    def encoded_bytes_max(self) -> int:
        return self._encoded_bytes

    def prepare(self, batch: UpdateBatch) -> None:
        self._check_conditions(batch)
        for (key, _, value), encoded in zip(self._changes, self._encoded, strict=True):
            if value is not None:
                self.versions.append(batch.write(key, value, encoded))
            elif batch.get(key) is not None:
                batch.write(key, None, encoded)

    def _check_conditions(self, batch: UpdateBatch) -> None:
        wrong_version = False
        for key, version, _ in self._changes:
            if version == NO_VERSION:
                continue
            located = batch.get(key)
            if located is not None:
                wrong_version |= located.version != version
            elif version != NOT_EXISTS:
                raise TableKeyMissingError(self._segment)
        if wrong_version:
            raise TableKeyVersionError(self._segment)
        if 0 <= self._segment_offset != batch.length:
            raise BadOffsetError(self._segment, expected=self._segment_offset, actual=batch.length)


class CompactionCopy(Waiting):
    """Writes the live ones of ``entries`` again, with their versions."""

    def __init__(self, entries: Sequence[StoredEntry]) -> None:
        super().__init__()
        self._entries = entries
        self.keys = [entry.key for entry in entries]

    @property
    def ordered_keys(self) -> Sequence[bytes] | None:
        return self.keys

    @property
    def encoded_bytes_max(self) -> int:
        return sum(entry.length for entry in self._entries)

    def prepare(self, batch: UpdateBatch) -> None:
        for entry in self._entries:
            located = batch.get(entry.key)
            if located is not None and located.offset == entry.offset:
                encoded = encode_entry(entry.key, entry.value, version=entry.version)
                batch.write(entry.key, entry.value, encoded, version=entry.version)


class Turn(Waiting):
    """Stops the queue when everything before it is durable, until it is given back."""
