"""What the controller asks of segment stores about table segments: small values under keys.

Owns: conditional updates by version, and what to believe when a reply got lost.

Invariants:
1. A version never repeats within a table; it grows with every write of a key.
2. A conditional update that conflicts with a value equal to the one it wanted to write has
   happened: either its first attempt's reply was lost, or somebody wrote the same.
3. Iteration follows the table's own order; its token resumes after the last entry handed out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pravega_controller.errors import NoSuchTableError, TableNotEmptyError, VersionConflictError
from pravega_controller.segment_client import NO_TOKEN, SegmentClient, expect, for_each
from pravega_controller.store_connection import MakeRequest
from pravega_wire.commands import (
    NO_VERSION,
    NOT_EXISTS,
    CreateTableSegment,
    DeleteTableSegment,
    NoSuchSegment,
    ReadTable,
    ReadTableEntries,
    RemoveTableKeys,
    Reply,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    TableEntriesRead,
    TableEntriesUpdated,
    TableEntry,
    TableIteratorArgs,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRemoved,
    TableRead,
    TableSegmentNotEmpty,
    UpdateTableEntries,
)

__all__ = ["NOT_EXISTS", "NO_VERSION", "Entry", "Page", "TableClient"]

READ_KEYS_MAX = 15
"""Keys per read: fifteen values of the greatest size still fit one reply."""
PAGE_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a table with its value and version."""

    key: bytes
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of a table in its order, and the token that resumes after them."""

    entries: tuple[Entry, ...]
    token: bytes


class TableClient:
    """Reads and writes table segments through a ``SegmentClient``."""

    def __init__(self, segments: SegmentClient) -> None:
        self._segments = segments

    async def create(
        self,
        table: str,
        *,
        key_length: int = 0,
        rollover_bytes: int = 0,
        retry_seconds_max: float | None = None,
    ) -> None:
        """Create a table, of keys of one length or (0) a hash table; fine if it exists."""
        reply = await self._segments.request(
            table,
            lambda i: CreateTableSegment(
                i,
                table,
                NO_TOKEN,
                key_length=key_length,
                rollover_size_bytes=rollover_bytes,
            ),
            retry_seconds_max=retry_seconds_max,
        )
        expect(reply, SegmentCreated, SegmentAlreadyExists)

    async def delete(self, table: str, *, must_be_empty: bool) -> None:
        """Delete a table; fine if it is gone. ``TableNotEmptyError`` if it must be but is not."""
        reply = await self._segments.request(
            table, lambda i: DeleteTableSegment(i, table, must_be_empty, NO_TOKEN)
        )
        if expect(reply, SegmentDeleted, NoSuchSegment, TableSegmentNotEmpty) is (
            TableSegmentNotEmpty
        ):
            raise TableNotEmptyError(f"table {table} is not empty")

    async def get(self, table: str, key: bytes) -> Entry | None:
        """The entry of a key, or None. No entry has the empty key."""
        if not key:
            return None
        return (await self.get_all(table, [key]))[0]

    async def get_all(self, table: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """The entries of the keys, in their order; None where there is none."""
        found: list[Entry | None] = [None] * len(keys)

        async def read(start: int) -> None:
            wanted = tuple(TableKey(key) for key in keys[start : start + READ_KEYS_MAX])
            reply = await self._request(table, lambda i: ReadTable(i, table, NO_TOKEN, wanted))
            expect(reply, TableRead)
            assert isinstance(reply, TableRead)
            for index, entry in enumerate(reply.entries, start):
                if entry.key.version != NOT_EXISTS:
                    found[index] = Entry(entry.key.key, entry.value, entry.key.version)

        await for_each(range(0, len(keys), READ_KEYS_MAX), read)
        return found

    async def put(self, table: str, key: bytes, value: bytes, *, version: int = NO_VERSION) -> int:
        """Write a key if it has this version, and return its new version.

        ``NO_VERSION`` writes always, ``NOT_EXISTS`` only a new key. Else ``VersionConflictError``.
        """
        entries = (TableEntry(TableKey(key, version), value),)
        reply = await self._request(
            table, lambda i: UpdateTableEntries(i, table, NO_TOKEN, entries)
        )
        if isinstance(reply, TableKeyBadVersion | TableKeyDoesNotExist):
            current = await self.get(table, key)
            if current is None or current.value != value:
                raise VersionConflictError(f"{key!r} in {table} no longer has version {version}")
            return current.version
        expect(reply, TableEntriesUpdated)
        assert isinstance(reply, TableEntriesUpdated)
        return reply.updated_versions[0]

    async def remove(self, table: str, key: bytes, *, version: int = NO_VERSION) -> None:
        """Remove a key if it has this version; fine if it is gone. ``VersionConflictError``."""
        keys = (TableKey(key, version),)
        reply = await self._request(table, lambda i: RemoveTableKeys(i, table, NO_TOKEN, keys))
        if expect(reply, TableKeysRemoved, TableKeyDoesNotExist, TableKeyBadVersion) is (
            TableKeyBadVersion
        ) and await self.get(table, key):
            raise VersionConflictError(f"{key!r} in {table} no longer has version {version}")

    async def page(self, table: str, token: bytes) -> Page:
        """The next entries after the token; no entries only at the end of the table."""
        args = TableIteratorArgs(continuation_token=token)
        reply = await self._request(
            table, lambda i: ReadTableEntries(i, table, NO_TOKEN, PAGE_ENTRIES, args)
        )
        expect(reply, TableEntriesRead)
        assert isinstance(reply, TableEntriesRead)
        entries = tuple(Entry(e.key.key, e.value, e.key.version) for e in reply.entries)
        return Page(entries, reply.continuation_token)

    async def read_range(
        self, table: str, first: bytes, last: bytes, *, count_max: int
    ) -> tuple[Entry, ...]:
        """The next entries of a table with keys of one length, sorted, both bounds included."""
        args = TableIteratorArgs(from_key=first, to_key=last)
        reply = await self._request(
            table, lambda i: ReadTableEntries(i, table, NO_TOKEN, count_max, args)
        )
        expect(reply, TableEntriesRead)
        assert isinstance(reply, TableEntriesRead)
        return tuple(Entry(e.key.key, e.value, e.key.version) for e in reply.entries)

    async def pages(self, table: str) -> AsyncIterator[tuple[Entry, ...]]:
        """Every entry of a table, page by page."""
        token = b""
        while (page := await self.page(table, token)).entries:
            yield page.entries
            if not page.token:
                return
            token = page.token

    async def _request(self, table: str, make: MakeRequest) -> Reply:
        reply = await self._segments.request(table, make)
        if isinstance(reply, NoSuchSegment):
            raise NoSuchTableError(f"table {table} does not exist")
        return reply
