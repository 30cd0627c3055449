"""Reads, caches, writes and removes the records of one stream's epochs.

Owns: ``EpochRecords``: the keys of epochs, snapshots, seals and sizes; reading them in chunks.

    <stream id>/epoch/<n>       -> EpochRecord      what epoch n created and sealed
    <stream id>/snapshot/<n>    -> SnapshotRecord   all segments of epoch n, for some epochs but 0
    <stream id>/sealed/<id>     -> SealedRecord     the epoch that sealed a segment
    <stream id>/sizes/<n>       -> SizesRecord      the lengths of what epoch n sealed

Epochs before the stream's head are dropped some days later (``old_epochs``). The stream's record
then names the first remaining epoch.

Once the stream's record counts an epoch, the epoch's record never changes. So a cached record needs
no check. The exception is an epoch that is withdrawn, because its scale was refused; the stream's
record has the number of withdrawn epochs. Each epoch names the last snapshot before it, so that its
segments are computed from few changes.

Invariants:
1. When records were evicted from the cache, queries read them again, and have the same answers.
   Held by ``test_what_is_forgotten_is_read_again``.
2. When a stream has a long history, a query about one epoch takes few reads. Held by
   ``test_a_question_reads_little_of_a_long_history``.
3. When a record is missing because it was dropped after the stream's record was read, the query
   raises ``EpochDroppedError``. Held by ``test_a_question_that_meets_the_dropping_is_told_so``.
4. When a record is missing and was not dropped, the query raises ``CorruptMetadataError``. Held by
   ``test_a_record_that_nobody_dropped_is_missing``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import trio

from pravega_controller.errors import (
    CorruptMetadataError,
    EpochDroppedError,
    InvalidRequestError,
    NotFoundError,
    StreamNotFoundError,
)
from pravega_controller.metadata.records import (
    GONE,
    Delete,
    EpochRecord,
    SealedRecord,
    SizesRecord,
    SnapshotRecord,
    StreamRecord,
    decode,
    encode,
)
from pravega_controller.rules.history import Epoch
from pravega_controller.rules.streams import Segment
from pravega_controller.store_client.table_client import REMOVED_KEYS_MAX, Change, TableClient

KEPT_SEGMENTS_MAX = 20_000
"""Maximum number of created and sealed segments in the epochs of a stream that stay in memory.

The segments of the first epoch are also kept, once one of them was read."""
CHUNK_BYTES = 128 * 1024
CHUNK_EPOCHS_MAX = 64
"""Maximum number of epochs in one read. A read of one epoch also reads those that follow it."""
READ_AHEAD_FOR_MAX = 8
"""Maximum number of requested epochs for which a read also reads those that follow. A caller that
requests more of them does not walk from epoch to epoch."""
SNAPSHOT_EPOCHS = 256
SNAPSHOT_SEGMENTS_MIN = 256
"""Minimum number of changed segments, or of epochs, after which a snapshot is due."""
CHANGED_MAX = 2**31
"""Number of changed segments after which a snapshot is due whatever the size of the stream."""
SEALED_BYTES_MAX = 64
NO_EPOCH = 2**31
"""The epoch that sealed a segment which is not sealed: it is greater than each epoch's number."""
SEGMENT_BYTES_MIN = 11
"""Minimum length of a segment in an epoch's record, in bytes, as in ``[0,0.0,1.0]``."""


def is_snapshot_due(*, epochs: int, changed: int, segments: int) -> bool:
    """Return whether an epoch needs a snapshot.

    ``epochs`` and ``changed`` are the epochs and changed segments since the last snapshot.
    """
    return epochs >= SNAPSHOT_EPOCHS or changed >= max(SNAPSHOT_SEGMENTS_MIN, segments)


class EpochRecords:
    """Reads the epochs that one stream's record counts. A new object has an empty cache."""

    def __init__(self, tables: TableClient, table: str, stream_id: str, *, stream: str) -> None:
        self._tables = tables
        self._table = table
        self._stream = stream
        self._prefix = stream_id.encode()
        self._epochs: OrderedDict[int, EpochRecord] = OrderedDict()
        self._sealed_in: dict[int, int] = {}
        self._kept_segments = 0
        self.count = 0
        """Number of epochs that the stream's record counts. The epochs from ``first`` on can be
        read."""
        self.first = 0
        """The first epoch about which queries are answered."""
        self.removed_before = 0
        """The first epoch that may have records."""
        self.epoch_bytes_max = 0
        """The greatest size of their records."""
        self.withdrawn = 0
        """Number of epochs that are known to have been withdrawn."""

    def update(self, record: StreamRecord) -> None:
        """Update the range of the epochs from a stream's record, which may be an older one."""
        if record.withdrawn < self.withdrawn:
            return
        if record.withdrawn > self.withdrawn:
            # Some of the last epochs were withdrawn, and others may have their numbers now.
            self.withdrawn = record.withdrawn
            self.count = record.epoch_count
            for number in list(self._epochs):
                self._forget(number)
        self.count = max(self.count, record.epoch_count)
        self.epoch_bytes_max = max(self.epoch_bytes_max, record.epoch_bytes_max)
        self.removed_before = max(self.removed_before, record.removed_before)
        if record.first_epoch > self.first:
            self.first = record.first_epoch
            for number in [number for number in self._epochs if number < self.first]:
                self._forget(number)

    @property
    def state_key(self) -> bytes:
        return b"%b/state" % self._prefix

    def epoch_key(self, number: int) -> bytes:
        return b"%b/epoch/%d" % (self._prefix, number)

    def snapshot_key(self, number: int) -> bytes:
        return b"%b/snapshot/%d" % (self._prefix, number)

    def sealed_key(self, segment_id: int) -> bytes:
        return b"%b/sealed/%d" % (self._prefix, segment_id)

    def sizes_key(self, number: int) -> bytes:
        return b"%b/sizes/%d" % (self._prefix, number)

    def changes_for(
        self, record: EpochRecord, snapshot: Sequence[Segment] | None
    ) -> tuple[list[Change], int]:
        """Return the entries that an epoch adds to the table, and the size of its record."""
        epoch = record.epoch
        value = encode(record)
        changes = [Change(self.epoch_key(epoch.number), value)]
        if snapshot is not None:
            whole = encode(SnapshotRecord(epoch.number, tuple(snapshot)))
            changes.append(Change(self.snapshot_key(epoch.number), whole))
        sealed = encode(SealedRecord(epoch.number))
        changes += [Change(self.sealed_key(segment_id), sealed) for segment_id in epoch.sealed_ids]
        return changes, len(value)

    def changes_without(self, record: EpochRecord) -> list[Change]:
        """Return the changes after which the keys of sealed segments do not lead to an epoch."""
        epoch = record.epoch
        nowhere = encode(SealedRecord(NO_EPOCH))
        return [
            Change(self.epoch_key(epoch.number), encode(record)),
            *(Change(self.sealed_key(segment_id), nowhere) for segment_id in epoch.sealed_ids),
        ]

    def keep(self, record: EpochRecord) -> None:
        """Cache a record that was read or written, and evict those not used for longest."""
        number = record.epoch.number
        if number in self._epochs:
            self._epochs.move_to_end(number)
            return
        self._epochs[number] = record
        self._sealed_in.update(dict.fromkeys(record.epoch.sealed_ids, number))
        self._kept_segments += _weight(record)
        while self._kept_segments > KEPT_SEGMENTS_MAX and len(self._epochs) > 1:
            self._forget(next(iter(self._epochs)))

    def _forget(self, number: int) -> None:
        dropped = self._epochs.pop(number)
        self._kept_segments -= _weight(dropped)
        for segment_id in dropped.epoch.sealed_ids:
            self._sealed_in.pop(segment_id, None)

    async def epochs(self, numbers: Iterable[int]) -> dict[int, Epoch]:
        """Return these epochs, all of which must be counted."""
        records = await self._records(numbers)
        return {number: record.epoch for number, record in records.items()}

    async def epoch(self, number: int) -> Epoch:
        """Return an epoch. Raises ``NotFoundError`` when there is none of this number."""
        return (await self._record(number)).epoch

    async def record_of(self, number: int) -> EpochRecord:
        """Return the record of an epoch. Raises ``NotFoundError`` when there is none."""
        return await self._record(number)

    async def base_of(self, number: int) -> int:
        """Return the last epoch with a snapshot, at or before this one; 0 if there is none."""
        return (await self._record(number)).base

    async def sizes(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the known lengths, by id, of the segments that these epochs sealed."""
        keys = [self.sizes_key(number) for number in numbers]
        found: dict[int, int] = {}
        for entry in await self._tables.get_all(self._table, keys):
            if entry is not None:
                found.update(decode(entry.value, SizesRecord).sizes)
        return found

    @property
    def fits_one_removal(self) -> bool:
        """Return whether all keys of the epochs certainly fit one request."""
        keys_each = 3 + self.epoch_bytes_max // SEGMENT_BYTES_MIN
        return (self.count - self.removed_before) * keys_each <= REMOVED_KEYS_MAX // 2

    async def remove(self, *, keys_max: int) -> list[bytes]:
        """Remove the epochs except for at most ``keys_max`` last keys, which are returned.

        The caller removes these together with the stream's record. An interrupted call may be
        repeated.
        """
        # A withdrawn epoch may have left records.
        end = self.count + (1 if self.withdrawn else 0)
        for numbers in chunks_of(self.removed_before, end):
            keys, derived = await self._keys_of(numbers)
            # The sizes of the segments at the stream's end are under a number that no epoch has.
            derived.append(self.sizes_key(numbers[-1] + 1))
            if len(derived) + len(keys) <= keys_max:
                keys = [*derived, *keys]
            else:
                await self._tables.remove_all(self._table, derived)
            if numbers[-1] == end - 1:
                return keys
            await self._tables.remove_all(self._table, keys)
        return []

    async def remove_old(self, *, epochs_max: int) -> int:
        """Remove at most ``epochs_max`` epochs before the first; return the lowest one left.

        An interrupted call may be repeated, and by several controllers at a time.
        """
        end = min(self.first, self.removed_before + epochs_max)
        for numbers in chunks_of(self.removed_before, end):
            keys, derived = await self._keys_of(numbers)
            await self._tables.remove_all(self._table, derived)
            await self._tables.remove_all(self._table, keys)
        return end

    async def _keys_of(self, numbers: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of epochs, of their snapshots and sizes, and of the segments that they
        sealed.

        These records must be removed no later than the epoch, which is needed to find them.
        """
        keys = [self.epoch_key(number) for number in numbers]
        entries = await self._tables.get_all(
            self._table, keys, value_bytes_max=self.epoch_bytes_max
        )
        derived: list[bytes] = []
        for number, entry in zip(numbers, entries, strict=True):
            derived += [self.snapshot_key(number), self.sizes_key(number)]
            if entry is not None:
                record = decode(entry.value, EpochRecord)
                derived += map(self.sealed_key, record.epoch.sealed_ids)
        return keys, derived

    async def _record(self, number: int) -> EpochRecord:
        self._check_number(number)
        return (await self._records([number]))[number]

    async def _records(self, numbers: Iterable[int]) -> dict[int, EpochRecord]:
        """Return the records of epochs. Epochs that are not in the cache are read, with some that
        follow."""
        found: dict[int, EpochRecord] = {}
        missing: list[int] = []
        for number in numbers:
            if (record := self._epochs.get(number)) is None:
                missing.append(number)
            else:
                self._epochs.move_to_end(number)
                found[number] = record
        if missing:
            found.update(await self._read(missing))
        return found

    async def _read(self, wanted: Sequence[int]) -> dict[int, EpochRecord]:
        ahead = min(CHUNK_EPOCHS_MAX, CHUNK_BYTES // max(1, self.epoch_bytes_max))
        numbers = set(wanted)
        if len(wanted) <= READ_AHEAD_FOR_MAX:
            for number in wanted:
                numbers |= set(range(number, min(number + ahead, self.count)))
            numbers -= self._epochs.keys() - set(wanted)
        ordered = sorted(numbers)
        result: dict[int, EpochRecord] = {}
        must_have = frozenset(wanted)
        for start in range(0, len(ordered), CHUNK_EPOCHS_MAX):
            part = ordered[start : start + CHUNK_EPOCHS_MAX]
            keys = [self.epoch_key(number) for number in part]
            withdrawn = self.withdrawn
            entries = await self._tables.get_all(
                self._table, keys, value_bytes_max=self.epoch_bytes_max
            )
            for number, entry in zip(part, entries, strict=True):
                if entry is None:
                    raise await self._explain(number, f"epoch {number}")
                record = decode(entry.value, EpochRecord)
                if self.withdrawn == withdrawn:
                    self.keep(record)
                if number in must_have:
                    result[number] = record
            await trio.lowlevel.checkpoint()
        return result

    def _check_number(self, number: int) -> None:
        if number < 0:
            raise InvalidRequestError(f"there is no epoch {number}")
        if number >= self.count:
            raise NotFoundError(f"epoch {number} does not exist, the last is {self.count - 1}")
        if number < self.first:
            raise self._dropped(f"epoch {number}")

    async def _snapshot(self, number: int) -> tuple[Segment, ...]:
        entry = await self._tables.get(self._table, self.snapshot_key(number))
        if entry is None:
            raise await self._explain(number, f"the snapshot of epoch {number}")
        return decode(entry.value, SnapshotRecord).segments

    async def _explain(self, number: int, what: str) -> Exception:
        """Return the error for a missing record of an epoch that the stream's record counted."""
        try:
            await self._read_state()
        except StreamNotFoundError as error:
            return error
        if number < self.first:
            return self._dropped(what)
        return CorruptMetadataError(f"{what} of {self._stream} is missing")

    async def _read_state(self) -> None:
        """Read again which epochs there are. Raises ``StreamNotFoundError``."""
        entry = await self._tables.get(self._table, self.state_key)
        if entry is None or entry.value == GONE:
            raise StreamNotFoundError(f"stream {self._stream} does not exist any more")
        record = decode(entry.value, StreamRecord)
        if isinstance(record.pending, Delete) and not record.pending.has_segments:
            # The stream is being deleted, and its records are being removed. So a missing key does
            # not prove that metadata are corrupt.
            raise StreamNotFoundError(f"stream {self._stream} is being deleted")
        self.update(record)

    def _dropped(self, what: str) -> EpochDroppedError:
        return EpochDroppedError(
            f"{what} of {self._stream} is not on record any more: it lies before the head, "
            f"and the first epoch on record is {self.first}"
        )


def chunks_of(start: int, end: int) -> Iterable[range]:
    """Yield the epochs from ``start`` up to, not including, ``end``, some at a time."""
    for first in range(start, end, CHUNK_EPOCHS_MAX):
        yield range(first, min(first + CHUNK_EPOCHS_MAX, end))


def _weight(record: EpochRecord) -> int:
    return 1 + len(record.epoch.created) + len(record.epoch.sealed)
