"""The subscribers of a stream: the reader groups for which its retention keeps data.

Owns: ``Subscribers``, and the cut that each has released.

    _system/_tables/controller/histories-<id>   <stream id>/subscribers     -> SubscribersRecord
                                                <stream id>/subscriber/<g>  -> SubscriberRecord
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pravega_controller.metadata.records import (
    SubscriberRecord,
    SubscribersRecord,
    decode,
    encode,
)
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.store_client.table_client import NOT_EXISTS, Change, Entry, TableClient


class Subscribers:
    """Reads and writes the subscribers of streams."""

    def __init__(self, tables: TableClient) -> None:
        self._tables = tables

    async def names(self, stream: Stream) -> list[str]:
        """Return the reader groups, as ``scope/name``, for which a stream keeps data."""
        return sorted(_names_in(await self._tables.get(stream.table, stream.key("subscribers"))))

    async def find(self, stream: Stream, name: str) -> tuple[SubscriberRecord, int] | None:
        """Return the cut that a reader group has released, with the version for changes."""
        entry = await self._tables.get(stream.table, stream.key("subscriber", name))
        return None if entry is None else (decode(entry.value, SubscriberRecord), entry.version)

    async def write(
        self, stream: Stream, name: str, record: SubscriberRecord, *, version: int
    ) -> None:
        """Replace the record of a subscriber. Raises ``VersionConflictError``."""
        key = stream.key("subscriber", name)
        await self._tables.put(stream.table, key, encode(record), version=version)

    async def add(
        self,
        stream: Stream,
        name: str,
        *,
        generation: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """Make a reader group a subscriber; an existing subscriber keeps its cut.

        ``is_wanted`` is called after the subscribers were read, and tells whether to write. Raises
        ``VersionConflictError``.
        """
        keys = [stream.key("subscribers"), stream.key("subscriber", name)]
        known, current = await self._tables.get_all(stream.table, keys)
        if not await is_wanted():
            return
        cut = {} if current is None else decode(current.value, SubscriberRecord).cut
        record = SubscriberRecord(generation, cut)
        changes = [Change(keys[1], encode(record), current.version if current else NOT_EXISTS)]
        if name not in _names_in(known):
            together = SubscribersRecord(tuple(sorted({*_names_in(known), name})))
            version = known.version if known else NOT_EXISTS
            changes.append(Change(keys[0], encode(together), version))
        await self._tables.update(stream.table, changes)

    async def remove(
        self, stream: Stream, name: str, *, is_wanted: Callable[[], Awaitable[bool]]
    ) -> None:
        """Remove a reader group from the subscribers, if it is one.

        ``is_wanted`` is called after the subscribers were read, and tells whether to write. Raises
        ``VersionConflictError`` if the group has subscribed since.
        """
        keys = [stream.key("subscribers"), stream.key("subscriber", name)]
        known, current = await self._tables.get_all(stream.table, keys)
        if (current is None and name not in _names_in(known)) or not await is_wanted():
            return
        if known is not None and name in _names_in(known):
            left = tuple(one for one in _names_in(known) if one != name)
            value = encode(SubscribersRecord(left))
            await self._tables.put(stream.table, keys[0], value, version=known.version)
        if current is not None:
            await self._tables.remove(stream.table, keys[1], version=current.version)


def _names_in(entry: Entry | None) -> tuple[str, ...]:
    return () if entry is None else decode(entry.value, SubscribersRecord).names
