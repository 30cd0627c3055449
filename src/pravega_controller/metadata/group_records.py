"""The records of reader groups.

Owns: ``GroupRecords``, and ``ReaderGroup``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pravega_controller.errors import NoSuchTableError, ReaderGroupNotFoundError
from pravega_controller.metadata.records import ReaderGroupRecord, decode, encode
from pravega_controller.metadata.scope_records import Scope, ScopeRecords
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.streams.writes import NewStream, StreamWrites
from pravega_controller.store_client.table_client import Change, TableClient

GROUP_KIND = "g"


@dataclass(frozen=True, slots=True)
class ReaderGroup:
    """A reader group as it was read last: its record, and the record's version."""

    scope: Scope
    name: str
    version: int
    record: ReaderGroupRecord


class GroupRecords:
    """Reads and writes reader groups."""

    def __init__(self, tables: TableClient, scopes: ScopeRecords, writes: StreamWrites) -> None:
        self._tables = tables
        self._scopes = scopes
        self._writes = writes

    async def read(self, scope: str, name: str) -> ReaderGroup:
        """Return a reader group; ``ReaderGroupNotFoundError`` or ``ScopeNotFoundError``."""
        found, entry = await self._scopes.get_object(scope, GROUP_KIND, name)
        if entry is None:
            raise ReaderGroupNotFoundError(f"reader group {scope}/{name} does not exist")
        return ReaderGroup(found, name, entry.version, decode(entry.value, ReaderGroupRecord))

    async def write(self, group: ReaderGroup, record: ReaderGroupRecord) -> ReaderGroup:
        """Replace a reader group's record. Raises ``ScopeNotFoundError``."""
        version = await self._scopes.put_object(
            group.scope, GROUP_KIND, group.name, encode(record), version=group.version
        )
        return replace(group, version=version, record=record)

    async def is_unchanged(self, group: ReaderGroup) -> bool:
        """Return whether the stored record of a reader group equals the given one.

        Its version may differ, because ``insert_streams`` writes the record again unchanged.
        """
        try:
            entry = await self._tables.get(group.scope.objects, _group_key(group.name))
        except NoSuchTableError:
            return False
        if entry is None:
            return False
        return entry.version == group.version or (
            decode(entry.value, ReaderGroupRecord) == group.record
        )

    async def remove(self, group: ReaderGroup) -> None:
        """Remove a reader group's record. It is no error if the record or its scope is gone."""
        await self._scopes.remove_object(group.scope, GROUP_KIND, group.name, version=group.version)

    async def insert_streams(
        self, group: ReaderGroup, new: Sequence[NewStream]
    ) -> tuple[list[Stream], ReaderGroup]:
        """Record new streams of a reader group; return the group with them.

        The update that writes their names also writes the group's record again, unchanged. So it
        fails if the group was changed or deleted.
        """
        same = Change(_group_key(group.name), encode(group.record), group.version)
        streams, version = await self._writes.insert_with(group.scope, new, same_object=same)
        return streams, replace(group, version=version)


def _group_key(name: str) -> bytes:
    return f"g/{name}".encode()
