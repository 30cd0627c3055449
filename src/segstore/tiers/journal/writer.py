"""Makes the journal's batches, and goes on behind those that are durable.

Owns: ``RecordQueue``, what waits to be written, and ``BatchWriter``, the journal's tail.

Invariants:
1. A batch is written only after the batch before it is durable: whatever a crash leaves, at most
   the last batch is torn. It may be prepared before that, within one file.
2. Records of the ordered queue are written in queue order. Records of the control queue (what
   frees space) may overtake them: they speak of durable entries only.
3. The last ``CONTROL_BYTES`` of a file take control and open records alone, so that a full journal
   can still write down what frees it.
4. A file ends with an END record that is durable before the next file gets its first batch, and
   begins with a snapshot of the state.
5. After the first failure nothing is ever written again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from segstore.errors import DataLogError
from segstore.tiers.api import Buffer
from segstore.tiers.journal.files import NO_SPACE_ERRNOS, FilePool, JournalFile
from segstore.tiers.journal.format import (
    BATCH_ALIGNMENT,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Kind,
    Record,
    aligned,
    encode_batch,
)
from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.journal.state import JournalState

CONTROL_BYTES = 64 * 1024
END_BYTES = BATCH_ALIGNMENT
OVERHEAD_BYTES_MAX = 1024 * 1024
"""Maximum number of bytes of a batch besides entries: the snapshot and control records."""


@dataclass(slots=True)
class Tail:
    """The place of the next batch: in ``file`` at ``offset``, or, without a file, in the pool's
    next one."""

    file: JournalFile | None
    offset: int
    batch_number: int


@dataclass(slots=True)
class PreparedBatch:
    """A batch that is to be written at ``offset`` of ``file``, durably."""

    records: list[Record]
    file: JournalFile
    offset: int
    number: int
    length: int
    """Length of the batch in bytes."""
    write_length: int
    """Bytes that are written: zeros fill the disk's block, so that the kernel need not read a block
    of a recycled file first."""

    def encode(self) -> list[Buffer]:
        """Return all ``write_length`` bytes."""
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
    """A batch that is over: durable in the file of ``generation``, or failed."""

    records: list[Record]
    generation: int
    error: DataLogError | None = None


@dataclass(slots=True)
class RecordQueue:
    """Records that wait: filled by the container logs, emptied by the writer."""

    ordered: deque[Record] = field(default_factory=deque)
    control: deque[Record] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return bool(self.ordered or self.control)


class BatchWriter:
    """The journal's tail. Its methods that write block."""

    def __init__(
        self,
        queue: RecordQueue,
        pool: FilePool,
        tail: Tail,
        state: JournalState,
        settings: JournalSettings,
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._tail = tail
        self._state = state
        self._settings = settings
        self._prepared: deque[PreparedBatch] = deque()
        self._marked = True
        self._told_failure = False
        self.failure: DataLogError | None = None
        self.disk_full = False

    @property
    def unmarked(self) -> bool:
        """Return whether something was written since the journal's end was last marked."""
        return not self._marked and not self._prepared and self.failure is None

    def prepare(self) -> PreparedBatch | None:
        """Return the batch that is to be written next; None when there is none or no place for it.

        It must be passed to ``written`` or ``not_written`` before the next call.
        """
        if self.failure is not None:
            return None
        return self._prepared[0] if self._prepared else self.prepare_next()

    def prepare_next(self) -> PreparedBatch | None:
        """Return the batch that follows the prepared ones, to be written once they are durable.

        Returns None when nothing is queued or there is no space, or before the beginning of a new
        file is known.
        """
        if self.failure is not None or (
            self._prepared and self._prepared[-1].records[-1].kind == Kind.END
        ):
            return None
        records = self._pop_records()
        if not records:
            return None
        batch = self._prepare(records)
        self._tail.offset = aligned(batch.offset + batch.length, BATCH_ALIGNMENT)
        self._tail.batch_number += 1
        self._prepared.append(batch)
        return batch

    def write(self, batch: PreparedBatch) -> OSError | None:
        """Write a batch durably, or tell why it could not be."""
        try:
            batch.file.disk_file.write_durably(batch.encode(), batch.offset)
        except OSError as error:
            return error
        return None

    def written(self, batch: PreparedBatch) -> WrittenBatch:
        """Continue behind the first prepared batch, which is durable."""
        prepared = self._prepared.popleft()
        assert prepared is batch, "batches become durable in order"
        self.disk_full = False
        self._marked = False
        for record in batch.records:
            self._state.apply(record)
        generation = batch.file.generation
        if batch.records[-1].kind == Kind.END:
            self._state.live.add(generation)
            batch.file.disk_file.close()
            self._tail.file = None
        return WrittenBatch(batch.records, generation)

    def not_written(self, batch: PreparedBatch, error: OSError) -> WrittenBatch | None:
        """Keep a batch that met a full disk for another attempt; after any other error fail all
        that is queued."""
        if error.errno in NO_SPACE_ERRNOS:
            self.disk_full = True
            return None
        self.failure = failure_of(error, batch.file)
        return self.failed_batch()

    def mark_end(self, *, durably: bool = False) -> None:
        """Mark where the journal ends, for a recovery to tell damage before it from a torn write.

        The next batch overwrites the mark. Without ``durably`` it reaches the disk at leisure.
        """
        file, offset = self._tail.file, self._tail.offset
        if file is None or self._marked or self._prepared or self.failure is not None:
            return
        self._marked = True
        buffers = self._prepare([]).encode()
        try:
            if durably:
                file.disk_file.write_durably(buffers, offset)
            else:
                file.disk_file.write(buffers, offset)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                self.failure = failure_of(error, file)

    def refuse(self, error: OSError) -> None:
        """Fail every record from the next step on: the journal cannot go on."""
        if self.failure is None:
            self.failure = failure_of(error, None)

    def close(self) -> None:
        """Close the current file and the ready ones."""
        if self._tail.file is not None:
            self._tail.file.disk_file.close()
        while self._pool.peek() is not None:
            self._pool.pop().disk_file.close()

    def _pop_records(self) -> list[Record]:
        """Choose the records of the next batch: from the queue, or the END of a full file."""
        if not self._queue:
            return []
        following = self._pool.peek()
        if self._tail.file is None:
            if following is None:
                return []
            self._tail.file = self._pool.pop()
            self._tail.offset = FILE_HEADER_BYTES
        file = self._tail.file
        room = file.header.file_bytes - END_BYTES - self._tail.offset - BATCH_HEADER_BYTES
        records = self._pop_fitting(room)
        if not records and following is not None:
            assert self._tail.offset > FILE_HEADER_BYTES, "an empty file takes every entry"
            records = [Record(Kind.END, 0, 0, following.generation)]
        return records

    def _pop_fitting(self, room: int) -> list[Record]:
        """Remove and return records that fit into ``room`` bytes, from the queues' heads."""
        ordered, control = self._queue.ordered, self._queue.control
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
            if used + record.stored_bytes > limit:
                break
            records.append(ordered.popleft())
            used += record.stored_bytes
        return records if len(records) > snapshot_count else []

    def _prepare(self, records: list[Record]) -> PreparedBatch:
        """Return a batch for the tail."""
        file, offset = self._tail.file, self._tail.offset
        assert file is not None
        length = BATCH_HEADER_BYTES + sum([record.stored_bytes for record in records])
        end = min(aligned(offset + length, file.disk_file.block_bytes), file.header.file_bytes)
        return PreparedBatch(records, file, offset, self._tail.batch_number, length, end - offset)

    def pop_all(self) -> list[Record]:
        """Remove and return every record that is not durable; only when nothing is being
        written."""
        records = [record for batch in self._prepared for record in batch.records]
        self._prepared.clear()
        for queue in (self._queue.control, self._queue.ordered):
            while queue:
                records.append(queue.popleft())
        return records

    def failed_batch(self) -> WrittenBatch | None:
        """Return all queued records as a failed batch; None when there is nothing to tell.

        The failure is told once also without a record: of an idle journal, too, it has to be known.
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
