"""The archive of transactions' outcomes. It is bounded, and keeps them for at least a day.

Owns: the archive of outcomes and its keys.

    _system/_tables/controller/outcomes-<n>   o/<scope>/<stream>/<id>     -> OutcomeRecord
                                              c/<scope>/<stream>/<chunk>  -> OutcomesRecord
                                              a/<scope>/<stream>          -> ArchiveRecord

The outcome of a transaction first replaces the transaction's own record. Some seconds later it is
moved to the archive, together with many others. The chunks list the content of the archive, oldest
first: outcomes are listed from the chunks, and dropped one chunk at a time.

Invariants:
1. An outcome is in the archive before its transaction's record is removed. So a task that looks for
   the record first, and in the archive then, finds the outcome.
2. A chunk names each outcome in the archive. A chunk is dropped only when all its outcomes are
   older than ``KEPT_MS_MIN`` and their keys are removed.
3. Before outcomes are added, the version of the archive is read first, and the existence of the
   stream is checked then. The outcomes are added only at this version. The record of an archive is
   removed only at the version that it had when it was empty, or before its chunks were removed. So
   nothing is added to the archive of a stream that is deleted at the same time.
4. Before the outcomes of a deleted stream are removed, the version of the archive is read first,
   and it is checked then that no other stream has the name. A chunk is removed only at the version
   that was read, and only if it is older than this version of the archive: every write of a table
   has a larger version than those before it, and the record of an archive is written after its
   chunks. So nothing is removed of the archive of a later stream of the name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pravega_controller.conflicts import until_unchanged
from pravega_controller.errors import NoSuchTableError, VersionConflictError
from pravega_controller.grouped_writes import GroupedWrites
from pravega_controller.locks import KeyedLocks
from pravega_controller.records import decode, encode
from pravega_controller.table_client import (
    NO_VERSION,
    NOT_EXISTS,
    Change,
    Entry,
    TableClient,
)
from pravega_controller.transaction_records import (
    ArchiveRecord,
    Outcome,
    OutcomeRecord,
    OutcomesRecord,
)
from pravega_controller.transaction_store import table_index, table_names

KEPT_MS_MIN = 24 * 60 * 60 * 1_000
LISTED_MAX = 500
CHUNK_OUTCOMES_MAX = 400
"""Maximum number of outcomes in a chunk: one request can change the chunk and the keys of all its
outcomes."""
DROPPED_CHUNKS_MAX = 4
"""Maximum number of chunks that are dropped at a time; more than one addition can make."""
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
            # A killed controller may have archived outcomes that were then archived again: each
            # counts once.
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
        self, scope: str, stream: str, outcomes: Sequence[Outcome], *, version: int
    ) -> None:
        """Archive outcomes, at most ``CHUNK_OUTCOMES_MAX`` of them.

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

    async def drop_old(self, scope: str, stream: str, *, now_ms: int) -> None:
        """Remove outcomes that were kept long enough, at most ``DROPPED_CHUNKS_MAX`` chunks."""
        async with self._locks.hold((scope, stream)):
            for _ in range(DROPPED_CHUNKS_MAX):
                archive = await self._load(scope, stream)
                first, end = archive.record.first, archive.record.end
                if first == end:
                    return
                chunk, version = await self._chunk(scope, stream, first)
                if any(now_ms - outcome.ended_ms < KEPT_MS_MIN for outcome in chunk.outcomes):
                    return
                # Remove the chunk first: a controller killed between the two leaves no keys behind.
                await self._remove_chunk(scope, stream, archive, first, chunk, version)
                record = ArchiveRecord(first + 1, end)
                await self._write(scope, stream, [], archive, record)

    async def remove(
        self, scope: str, stream: str, *, may_have_name: Callable[[], Awaitable[bool]]
    ) -> None:
        """Remove the whole archive, because the stream is being deleted.

        ``may_have_name`` tells whether no other stream has taken the name by now.
        """
        async with self._locks.hold((scope, stream)):
            # Another controller may still archive transactions that ended before.
            await until_unchanged(lambda: self._remove_all(scope, stream, may_have_name))

    async def _remove_all(
        self, scope: str, stream: str, may_have_name: Callable[[], Awaitable[bool]]
    ) -> None:
        archive = await self._load(scope, stream)
        first, end = archive.record.first, archive.record.end
        if first < end:
            # The order matters: the archive was there before the answer, so it is of no later
            # stream. Nothing is lost with an empty archive, whichever stream has it.
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
            # Nothing else ever has this key: no two transactions have one id.
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
        """Make changes together with the archive's new record."""
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
