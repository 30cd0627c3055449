"""Drops the epochs behind the heads of streams, a while after the heads have left them.

Owns: the register of streams that may have such epochs, and the steps in which these are dropped.

    _system/_tables/controller/old-epochs    scope/stream -> OldEpochsRecord

    a truncation registers the stream
    -> epochs expire: ``expiring`` of the stream's record names them, and the time since then
    -> a while later, when none of their transactions is left, no question about them is answered:
       ``first_epoch`` is behind them
    -> their records are removed, and ``removed_before`` tells how far

A question about positions at or after the head needs no epoch before the last one that has all
segments of the head's cut: what follows the head began later, and earlier segments are in that
epoch's snapshot. So the epochs before it are dropped, from the last one that has a snapshot down.
Questions about positions before the head are answered as long as their epochs expire: readers, cuts
that clients hold, and slow controllers may still ask.

Invariants:
1. Each step is a conditional write of the stream's record, made while nothing is pending. Removal
   is repeated after a crash, may be done by two controllers at a time, and is finished by the
   deletion of the stream.
2. A transaction is recorded before its beginning looks at the stream's record, and none begins on
   an expiring epoch. So a look at the transactions after epochs began to expire finds all of
   theirs, and the epochs stay on record until these have ended.
3. Records are removed after the stream's record refuses questions about them, so that a question
   can tell removed records from records that never existed (``stream_history``).
4. One visit of a stream removes at most ``EPOCHS_REMOVED_MAX`` epochs.
5. A truncation registers its stream before it ends. A registration has a new version each time, and
   is removed only at the version at which there was nothing to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
from msgspec import structs

from pravega_controller.conflicts import until_unchanged
from pravega_controller.errors import (
    ControllerError,
    CorruptMetadataError,
    NoSuchTableError,
    NotFoundError,
    VersionConflictError,
)
from pravega_controller.records import Expiring, StreamRecord, decode, encode
from pravega_controller.store import MetadataStore, Stream
from pravega_controller.stream_workflows import StreamWorkflows
from pravega_controller.table_client import NOT_EXISTS, TableClient
from pravega_controller.transaction_store import TransactionStore
from pravega_controller.transactions import TransactionState
from pravega_wire import names

OLD_EPOCHS = names.table_name(names.INTERNAL_SCOPE, "controller", "old-epochs")

EPOCHS_REMOVED_MAX = 4096
ENDED = (TransactionState.COMMITTED, TransactionState.ABORTED)

Decide: TypeAlias = Callable[[Stream], Awaitable[StreamRecord]]
"""Returns the new record of a settled stream."""

log = structlog.get_logger(__name__)


class OldEpochsRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A stream that may have epochs to drop."""

    look_ms: int = 0
    """Time before which the stream need not be visited."""


class OldEpochsRegistry:
    """The streams that may have epochs to drop."""

    def __init__(self, tables: TableClient) -> None:
        self._tables = tables

    async def register(self, stream: Stream) -> None:
        """Register a stream whose head moves, unless it can have no epochs to drop."""
        if stream.record.base > stream.record.first_epoch:
            key = _key(stream.scope.name, stream.name)
            try:
                await until_unchanged(lambda: self._put(key))
            except NoSuchTableError:
                await self._tables.create(OLD_EPOCHS)
                await until_unchanged(lambda: self._put(key))

    async def _put(self, key: bytes) -> None:
        entry = await self._tables.get(OLD_EPOCHS, key)
        record = OldEpochsRecord() if entry is None else decode(entry.value, OldEpochsRecord)
        version = NOT_EXISTS if entry is None else entry.version
        await self._tables.put(OLD_EPOCHS, key, encode(record), version=version)


class OldEpochs:
    """See the module. ``run_round`` again and again in one task."""

    def __init__(
        self,
        store: MetadataStore,
        workflows: StreamWorkflows,
        transactions: TransactionStore,
        *,
        owns: Callable[[str], bool],
        now_ms: Callable[[], int],
        seconds_min: float,
    ) -> None:
        self._store = store
        self._workflows = workflows
        self._transactions = transactions
        self._tables = store.tables
        self._owns = owns
        self._now_ms = now_ms
        self._expiring_ms = int(1000 * seconds_min)

    async def run_round(self) -> None:
        """Visit every stream that is due."""
        for key, version in (await self._due()).items():
            if not self._owns(key):
                continue
            scope, _, name = key.partition("/")
            try:
                await self._visit(scope, name, version)
            except VersionConflictError:
                log.debug("registered again meanwhile", scope=scope, stream=name)
            except ControllerError as error:
                log.warning("epochs not dropped", scope=scope, stream=name, reason=str(error))
            # A defect that one stream reveals must not delay the others.
            except Exception:
                log.exception("epochs not dropped", scope=scope, stream=name)

    async def _due(self) -> dict[str, int]:
        """Return the streams to visit, with the versions of their records."""
        found: dict[str, int] = {}
        now = self._now_ms()
        try:
            async with aclosing(self._tables.pages(OLD_EPOCHS)) as pages:
                async for entries in pages:
                    for entry in entries:
                        try:
                            record = decode(entry.value, OldEpochsRecord)
                        except CorruptMetadataError as error:
                            log.error("a registration is damaged", key=entry.key, reason=str(error))
                            continue
                        # A time further ahead than any delay comes from a wrong clock.
                        if not now < record.look_ms <= now + self._expiring_ms:
                            found[entry.key.decode()] = entry.version
        except NoSuchTableError:
            log.debug("no stream was registered yet")
        return found

    async def _visit(self, scope: str, name: str, version: int) -> None:
        """Drop a stream's old epochs as far as possible, and record the time of the next visit."""
        try:
            look_ms = await self.drop(scope, name)
        except NotFoundError:
            look_ms = None
        key = _key(scope, name)
        if look_ms is None:
            await self._tables.remove(OLD_EPOCHS, key, version=version)
        else:
            value = encode(OldEpochsRecord(look_ms))
            await self._tables.put(OLD_EPOCHS, key, value, version=version)

    async def drop(self, scope: str, name: str) -> int | None:
        """Expire, drop or remove the old epochs of a stream, as far as that is possible now.

        Returns the time from which there may be more to do, or None when there is nothing until the
        head moves. Raises ``NotFoundError``.
        """
        stream = await self._store.stream(scope, name)
        record = stream.record
        expiring = record.expiring
        if expiring is not None and expiring.since_ms > self._now_ms():
            # The time comes from a wrong clock: the wait begins now.
            stream = await self._change(stream, self._since_now)
        elif expiring is not None and expiring.since_ms + self._expiring_ms <= self._now_ms():
            if await self._is_in_use(stream, expiring):
                return self._now_ms()
            stream = await self._change(stream, partial(_drop, expiring))
            log.info("epochs dropped", scope=scope, stream=name, before=expiring.before)
        if stream.record.removed_before < stream.record.first_epoch:
            end = await stream.history.remove_old(epochs_max=EPOCHS_REMOVED_MAX)
            stream = await self._change(stream, partial(_note_removed, end))
            if end < stream.record.first_epoch:
                return self._now_ms()
        if stream.record.expiring is None:
            stream = await self._change(stream, self._expire)
        if stream.record.expiring is None:
            return None
        return stream.record.expiring.since_ms + self._expiring_ms

    # ---- Steps -----------------------------------------------------------------------------------

    async def _change(self, stream: Stream, decide: Decide) -> Stream:
        """Write a stream's new record while nothing is pending on it."""
        scope, name = stream.scope.name, stream.name

        async def act() -> Stream:
            settled = await self._workflows.settled(scope, name)
            if settled.stream_id != stream.stream_id:
                raise VersionConflictError(f"{scope}/{name} was deleted and created again")
            record = await decide(settled)
            if record == settled.record:
                return settled
            return await self._store.write_stream(settled, record)

        return await self._workflows.change(scope, name, act)

    async def _is_in_use(self, stream: Stream, expiring: Expiring) -> bool:
        """Return whether an open transaction was begun on an epoch that will be dropped."""
        is_in_use = False
        scope, name = stream.scope.name, stream.name
        async for found in self._transactions.load_stream(scope, name, stream.stream_id):
            is_old = names.transaction_epoch(found.identifier) < expiring.before
            is_in_use |= is_old and found.stored.record.state not in ENDED
        return is_in_use

    async def _since_now(self, stream: Stream) -> StreamRecord:
        """Return the stream's record with a time of expiry that is not after now."""
        record, now = stream.record, self._now_ms()
        if record.expiring is None or record.expiring.since_ms <= now:
            return record
        return structs.replace(record, expiring=Expiring(record.expiring.before, now))

    async def _expire(self, stream: Stream) -> StreamRecord:
        """Return the stream's record with all epochs expiring that the head does not need."""
        record, history = stream.record, stream.history
        if record.expiring is not None or not stream.head:
            return record
        # Transactions are begun on the epoch that the active one repeats.
        reference = (await history.epoch(record.epoch)).reference
        before = await history.first_needed(stream.head, last=reference)
        if before <= record.first_epoch:
            return record
        return structs.replace(record, expiring=Expiring(before, self._now_ms()))


async def _drop(expiring: Expiring, stream: Stream) -> StreamRecord:
    """Return the stream's record without the expired epochs: they are not on record any more."""
    record = stream.record
    if record.expiring != expiring:
        return record
    return structs.replace(record, first_epoch=expiring.before, expiring=None)


async def _note_removed(end: int, stream: Stream) -> StreamRecord:
    """Return the stream's record, which says that no epoch before ``end`` has records left."""
    record = stream.record
    return structs.replace(record, removed_before=max(end, record.removed_before))


def _key(scope: str, name: str) -> bytes:
    return names.scoped_name(scope, name).encode()
