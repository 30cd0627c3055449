"""Makes the journal's batches from queued records, and keeps the place of the next one.

Owns: ``RecordQueue``, the records that wait, and ``BatchWriter``, with the end of the journal.
Records are in two queues. The ordered queue has entries and openings; they are written in the order
in which they were queued. The control queue has TRUNCATE and FREE records; they may be written
before records of the ordered queue, because they concern only durable entries.

Example: a file of 524,288 bytes begins with a header of 4,096. An entry of 204,800 bytes takes 32
more for its record and 40 for its batch: 204,872. The batch at 211,968 ends at 416,840, so the next
one begins at 417,280, a multiple of 512. Entries may fill the file up to 458,240: the last 512
bytes are for the END record, the 65,536 before for control records and openings. So a second such
entry does not fit; an END record is written, and the entry goes to the next file.

Invariants:
1. When a batch fails, no batch after it is written: a batch is written only when the one before is
   durable. So a crash leaves at most one incomplete batch, the last. Held by
   ``test_a_batch_behind_one_that_failed_fails_too_and_is_not_written``.
2. When no further file can be made and the last one is full for entries, logs can still be opened
   and truncated: ``CONTROL_BYTES`` of each file are reserved for that. Held by
   ``test_a_full_journal_can_be_opened_and_truncated_again_and_again``.
3. When a crash interrupts the change to the next file, the journal is recovered whole: the END
   record is durable before the next file gets a batch, and the next file begins with the whole
   state. Held by ``test_a_crash_at_any_point_loses_nothing_acknowledged``.
4. When a write has failed, nothing is written any more. Held by
   ``test_the_journal_fails_for_ever_after_an_error``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from segstore.errors import DataLogError
from segstore.runtime.refused_files import is_full
from segstore.tiers.api import Buffer
from segstore.tiers.journal.files import FilePool, JournalFile
from segstore.tiers.journal.format import (
    BATCH_ALIGNMENT,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RECORD_ALIGNMENT,
    RECORD_HEADER_BYTES,
    Kind,
    Record,
    encode_batch,
)
from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.journal.state import JournalState

CONTROL_BYTES = 64 * 1024
END_BYTES = BATCH_ALIGNMENT
OVERHEAD_BYTES_MAX = 1024 * 1024
"""Maximum number of bytes of a batch that are not entries: the state at the beginning of a file,
and control records."""


@dataclass(slots=True)
class Tail:
    """The place of the next batch: at ``offset`` of ``file``. Without a file it is the beginning of
    the pool's next file."""

    file: JournalFile | None
    offset: int
    batch_number: int


@dataclass(slots=True)
class PreparedBatch:
    """A batch that will be written durably at ``offset`` of ``file``."""

    records: list[Record]
    file: JournalFile
    offset: int
    number: int
    length: int
    """Length of the batch in bytes."""
    write_length: int
    """Number of bytes that are written. Zeros follow the batch up to the end of a disk block;
    otherwise the kernel would have to read that block of a reused file first."""

    submitted_ns: int = 0
    """The time at which the batch was given to the journal's thread, by ``now_ns``."""

    def encode(self) -> list[Buffer]:
        """Return the ``write_length`` bytes of the batch."""
        buffers, length = encode_batch(
            self.records,
            generation=self.file.generation,
            salt=self.file.header.salt,
            batch_number=self.number,
            durable=self.number - 1,
        )
        assert length == self.length
        buffers.append(bytes(self.write_length - length))
        return buffers


@dataclass(slots=True)
class WrittenBatch:
    """A finished batch: durable in the file of ``generation``, or failed with ``error``."""

    records: list[Record]
    generation: int
    error: DataLogError | None = None


@dataclass(slots=True)
class RecordQueue:
    """The records that wait to be written. Container logs add them, the writer removes them."""

    ordered: deque[Record] = field(default_factory=deque)
    control: deque[Record] = field(default_factory=deque)


class BatchWriter:
    """Makes batches and writes them at the end of the journal. ``write`` and ``mark_end`` block."""

    def __init__(
        self,
        queue: RecordQueue,
        pool: FilePool,
        tail: Tail,
        state: JournalState,
        settings: JournalSettings,
    ) -> None:
        self.queue = queue
        """Records that wait to be written."""
        self._pool = pool
        self._tail = tail
        self._state = state
        self._settings = settings
        self._prepared: deque[PreparedBatch] = deque()
        self._marked = True
        self._told_failure = False
        self.failure: DataLogError | None = None
        self.no_space: OSError | None = None
        """Error of the last write, if the disk was full."""

    @property
    def disk_full(self) -> bool:
        """Return whether the disk had no space for the last write."""
        return self.no_space is not None

    @property
    def unmarked(self) -> bool:
        """Return whether the end of the journal has no mark and no batch is being written."""
        return not self._marked and not self._prepared and self.failure is None

    def used_percent(self, queued_bytes: int) -> int:
        """Return how many percent of the last file are used, with ``queued_bytes``, if no other
        file is ready; else 0. A short file counts as half full from the beginning: it is made only
        when the last ordinary one is full."""
        ready, file = self._pool.peek_last(), self._tail.file
        if ready is not None:
            return 50 if self._settings.is_short(ready.header.file_bytes) else 0
        if file is None:
            return 100
        used = 100 * (self._tail.offset + queued_bytes) // file.header.file_bytes
        return 50 + used // 2 if self._settings.is_short(file.header.file_bytes) else used

    def prepare(self) -> PreparedBatch | None:
        """Return the batch to write next, or None if there is no record or no space for it.

        The caller passes it to ``written`` or ``not_written`` before the next call.
        """
        if self.failure is not None:
            return None
        return self._prepared[0] if self._prepared else self.prepare_next()

    def prepare_next(self) -> PreparedBatch | None:
        """Return a batch that follows the prepared ones; it may be written when these are durable.

        Returns None when nothing is queued, when there is no space, and when the last prepared
        batch ends its file.
        """
        if self.failure is not None or (
            self._prepared and self._prepared[-1].records[-1].kind == Kind.END
        ):
            return None
        if not (self.queue.ordered or self.queue.control):
            return None
        if self._tail.file is None:
            if self._pool.peek() is None:
                return None
            self._tail.file = self._pool.pop()
            self._tail.offset = FILE_HEADER_BYTES
        file = self._tail.file
        room = file.header.file_bytes - END_BYTES - self._tail.offset - BATCH_HEADER_BYTES
        records, length = self._pop_fitting(room)
        if not records:
            following = self._pool.peek()
            if following is None:
                return None
            assert self._tail.offset > FILE_HEADER_BYTES, "an empty file takes every entry"
            records, length = [Record(Kind.END, 0, 0, following.generation)], RECORD_HEADER_BYTES
        batch = self._prepare(records, length)
        # This repeats ``aligned`` instead of calling it, because every batch runs this line.
        end = batch.offset + batch.length
        self._tail.offset = -(-end // BATCH_ALIGNMENT) * BATCH_ALIGNMENT
        self._tail.batch_number += 1
        self._prepared.append(batch)
        return batch

    def write(self, batch: PreparedBatch) -> OSError | None:
        """Write a batch durably; return the error if that fails."""
        try:
            batch.file.disk_file.write_durably(batch.encode(), batch.offset)
        except OSError as error:
            return error
        return None

    def written(self, batch: PreparedBatch) -> WrittenBatch:
        """Note that the first prepared batch is durable, and fold its records into the state."""
        prepared = self._prepared.popleft()
        assert prepared is batch, "batches become durable in order"
        self.no_space = None
        self._marked = False
        for record in batch.records:
            self._state.apply(record)
        generation = batch.file.header.generation
        if batch.records[-1].kind == Kind.END:
            self._state.live.add(generation)
            batch.file.disk_file.close()
            self._tail.file = None
        return WrittenBatch(batch.records, generation)

    def not_written(self, batch: PreparedBatch, error: OSError) -> WrittenBatch | None:
        """Keep a batch for another attempt if the disk was full. After any other error fail all
        queued records."""
        if is_full(error):
            self.no_space = error
            return None
        self.failure = failure_of(error, batch.file)
        return self.failed_batch()

    def mark_end(self, *, durably: bool = False) -> None:
        """Write an empty batch, which marks the journal's end. A recovery that finds the mark knows
        that damage before it is not an interrupted write.

        The next batch overwrites the mark. It is synced only with ``durably``.
        """
        file, offset = self._tail.file, self._tail.offset
        if file is None or self._marked or self._prepared or self.failure is not None:
            return
        self._marked = True
        buffers = self._prepare([], 0).encode()
        try:
            if durably:
                file.disk_file.write_durably(buffers, offset)
            else:
                file.disk_file.write(buffers, offset)
        except OSError as error:
            if not is_full(error):
                self.failure = failure_of(error, file)

    def refuse(self, error: OSError) -> None:
        """Fail all records from now on with this error."""
        if self.failure is None:
            self.failure = failure_of(error, None)

    def close(self) -> None:
        """Close the current file and the ready ones."""
        if self._tail.file is not None:
            self._tail.file.disk_file.close()
        while self._pool.peek() is not None:
            self._pool.pop().disk_file.close()

    def _pop_fitting(self, room: int) -> tuple[list[Record], int]:
        """Remove queued records that fit into ``room`` bytes. Return them, and how many bytes they
        take."""
        ordered, control = self.queue.ordered, self.queue.control
        records: list[Record] = []
        at_start = self._tail.offset == FILE_HEADER_BYTES
        if at_start:
            records.extend(self._state.snapshot_records())
        used = RECORD_HEADER_BYTES * len(records)
        snapshot_count = len(records)
        assert used <= OVERHEAD_BYTES_MAX // 2, "more containers than a journal can hold"
        while control and used + RECORD_HEADER_BYTES <= min(room, OVERHEAD_BYTES_MAX):
            records.append(control.popleft())
            used += RECORD_HEADER_BYTES
        bytes_max = min(room - CONTROL_BYTES, used + self._settings.batch_bytes_max)
        count_max = snapshot_count + self._settings.batch_records_max
        while ordered and len(records) < count_max:
            record = ordered[0]
            limit = bytes_max if record.kind == Kind.ENTRY else room
            # This repeats ``Record.stored_bytes`` instead of calling it, because every entry runs
            # it.
            stored_bytes = RECORD_HEADER_BYTES + (
                record.length + RECORD_ALIGNMENT - 1 & -RECORD_ALIGNMENT
            )
            if used + stored_bytes > limit:
                break
            records.append(ordered.popleft())
            used += stored_bytes
        return (records, used) if len(records) > snapshot_count else ([], 0)

    def _prepare(self, records: list[Record], stored_bytes: int) -> PreparedBatch:
        """Return a batch at the journal's end, of records that take ``stored_bytes``."""
        file, offset = self._tail.file, self._tail.offset
        assert file is not None
        length = BATCH_HEADER_BYTES + stored_bytes
        block_bytes = file.disk_file.block_bytes
        end = min(-(-(offset + length) // block_bytes) * block_bytes, file.header.file_bytes)
        return PreparedBatch(records, file, offset, self._tail.batch_number, length, end - offset)

    def pop_all(self) -> list[Record]:
        """Remove and return all records that are not durable. Call it only while nothing is being
        written."""
        records = [record for batch in self._prepared for record in batch.records]
        self._prepared.clear()
        for queue in (self.queue.control, self.queue.ordered):
            while queue:
                records.append(queue.popleft())
        return records

    def failed_batch(self) -> WrittenBatch | None:
        """Return all queued records as a failed batch, or None if the failure is already known and
        nothing is queued.

        The first call after the failure returns a batch even without records, so that the failure
        of an idle journal becomes known.
        """
        records = self.pop_all()
        if self._told_failure and not records:
            return None
        self._told_failure = True
        return WrittenBatch(records, -1, self.failure)


def failure_of(error: OSError, file: JournalFile | None) -> DataLogError:
    """Return the error that every later append gets."""
    name = "the journal" if file is None else f"journal file {file.name}"
    failure = DataLogError(f"{name} cannot be written: {error}; nothing is written any more")
    failure.__cause__ = error
    return failure
