"""The table segments of one container.

Owns: the operations of the table protocol, its limits, and the memory bound of all indexes.

Invariants:
1. When a key, value or update is longer than the limits of the protocol, the request is refused and
   writes nothing. Held by ``test_sizes_are_bounded``.
2. When the known entries of all tables together exceed ``index_bytes_max``, tables that are not in
   use lose theirs. Held by ``test_indexes_of_tables_not_in_use_are_dropped_above_the_bound``.
3. When the table changes between two pages of an iteration, each page still shows the table at one
   moment, no key is shown twice, and no unchanged key is left out. Held by ``TestTableMachine``.
4. A page without keys is the end of the iteration. Held by
   ``test_hash_iterations_page_by_token_and_end_with_an_empty_page``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import NoReturn

import trio

from pravega_wire.commands import NOT_EXISTS, TableEntry, TableKey
from segstore.api import SegmentContainer
from segstore.errors import (
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentStoreError,
    SegmentTruncatedError,
    UnsupportedRequestError,
)
from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    ATTRIBUTE_SEGMENT_TYPE,
    CREATION_TIME,
    ROLLOVER_SIZE,
    TABLE_INCARNATION,
    SegmentType,
)
from segstore.tables.entries import encode_entry, encoded_length
from segstore.tables.entry_reader import EntryReader
from segstore.tables.known_entries import Located
from segstore.tables.layouts import (
    HASH_BYTES,
    FixedKeyLayout,
    HashKey,
    Ranges,
    hash_key,
)
from segstore.tables.maintenance import Maintenance
from segstore.tables.settings import TableSettings
from segstore.tables.table_index import TableIndex
from segstore.tables.table_segment import TableSegment, is_fixed_key_table
from segstore.tables.updates import Change, TableUpdate

FIXED_KEY_BYTES_MAX = 256
WIRE_BYTES = 24
"""Maximum number of bytes by which an entry is longer in a command of the wire protocol than in the
segment."""
PAGE_COUNT_MAX = 8192
"""Approximate maximum number of keys in one page of an iteration, even if a client asks for
more."""
SLICE_COUNT = 2048
"""Count of one update's changes that are encoded before other tasks run."""


@dataclass(frozen=True, slots=True)
class KeysPage:
    """Keys with their versions, and the token that the request for the next page needs. A page
    without keys is the end."""

    keys: tuple[TableKey, ...]
    continuation_token: bytes


@dataclass(frozen=True, slots=True)
class EntriesPage:
    """Entries, and the token that the request for the next page needs. A page without entries is
    the end."""

    entries: tuple[TableEntry, ...]
    continuation_token: bytes


@dataclass(frozen=True, slots=True)
class DeltaPage:
    """Entries written after a position. ``should_clear`` means that removals before the table's
    start are not known any more, so the client has to drop all keys that it had read before."""

    entries: tuple[TableEntry, ...]
    should_clear: bool
    reached_end: bool
    last_position: int


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Offsets and entry count of a table. ``key_length``, in bytes, is 0 for a hash table."""

    start_offset: int
    length: int
    entry_count: int
    key_length: int


class TableSegments:
    """Tables of both layouts on top of a container. ``random`` makes the number that distinguishes
    a table from an earlier one of the same name.

    A task has to call ``run``, which indexes and compacts tables; all other methods work without
    it. Every method raises ``NoSuchSegmentError``, ``ContainerOfflineError``, ``StorageError``, and
    ``InvalidRequestError`` if the segment is not a table.
    """

    def __init__(
        self,
        container: SegmentContainer,
        settings: TableSettings,
        *,
        hash_key: HashKey = hash_key,
        random: Random | None = None,
    ) -> None:
        self._container = container
        self._random = random or SystemRandom()
        self._settings = settings
        self._hash_key = hash_key
        self._tables: OrderedDict[str, TableSegment] = OrderedDict()
        self._index_bytes: dict[str, int] = {}
        self._index_bytes_total = 0
        self._maintenance = Maintenance(self._maintain, retry_seconds=settings.index_seconds)

    @property
    def index_bytes(self) -> int:
        """Return the estimated memory of all tables' indexes, in bytes."""
        return self._index_bytes_total

    # ---- Life of a table -------------------------------------------------------------------------

    async def create(
        self, name: str, *, key_length: int = 0, rollover_bytes: int = 0, created_ms: int = 0
    ) -> None:
        """Create a table; ``key_length`` 1..256 chooses the fixed-key layout, 0 the hash layout."""
        if not 0 <= key_length <= FIXED_KEY_BYTES_MAX:
            raise InvalidRequestError(name, f"keys of {key_length} bytes are not supported")
        kind = SegmentType.FIXED_KEY_TABLE if key_length else SegmentType.TABLE
        attributes = {
            CREATION_TIME: created_ms,
            ATTRIBUTE_SEGMENT_TYPE: int(kind),
            ROLLOVER_SIZE: max(0, rollover_bytes),
            TABLE_INCARNATION: self._random.getrandbits(62),
        }
        if key_length:
            attributes[ATTRIBUTE_ID_LENGTH] = key_length
        await self._container.create_segment(name, attributes=attributes)

    async def delete(self, name: str, *, must_be_empty: bool = False) -> None:
        """Delete a table. With ``must_be_empty``, raise ``TableNotEmptyError`` if it has a key; a
        fixed-key table then raises ``UnsupportedRequestError``."""
        table = self.find_table(name)
        if not must_be_empty:
            await self._container.delete_segment(name)
        elif is_fixed_key_table(self._container.segment_info(name)):
            raise UnsupportedRequestError(name, "must_be_empty on a fixed-key table")
        else:
            await table.delete_if_empty()
        self.forget(name)

    def forget(self, name: str) -> None:
        """Drop the index of a deleted table, but not that of another table which has its name
        now."""
        if (table := self._tables.get(name)) is not None:
            try:
                table.check_same()
            except SegmentStoreError:
                self._drop(table)

    def _drop(self, table: TableSegment) -> None:
        """Drop the object of a deleted table. The object of an existing table must stay: a second
        one would not see its updates."""
        del self._tables[table.name]
        self._index_bytes_total -= self._index_bytes.pop(table.name, 0)
        self._maintenance.forget(table)

    async def info(self, name: str) -> TableInfo:
        """Return the offsets, the exact number of keys, and the length of keys of a table."""
        table = self.find_table(name)
        index = await self._index(table)
        count = await index.count()
        table.check_same()
        info = self._container.segment_info(name)
        return TableInfo(info.start_offset, info.length, count, index.key_length)

    def find_table(self, name: str) -> TableSegment:
        """Return the table. Raises unless the segment exists and is a table."""
        info = self._container.segment_info(name)
        is_fixed_key_table(info)
        table = self._tables.get(name)
        if table is not None and table.segment_id != info.segment_id:
            self._drop(table)
            table = None
        if table is None:
            table = self._tables[name] = TableSegment(
                name,
                info.segment_id,
                self._container,
                self._settings,
                hash_key=self._hash_key,
                on_durable=self._after_append,
            )
        self._tables.move_to_end(name)
        return table

    async def _index(self, table: TableSegment) -> TableIndex:
        """Return the committed index, which is valid until the next await."""
        index = await table.index()
        self._ask_maintenance(table)
        self._bound_memory(table)
        return index

    def _after_append(self, table: TableSegment) -> None:
        self._bound_memory(table)
        if self._tables.get(table.name) is not table:
            return
        if table.wants_step():
            self._maintenance.ask(table, trio.current_time())
        self._ask_maintenance(table)

    def _ask_maintenance(self, table: TableSegment) -> None:
        """Make a table due for maintenance in ``index_seconds`` if it has anything to be indexed or
        compacted."""
        if not self._maintenance.is_due(table) and (table.has_tail() or table.wants_compaction()):
            self._maintenance.ask(table, trio.current_time() + self._settings.index_seconds)

    def _bound_memory(self, in_use: TableSegment) -> None:
        self._update_memory(in_use)
        if self._index_bytes_total <= self._settings.index_bytes_max:
            return
        for table in self._tables.values():
            if table is not in_use and table.is_idle:
                table.drop_index()
                self._update_memory(table)
                if self._index_bytes_total <= self._settings.index_bytes_max:
                    break

    def _update_memory(self, table: TableSegment) -> None:
        if self._tables.get(table.name) is not table:
            return
        size = table.memory_bytes
        self._index_bytes_total += size - self._index_bytes.pop(table.name, 0)
        if size:
            self._index_bytes[table.name] = size

    # ---- Updates ---------------------------------------------------------------------------------

    async def update(
        self, name: str, entries: Sequence[TableEntry], *, segment_offset: int = -1
    ) -> list[int]:
        """Write all entries or none. Return their versions, in order, when they are durable.

        The version of each key is a condition: ``NO_VERSION`` for none, ``NOT_EXISTS`` for an
        absent key, any other for the key's current version. Raises ``TableKeyMissingError`` or
        ``TableKeyVersionError`` when it fails, and ``BadOffsetError`` when ``segment_offset`` is
        given and is not the segment's length.
        """
        changes = [Change(entry.key.key, entry.key.version, entry.value) for entry in entries]
        return await self._change(name, changes, segment_offset)

    async def remove(
        self, name: str, keys: Sequence[TableKey], *, segment_offset: int = -1
    ) -> None:
        """Remove all keys or none; raises like ``update``.

        Removing with ``NOT_EXISTS`` tests that the key is absent and changes nothing.
        """
        changes = [Change(key.key, key.version, None) for key in keys]
        await self._change(name, changes, segment_offset)

    async def _change(self, name: str, changes: Sequence[Change], segment_offset: int) -> list[int]:
        table = self.find_table(name)
        encoded: list[bytes] = []
        encoded_bytes = 0
        if len(changes) <= SLICE_COUNT and not table.entering.locked():
            encoded_bytes = self._encode(name, changes, encoded, 0)
        else:
            async with table.entering:
                for start in range(0, len(changes), SLICE_COUNT):
                    part = changes[start : start + SLICE_COUNT]
                    encoded_bytes = self._encode(name, part, encoded, encoded_bytes)
                    await trio.lowlevel.checkpoint()

        def make(index: TableIndex) -> TableUpdate:
            if index.key_length:
                for key, _, _ in changes:
                    self._check_key_length(name, key, index)
            return TableUpdate(
                name,
                changes,
                encoded,
                segment_offset=segment_offset,
                encoded_bytes=encoded_bytes,
            )

        update = await table.submit(make)
        assert isinstance(update, TableUpdate)
        return update.versions

    def _encode(
        self, name: str, changes: Sequence[Change], encoded: list[bytes], total: int
    ) -> int:
        """Check the lengths of changes and append their bytes to ``encoded``, which has ``total``
        bytes until now. Return the new total."""
        settings = self._settings
        for key, _, value in changes:
            if not 0 < len(key) <= settings.key_bytes_max:
                raise InvalidRequestError(name, f"a key of {len(key)} bytes")
            if value is not None and len(value) > settings.value_bytes_max:
                raise InvalidRequestError(name, f"a value of {len(value)} bytes")
            encoded.append(encode_entry(key, value))
            total += len(encoded[-1])
        if total > settings.batch_bytes_max:
            raise InvalidRequestError(name, f"an update of {total} bytes")
        return total

    def _check_key_length(self, name: str, key: bytes, index: TableIndex) -> None:
        if index.key_length and len(key) != index.key_length:
            raise InvalidRequestError(
                name, f"a key of {len(key)} bytes in a table of {index.key_length}-byte keys"
            )

    # ---- Reads -----------------------------------------------------------------------------------

    async def read(self, name: str, keys: Sequence[bytes]) -> list[TableEntry]:
        """Return the entry of each key, in the order of the keys. An absent key has the version
        ``NOT_EXISTS`` and an empty value."""
        table = self.find_table(name)
        index = await self._index(table)
        for key in keys:
            self._check_key_length(name, key, index)
        found = list(zip(keys, await index.find_many(keys), strict=True))
        self._bound_memory(table)
        # The answer repeats the keys, those of absent entries too.
        total = sum(
            WIRE_BYTES + (len(key) if located is None else located.length) for key, located in found
        )
        if total > self._settings.reply_bytes_max:
            raise InvalidRequestError(name, f"the answer takes {total} bytes")
        entries = [
            await self._entry(table, key, located) or TableEntry(TableKey(key, NOT_EXISTS), b"")
            for key, located in found
        ]
        table.check_same()
        return entries

    async def _entry(
        self, table: TableSegment, key: bytes, located: Located | None
    ) -> TableEntry | None:
        if located is None:
            return None
        if located.value is not None:
            return TableEntry(TableKey(key, located.version), located.value)
        read = await table.read_value(key, located)
        return None if read is None else TableEntry(TableKey(key, read[0]), read[1])

    async def iterate_keys(
        self,
        name: str,
        *,
        count_max: int,
        continuation_token: bytes = b"",
        from_key: bytes = b"",
        to_key: bytes = b"",
    ) -> KeysPage:
        """Return a page of about ``count_max`` keys: in the order of hashes, or sorted in a
        fixed-key table.

        ``continuation_token``, from the page before, is for hash tables; ``from_key`` and
        ``to_key``, both included, are for fixed-key tables. Raises ``InvalidRequestError``
        otherwise.
        """
        table = self.find_table(name)
        found, token = await self._page(
            table, count_max, continuation_token, from_key, to_key, with_values=False
        )
        table.check_same()
        keys = tuple(TableKey(key, located.version) for key, located in found)
        return KeysPage(keys, token)

    async def iterate_entries(
        self,
        name: str,
        *,
        count_max: int,
        continuation_token: bytes = b"",
        from_key: bytes = b"",
        to_key: bytes = b"",
    ) -> EntriesPage:
        """Return a page of entries; see ``iterate_keys``."""
        table = self.find_table(name)
        while True:
            found, token = await self._page(
                table, count_max, continuation_token, from_key, to_key, with_values=True
            )
            entries = [await self._entry(table, key, located) for key, located in found]
            table.check_same()
            present = tuple(entry for entry in entries if entry is not None)
            # If all keys of the page were removed while it was read, an empty page would wrongly
            # mean the end.
            if present or not found:
                return EntriesPage(present, token)
            continuation_token = token

    async def _page(
        self,
        table: TableSegment,
        count_max: int,
        token: bytes,
        from_key: bytes,
        to_key: bytes,
        *,
        with_values: bool,
    ) -> tuple[list[tuple[bytes, Located]], bytes]:
        """Return the keys and entries of the next page, and the continuation token after it."""
        index = await self._index(table)
        ranges = _ranges(table.name, index, token, from_key, to_key)
        if count_max <= 0:
            return [], b""
        page = await index.page(
            ranges,
            count_max=min(count_max, PAGE_COUNT_MAX),
            bytes_max=self._settings.page_bytes_max,
            with_values=with_values,
        )
        return page.items, b"" if index.key_length else page.last

    async def read_delta(self, name: str, *, from_position: int, count_max: int) -> DeltaPage:
        """Return up to ``count_max`` keys that were written after the offset ``from_position``,
        with their newest values; keys that were removed afterwards are left out.

        Raises ``UnsupportedRequestError`` for a fixed-key table.
        """
        table = self.find_table(name)
        if is_fixed_key_table(self._container.segment_info(name)):
            raise UnsupportedRequestError(name, "delta of a fixed-key table")
        while True:
            info = self._container.segment_info(name)
            if not 0 <= from_position <= info.length:
                raise InvalidRequestError(name, f"position {from_position} of {info.length}")
            start = max(from_position, info.start_offset)
            try:
                found, position = await self._scan(name, start, info.length, count_max)
            except SegmentTruncatedError:
                continue
            table.check_same()
            return DeltaPage(
                tuple(found.values()),
                should_clear=from_position < info.start_offset,
                reached_end=position >= info.length,
                last_position=position,
            )

    async def _scan(
        self, name: str, start: int, end: int, count_max: int
    ) -> tuple[dict[bytes, TableEntry], int]:
        reader = EntryReader(
            self._container, name, start=start, end=end, read_bytes=self._settings.read_bytes
        )
        found: dict[bytes, TableEntry] = {}
        size = 0
        while entries := await reader.read():
            for entry in entries:
                if len(found) >= count_max or size >= self._settings.page_bytes_max:
                    return found, entry.offset
                before = found.pop(entry.key, None)
                if before is not None:
                    size -= encoded_length(entry.key, before.value)
                if entry.value is not None:
                    key = TableKey(entry.key, entry.version)
                    found[entry.key] = TableEntry(key, entry.value)
                    size += entry.length
        return found, end

    # ---- Index steps and compaction --------------------------------------------------------------

    async def compact(self, name: str) -> None:
        """Compact a table now if too few of its entries are live."""
        await self.find_table(name).compact()

    async def run(self) -> NoReturn:
        """Index and compact tables when they are due, until cancelled."""
        await self._maintenance.run()

    async def _maintain(self, table: TableSegment) -> None:
        name = table.name
        try:
            await table.follow()
            if table.wants_compaction():
                await table.compact()
            if self._tables.get(name) is table:
                self._ask_maintenance(table)
        except NoSuchSegmentError:
            if self._tables.get(name) is table:
                self._drop(table)
        else:
            self._bound_memory(table)


def _ranges(name: str, index: TableIndex, token: bytes, from_key: bytes, to_key: bytes) -> Ranges:
    """Return the ranges of attribute ids that a page of an iteration reads. Raises
    ``InvalidRequestError`` for arguments of the other layout."""
    layout = index.layout
    if isinstance(layout, FixedKeyLayout):
        if token:
            raise InvalidRequestError(name, "a fixed-key table knows no continuation token")
        return layout.ranges(from_key, to_key)
    if from_key or to_key:
        raise InvalidRequestError(name, "a hash table knows no key ranges")
    if len(token) not in (0, HASH_BYTES):
        raise InvalidRequestError(name, "malformed continuation token")
    return layout.ranges_behind(token)
