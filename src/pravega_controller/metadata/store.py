"""The controller's metadata: records in table segments of the segment stores.

Owns: ``MetadataStore``, the records of one controller by subject.

| records of                                    | where                                         |
|-----------------------------------------------|-----------------------------------------------|
| scopes, and the objects in them               | ``scope_records``                             |
| streams: as they are now, and earlier epochs  | ``streams.known``, ``.history``, ``.epochs``  |
| streams: changes                              | ``streams.writes``                            |
| streams: names, and numbers that are used up  | ``streams.names``                             |
| reader groups, and the streams that they read | ``group_records``, ``streams.subscribers``    |
| unfinished work                               | ``intents``                                   |
| transactions                                  | ``transaction_store``, ``transaction_outcomes`` |
"""

from __future__ import annotations

from random import Random

from pravega_controller.metadata.group_records import GroupRecords
from pravega_controller.metadata.intents import INTENTS, Intents
from pravega_controller.metadata.scope_records import SCOPES, ScopeRecords
from pravega_controller.metadata.streams.known import KnownStreams
from pravega_controller.metadata.streams.names import StreamNames
from pravega_controller.metadata.streams.subscribers import Subscribers
from pravega_controller.metadata.streams.used_numbers import NUMBERS
from pravega_controller.metadata.streams.writes import StreamWrites
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.store_client.table_client import TableClient

FIXED_TABLES = (SCOPES, INTENTS, NUMBERS)
"""The tables without which no stream can be found or changed; they may be in different containers,
and so in different segment stores."""


class MetadataStore:
    """The records of a controller, by subject."""

    def __init__(self, tables: TableClient, intents: Intents, *, random: Random) -> None:
        self._random = random
        self.tables = tables
        """The client of all tables. Modules of other subjects use it for their records, too."""
        self.intents = intents
        self.scopes = ScopeRecords(tables, self.new_id)
        self.streams = KnownStreams(tables, self.scopes)
        self.names = StreamNames(tables, self.scopes)
        self.subscribers = Subscribers(tables)
        self.writes = StreamWrites(tables, self.streams, self.subscribers)
        self.groups = GroupRecords(tables, self.scopes, self.writes)

    async def open(self, *, wait_seconds_max: float) -> None:
        """Create the fixed tables; wait for this time at most until the segment stores answer."""
        for table in FIXED_TABLES:
            await self.tables.create(table, retry_seconds_max=wait_seconds_max)

    async def check(self, *, retry_seconds_max: float) -> None:
        """Read from each fixed table. Raises ``ControllerError`` for the first that cannot be read;
        a store that refuses is tried again for ``retry_seconds_max``."""

        async def check(table: str) -> None:
            await self.tables.check(table, retry_seconds_max=retry_seconds_max)

        await for_each(FIXED_TABLES, check)

    def new_id(self) -> str:
        """Return an id that nothing had before."""
        return f"{self._random.getrandbits(64):016x}"
