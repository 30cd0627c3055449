"""The local journal and the container logs in it.

Owns: ``open_journal``, ``Journal`` (a ``DurableDataLogFactory``) and ``ContainerLog``.

All of this runs in the event loop's thread, except the writes themselves, see ``runner``. The
journal is a sequence of files; each holds batches, and a batch holds records of several containers.

Example, with files of 512 KiB. Containers 0 and 1 (c0, c1) were opened by batches 1 and 2. Then
they queue entries of 1,000, 300 and 5 bytes, c0 appends three entries of 200 KiB, and both
truncate::

    file  batch  offset   bytes    records
    1     3        5,120    1,448  ENTRY c0 position 1, ENTRY c1 position 1, ENTRY c0 position 2
    1     4        6,656  204,872  ENTRY c0 position 3
    1     5      211,968  204,872  ENTRY c0 position 4
    1     6      417,280       72  END, file 2 follows: the next entry does not fit
    2     7        4,096  205,032  the state (4 records for c0 and c1, LIVE 1), ENTRY c0 position 5
    2     8      209,408      136  TRUNCATE c0 to 5, TRUNCATE c1 to 2, FREE file 1

Invariants:
1. When several containers append at the same time, their entries are written in one batch, with one
   sync. Held by ``test_what_is_queued_together_is_synced_once``.
2. When records arrive while a batch is being written, they go into the next batch together. Held by
   ``test_what_arrives_during_a_batch_goes_into_the_next_one``.
3. When a truncation frees a file, its FREE record is written with or after the TRUNCATE record, and
   the file is used again only when this is durable. Held by
   ``test_a_file_is_not_used_again_before_it_is_durably_free``.
4. When a crash comes at any point, all acknowledged entries that were not truncated are read again.
   Held by ``test_a_crash_at_any_point_loses_nothing_acknowledged``.
5. When a write or a sync has failed, all queued and later appends fail. Held by
   ``test_the_journal_fails_for_ever_after_an_error``.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from _fast.log.journal import EntryIndex
from segstore.errors import DataLogError
from segstore.runtime.refused_files import describe_full, reason_of
from segstore.tiers.api import (
    IN_FLIGHT_BYTES_MAX,
    Buffer,
    DigestedEntry,
    LogAddress,
    LogEntry,
    LogPart,
    OnDurable,
)
from segstore.tiers.journal.contents import ContentsNoter, NotedContents
from segstore.tiers.journal.disk import Disk, LocalDisk
from segstore.tiers.journal.files import (
    FilePool,
    FilePreparer,
    RunBlocking,
    journal_name,
)
from segstore.tiers.journal.format import Kind, Record
from segstore.tiers.journal.log_reader import KeptDigests, LogReader, scan_named
from segstore.tiers.journal.log_state import LogState
from segstore.tiers.journal.recovery import Recovered, recover
from segstore.tiers.journal.runner import Helper, ThreadRunner, WriterRunner, running
from segstore.tiers.journal.scan import check_indexes
from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.journal.writer import BatchWriter, RecordQueue, WrittenBatch

T = TypeVar("T")

UNANSWERED_SECONDS_MAX = 5.0
"""Time, in seconds, after which a disk that has not answered a write is said not to answer."""
SCAN_THREADS = 2
"""Number of threads that scan files at a start. With two, the disk reads one file while the other
is checked."""


class Journal:
    """One process's journal. Made by ``open_journal``."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        runner: WriterRunner,
        writer: BatchWriter,
        queue: RecordQueue,
        preparer: FilePreparer,
        recovered: Recovered,
        run_blocking: RunBlocking,
        settings: JournalSettings,
    ) -> None:
        self.entry_bytes_max = settings.entry_bytes_max
        self._file_bytes = settings.file_bytes
        quarter = max(settings.entry_bytes_max, settings.file_bytes // 4)
        self.in_flight_bytes_max = min(IN_FLIGHT_BYTES_MAX, quarter)
        self._directory = directory
        self._disk = disk
        self._writer = writer
        self._runner = runner
        self._queue = queue
        self._preparer = preparer
        self._run_blocking = run_blocking
        self._queued_bytes = 0
        self._waiters: list[tuple[LogState, int, trio.Event]] = []
        self._closed = False
        self._logs: dict[int, LogState] = {}
        self._last_positions: dict[int, dict[int, int]] = {}
        self._current_generation = 0
        self.failure: DataLogError | None = None
        self.failed = trio.Event()
        self._files_changed: Callable[[], None] = lambda: None
        self._adopt(recovered)

    async def last_epoch(self, container_id: int) -> int:
        """See ``DurableDataLogFactory``."""
        state = self._logs.get(container_id)
        return 0 if state is None else state.epoch

    async def open_log(self, container_id: int, *, epoch_min: int = 0) -> ContainerLog:
        """Open a container's log under a new epoch, durably, and fence its earlier owner."""
        state = self._logs.setdefault(container_id, LogState())
        state.epoch = max(state.epoch + 1, epoch_min)
        epoch = state.epoch
        durable = trio.Event()
        errors: list[DataLogError] = []

        def on_durable(error: DataLogError | None) -> None:
            if error is not None:
                errors.append(error)
            durable.set()

        record = Record(Kind.OPEN, container_id, epoch, state.next_position, on_durable=on_durable)
        self._enqueue(record)
        await durable.wait()
        if errors:
            raise errors[0]
        return ContainerLog(self, container_id, epoch, state)

    def drop_other_logs(self, container_ids: Collection[int]) -> None:
        """Truncate the logs of all containers except these.

        A crash may undo it: call it at each start.
        """
        for container_id, state in self._logs.items():
            if container_id not in container_ids:
                self._truncate(container_id, state, state.next_position)

    def log_bytes(self) -> int:
        """Return the number of bytes by which writers are throttled: the length of all needed
        files, and the queued entries of all containers."""
        return len(self._last_positions) * self._file_bytes + self._queued_bytes

    def reserve_percent(self) -> int:
        """Return how many percent of the last file are used, when no further file can be made; else
        0. Truncations are written there, too, so this file is a reserve."""
        return self._writer.used_percent(self._queued_bytes) if self._preparer.is_stuck else 0

    @property
    def delay_reason(self) -> str | None:
        """Return a sentence that says why nothing becomes durable now, or None. Blocks for a
        moment if the journal has no space: it asks the file system."""
        error = self._writer.no_space or self._preparer.no_space
        if error is not None:
            return describe_full(error, self._directory)
        if self._runner.unanswered_seconds() > UNANSWERED_SECONDS_MAX:
            return f"the disk of {self._directory} does not answer"
        return None

    def _adopt(self, recovered: Recovered) -> None:
        for container_id, container in recovered.state.containers.items():
            state = self._logs[container_id] = LogState(
                container.epoch,
                container.first_position,
                container.next_position,
                durable_position=container.next_position - 1,
                indexes={},
            )
            assert state.indexes is not None
            for generation, scan in recovered.scans.items():
                index = scan.indexes.get(container_id)
                if index is not None and index.end_position > container.first_position:
                    state.indexes[generation] = index
                    state.digests[generation] = scan.digests.get(container_id, [])
                    state.byte_count.extend(index.groups)
            state.truncate(container.first_position)
        for generation, scan in recovered.scans.items():
            self._last_positions[generation] = {
                container_id: index.end_position - 1 for container_id, index in scan.indexes.items()
            }
            self._current_generation = generation

    def _enqueue(self, record: Record) -> None:
        if self._closed:
            self._refuse(record, self.failure or DataLogError("the journal is closed"))
            return
        self._queued_bytes += record.length
        self._queue.ordered.append(record)
        self._runner.wake()

    def _refuse(self, record: Record, error: DataLogError) -> None:
        """Complete a record with an error, in a later step of the event loop."""
        if record.on_durable is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(record.on_durable, error)

    def _batch_over(self, batch: WrittenBatch) -> None:
        """Process a finished batch of the writer: record in which file its entries are, and call
        its completions."""
        if batch.error is not None and self.failure is None:
            self.failure = batch.error
            self.failed.set()
        elif batch.error is None:
            rolled_over = batch.generation != self._current_generation
            self._current_generation = batch.generation
            positions = self._last_positions.setdefault(batch.generation, {})
            for record in batch.records:
                if record.kind == Kind.ENTRY:
                    positions[record.container_id] = record.position
                    self._logs[record.container_id].durable_position = record.position
                elif record.kind == Kind.FREE:
                    self._preparer.add_freed(journal_name(record.position))
            if rolled_over:
                self._preparer.check()
                self._free_files()
                self._files_changed()
        for record in batch.records:
            if record.on_durable is not None:
                self._queued_bytes -= record.length
                record.on_durable(batch.error)
        if self._waiters:
            self._wake_waiters()

    def _free_files(self) -> None:
        """Queue FREE records for the complete files in which no container needs any entry."""
        for generation in list(self._last_positions):
            if generation == self._current_generation:
                continue
            positions = self._last_positions[generation]
            if all(
                position < self._logs[container_id].first_position
                for container_id, position in positions.items()
            ):
                del self._last_positions[generation]
                self._queue.control.append(Record(Kind.FREE, 0, 0, generation))
                self._runner.wake()
                self._files_changed()

    def _complete_files(self) -> list[int]:
        """Return the generations of the complete files with needed entries, in ascending order."""
        return sorted(each for each in self._last_positions if each != self._current_generation)

    def _held_bytes(self, container_id: int, state: LogState) -> int:
        """Return the length of all files from the first one with a needed entry of the container
        on."""
        needed = [
            generation
            for generation, positions in self._last_positions.items()
            if positions.get(container_id, 0) >= state.first_position
        ]
        if not needed:
            return 0
        first = min(needed)
        return self._file_bytes * sum(generation >= first for generation in self._last_positions)

    def _truncate(self, container_id: int, state: LogState, position: int) -> None:
        """Record that the container's entries before ``position`` are not needed. Entries that are
        not durable yet stay needed."""
        position = min(position, state.durable_position + 1)
        if position <= state.first_position:
            return
        state.truncate(position)
        self._queue.control.append(Record(Kind.TRUNCATE, container_id, state.epoch, position))
        self._free_files()

    async def _wait_durable(self, state: LogState, position: int) -> None:
        """Wait until the entry at ``position`` is durable, or the journal has failed or is
        closed."""
        if state.durable_position >= position or self.failure is not None or self._closed:
            await trio.lowlevel.checkpoint()
            return
        event = trio.Event()
        self._waiters.append((state, position, event))
        await event.wait()

    def _wake_waiters(self) -> None:
        waiting = []
        for state, position, event in self._waiters:
            if state.durable_position >= position or self.failure is not None or self._closed:
                event.set()
            else:
                waiting.append((state, position, event))
        self._waiters = waiting

    async def _indexes(self, container_id: int, state: LogState) -> dict[int, EntryIndex]:
        """Return the places of the container's needed entries, by file generation. They are read
        from the files if they are not in memory."""
        if state.indexes is not None:
            return state.indexes
        start, end = state.first_position, state.next_position
        indexes: dict[int, EntryIndex] = {}
        for generation, positions in sorted(self._last_positions.items()):
            if positions.get(container_id, 0) < start:
                continue
            try:
                scan = await self._run_blocking(partial(scan_named, self._disk, generation))
            except OSError as error:
                raise DataLogError(f"the journal cannot be read: {error}") from error
            index = scan.indexes.get(container_id)
            if index is not None:
                indexes[generation] = index
        check_indexes(container_id, indexes, start=start, end=end)
        return indexes

    def _close(self) -> None:
        """Refuse further records, and make the writer end when it has written what it can."""
        self._closed = True
        self._runner.stop()

    def _fail_rest(self, records: list[Record]) -> None:
        """Fail the records that the writer could not write before it ended."""
        if records:
            error = self.failure or DataLogError("the journal was closed while it had no space")
            self._batch_over(WrittenBatch(records, -1, error))
        self._wake_waiters()


class ContainerLog:
    """One container's log in the journal. Made by ``Journal.open_log``."""

    def __init__(self, journal: Journal, container_id: int, epoch: int, state: LogState) -> None:
        self._journal = journal
        self._container_id = container_id
        self._epoch = epoch
        self._state = state
        self._closed = False
        self._reader: LogReader | None = None

    @property
    def epoch(self) -> int:
        """Return the epoch under which this owner appends."""
        return self._epoch

    @property
    def bytes_since_truncation(self) -> int:
        """Return the number of bytes of the entries after the truncation point, too many by at most
        ``byte_count.GROUP_BYTES``."""
        return self._state.byte_count.total

    @property
    def overlapping_entries(self) -> int:
        """Return 1: one batch is written after another."""
        return 1

    @property
    def in_flight_bytes_max(self) -> int:
        """Return a quarter of a file at most: when the last file begins to be used, all entries
        that logs have appended by then must fit into it."""
        return self._journal.in_flight_bytes_max

    @property
    def held_bytes(self) -> int:
        """Return the length of all files from the first one with a needed entry of this log on."""
        return self._journal._held_bytes(self._container_id, self._state)

    @property
    def delay_reason(self) -> str | None:
        """Return the journal's reason: all logs wait for the same disk."""
        return self._journal.delay_reason

    @property
    def owner_proof(self) -> None:
        """Return None: the process holds the lock of the journal."""
        return None

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """Yield the container's entries. A few MiB of them are in memory at a time."""
        reader = await self._recovered()
        async with aclosing(reader.read()) as entries:
            async for entry in entries:
                yield entry

    async def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """Yield the digests that the journal's recovery made of the entries, and the entries
        themselves where it made none."""
        reader = await self._recovered()
        async with aclosing(reader.read_digests()) as batches:
            async for batch in batches:
                yield batch

    async def read_entry(self, address: LogAddress) -> bytes:
        """Return one of the entries that were there when the log was opened."""
        return await (await self._recovered()).read_entry(address)

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """Return parts of the entries that were there when the log was opened."""
        return await (await self._recovered()).read_parts(parts)

    async def _recovered(self) -> LogReader:
        """Return the reader of the entries that were stored when the log was opened. It is made at
        the first call."""
        if self._reader is None:
            state, journal = self._state, self._journal
            indexes = await journal._indexes(self._container_id, state)
            digests, state.digests = state.digests, {}
            self._reader = LogReader(
                journal._disk,
                journal._run_blocking,
                self._container_id,
                indexes,
                digests,
                start=state.first_position,
                end=state.next_position,
            )
        return self._reader

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        """Queue one entry for the next batch."""
        length = sum(map(len, parts))
        assert length <= self._journal.entry_bytes_max, f"a log entry of {length} bytes is too long"
        state = self._state
        position = state.next_position
        record = Record(
            Kind.ENTRY, self._container_id, self._epoch, position, parts, length, on_durable
        )
        if self._closed or self._epoch != state.epoch:
            why = "closed" if self._closed else f"fenced: it was opened again after {self._epoch}"
            self._journal._refuse(record, DataLogError(f"the container's log is {why}"))
            return LogAddress(position)
        state.next_position = position + 1
        state.byte_count.add(position, length)
        state.indexes = None
        self._journal._enqueue(record)
        return LogAddress(position)

    async def truncate(self, address: LogAddress) -> None:
        """Allow the entries before ``address`` to be dropped."""
        await trio.lowlevel.checkpoint()
        if self._epoch == self._state.epoch:
            self._journal._truncate(self._container_id, self._state, address.position)
            if self._reader is not None:
                self._reader.truncate(self._state.first_position)

    async def aclose(self) -> None:
        """Refuse further entries, and wait for those that are queued."""
        if self._closed or self._epoch != self._state.epoch:
            self._closed = True
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        await self._journal._wait_durable(self._state, self._state.next_position - 1)


async def _prepare_files(
    preparer: FilePreparer,
    runner: WriterRunner,
    writer: BatchWriter,
    journal: Journal,
    *,
    task_status: trio.TaskStatus[trio.CancelScope],
) -> None:
    """Make files in advance until the scope is cancelled. An error other than a full disk makes the
    writer fail."""

    def on_error(error: OSError) -> None:
        writer.refuse(error)
        runner.wake()

    with trio.CancelScope() as scope:
        task_status.started(scope)
        await preparer.run(runner.wake, on_error, journal.reserve_percent)


async def _run_in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function)


def _random_salt() -> int:
    return secrets.randbits(32)


async def _prepare_first(preparer: FilePreparer, directory: Path) -> None:
    try:
        await preparer.prepare_first()
    except OSError as error:
        raise DataLogError(
            f"the first file in {directory} cannot be made: {reason_of(error, directory)}"
        ) from error


@asynccontextmanager
async def open_journal(
    directory: Path,
    settings: JournalSettings | None = None,
    *,
    digest: Callable[[memoryview], bytes] | None = None,
    contents: NotedContents | None = None,
    disk: Disk | None = None,
    runner: WriterRunner | None = None,
    run_blocking: RunBlocking = _run_in_thread,
    new_salt: Callable[[], int] = _random_salt,
    on_no_space: Callable[[], None] = lambda: None,
) -> AsyncIterator[Journal]:
    """Open the journal in ``directory``, which exists, and recover its content.

    Raises ``DataLogCorruptError`` for damage that no crash explains, ``DataLogError`` when the
    directory cannot be read or written. The caller holds the directory's lock.

    ``digest`` makes an entry's digest for ``read_digests``; several threads call it. ``contents``
    are notes with such digests; a complete file with a note is not read at the start.
    ``on_no_space`` is called at each attempt to make a file while the disk is full. ``disk``,
    ``runner``, ``run_blocking`` and ``new_salt`` are replaced in simulations.
    """
    settings = settings or JournalSettings()
    disk = disk or LocalDisk(directory)
    runner = runner or ThreadRunner()
    pool, queue = FilePool(), RecordQueue()
    recovered = await run_blocking(
        partial(
            recover,
            disk,
            digest=KeptDigests(digest) if digest is not None else None,
            contents=contents,
            thread_count=SCAN_THREADS if run_blocking is _run_in_thread else 1,
        )
    )
    for file in recovered.ready:
        pool.add(file)
    preparer = FilePreparer(
        directory,
        disk,
        settings,
        pool,
        next_generation=recovered.next_generation,
        lengths=recovered.lengths,
        freed=recovered.freed,
        new_salt=new_salt,
        run_blocking=run_blocking,
        on_no_space=on_no_space,
    )
    if recovered.tail.file is None and not recovered.ready:
        await _prepare_first(preparer, directory)
    writer = BatchWriter(queue, pool, recovered.tail, recovered.state, settings)
    journal = Journal(
        directory, disk, runner, writer, queue, preparer, recovered, run_blocking, settings
    )
    helpers: list[Helper] = [partial(_prepare_files, preparer, runner, writer, journal)]
    if contents is not None:
        noter = ContentsNoter(disk, contents, journal._complete_files, run_blocking)
        journal._files_changed = noter.look
        helpers.append(noter.run)
    try:
        write = partial(runner.run, writer, settings, journal._batch_over)
        async with running(write, helpers, journal._close):
            yield journal
    finally:
        journal._fail_rest(writer.pop_all())
        writer.close()
