"""Sends the controller's requests about table segments: small values under keys.

Owns: conditional updates by version, the outcome of an update whose reply was lost, and the member
``write`` of stored values.

Each write of a key gives it a version that no key of the table has had before, and that is higher
than all of these.

Values are JSON objects. A value that is written on a condition gets one more member, which is drawn
anew for each write, and which readers ignore:

    {"format":1,"scope_id":"52f2a1c3d4e5b697","phase":"active"}
    {"format":1,"scope_id":"52f2a1c3d4e5b697","phase":"active","write":"9f86d081884c7d65"}

So no two writers store equal bytes. When the reply to an update was lost, the update is sent again.
If it conflicts then, the stored values tell whose they are:

| stored                         | the update                                                      |
|--------------------------------|-----------------------------------------------------------------|
| its own values                 | was made                                                        |
| others, and it was sent once   | was not made: ``VersionConflictError``                          |
| others, and it was sent again  | may have been made, and overwritten: ``UncertainConflictError`` |

Invariants:
1. When one key of an update has another version than its change names, no key is written.
   Held by ``test_an_update_of_several_keys_is_made_whole_or_not_at_all``.
2. When the reply to a conditional update was lost, the repeated update conflicts with the first
   one. It counts as done if every conditional key has the value of this very update.
   Held by ``test_a_conditional_update_whose_reply_was_lost_has_happened_once``.
3. When two writers update a key with equal values, on the same version, one of them gets the
   conflict. Held by ``test_of_two_who_write_equal_values_one_is_refused``.
4. When a repeated update conflicts with a later one of another writer, its caller learns that it
   may have been made.
   Held by ``test_an_update_that_was_overwritten_after_its_reply_was_lost_is_in_doubt``.
5. When a table is read page by page, each entry comes once.
   Held by ``test_pages_give_every_entry_once``.
6. When a value is too long for a table, it is refused, and not sent.
   Held by ``test_a_value_that_no_table_takes_is_not_sent``.
7. When a table is gone, its keys count as removed: another caller may delete it, empty, while the
   reply to their removal is lost.
   Held by ``test_keys_of_a_table_that_another_deletes_are_removed``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from pravega_controller.errors import (
    InvalidRequestError,
    NoSuchTableError,
    TableNotEmptyError,
    UncertainConflictError,
    VersionConflictError,
)
from pravega_controller.store_client.segment_client import (
    NO_TOKEN,
    SegmentClient,
    expect,
    expect_created,
    expect_one,
    for_each,
)
from pravega_wire import commands as wire
from pravega_wire.commands import NO_VERSION, NOT_EXISTS
from pravega_wire.requests.shared_connection import MakeRequest

__all__ = ["NOT_EXISTS", "NO_VERSION", "Entry", "Page", "TableClient"]

VALUE_BYTES_MAX = 1024 * 1024 - 8192
"""Maximum length of a value under any key, in bytes."""
READ_KEYS_MAX = 15
"""Maximum number of keys per read: this many values of the maximum length fit one reply."""
READ_SMALL_KEYS_MAX = 500
"""Maximum number of keys per read of values that are known to be small."""
READS_AT_A_TIME_MAX = 4
REMOVED_KEYS_MAX = 1000
"""Maximum number of keys per removal."""
UPDATED_KEYS_MAX = 2000
"""Maximum number of keys per update: segment stores refuse requests with more than 4096."""
PAGE_ENTRIES = 1000
CHECKED_KEY = b"is the table readable"
"""The key that a check reads; no table has it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a table with its value and version."""

    key: bytes
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """A key's new value, which is written if the key has this version.

    With ``NO_VERSION`` it is always written, with ``NOT_EXISTS`` only if the key does not exist.
    """

    key: bytes
    value: bytes
    version: int = NO_VERSION
    is_shared: bool = False
    """True if it does not matter who writes the value: an equal one of another writer will do."""
    is_marked: bool = False
    """True once the value has its member ``write``."""


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of a table in its order, and the token that resumes after them."""

    entries: tuple[Entry, ...]
    token: bytes


class Deleted(Enum):
    """The answer of ``TableClient.delete``: whether that call deleted the table."""

    NOW = "by this call"
    BEFORE = "before this call, or it never existed"
    PERHAPS_NOW = "the reply was lost: by this call, or before it"


class TableClient:
    """Reads and writes table segments through a ``SegmentClient``."""

    def __init__(self, segments: SegmentClient, *, random: Random) -> None:
        self._segments = segments
        self._random = random

    async def create(
        self,
        table: str,
        *,
        key_length: int = 0,
        rollover_bytes: int = 0,
        retry_seconds_max: float | None = None,
    ) -> None:
        """Create a table, unless it exists.

        With ``key_length`` the table is sorted, and all keys have this length; 0 makes a hash
        table. Raises ``StepRefusedError``.
        """
        reply = await self._segments.request(
            table,
            lambda i: wire.CreateTableSegment(
                i,
                table,
                NO_TOKEN,
                key_length=key_length,
                rollover_size_bytes=rollover_bytes,
            ),
            retry_seconds_max=retry_seconds_max,
        )
        expect_created(reply)

    async def delete(self, table: str, *, must_be_empty: bool) -> Deleted:
        """Delete a table, and return whether it was this call that did.

        Raises ``TableNotEmptyError`` if the table must be empty and is not.
        """
        attempts = 0

        def make(request_id: int) -> wire.Request:
            nonlocal attempts
            attempts += 1
            return wire.DeleteTableSegment(request_id, table, must_be_empty, NO_TOKEN)

        reply = await self._segments.request(table, make)
        kind = expect(reply, wire.SegmentDeleted, wire.NoSuchSegment, wire.TableSegmentNotEmpty)
        if kind is wire.TableSegmentNotEmpty:
            raise TableNotEmptyError(f"table {table} is not empty")
        if kind is wire.SegmentDeleted:
            return Deleted.NOW
        return Deleted.BEFORE if attempts == 1 else Deleted.PERHAPS_NOW

    async def is_empty(self, table: str) -> bool:
        """Return whether a table has no keys. Raises ``NoSuchTableError``."""
        return not (await self._read_entries(table, 1, wire.TableIteratorArgs())).entries

    async def exists(self, table: str) -> bool:
        """Return whether there is a table of this name."""
        try:
            await self.is_empty(table)
        except NoSuchTableError:
            return False
        return True

    async def check(self, table: str, *, retry_seconds_max: float) -> None:
        """Read from a table, to see that it can be read now.

        Raises ``StoreUnavailableError`` when its store has not answered for ``retry_seconds_max``,
        and ``NoSuchTableError``.
        """
        wanted = (wire.TableKey(CHECKED_KEY),)
        reply = await self._request(
            table,
            lambda i: wire.ReadTable(i, table, NO_TOKEN, wanted),
            retry_seconds_max=retry_seconds_max,
        )
        expect(reply, wire.TableRead)

    async def get(self, table: str, key: bytes) -> Entry | None:
        """Return the entry of a key, or None. No entry has the empty key."""
        if not key:
            return None
        return (await self.get_all(table, [key]))[0]

    async def get_all(
        self, table: str, keys: Sequence[bytes], *, value_bytes_max: int = VALUE_BYTES_MAX
    ) -> list[Entry | None]:
        """Return the entries of the keys, in their order; None where there is none.

        Many keys are read together if their values are known to have at most ``value_bytes_max``.
        """
        found: list[Entry | None] = [None] * len(keys)
        step = READ_KEYS_MAX * VALUE_BYTES_MAX // max(1, value_bytes_max)
        step = max(READ_KEYS_MAX, min(step, READ_SMALL_KEYS_MAX))

        async def read(start: int) -> None:
            wanted = tuple(wire.TableKey(key) for key in keys[start : start + step])
            reply = await self._request(table, lambda i: wire.ReadTable(i, table, NO_TOKEN, wanted))
            for index, entry in enumerate(expect_one(reply, wire.TableRead).entries, start):
                if entry.key.version != NOT_EXISTS:
                    found[index] = Entry(entry.key.key, entry.value, entry.key.version)

        if len(keys) <= step:
            await read(0)
        else:
            await for_each(range(0, len(keys), step), read, limit=READS_AT_A_TIME_MAX)
        return found

    async def put(self, table: str, key: bytes, value: bytes, *, version: int = NO_VERSION) -> int:
        """Write a key if it has this version, and return its new version.

        With ``NO_VERSION`` it is always written, with ``NOT_EXISTS`` only if the key does not
        exist. Raises ``VersionConflictError`` if the key has another version, as ``update``.
        """
        return (await self.update(table, [Change(key, value, version)]))[0]

    async def update(self, table: str, changes: Sequence[Change]) -> list[int]:
        """Write several keys at once, all or none, and return their new versions.

        Raises ``VersionConflictError`` if a key does not have the version that its change names,
        and ``InvalidRequestError`` if a value is too large for a table.
        """
        changes = self.marked(changes)
        for change in changes:
            if len(change.value) > VALUE_BYTES_MAX:
                raise InvalidRequestError(
                    f"{change.key!r} would take {len(change.value)} bytes; at most "
                    f"{VALUE_BYTES_MAX} can be stored"
                )
        entries = tuple(wire.TableEntry(wire.TableKey(c.key, c.version), c.value) for c in changes)
        attempts = 0

        def make(request_id: int) -> wire.Request:
            nonlocal attempts
            attempts += 1
            return wire.UpdateTableEntries(request_id, table, NO_TOKEN, entries)

        reply = await self._request(table, make)
        if isinstance(reply, wire.TableKeyBadVersion | wire.TableKeyDoesNotExist):
            return await self._versions_if_written(table, changes, is_repeated=attempts > 1)
        return list(expect_one(reply, wire.TableEntriesUpdated).updated_versions)

    def marked(self, changes: Sequence[Change]) -> list[Change]:
        """Return the changes with the member ``write`` in each value that has a condition.

        Whoever may send changes several times calls this before the first time, so that a later
        update recognizes what an earlier one has written.
        """
        write = f"{self._random.getrandbits(64):016x}"
        return [
            replace(change, value=with_write(change.value, write), is_marked=True)
            if change.version != NO_VERSION and not (change.is_shared or change.is_marked)
            else change
            for change in changes
        ]

    async def _versions_if_written(
        self, table: str, changes: Sequence[Change], *, is_repeated: bool
    ) -> list[int]:
        """Return the versions of an update that conflicts with its own first attempt.

        Raises ``VersionConflictError`` if another writer has changed a key, and
        ``UncertainConflictError`` if the update may have been made before that.
        """
        current = await self.get_all(table, [change.key for change in changes])
        for change, entry in zip(changes, current, strict=True):
            is_ours = entry is not None and entry.value == change.value
            if change.version != NO_VERSION and not is_ours:
                kind = UncertainConflictError if is_repeated else VersionConflictError
                raise kind(f"{change.key!r} in {table} no longer has version {change.version}")
        return [NO_VERSION if entry is None else entry.version for entry in current]

    async def remove(self, table: str, key: bytes, *, version: int = NO_VERSION) -> None:
        """Remove a key, unless it is gone. Raises ``VersionConflictError`` for another version."""
        await self.remove_if(table, [(key, version)])

    async def remove_if(self, table: str, versions: Sequence[tuple[bytes, int]]) -> None:
        """Remove several keys, or none. A key that is gone already is no obstacle.

        If the table is gone, the keys are.

        Raises ``VersionConflictError``, and removes nothing, if a key has another version.
        """
        with suppress(NoSuchTableError):
            await self._remove_left(table, list(versions))

    async def _remove_left(self, table: str, left: list[tuple[bytes, int]]) -> None:
        while left:
            reply = await self._remove(table, left)
            kind = expect(
                reply, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.TableKeyBadVersion
            )
            if kind is wire.TableKeysRemoved:
                return
            entries = await self.get_all(table, [key for key, _ in left])
            there = [(pair, entry) for pair, entry in zip(left, entries, strict=True) if entry]
            if kind is wire.TableKeyBadVersion and len(there) == len(left):
                raise VersionConflictError(f"a key to remove from {table} has another version")
            left = [pair for pair, _ in there]

    async def remove_all(self, table: str, keys: Sequence[bytes]) -> None:
        """Remove keys, whatever their versions, up to ``REMOVED_KEYS_MAX`` by one request.

        If the table is gone, the keys are.
        """
        with suppress(NoSuchTableError):
            for start in range(0, len(keys), REMOVED_KEYS_MAX):
                part = keys[start : start + REMOVED_KEYS_MAX]
                reply = await self._remove(table, [(key, NO_VERSION) for key in part])
                expect(reply, wire.TableKeysRemoved)

    async def _remove(self, table: str, versions: Sequence[tuple[bytes, int]]) -> wire.Reply:
        keys = tuple(wire.TableKey(key, version) for key, version in versions)
        return await self._request(table, lambda i: wire.RemoveTableKeys(i, table, NO_TOKEN, keys))

    async def page(self, table: str, token: bytes) -> Page:
        """Return the next entries after the token; no entries only at the end of the table."""
        args = wire.TableIteratorArgs(continuation_token=token)
        return await self._read_entries(table, PAGE_ENTRIES, args)

    async def read_range(
        self, table: str, first: bytes, last: bytes, *, count_max: int
    ) -> tuple[Entry, ...]:
        """Return the next entries of a table with sorted keys of one length, bounds included."""
        args = wire.TableIteratorArgs(from_key=first, to_key=last)
        return (await self._read_entries(table, count_max, args)).entries

    async def _read_entries(self, table: str, count_max: int, args: wire.TableIteratorArgs) -> Page:
        reply = await self._request(
            table, lambda i: wire.ReadTableEntries(i, table, NO_TOKEN, count_max, args)
        )
        found = expect_one(reply, wire.TableEntriesRead)
        entries = tuple(Entry(e.key.key, e.value, e.key.version) for e in found.entries)
        return Page(entries, found.continuation_token)

    async def pages(self, table: str) -> AsyncGenerator[tuple[Entry, ...], None]:
        """Yield every entry of a table, page by page."""
        token = b""
        while (page := await self.page(table, token)).entries:
            yield page.entries
            if not page.token:
                return
            token = page.token

    async def _request(
        self, table: str, make: MakeRequest, *, retry_seconds_max: float | None = None
    ) -> wire.Reply:
        reply = await self._segments.request(table, make, retry_seconds_max=retry_seconds_max)
        if isinstance(reply, wire.NoSuchSegment):
            raise NoSuchTableError(f"table {table} does not exist")
        return reply


def with_write(value: bytes, write: str) -> bytes:
    """Return a JSON object with one more member, ``write``."""
    assert value.endswith(b"}"), "values with a condition are JSON objects"
    return value[:-1] + b',"write":"' + write.encode() + b'"}'
