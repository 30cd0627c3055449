"""Stores transactions that have not ended, and assigns their numbers.

Owns: the tables of transactions and their keys, and the counter.

    _system/_tables/controller/transactions-<n>  t/<scope>/<stream>/<id>        -> TransactionRecord
                                                 c/<scope>/<stream>/<stream id> -> CommitLineRecord
    _system/_tables/controller/numbers           transactions                   -> CounterRecord

A stream's name chooses its table ``n``. A starting controller reads these tables completely, so
they must stay small: they contain open transactions, and ended ones only until these are moved to
``transaction_outcomes``.

Transactions get their numbers from blocks: a controller reserves a block by one update, and a
killed controller wastes the rest of its block.

Invariants:
1. When two controllers change one transaction, the second update fails, because it names the
   version that was read.
   Held by ``test_a_controller_that_was_taken_for_dead_renews_nothing_that_another_holds``.
2. When a controller dies after it has recorded a commit, the transaction is in the line of its
   stream's commits, so that another controller merges it: one update writes both.
   Held by ``test_a_commit_is_carried_out_although_its_leader_dies``.
3. When a controller restarts, it uses no number that was used before.
   Held by ``test_no_number_is_handed_out_twice``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import structlog
import trio

from pravega_controller.errors import (
    CorruptMetadataError,
    NoSuchTableError,
    VersionConflictError,
)
from pravega_controller.metadata.grouped_writes import GroupedWrites
from pravega_controller.metadata.records import decode, encode
from pravega_controller.metadata.streams.used_numbers import NUMBERS
from pravega_controller.metadata.transaction_records import (
    CommitLineRecord,
    CounterRecord,
    TransactionRecord,
)
from pravega_controller.store_client.table_client import NOT_EXISTS, Change, Entry, TableClient
from pravega_wire import names
from pravega_wire.hashing import container_hash

TABLES = 4
"""Number of tables of transactions. If this number changes, the records must be moved to other
tables."""
BLOCK_NUMBERS = 10_000
COUNTER_KEY = b"transactions"

log = structlog.get_logger(__name__)


def table_index(scope: str, stream: str) -> int:
    """Return the index of the table that has a stream's transactions."""
    return container_hash(names.scoped_name(scope, stream), TABLES)


def table_names(kind: str) -> list[str]:
    """Return the names of all tables of a kind."""
    return [
        names.table_name(names.INTERNAL_SCOPE, "controller", f"{kind}-{index}")
        for index in range(TABLES)
    ]


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored record of a transaction, and its version, which a change needs."""

    record: TransactionRecord
    version: int


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A transaction that was found in the tables."""

    scope: str
    stream: str
    identifier: bytes
    stored: Stored


@dataclass(frozen=True, slots=True)
class StoredLine:
    """The stored line of a stream's commits, and its version, which a change needs."""

    scope: str
    stream: str
    stream_id: str
    record: CommitLineRecord
    version: int


Found: TypeAlias = StoredTransaction | StoredLine
"""Any entry in the tables of transactions."""


class TransactionStore:
    """Reads and writes the records of transactions."""

    def __init__(self, tables: TableClient, *, random: Random) -> None:
        self._tables = tables
        self._random = random
        self._names = table_names("transactions")
        self._writes = [GroupedWrites(tables, table) for table in self._names]
        self._counting = trio.StrictFIFOLock()
        self._next_number = 0
        self._block_end = 0

    async def next_number(self) -> int:
        """Return a number that no transaction has had before."""
        async with self._counting:
            if self._next_number == self._block_end:
                self._next_number = await self._reserve_numbers()
                self._block_end = self._next_number + BLOCK_NUMBERS
            number = self._next_number
            self._next_number += 1
            return number

    async def write(
        self, scope: str, stream: str, records: Sequence[tuple[bytes, TransactionRecord, int]]
    ) -> list[int]:
        """Write transactions of one stream, each as id, record and version, all or none.

        Returns the new versions. Raises ``VersionConflictError``.
        """
        changes = _changes(scope, stream, records)
        return await self._writes[table_index(scope, stream)].write(changes)

    async def read(self, scope: str, stream: str, identifier: bytes) -> Stored | None:
        """Return a transaction's record, or None."""
        (found,) = await self.read_all(scope, stream, [identifier])
        return found

    async def read_all(
        self, scope: str, stream: str, identifiers: Sequence[bytes]
    ) -> list[Stored | None]:
        """Return the records of some transactions, None where there is none."""
        keys = [_key(scope, stream, identifier) for identifier in identifiers]
        try:
            entries = await self._tables.get_all(self._names[table_index(scope, stream)], keys)
        except NoSuchTableError:
            return [None] * len(keys)
        return [
            None if entry is None else Stored(decode(entry.value, TransactionRecord), entry.version)
            for entry in entries
        ]

    async def remove(self, scope: str, stream: str, identifiers: Sequence[bytes]) -> None:
        """Remove transactions that are archived, or whose stream is gone."""
        keys = [_key(scope, stream, identifier) for identifier in identifiers]
        await self._tables.remove_all(self._names[table_index(scope, stream)], keys)

    async def write_line(
        self,
        scope: str,
        stream: str,
        stream_id: str,
        line: tuple[CommitLineRecord, int],
        records: Sequence[tuple[bytes, TransactionRecord, int]],
    ) -> list[int]:
        """Write a stream's line of commits together with transactions of the stream, all or none.

        Returns the new versions, first that of the line. Raises ``VersionConflictError``.
        """
        record, version = line
        changes = [Change(_line_key(scope, stream, stream_id), encode(record), version)]
        changes += _changes(scope, stream, records)
        return await self._writes[table_index(scope, stream)].write(changes)

    async def read_line(
        self, scope: str, stream: str, stream_id: str
    ) -> tuple[CommitLineRecord, int]:
        """Return a stream's line of commits and its version; an empty line if none is stored."""
        table = self._names[table_index(scope, stream)]
        try:
            entry = await self._tables.get(table, _line_key(scope, stream, stream_id))
        except NoSuchTableError:
            entry = None
        if entry is None:
            return CommitLineRecord(), NOT_EXISTS
        return decode(entry.value, CommitLineRecord), entry.version

    async def remove_line(self, scope: str, stream: str, stream_id: str) -> None:
        """Remove a stream's line of commits, because the stream is being deleted."""
        table = self._names[table_index(scope, stream)]
        await self._tables.remove_all(table, [_line_key(scope, stream, stream_id)])

    async def load(self) -> AsyncGenerator[Found, None]:
        """Yield all entries of the tables; log and skip a record that cannot be read."""
        for table in self._names:
            async with aclosing(self._entries(table)) as entries:
                async for entry in entries:
                    if (found := _loaded(entry)) is not None:
                        yield found

    async def load_stream(
        self, scope: str, stream: str, stream_id: str
    ) -> AsyncGenerator[StoredTransaction, None]:
        """Yield the stored transactions of a stream, without those of other streams of its name."""
        prefix = _key(scope, stream, b"")
        async with aclosing(self._entries(self._names[table_index(scope, stream)])) as entries:
            async for entry in entries:
                if entry.key.startswith(prefix):
                    found = _loaded(entry)
                    if not isinstance(found, StoredTransaction):
                        continue
                    if found.stored.record.stream_id == stream_id:
                        yield found

    async def _entries(self, table: str) -> AsyncGenerator[Entry, None]:
        try:
            async with aclosing(self._tables.pages(table)) as pages:
                async for entries in pages:
                    for entry in entries:
                        yield entry
        except NoSuchTableError:
            log.debug("no transaction was ever begun", table=table)

    async def _reserve_numbers(self) -> int:
        while True:
            entry = await self._tables.get(NUMBERS, COUNTER_KEY)
            # Numbers begin at 1, because many programs take an id of zeros for no id.
            number = 1 if entry is None else int(decode(entry.value, CounterRecord).next_number, 16)
            block = f"{self._random.getrandbits(64):016x}"
            record = CounterRecord(f"{number + BLOCK_NUMBERS:024x}", block)
            try:
                await self._tables.put(
                    NUMBERS,
                    COUNTER_KEY,
                    encode(record),
                    version=NOT_EXISTS if entry is None else entry.version,
                )
            except VersionConflictError:
                continue
            return number


def _changes(
    scope: str, stream: str, records: Iterable[tuple[bytes, TransactionRecord, int]]
) -> list[Change]:
    return [
        Change(_key(scope, stream, identifier), encode(record), version)
        for identifier, record, version in records
    ]


def _key(scope: str, stream: str, identifier: bytes) -> bytes:
    return f"t/{scope}/{stream}/{identifier.hex()}".encode()


def _line_key(scope: str, stream: str, stream_id: str) -> bytes:
    return f"c/{scope}/{stream}/{stream_id}".encode()


def _loaded(entry: Entry) -> Found | None:
    """Return the record in an entry; log a damaged entry and return None."""
    try:
        return _parse(entry)
    except CorruptMetadataError as error:
        key = entry.key.decode(errors="replace")
        log.error("a transaction's record is damaged", key=key, reason=str(error))
        return None


def _parse(entry: Entry) -> Found:
    try:
        kind, scope, stream, *rest = entry.key.decode().split("/")
        if kind == "c":
            (stream_id,) = rest
            line = decode(entry.value, CommitLineRecord)
            return StoredLine(scope, stream, stream_id, line, entry.version)
        (digits,) = rest
        identifier = bytes.fromhex(digits)
        if kind != "t" or len(identifier) != 16:
            raise ValueError("no such kind of key")
    except ValueError as error:
        raise CorruptMetadataError(f"not a transaction's key: {entry.key!r}") from error
    record = decode(entry.value, TransactionRecord)
    return StoredTransaction(scope, stream, identifier, Stored(record, entry.version))
