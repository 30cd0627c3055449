"""Reads and changes a log's node in ZooKeeper; each change is on condition of the last version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import trio

from bookkeeper_client.client import BookKeeper, WritableLedger
from bookkeeper_client.errors import BookKeeperError, ClosedError, FencedError
from segstore.errors import DataLogCorruptError
from segstore.tiers.bookkeeper.log_metadata import (
    LogLedger,
    LogMetadata,
    decode_log_metadata,
    encode_log_metadata,
)
from zookeeper_client.api import (
    BadVersionError,
    ConnectionLostError,
    NodeExistsError,
    NoNodeError,
    ZooKeeper,
    ZooKeeperError,
    ensure_path,
)

MISSING = -1
"""Version that stands for a node that does not exist yet."""
_TRIES_MAX = 5

MakeLedger = Callable[[BookKeeper], Awaitable[WritableLedger]]


class MetadataNode:
    """A log's node, as one owner knows it. Raises ``FencedError`` if another owner has changed it.

    A change whose answer was lost may have taken effect, or may do so later. The next change
    detects that, because each is on condition of the version before it.
    """

    def __init__(self, zookeeper: ZooKeeper, path: str, make_ledger: MakeLedger) -> None:
        self.metadata = LogMetadata()
        self.version = MISSING
        self._zookeeper = zookeeper
        self._path = path
        self._make_ledger = make_ledger
        self._turn = trio.Lock()
        self._doubtful: dict[bytes, LogMetadata] = {}
        """The metadata, by their bytes, that the node may have because of changes without an
        answer."""

    async def fetch(self) -> None:
        """Read the node. If there is none, the log is new."""
        try:
            data, self.version = await self._zookeeper.get(self._path)
        except NoNodeError:
            self.metadata, self.version = LogMetadata(), MISSING
        else:
            self.metadata = decode_log_metadata(data)
        self._doubtful.clear()

    async def add_ledger(
        self, client: BookKeeper, prepared: LogMetadata | None = None
    ) -> WritableLedger:
        """Make a ledger and add it to the node: to ``prepared`` if given, else to the present
        metadata."""
        async with self._turn:
            ledger = await self._make_ledger(client)
            if prepared is not None:
                self.metadata = prepared
            try:
                await self._store(lambda metadata: metadata.add(ledger.ledger_id))
            except BaseException as error:
                # The ledger will not be used, even if the node names it by now.
                ledger.abandon(error if isinstance(error, Exception) else ClosedError("cancelled"))
                if isinstance(error, FencedError):
                    await self._delete_unnamed(client, ledger.ledger_id)
                raise
            return ledger

    async def truncate(self, position: int, keeps: Collection[int]) -> list[LogLedger]:
        """Store the position as the first needed one. Return the ledgers that the node does not
        name any more: those before it, except those with ids in ``keeps``."""
        async with self._turn:
            before = self.metadata.ledgers
            await self._store(lambda metadata: metadata.truncate(position, keeps))
            kept = {each.ledger_id for each in self.metadata.ledgers}
            return [each for each in before if each.ledger_id not in kept]

    async def check_owner(self) -> None:
        """Check that no other owner has changed the node."""
        async with self._turn:
            try:
                await self._look()
            except NoNodeError as error:
                raise FencedError("the log's node is gone") from error

    async def _delete_unnamed(self, client: BookKeeper, ledger_id: int) -> None:
        """Delete a ledger that could not be added, unless the node names it.

        The node names it if the change took effect, its answer was lost, and the next owner read
        the node after it.
        """
        try:
            data, _ = await self._zookeeper.get(self._path)
            named = {each.ledger_id for each in decode_log_metadata(data).ledgers}
        except (ZooKeeperError, DataLogCorruptError):
            return
        if ledger_id not in named:
            with suppress(BookKeeperError, ZooKeeperError):
                await client.delete_ledger(ledger_id)

    async def _store(self, change: Callable[[LogMetadata], LogMetadata]) -> None:
        for attempt in range(_TRIES_MAX):
            metadata = change(self.metadata)
            data = encode_log_metadata(metadata)
            self._doubtful[data] = metadata
            try:
                version = await self._write(data)
            except (BadVersionError, NodeExistsError, NoNodeError, ConnectionLostError) as error:
                if await self._find(error) and self.metadata == metadata:
                    return
                if attempt == _TRIES_MAX - 1:
                    raise
            else:
                self._adopt(metadata, version)
                return

    async def _write(self, data: bytes) -> int:
        if self.version != MISSING:
            return await self._zookeeper.set(self._path, data, self.version)
        await ensure_path(self._zookeeper, self._path.rpartition("/")[0])
        await self._zookeeper.create(self._path, data)
        return 0

    async def _find(self, error: Exception) -> bool:
        """Return whether a change without an answer has taken effect."""
        try:
            return await self._look()
        except NoNodeError:
            if self.version == MISSING:
                return False
            raise FencedError("the log's node is gone") from error
        except ConnectionLostError:
            return False

    async def _look(self) -> bool:
        """Read the node; return whether a change of this owner has taken effect. Raises
        ``FencedError`` if another owner has changed the node."""
        found, version = await self._zookeeper.get(self._path)
        if version == self.version:
            return False
        if found not in self._doubtful:
            raise FencedError("another owner has opened the log")
        self._adopt(self._doubtful[found], version)
        return True

    def _adopt(self, metadata: LogMetadata, version: int) -> None:
        """Record that the node has these metadata and this version. Earlier changes without an
        answer cannot take effect any more."""
        self.metadata, self.version = metadata, version
        self._doubtful.clear()
