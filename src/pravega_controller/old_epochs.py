"""Drops the epochs behind the heads of streams, a while after the heads have left them.

Owns: which streams may have such epochs, and the steps in which they go.

    _system/_tables/controller/old-epochs    scope/stream -> OldEpochsRecord

    a truncation registers the stream
    -> epochs expire: ``expiring`` of the stream's record says which, and since when
    -> a while later, when no transaction of theirs is left, nothing is told about them any more:
       ``first_epoch`` says so
    -> their records go, and ``removed_before`` says how far

A question about what lies at or after the head needs no epoch before the last one in which all
segments of the head's cut are there: what follows the head began later, and what began earlier is
in that epoch's snapshot. So the epochs before it go, down from the last one that has a snapshot.
What lies before the head is told for as long as its epochs expire, to readers and to cuts that
clients hold; so is what a slow controller still asks.

Invariants:
1. Each step is a conditional write of the stream's record, made while nothing is pending. Removing
   is repeated after a crash, may be done by two controllers at a time, and is finished by the
   deletion of the stream.
2. A transaction is recorded before its beginning looks at the stream's record, and none begins on
   an epoch that expires. So a look at the transactions after the epochs began to expire finds every
   one of theirs, and they stay on record until it has ended.
3. Records go after the stream's record refuses questions about them, so that what a question does
   not find is told from what never was (``stream_history``).
4. A look at a stream removes at most ``EPOCHS_REMOVED_MAX`` epochs.
5. A truncation registers its stream before it ends. A registration has a new version each time, and
   is removed only at the version at which nothing was found to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
"""Returns what a settled stream's record becomes."""

log = structlog.get_logger(__name__)


class OldEpochsRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A stream that may have epochs to drop."""

    look_ms: int = 0
    """It need not be looked at before this time."""


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
        """Look at every stream that is due."""
        for key, version in (await self._due()).items():
            if not self._owns(key):
                continue
            scope, _, name = key.partition("/")
            try:
                await self._look_at(scope, name, version)
            except VersionConflictError:
                log.debug("registered again meanwhile", scope=scope, stream=name)
            except ControllerError as error:
                log.warning("epochs not dropped", scope=scope, stream=name, reason=str(error))
            # A defect that one stream brings out must not keep the others waiting.
            except Exception:
                log.exception("epochs not dropped", scope=scope, stream=name)

    async def _due(self) -> dict[str, int]:
        """Return the streams to look at, with the versions of their records."""
        found: dict[str, int] = {}
        now = self._now_ms()
        try:
            async for entries in self._tables.pages(OLD_EPOCHS):
                for entry in entries:
                    try:
                        record = decode(entry.value, OldEpochsRecord)
                    except CorruptMetadataError as error:
                        log.error("a registration is damaged", key=entry.key, reason=str(error))
                        continue
                    # One that lies further ahead than anything waits is of a clock that was wrong.
                    if not now < record.look_ms <= now + self._expiring_ms:
                        found[entry.key.decode()] = entry.version
        except NoSuchTableError:
            log.debug("no stream was registered yet")
        return found

    async def _look_at(self, scope: str, name: str, version: int) -> None:
        """Drop a stream's old epochs as far as possible, and record when to look again."""
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

        Returns the time from which on there may be more to do, or None when there is nothing until
        the head moves. Raises ``NotFoundError``.
        """
        stream = await self._store.stream(scope, name)
        record = stream.record
        expiring = record.expiring
        if expiring is not None and expiring.since_ms > self._now_ms():
            # By a clock that was wrong: they are waited for from now on.
            stream = await self._change(stream, self._since_now)
        elif expiring is not None and expiring.since_ms + self._expiring_ms <= self._now_ms():
            if await self._is_in_use(stream, expiring):
                return self._now_ms()
            stream = await self._change(stream, _dropping(expiring))
            log.info("epochs dropped", scope=scope, stream=name, before=expiring.before)
        if stream.record.removed_before < stream.record.first_epoch:
            end = await stream.history.remove_old(epochs_max=EPOCHS_REMOVED_MAX)
            stream = await self._change(stream, _removed(end))
            if end < stream.record.first_epoch:
                return self._now_ms()
        if stream.record.expiring is None:
            stream = await self._change(stream, self._expire)
        if stream.record.expiring is None:
            return None
        return stream.record.expiring.since_ms + self._expiring_ms

    # ---- Within ----------------------------------------------------------------------------------

    async def _change(self, stream: Stream, decide: Decide) -> Stream:
        """Write what a stream's record is to be while nothing is pending on it."""
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
        """Return whether an open transaction was begun on an epoch that is to be dropped."""
        is_in_use = False
        async for found in self._transactions.load_stream(stream.scope.name, stream.name):
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
        """Return the stream's record with those epochs expiring that nothing at or after the head
        needs.
        """
        record, history = stream.record, stream.history
        if record.expiring is not None or not stream.head:
            return record
        # Transactions are begun on the epoch that the active one repeats.
        reference = (await history.epoch(record.epoch)).reference
        before = await history.first_needed(stream.head, last=reference)
        if before <= record.first_epoch:
            return record
        return structs.replace(record, expiring=Expiring(before, self._now_ms()))


def _dropping(expiring: Expiring) -> Decide:
    """Return a decision that drops the epochs that have expired: they are not on record any
    more.
    """

    async def decide(stream: Stream) -> StreamRecord:
        record = stream.record
        if record.expiring != expiring:
            return record
        return structs.replace(record, first_epoch=expiring.before, expiring=None)

    return decide


def _removed(end: int) -> Decide:
    """Return a decision that records that no epoch before ``end`` has records left."""

    async def decide(stream: Stream) -> StreamRecord:
        record = stream.record
        return structs.replace(record, removed_before=max(end, record.removed_before))

    return decide


def _key(scope: str, name: str) -> bytes:
    return names.scoped_name(scope, name).encode()
