"""Updates of one table, and the batch that makes several of them durable with one append.

Owns: the conditions of the table protocol, and the batch.

Invariants:
1. The conditions of an update are checked against the committed index and the updates before it in
   the queue, durable or not. Held by ``test_an_update_is_judged_by_those_before_it_in_the_queue``.
2. After a crash, the table has all entries of an update or none: one append has them all. Held by
   ``TestTableMachine``.
3. When a refusal follows from an update that is not durable yet, the caller gets the refusal only
   when that update is durable. Held by
   ``test_a_refusal_that_rests_on_a_queued_update_waits_for_it``.
4. When several conditions fail, a missing key is reported before a wrong version. Held by
   ``test_a_missing_key_is_reported_before_a_wrong_version``. Both are reported before a wrong
   length of the segment. Held by
   ``test_conditions_on_keys_are_reported_before_the_segment_offset``.
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
    """One key of an update, with the version that is its condition. ``value`` is None for a
    removal."""

    key: bytes
    version: int
    value: bytes | None


class Waiting:
    """A member of a table's queue of updates, and its outcome.

    ``keys`` are those whose entries its conditions need: they are pinned in the index while it
    waits, and ``is_ready`` is true when their entries are in memory.
    """

    keys: Sequence[bytes] = ()

    @property
    def ordered_keys(self) -> Sequence[bytes] | None:
        """Return the keys that decide the order: members which share a key do not overtake each
        other. None means that this member overtakes no other and no other overtakes it."""
        return None

    def __init__(self) -> None:
        self._news = trio.Event()
        self.is_settled = False
        self.is_ready = True
        self.error: SegmentStoreError | None = None
        self.retry = False

    @property
    def encoded_bytes_max(self) -> int:
        """Return the maximum number of bytes that this member adds to an append."""
        return 0

    def prepare(self, batch: UpdateBatch) -> None:
        """Add the member's entries to the batch. If a condition fails, raise a ``SegmentError`` and
        add nothing."""

    def settle(self, error: SegmentStoreError | None, *, retry: bool = False) -> None:
        """Tell the caller the outcome: ``error``, else the refusal that ``prepare`` raised, else
        success. ``retry`` asks the caller to queue the update again."""
        self.error = error or self.error
        self.retry = retry
        self.is_settled = True
        self._news.set()

    def wake(self) -> None:
        """Wake the waiting caller, so that it makes room in the tail if there is none."""
        self._news.set()

    async def wait_news(self) -> None:
        """Return when the outcome is known, or ``wake`` was called."""
        await self._news.wait()
        if not self.is_settled:
            self._news = trio.Event()

    def check(self) -> None:
        """Raise the error of the outcome, if there is one."""
        if self.error is not None and not self.retry:
            raise self.error


class UpdateBatch:
    """Updates that one append makes durable. ``changes`` has their effects on the committed index:
    the offset and the entry by key, None for a removed key."""

    def __init__(self, index: TableIndex) -> None:
        self._index = index
        self.start = index.length
        self.length = index.length
        self.parts: list[bytes] = []
        self.changes: dict[bytes, tuple[int, Located | None]] = {}
        self.members: list[Waiting] = []
        self.has_news = False
        """True if the batch has an entry that is not a copy of a compaction."""

    def add(self, member: Waiting) -> None:
        """Check the conditions of ``member`` and add its entries. A refusal is kept, and sent when
        the batch is durable."""
        try:
            member.prepare(self)
        except SegmentStoreError as error:
            member.error = error
        self.members.append(member)

    def get(self, key: bytes) -> Located | None:
        """Return the entry of ``key`` after all changes of this batch so far; None if there is
        none. The committed entry must be in memory."""
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
        """Add one entry, whose bytes are ``encoded``; return its version. A ``version`` is given
        for copies only."""
        offset = self.length
        written = offset if version == NO_VERSION else version
        self.has_news |= version == NO_VERSION
        entry = StoredEntry(key, value, written, offset, len(encoded))
        self.changes[key] = offset, None if value is None else self._index.known.located(entry)
        self.parts.append(encoded)
        self.length += len(encoded)
        return written

    def commit(self) -> None:
        """Record in the index that the append is durable."""
        self._index.write(
            ((key, *change) for key, change in self.changes.items()),
            length=self.length,
            count=len(self.parts),
        )


class TableUpdate(Waiting):
    """One request to write or remove keys, all or none. ``versions`` are those of the entries that
    it wrote, in order."""

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
    """Copies those of ``entries`` that are still the newest of their keys, with their versions."""

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
    """Stops the queue: once everything before it is durable, nothing after it is appended until the
    caller returns the turn."""
