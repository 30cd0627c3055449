"""The archive of transactions' outcomes. It is bounded, and keeps them for at least a day.

Owns: the archive of outcomes and its keys.

    _system/_tables/controller/outcomes-<n>   o/<scope>/<stream>/<id>     -> OutcomeRecord
                                              c/<scope>/<stream>/<chunk>  -> OutcomesRecord
                                              a/<scope>/<stream>          -> ArchiveRecord

The outcome of a transaction first replaces the transaction's own record. Some seconds later it is
moved to the archive, together with many others. The chunks list the content of the archive, oldest
first: outcomes are listed from the chunks, and dropped one chunk at a time.

To add outcomes, a controller reads the version of the archive, then checks that the stream exists,
and then adds at that version. To remove the archive of a deleted stream, it reads the version, then
checks that no other stream has the name, and then removes chunks that are older than that version.
(Each write of a table has a higher version than those before it.) Both orders are needed because
another controller may delete the stream, or create a new one of the name, at any moment.

Invariants:
1. When a controller dies while it archives outcomes, none is lost: the transaction's record is
   removed after the outcome is in the archive.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
2. When a clock jumps, outcomes are kept for a day, and removed after it: the times of an archive
   never go back, and advance by ``GAP_MS_MAX`` at most while no controller works on it.
   Held by ``test_outcomes_of_a_clock_that_jumped_are_kept_for_a_day_and_go``.
3. When a stream is deleted while another controller archives its outcomes, no outcome remains.
   Held by ``test_outcomes_of_a_stream_that_is_deleted_at_that_moment_do_not_stay``.
4. When a stream is created again while a slow controller removes the archive of the earlier one,
   the outcomes of the new stream are kept.
   Held by ``test_outcomes_of_a_stream_that_is_made_after_a_deletion_stay``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from pravega_controller.clocks import RecordTimes
from pravega_controller.errors import NoSuchTableError, VersionConflictError
from pravega_controller.metadata.conflicts import until_unchanged
from pravega_controller.metadata.grouped_writes import GroupedWrites
from pravega_controller.metadata.locks import KeyedLocks
from pravega_controller.metadata.records import decode, encode
from pravega_controller.metadata.transaction_records import (
    ArchiveRecord,
    Outcome,
    OutcomeRecord,
    OutcomesRecord,
)
from pravega_controller.metadata.transaction_store import table_index, table_names
from pravega_controller.store_client.table_client import (
    NO_VERSION,
    NOT_EXISTS,
    Change,
    Entry,
    TableClient,
)

KEPT_MS_MIN = 24 * 60 * 60 * 1_000
GAP_MS_MAX = 60 * 60 * 1_000
"""Maximum time, in milliseconds, by which outcomes age while no controller runs."""
LISTED_MAX = 500
CHUNK_OUTCOMES_MAX = 400
"""Maximum number of outcomes in a chunk: one request must be able to write all their keys."""
DROPPED_CHUNKS_MAX = 4
"""Maximum number of chunks that one call drops: more than one addition creates."""
KNOWN_ARCHIVES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Archive:
    """A stream's archive: its record, and the version of the record."""

    record: ArchiveRecord
    version: int


class OutcomeArchive:
    """Reads and writes the outcomes of transactions."""

    def __init__(self, tables: TableClient) -> None:
        self._tables = tables
        self._names = table_names("outcomes")
        self._writes = [GroupedWrites(tables, table) for table in self._names]
        self._locks = KeyedLocks()
        self._times = RecordTimes(gap_ms_max=GAP_MS_MAX)
        self._known: OrderedDict[tuple[str, str], Archive] = OrderedDict()

    async def find(self, scope: str, stream: str, identifier: bytes) -> OutcomeRecord | None:
        """Return the outcome of a transaction, or None if the archive does not have it."""
        (entry,) = await self._read(scope, stream, [_outcome_key(scope, stream, identifier.hex())])
        return None if entry is None else decode(entry.value, OutcomeRecord)

    async def latest(self, scope: str, stream: str) -> list[Outcome]:
        """Return the outcomes that were archived last, up to ``LISTED_MAX``, oldest first."""
        # Another controller may have archived more.
        self._known.pop((scope, stream), None)
        archive = await self._load(scope, stream)
        found: dict[str, Outcome] = {}
        for number in range(archive.record.end - 1, archive.record.first - 1, -1):
            chunk, _ = await self._chunk(scope, stream, number)
            # If a controller was killed while it archived outcomes, another one archived them
            # again. Count each once.
            found.update((outcome.identifier, outcome) for outcome in reversed(chunk.outcomes))
            if len(found) >= LISTED_MAX:
                break
        return list(found.values())[LISTED_MAX - 1 :: -1]

    async def open(self, scope: str, stream: str) -> int:
        """Return the version of a stream's archive; make the archive if there is none."""
        async with self._locks.hold((scope, stream)):
            archive = await self._load(scope, stream)
            if archive.version == NOT_EXISTS:
                archive = await self._write(scope, stream, [], archive, archive.record)
            return archive.version

    async def close(self, scope: str, stream: str, version: int) -> None:
        """Remove the archive if it is empty and has this version."""
        async with self._locks.hold((scope, stream)):
            archive = await self._load(scope, stream)
            if archive.version == version and archive.record.first == archive.record.end:
                with suppress(VersionConflictError):
                    await self._remove_record(scope, stream, archive)

    async def add(
        self, scope: str, stream: str, outcomes: Sequence[Outcome], *, version: int, now_ms: int
    ) -> int:
        """Archive outcomes, at most ``CHUNK_OUTCOMES_MAX`` of them; return the archive's time.

        The outcomes get this time, because the clock by which they ended may have been behind.
        Raises ``VersionConflictError`` if the archive no longer has this version.
        """
        assert len(outcomes) <= CHUNK_OUTCOMES_MAX
        async with self._locks.hold((scope, stream)):
            archive = await self._load(scope, stream)
            if archive.version != version:
                self._known.pop((scope, stream), None)
                raise VersionConflictError(f"the archive of {scope}/{stream} has changed")
            first, end = archive.record.first, archive.record.end
            chunk, version = OutcomesRecord(()), NOT_EXISTS
            if end > first:
                chunk, version = await self._chunk(scope, stream, end - 1)
            latest_ms = max((outcome.ended_ms for outcome in chunk.outcomes), default=0)
            now_ms = self._times.now_ms((scope, stream), latest_ms, now_ms=now_ms)
            outcomes = [structs.replace(outcome, ended_ms=now_ms) for outcome in outcomes]
            if end == first or len(chunk.outcomes) + len(outcomes) > CHUNK_OUTCOMES_MAX:
                chunk, version, end = OutcomesRecord(()), NOT_EXISTS, end + 1
            chunk = OutcomesRecord((*chunk.outcomes, *outcomes))
            changes = [
                Change(
                    _outcome_key(scope, stream, outcome.identifier),
                    encode(OutcomeRecord(outcome.is_committed, outcome.ended_ms)),
                )
                for outcome in outcomes
            ]
            changes.append(Change(_chunk_key(scope, stream, end - 1), encode(chunk), version))
            await self._write(scope, stream, changes, archive, ArchiveRecord(first, end))
            return now_ms

    async def drop_old(self, scope: str, stream: str, *, now_ms: int) -> None:
        """Remove outcomes older than ``KEPT_MS_MIN``, at most ``DROPPED_CHUNKS_MAX`` chunks.

        ``now_ms`` is the archive's time, which ``add`` returned.
        """
        async with self._locks.hold((scope, stream)):
            for _ in range(DROPPED_CHUNKS_MAX):
                archive = await self._load(scope, stream)
                first, end = archive.record.first, archive.record.end
                if first == end:
                    return
                chunk, version = await self._chunk(scope, stream, first)
                if any(now_ms - outcome.ended_ms < KEPT_MS_MIN for outcome in chunk.outcomes):
                    return
                # Remove the chunk and its keys before the entry in the archive's record. After a
                # crash in between, the missing chunk counts as empty.
                await self._remove_chunk(scope, stream, archive, first, chunk, version)
                record = ArchiveRecord(first + 1, end)
                await self._write(scope, stream, [], archive, record)

    async def remove(
        self, scope: str, stream: str, *, may_have_name: Callable[[], Awaitable[bool]]
    ) -> None:
        """Remove the whole archive, because the stream is being deleted.

        ``may_have_name`` returns false if another stream has the name now.
        """
        async with self._locks.hold((scope, stream)):
            # Another controller may still archive outcomes of this stream.
            await until_unchanged(lambda: self._remove_all(scope, stream, may_have_name))

    async def _remove_all(
        self, scope: str, stream: str, may_have_name: Callable[[], Awaitable[bool]]
    ) -> None:
        archive = await self._load(scope, stream)
        first, end = archive.record.first, archive.record.end
        if first < end:
            # Ask after the archive was read: then this archive is not that of a later stream. An
            # empty archive can be removed in any case.
            if not await may_have_name():
                return
            for number in range(first, end):
                chunk, version = await self._chunk(scope, stream, number)
                await self._remove_chunk(scope, stream, archive, number, chunk, version)
        if archive.version != NOT_EXISTS:
            await self._remove_record(scope, stream, archive)

    async def _remove_record(self, scope: str, stream: str, archive: Archive) -> None:
        """Remove an archive's record if it has not changed. Raises ``VersionConflictError``."""
        self._known.pop((scope, stream), None)
        table = self._names[table_index(scope, stream)]
        key = _archive_key(scope, stream)
        await self._tables.remove(table, key, version=archive.version)

    async def _remove_chunk(
        self,
        scope: str,
        stream: str,
        archive: Archive,
        number: int,
        chunk: OutcomesRecord,
        version: int,
    ) -> None:
        """Remove a chunk and its outcomes at once.

        Raises ``VersionConflictError`` if the chunk was written after this version of the archive.
        """
        if version == NOT_EXISTS:
            return
        self._known.pop((scope, stream), None)
        if version > archive.version:
            raise VersionConflictError(f"the archive of {scope}/{stream} has changed")
        versions = [(_chunk_key(scope, stream, number), version)]
        for outcome in chunk.outcomes:
            # No other outcome has this key: ids of transactions are unique.
            versions.append((_outcome_key(scope, stream, outcome.identifier), NO_VERSION))
        await self._tables.remove_if(self._names[table_index(scope, stream)], versions)

    async def _load(self, scope: str, stream: str) -> Archive:
        if (known := self._known.get((scope, stream))) is not None:
            return known
        (entry,) = await self._read(scope, stream, [_archive_key(scope, stream)])
        if entry is None:
            return Archive(ArchiveRecord(0, 0), NOT_EXISTS)
        return Archive(decode(entry.value, ArchiveRecord), entry.version)

    async def _chunk(self, scope: str, stream: str, number: int) -> tuple[OutcomesRecord, int]:
        """Return a chunk and its version.

        A missing chunk counts as empty: a controller died while it dropped the chunk.
        """
        (entry,) = await self._read(scope, stream, [_chunk_key(scope, stream, number)])
        if entry is None:
            return OutcomesRecord(()), NOT_EXISTS
        return decode(entry.value, OutcomesRecord), entry.version

    async def _write(
        self,
        scope: str,
        stream: str,
        changes: list[Change],
        archive: Archive,
        record: ArchiveRecord,
    ) -> Archive:
        """Write changes together with the archive's new record."""
        self._known.pop((scope, stream), None)
        key = _archive_key(scope, stream)
        changes = [*changes, Change(key, encode(record), archive.version)]
        versions = await self._writes[table_index(scope, stream)].write(changes)
        archive = self._known[scope, stream] = Archive(record, versions[-1])
        if len(self._known) > KNOWN_ARCHIVES_MAX:
            self._known.popitem(last=False)
        return archive

    async def _read(self, scope: str, stream: str, keys: Sequence[bytes]) -> list[Entry | None]:
        try:
            return await self._tables.get_all(self._names[table_index(scope, stream)], keys)
        except NoSuchTableError:
            return [None] * len(keys)


def _outcome_key(scope: str, stream: str, digits: str) -> bytes:
    return f"o/{scope}/{stream}/{digits}".encode()


def _chunk_key(scope: str, stream: str, number: int) -> bytes:
    return f"c/{scope}/{stream}/{number}".encode()


def _archive_key(scope: str, stream: str) -> bytes:
    return f"a/{scope}/{stream}".encode()
