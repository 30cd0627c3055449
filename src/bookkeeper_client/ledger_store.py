"""Stores ledgers' metadata in ZooKeeper: gives ids, makes, reads, changes and deletes nodes. Ids
come from the counter of a sequential node. A random token in a new ledger's metadata tells whether
this client made it.

Invariants:
1. When another client has made a ledger with the id that this client was given, that ledger stays
   as it is, and this client makes one with another id. Held by
   ``test_a_ledger_that_another_client_has_made_is_left_alone``.
2. When answers of ZooKeeper get lost, a caller gets the ledger that it has made, or an error. Held
   by ``test_lost_answers_of_zookeeper_do_no_harm``.
"""

from __future__ import annotations

import contextlib

from bookkeeper_client.errors import BookKeeperError, MetadataError
from bookkeeper_client.metadata import (
    LedgerMetadata,
    decode_metadata,
    encode_metadata,
    ledger_path,
)
from zookeeper_client.api import (
    BadVersionError,
    ConnectionLostError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZooKeeper,
    ensure_path,
)

_LAYOUT = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
_TRIES_MAX = 10


class LedgerStore:
    """The ledgers below one root, in BookKeeper's hierarchical layout."""

    def __init__(self, zookeeper: ZooKeeper, root: str) -> None:
        self._zookeeper = zookeeper
        self._root = root

    async def check_layout(self) -> None:
        """Raise ``BookKeeperError`` if there is no BookKeeper below the root, or if it has another
        layout of ledgers."""
        try:
            layout, _ = await self._zookeeper.get(f"{self._root}/LAYOUT")
        except NoNodeError:
            raise BookKeeperError(
                f"ZooKeeper has no bookies below {self._root}: format them, or name another root"
            ) from None
        name = layout.decode(errors="replace").partition("\n")[2].partition(":")[0]
        if name != _LAYOUT:
            raise BookKeeperError(f"the ledgers below {self._root} are laid out by {name}")

    async def create(self, metadata: LedgerMetadata) -> tuple[int, int]:
        """Make a ledger with these metadata; return its id and the version of its node."""
        assert metadata.creation_token is not None
        data = encode_metadata(metadata)
        for _ in range(_TRIES_MAX):
            ledger_id = await self._draw_id()
            path = self._path(ledger_id)
            try:
                await self._create_node(path, data)
                return ledger_id, 0
            except ConnectionLostError:
                pass
            except NodeExistsError:
                pass
            # Perhaps an attempt whose answer was lost made the node.
            found = await self.fetch(ledger_id)
            if found is not None and found[0].creation_token == metadata.creation_token:
                return ledger_id, found[1]
        raise BookKeeperError(f"no ledger could be made in {_TRIES_MAX} tries")

    async def fetch(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """Return a ledger's metadata and their version; None if there is no such ledger."""
        for attempt in range(_TRIES_MAX):
            try:
                data, version = await self._zookeeper.get(self._path(ledger_id))
                return decode_metadata(data), version
            except NoNodeError:
                return None
            except MetadataError as error:
                raise MetadataError(f"ledger {ledger_id}: {error}") from error
            except ConnectionLostError:
                if attempt == _TRIES_MAX - 1:
                    raise
        raise AssertionError("returned or raised above")

    async def store(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> int | None:
        """Store a ledger's metadata if the stored ones have this version. Return the new version;
        None if the version differs or the outcome is unknown."""
        try:
            data = encode_metadata(metadata)
            return await self._zookeeper.set(self._path(ledger_id), data, version)
        except (BadVersionError, NoNodeError, ConnectionLostError):
            return None

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's node, and the empty nodes above it. A missing ledger is not an error.

        Bookies delete its entries when they next compare their ledgers with ZooKeeper.
        """
        path = self._path(ledger_id)
        while path != self._root:
            try:
                await self._zookeeper.delete(path)
            except NoNodeError:
                pass
            except NotEmptyError:
                return
            path = path.rpartition("/")[0]

    def _path(self, ledger_id: int) -> str:
        return f"{self._root}/{ledger_path(ledger_id)}"

    async def _create_node(self, path: str, data: bytes) -> None:
        try:
            await self._zookeeper.create(path, data)
        except NoNodeError:
            await ensure_path(self._zookeeper, path.rpartition("/")[0])
            await self._zookeeper.create(path, data)

    async def _draw_id(self) -> int:
        """Return a new id, of 31 bits, or of 63 bits if another client has already used such
        ids."""
        long = f"{self._root}/idgen-long"
        try:
            high = [name for name in await self._zookeeper.children(long) if name[:4] == "HOB-"]
        except NoNodeError:
            high = []
        if high:
            number = await self._draw(f"{long}/{max(high)}/ID-")
            return int(max(high)[4:]) << 32 | number
        return await self._draw(f"{self._root}/idgen/ID-")

    async def _draw(self, prefix: str) -> int:
        try:
            made = await self._zookeeper.create(prefix, b"", is_ephemeral=True, is_sequential=True)
        except NoNodeError:
            await ensure_path(self._zookeeper, prefix.rpartition("/")[0])
            made = await self._zookeeper.create(prefix, b"", is_ephemeral=True, is_sequential=True)
        with contextlib.suppress(
            NoNodeError, ConnectionLostError
        ):  # otherwise the node ends with the session
            await self._zookeeper.delete(made)
        return int(made.removeprefix(prefix))
