"""Opens containers' logs on BookKeeper: fences the owner before, and takes its place.

The order is what makes an opening safe:

    1. read the node of the log
    2. recover its ledgers: an earlier owner can add no entry any more
    3. make a ledger
    4. add it to the node, on condition of the version read: an earlier owner can change nothing
    5. delete ledgers that the node does not name any more
    6. only now read entries

Of two that open at once both fence, and the node decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from bookkeeper_client.client import BookKeeper, ReadableLedger, WritableLedger
from bookkeeper_client.entry_format import DigestType
from bookkeeper_client.errors import BookKeeperError, FencedError, NoSuchLedgerError
from bookkeeper_client.quorums import Quorums
from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.bookkeeper.data_log import BookKeeperDataLog, delete_ledgers
from segstore.tiers.bookkeeper.log_metadata import (
    ENTRIES_MAX,
    ENTRY_BITS,
    LogLedger,
    LogMetadata,
    Status,
    decode_log_metadata,
    log_path,
)
from segstore.tiers.bookkeeper.metadata_node import MetadataNode
from segstore.tiers.bookkeeper.sizes import LogSizes
from zookeeper_client.api import NoNodeError, ZooKeeper, ZooKeeperError

APPLICATION = b"segstore"
EMPTY_KEPT = 2
"""How many of the last ledgers stay in the metadata even if they are empty."""


@dataclass(frozen=True, slots=True)
class BookKeeperLogSettings:
    """How logs lie on bookies; the original's defaults."""

    quorums: Quorums = field(default_factory=lambda: Quorums(3, 3, 2))
    password: bytes = b""
    digest_type: DigestType = DigestType.CRC32C
    ledger_bytes_max: int = 1024 * 1024 * 1024
    """A log goes on in another ledger when one has so many bytes."""


@asynccontextmanager
async def open_bookkeeper_logs(
    zookeeper: ZooKeeper, logs_root: str, client: BookKeeper, settings: BookKeeperLogSettings
) -> AsyncIterator[BookKeeperLogFactory]:
    """Open the logs whose nodes are below this root of ZooKeeper."""
    factory = BookKeeperLogFactory(zookeeper, logs_root, client, settings)
    await factory.load_epochs()
    yield factory


class BookKeeperLogFactory:
    """See ``DurableDataLogFactory``."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        logs_root: str,
        client: BookKeeper,
        settings: BookKeeperLogSettings,
    ) -> None:
        self._zookeeper = zookeeper
        self._root = logs_root
        self._client = client
        self._settings = settings
        self._epochs: dict[int, int] = {}

    async def load_epochs(self) -> None:
        """Read the epochs of all logs."""
        for path in await self._paths():
            try:
                data, _ = await self._zookeeper.get(path)
            except NoNodeError:
                continue
            self._epochs[int(path.rpartition("/")[2])] = decode_log_metadata(data).epoch

    def last_epoch(self, container_id: int) -> int:
        """See ``DurableDataLogFactory``."""
        return self._epochs.get(container_id, 0)

    async def open_log(self, container_id: int) -> BookKeeperDataLog:
        """Open the log of a container and fence any earlier owner."""
        try:
            return await self._open(container_id)
        except FencedError as error:
            raise DataLogError(f"the log is fenced: {error}") from error
        except (BookKeeperError, ZooKeeperError) as error:
            raise DataLogError(f"log {container_id} cannot be opened: {error}") from error

    async def _open(self, container_id: int) -> BookKeeperDataLog:
        async def make_ledger(client: BookKeeper) -> WritableLedger:
            return await client.create_ledger(
                self._settings.quorums,
                password=self._settings.password,
                digest_type=self._settings.digest_type,
                custom={"application": APPLICATION, "BookKeeperLogId": b"%d" % container_id},
            )

        path = log_path(self._root, container_id)
        node = MetadataNode(self._zookeeper, path, make_ledger)
        await node.fetch()
        if not node.metadata.is_enabled:
            raise DataLogError(f"log {container_id} is disabled")
        found = await self._recover_all(container_id, node.metadata)
        kept = _drop_empty(node.metadata, found)
        kept_ids = {each.ledger_id for each in kept.ledgers}
        dropped = [each for each in node.metadata.ledgers if each.ledger_id not in kept_ids]
        ledger = await node.add_ledger(self._client, kept)
        self._epochs[container_id] = node.metadata.epoch
        await delete_ledgers(self._client, dropped)
        return BookKeeperDataLog(
            self._client,
            node,
            found,
            ledger,
            ledger_bytes_max=self._settings.ledger_bytes_max,
            sizes=await _measure(node.metadata, found),
        )

    async def _recover_all(
        self, container_id: int, metadata: LogMetadata
    ) -> dict[int, ReadableLedger]:
        """All ledgers of the log by sequence, each with its end."""
        found: dict[int, ReadableLedger] = {}
        errors: list[Exception] = []

        async def recover(each: LogLedger) -> None:
            try:
                found[each.sequence] = await self._client.recover_ledger(
                    each.ledger_id, password=self._settings.password
                )
            except NoSuchLedgerError as error:
                if each.status is not Status.EMPTY:
                    errors.append(error)
            except (BookKeeperError, ZooKeeperError) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for each in metadata.ledgers:
                nursery.start_soon(recover, each)
        if errors:
            raise errors[0]
        for ledger in found.values():
            _check_owner(container_id, ledger)
        return found

    async def _paths(self) -> list[str]:
        """The nodes of all logs."""
        paths = [self._root]
        for _ in range(3):
            below: list[str] = []
            for path in paths:
                try:
                    below += [f"{path}/{name}" for name in await self._zookeeper.children(path)]
                except NoNodeError:
                    continue
            paths = below
        return paths


def _check_owner(container_id: int, ledger: ReadableLedger) -> None:
    """Refuse ledgers of another log or of another kind of segment store, which stay as they are."""
    custom = ledger.metadata.custom
    owner = custom.get("application"), custom.get("BookKeeperLogId")
    if owner != (APPLICATION, b"%d" % container_id):
        raise DataLogCorruptError(
            f"ledger {ledger.ledger_id} in the list of log {container_id} was not made by segstore"
            f" for it, but by {(owner[0] or b'nobody').decode(errors='replace')}"
            f" for {(owner[1] or b'nothing').decode(errors='replace')}"
        )


def _drop_empty(metadata: LogMetadata, found: dict[int, ReadableLedger]) -> LogMetadata:
    """The metadata with what is known of their ledgers now, without the empty ones but the last."""
    ledgers = []
    for index, each in enumerate(metadata.ledgers):
        ledger = found.get(each.sequence)
        is_empty = ledger is None or ledger.last_entry_id < 0
        if not is_empty or index >= len(metadata.ledgers) - EMPTY_KEPT:
            status = Status.EMPTY if is_empty else Status.NOT_EMPTY
            ledgers.append(replace(each, status=status))
    return replace(metadata, ledgers=tuple(ledgers))


async def _measure(metadata: LogMetadata, found: dict[int, ReadableLedger]) -> LogSizes:
    """The bytes of the log behind its truncation."""
    sizes = LogSizes()
    first = metadata.truncated_position + 1
    for sequence in sorted(found):
        ledger = found[sequence]
        start, length = sequence << ENTRY_BITS, ledger.metadata.length
        if first > start:
            entry_id = first % ENTRIES_MAX
            if first >> ENTRY_BITS != sequence or entry_id > ledger.last_entry_id:
                continue
            length -= await ledger.length_before(entry_id)
            start = first
        if length:
            sizes.add(start, length)
    return sizes
