"""Opens containers' logs in BookKeeper: fences the previous owner, and takes its place.

The order of the steps makes an opening safe:

    1. read the node of the log
    2. check that its ledgers were made by segstore for this log; others must not be fenced
    3. recover its ledgers: after that an earlier owner cannot add entries
    4. make a ledger
    5. add it to the node, on condition of the version of step 1: after that an earlier owner
       cannot change the node
    6. delete ledgers that the node no longer names; they were found empty long before
    7. read entries

When two owners open the log at the same time, both fence its ledgers, and the one that changes the
node first owns the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import trio

from bookkeeper_client.client import BookKeeper, WritableLedger
from bookkeeper_client.errors import (
    BookKeeperError,
    ClosedError,
    FencedError,
    NoSuchLedgerError,
)
from bookkeeper_client.metadata import LedgerMetadata
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.readable_ledger import ReadableLedger
from bookkeeper_client.wire.entry_format import DigestType
from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.bookkeeper.data_log import (
    BookKeeperDataLog,
    delete_ledgers,
    forgetting_seconds,
)
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
OPENINGS_MAX = 5
"""Maximum number of attempts of an opening. An attempt fails if the previous owner changes the node
meanwhile."""
EMPTY_KEPT = 2
"""Number of the last ledgers that stay in the metadata even if they are empty."""


@dataclass(frozen=True, slots=True)
class BookKeeperLogSettings:
    """Settings for logs in BookKeeper, with Pravega's defaults."""

    quorums: Quorums = field(default_factory=lambda: Quorums(3, 3, 2))
    password: bytes = b""
    digest_type: DigestType = DigestType.CRC32C
    ledger_bytes_max: int = 1024 * 1024 * 1024
    """Number of bytes of a ledger after which the log changes to another one."""


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
        self._empty_since: dict[int, dict[int, float]] = {}
        """Time of the first opening that found a ledger empty, by container id and ledger id."""

    async def last_epoch(self, container_id: int) -> int:
        """See ``DurableDataLogFactory``. A change to the next ledger also increases the epoch."""
        try:
            data, _ = await self._zookeeper.get(log_path(self._root, container_id))
        except NoNodeError:
            return 0
        except ZooKeeperError as error:
            raise DataLogError(f"log {container_id} cannot be looked up: {error}") from error
        return decode_log_metadata(data).epoch

    async def open_log(self, container_id: int) -> BookKeeperDataLog:
        """Open the log of a container and fence any earlier owner."""
        for attempt in range(1, OPENINGS_MAX + 1):
            node = self._node(container_id)
            try:
                return await self._open(container_id, node)
            except (FencedError, NoSuchLedgerError) as error:
                # The previous owner may have truncated the log meanwhile: then try again. If
                # another owner has opened the log, the epoch is higher: then give up.
                is_overtaken = await self.last_epoch(container_id) > node.metadata.epoch
                if is_overtaken or attempt == OPENINGS_MAX:
                    raise DataLogError(f"log {container_id} cannot be opened: {error}") from error
            except (BookKeeperError, ZooKeeperError) as error:
                raise DataLogError(f"log {container_id} cannot be opened: {error}") from error
        raise AssertionError("returned or raised above")

    def _node(self, container_id: int) -> MetadataNode:
        async def make_ledger(client: BookKeeper) -> WritableLedger:
            return await client.create_ledger(
                self._settings.quorums,
                password=self._settings.password,
                digest_type=self._settings.digest_type,
                custom={"application": APPLICATION, "BookKeeperLogId": b"%d" % container_id},
                may_be_narrow=True,
            )

        return MetadataNode(self._zookeeper, log_path(self._root, container_id), make_ledger)

    async def _open(self, container_id: int, node: MetadataNode) -> BookKeeperDataLog:
        await node.fetch()
        if not node.metadata.is_enabled:
            raise DataLogError(f"log {container_id} is disabled")
        found = await self._recover_all(container_id, node.metadata)
        kept = self._drop_empty(container_id, node.metadata, found)
        kept_ids = {each.ledger_id for each in kept.ledgers}
        dropped = [each for each in node.metadata.ledgers if each.ledger_id not in kept_ids]
        began = trio.current_time()
        ledger = await node.add_ledger(self._client, kept)
        self._record_empty(container_id, kept)
        try:
            await delete_ledgers(self._client, dropped)
            sizes = await _measure(node.metadata, found)
        except BaseException:
            ledger.abandon(ClosedError("the log was not opened"))
            raise
        first_needed = (node.metadata.truncated_position + 1) >> ENTRY_BITS
        return BookKeeperDataLog(
            self._client,
            node,
            {each: found[each] for each in found if each >= first_needed},
            ledger,
            opened_at=began,
            ledger_bytes_max=self._settings.ledger_bytes_max,
            bookie_count=self._settings.quorums.ensemble,
            sizes=sizes,
        )

    async def _recover_all(
        self, container_id: int, metadata: LogMetadata
    ) -> dict[int, ReadableLedger]:
        """Recover all ledgers of the log at the same time; return them, closed, by sequence."""
        await self._check_owners(container_id, metadata)
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
        return found

    def _drop_empty(
        self, container_id: int, metadata: LogMetadata, found: dict[int, ReadableLedger]
    ) -> LogMetadata:
        """Return the metadata with the statuses that the recovery found. Ledgers that this process
        found empty ``forgetting_seconds`` ago are left out, except the last ``EMPTY_KEPT``: no
        client still waits for an answer to an entry in them."""
        now = trio.current_time()
        known = self._empty_since.get(container_id, {})
        ledgers = []
        for index, each in enumerate(metadata.ledgers):
            ledger = found.get(each.sequence)
            if ledger is not None and ledger.last_entry_id >= 0:
                ledgers.append(replace(each, status=Status.NOT_EMPTY))
                continue
            is_old = now - known.get(each.ledger_id, now) >= forgetting_seconds(self._client)
            if not is_old or index >= len(metadata.ledgers) - EMPTY_KEPT:
                ledgers.append(replace(each, status=Status.EMPTY))
        return replace(metadata, ledgers=tuple(ledgers))

    def _record_empty(self, container_id: int, metadata: LogMetadata) -> None:
        """Record the time since which each empty ledger of an opened log is known to be empty."""
        now, known = trio.current_time(), self._empty_since.get(container_id, {})
        self._empty_since[container_id] = {
            each.ledger_id: known.get(each.ledger_id, now)
            for each in metadata.ledgers
            if each.status is Status.EMPTY
        }

    async def _check_owners(self, container_id: int, metadata: LogMetadata) -> None:
        """Raise ``DataLogCorruptError`` if a ledger belongs to another log or another kind of
        segment store. A recovery would fence it."""
        for each in metadata.ledgers:
            found = await self._client.store.fetch(each.ledger_id)
            if found is not None:
                _check_owner(container_id, each.ledger_id, found[0])


def _check_owner(container_id: int, ledger_id: int, metadata: LedgerMetadata) -> None:
    owner = metadata.custom.get("application"), metadata.custom.get("BookKeeperLogId")
    if owner != (APPLICATION, b"%d" % container_id):
        raise DataLogCorruptError(
            f"ledger {ledger_id} in the list of log {container_id} was not made by segstore"
            f" for it, but by {(owner[0] or b'nobody').decode(errors='replace')}"
            f" for {(owner[1] or b'nothing').decode(errors='replace')}"
        )


async def _measure(metadata: LogMetadata, found: dict[int, ReadableLedger]) -> LogSizes:
    """Return the number of the log's bytes after its truncation point."""
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
