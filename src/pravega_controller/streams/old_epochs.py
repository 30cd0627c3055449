"""Drops the records of epochs that lie before the heads of streams, some days later.

Owns: the register of streams that may have such epochs, and the steps in which these are dropped.

    _system/_tables/controller/old-epochs    scope/stream -> OldEpochsRecord

    a truncation registers the stream
    -> epochs expire: ``expiring`` of the stream's record names them, and the time since then
    -> a while later, when none of their transactions is left, no query about them is answered:
       ``first_epoch`` is after them
    -> their records are removed, and ``removed_before`` tells how far

Call E the last epoch that has all segments of the head's cut. A query about positions at or after
the head needs no epoch before E: segments after the head were created later, and the other ones are
in E's snapshot. So the epochs before E are dropped, or, if E has no snapshot, those before the last
snapshot. While epochs expire, queries about them are still answered: for readers, for clients that
hold old cuts, and for slow controllers.

Each step is a conditional write of the stream's record, made while nothing is pending.

A transaction is recorded before its begin reads the stream's record, and none begins on an expiring
epoch. So if the transactions are read after epochs began to expire, none of theirs is missing.

Invariants:
1. When a controller dies while it removes records, the removal is repeated, and completes. Held by
   ``test_old_epochs_go_in_steps_that_may_be_repeated``.
2. When two controllers drop the same epochs at the same time, the result is the same. Held by
   ``test_two_controllers_drop_the_same_epochs``.
3. When a transaction of an expiring epoch has not ended, the epoch's records are kept.
   Held by ``test_a_transaction_keeps_its_epoch_until_it_has_ended``.
4. When an epoch was dropped, a query about it fails with an error that says so, and never returns
   that a segment has no successors. Held by
   ``test_what_was_dropped_is_not_found_and_never_the_end``.
5. When thousands of epochs are to be removed, one visit removes at most ``EPOCHS_REMOVED_MAX``.
   Held by ``test_thousands_of_epochs_leave_few_records``.
6. When a stream is truncated while its registration is removed, it stays registered: a registration
   is removed only at the version that was read before.
   Held by ``test_a_truncation_while_a_note_is_removed_is_noted``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
from msgspec import structs

from pravega_controller.clocks import RecordTimes
from pravega_controller.errors import (
    ControllerError,
    CorruptMetadataError,
    NoSuchTableError,
    NotFoundError,
    VersionConflictError,
)
from pravega_controller.metadata.conflicts import until_unchanged
from pravega_controller.metadata.records import Expiring, StreamRecord, decode, encode
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.store_client.table_client import NOT_EXISTS, TableClient
from pravega_controller.streams.pending_work import PendingWork
from pravega_wire import names

OLD_EPOCHS = names.table_name(names.INTERNAL_SCOPE, "controller", "old-epochs")

EPOCHS_REMOVED_MAX = 4096
ENDED = (TransactionState.COMMITTED, TransactionState.ABORTED)

Decide: TypeAlias = Callable[[Stream], Awaitable[StreamRecord]]
"""A function that returns the new record of a stream that has no pending work."""

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
        """Register a stream whose head has moved, unless it has no epochs before the head."""
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
    """Drops old epochs of streams. One task must call ``run_round`` again and again."""

    def __init__(
        self,
        store: MetadataStore,
        work: PendingWork,
        transactions: TransactionStore,
        *,
        owns: Callable[[str], bool],
        now_ms: Callable[[], int],
        seconds_min: float,
    ) -> None:
        self._store = store
        self._work = work
        self._transactions = transactions
        self._tables = store.tables
        self.owns = owns
        self._now_ms = now_ms
        self._times = RecordTimes()
        self.expiring_ms = int(1000 * seconds_min)

    async def run_round(self) -> None:
        """Visit every stream that is due."""
        for key, version in (await self._due()).items():
            if not self.owns(key):
                continue
            scope, _, name = key.partition("/")
            try:
                await self._visit(scope, name, version)
            except VersionConflictError:
                log.debug("registered again meanwhile", scope=scope, stream=name)
            except ControllerError as error:
                log.warning("epochs not dropped", scope=scope, stream=name, reason=str(error))
            # An error about one stream must not delay the others.
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
                        # A time that is further ahead than the longest delay comes from a wrong
                        # clock.
                        if not now < record.look_ms <= now + self.expiring_ms:
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
        stream = await self._store.streams.read(scope, name)
        record = stream.record
        expiring = record.expiring
        if expiring is not None and self._has_expired(stream, expiring):
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
        return stream.record.expiring.since_ms + self.expiring_ms

    # ---- Steps -----------------------------------------------------------------------------------

    async def _change(self, stream: Stream, decide: Decide) -> Stream:
        """Write a stream's new record while nothing is pending on it."""
        scope, name = stream.scope.name, stream.name

        async def act() -> Stream:
            finished = await self._work.finish_and_read(scope, name)
            if finished.stream_id != stream.stream_id:
                raise VersionConflictError(f"{scope}/{name} was deleted and created again")
            record = await decide(finished)
            if record == finished.record:
                return finished
            return await self._store.writes.write(finished, record)

        return await self._work.change(scope, name, act)

    async def _is_in_use(self, stream: Stream, expiring: Expiring) -> bool:
        """Return whether an open transaction was begun on an epoch that will be dropped."""
        is_in_use = False
        scope, name = stream.scope.name, stream.name
        async for found in self._transactions.load_stream(scope, name, stream.stream_id):
            is_old = names.transaction_epoch(found.identifier) < expiring.before
            is_in_use |= is_old and found.stored.record.state not in ENDED
        return is_in_use

    def _has_expired(self, stream: Stream, expiring: Expiring) -> bool:
        """Return whether epochs have expired for long enough to be dropped.

        If they began to expire in the future, by a wrong clock, count from when this was first
        seen.
        """
        now_ms = self._times.now_ms(
            (stream.stream_id, expiring.before), expiring.since_ms, now_ms=self._now_ms()
        )
        return expiring.since_ms + self.expiring_ms <= now_ms

    async def _expire(self, stream: Stream) -> StreamRecord:
        """Return the stream's record, in which all epochs that the head does not need expire."""
        record, history = stream.record, stream.history
        if record.expiring is not None or not stream.head:
            return record
        # Transactions belong to the epoch that the active epoch repeats, so keep that, too.
        reference = (await history.epoch(record.epoch)).reference
        before = await history.first_needed(stream.head, last=reference)
        if before <= record.first_epoch:
            return record
        return structs.replace(record, expiring=Expiring(before, self._now_ms()))


async def _drop(expiring: Expiring, stream: Stream) -> StreamRecord:
    """Return the stream's record without the expired epochs: ``first_epoch`` is after them."""
    record = stream.record
    if record.expiring != expiring:
        return record
    return structs.replace(record, first_epoch=expiring.before, expiring=None)


async def _note_removed(end: int, stream: Stream) -> StreamRecord:
    """Return the stream's record with ``end`` as ``removed_before``."""
    record = stream.record
    return structs.replace(record, removed_before=max(end, record.removed_before))


def _key(scope: str, name: str) -> bytes:
    return names.scoped_name(scope, name).encode()
