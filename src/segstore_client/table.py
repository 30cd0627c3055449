"""Reads and changes the entries of a key-value table, without blocking.

Owns: which segment has a key, and pages of entries.

Invariants:
1. When the answer to an update is lost, the update is tried again; a conditional one that had been
   done already then fails with ``ConflictError``, whose text says so. Held by
   ``test_an_update_whose_answer_is_lost_is_not_called_refused``.
2. When several keys with one primary key are put together, all of them change or none. Held by
   ``test_entries_of_one_primary_key_change_together``.
3. When a wait for the next entry is cancelled or fails, the iteration goes on with that entry. Held
   by ``test_an_iteration_goes_on_after_a_wait_that_was_cancelled``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from pravega_blocking.controller_client import ControllerClient, Purpose, TableSettings
from pravega_blocking.errors import UsageError
from pravega_blocking.table_client import (
    ABSENT,
    ANY_VERSION,
    PAGE_ENTRIES,
    Entry,
    table_refusal,
)
from pravega_wire import commands as wire
from pravega_wire.hashing import table_key_hash
from pravega_wire.key_text import key_after
from pravega_wire.names import key_value_table_stream, scoped_name
from pravega_wire.sessions.routes import Routes, SegmentRange
from segstore_client.calls import call_blocking
from segstore_client.request_pool import RequestPool
from segstore_client.segment_requests import SegmentRequests

KEYS_MAX = 15
"""Maximum number of keys in one request: the reply has room for this many of the longest values."""


class Table:
    """The entries of one key-value table. ``Store.table`` makes it; all tasks may use it.

    A key is its primary part and its secondary part together: ``key_bytes`` bytes.
    """

    def __init__(
        self,
        controller: ControllerClient,
        pool: RequestPool,
        scope: str,
        table: str,
        settings: TableSettings,
        ranges: Sequence[SegmentRange],
        *,
        patience: float,
    ) -> None:
        self.settings = settings
        self._name = scoped_name(scope, table)
        # The tokens are for the name in the segments' names.
        stream = key_value_table_stream(table)
        self._requests = SegmentRequests(
            controller, pool, scope, stream, what=self._name, patience=patience
        )
        self._read_access = controller.store_access(scope, stream, Purpose.READ)
        self._write_access = controller.store_access(scope, stream, Purpose.READ_WRITE)
        self._routes = Routes(ranges)

    @property
    def key_bytes(self) -> int:
        """Return the length of keys, in bytes."""
        return self.settings.primary_key_bytes + self.settings.secondary_key_bytes

    async def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key; None if there is none."""
        return (await self.get_all([key]))[0]

    async def get_all(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each key, in their order; None for a key that has none.

        They are read by several requests if there are many, so not all at one moment.
        """
        found: dict[bytes, Entry | None] = {}
        by_segment: dict[int, list[bytes]] = {}
        for key in keys:
            by_segment.setdefault(self._segment_of(key), []).append(key)
        for segment, each in by_segment.items():
            for start in range(0, len(each), KEYS_MAX):
                found |= await self._read(segment, each[start : start + KEYS_MAX])
        return [found[key] for key in keys]

    async def put(self, key: bytes, value: bytes, *, version: int = ANY_VERSION) -> int:
        """Set the value of a key; return the new version.

        With a ``version``, only if the key has it; with ``ABSENT``, only if there is no such key.
        Raises ``ConflictError`` otherwise.
        """
        entry = wire.TableEntry(wire.TableKey(key, version), value)
        return (await self._update(self._segment_of(key), [entry]))[0]

    async def put_all(self, entries: Mapping[bytes, bytes]) -> list[int]:
        """Set the values of keys with one primary key, all or none; return the new versions."""
        primary = {key[: self.settings.primary_key_bytes] for key in entries}
        if len(primary) != 1:
            raise UsageError("keys that change together have one primary key")
        segments = [self._segment_of(key) for key in entries]
        changes = [wire.TableEntry(wire.TableKey(key), value) for key, value in entries.items()]
        return await self._update(segments[0], changes)

    async def remove(self, key: bytes, *, version: int = ANY_VERSION) -> None:
        """Remove a key; with a ``version`` only if it has it.

        Raises ``ConflictError`` otherwise; without a version the key need not exist.
        """
        keys = (wire.TableKey(key, version),)
        attempts, reply = await self._requests.ask(
            self._write_access,
            self._segment_of(key),
            lambda i, name, token: wire.RemoveTableKeys(i, name, token, keys),
        )
        if not isinstance(reply, wire.TableKeysRemoved):
            raise table_refusal(reply, self._name, attempts)

    def entries(self, *, first: bytes = b"", last: bytes = b"") -> AsyncIterator[Entry]:
        """Return an iterator of the entries from the key ``first`` to ``last``, both included; of
        all by default.

        Those of one segment come in the order of their keys, so those of one primary key do.
        """
        begin, end = first or bytes(self.key_bytes), last or b"\xff" * self.key_bytes
        self._check_key(begin)
        self._check_key(end)
        segments = self._routes.segments if begin <= end else ()
        return _Entries(self._read_page, segments, begin, end)

    # ---- Requests --------------------------------------------------------------------------------

    async def _read(self, segment: int, keys: Sequence[bytes]) -> dict[bytes, Entry | None]:
        wanted = tuple(map(wire.TableKey, keys))
        _, reply = await self._requests.ask(
            self._read_access,
            segment,
            lambda i, name, token: wire.ReadTable(i, name, token, wanted),
        )
        if not isinstance(reply, wire.TableRead) or len(reply.entries) != len(keys):
            raise table_refusal(reply, self._name)
        return {
            key: None
            if each.key.version == ABSENT
            else Entry(key, bytes(each.value), each.key.version)
            for key, each in zip(keys, reply.entries, strict=True)
        }

    async def _read_page(self, segment: int, begin: bytes, end: bytes) -> list[Entry]:
        args = wire.TableIteratorArgs(from_key=begin, to_key=end)
        _, reply = await self._requests.ask(
            self._read_access,
            segment,
            lambda i, name, token: wire.ReadTableEntries(i, name, token, PAGE_ENTRIES, args),
        )
        if not isinstance(reply, wire.TableEntriesRead):
            raise table_refusal(reply, self._name)
        return [
            Entry(bytes(each.key.key), bytes(each.value), each.key.version)
            for each in reply.entries
        ]

    async def _update(self, segment: int, entries: Sequence[wire.TableEntry]) -> list[int]:
        changes = tuple(entries)
        attempts, reply = await self._requests.ask(
            self._write_access,
            segment,
            lambda i, name, token: wire.UpdateTableEntries(i, name, token, changes),
        )
        if not isinstance(reply, wire.TableEntriesUpdated):
            raise table_refusal(reply, self._name, attempts)
        return list(reply.updated_versions)

    def _segment_of(self, key: bytes) -> int:
        self._check_key(key)
        return self._routes.find(table_key_hash(key[: self.settings.primary_key_bytes]))

    def _check_key(self, key: bytes) -> None:
        if len(key) != self.key_bytes:
            raise UsageError(f"a key of {self._name} has {self.key_bytes} bytes, not {len(key)}")


class _Entries(AsyncIterator[Entry]):
    """An iteration over the entries of segments. A generator would end when it is cancelled."""

    def __init__(
        self,
        read_page: Callable[[int, bytes, bytes], Awaitable[Sequence[Entry]]],
        segments: Iterable[int],
        begin: bytes,
        end: bytes,
    ) -> None:
        self._read_page = read_page
        self._segments = deque(segments)
        self._begin = self._position = begin
        self._end = end
        self._page: deque[Entry] = deque()

    async def __anext__(self) -> Entry:
        while not self._page:
            if not self._segments:
                raise StopAsyncIteration
            page = await self._read_page(self._segments[0], self._position, self._end)
            self._page.extend(page)
            self._position = key_after(page[-1].key) if page else b""
            if not b"" < self._position <= self._end:
                self._segments.popleft()
                self._position = self._begin
        return self._page.popleft()


async def open_table(
    controller: ControllerClient, pool: RequestPool, scope: str, table: str, *, patience: float
) -> Table:
    """Return a table, after the controller was asked for its settings and segments."""
    settings = await call_blocking(partial(controller.table_settings, scope, table))
    ranges = await call_blocking(partial(controller.table_ranges, scope, table))
    return Table(controller, pool, scope, table, settings, ranges, patience=patience)
