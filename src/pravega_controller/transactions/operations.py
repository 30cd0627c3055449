"""Requests about transactions: their checks, refusals and answers.

Owns: beginning and renewing transactions, and the decisions to commit and abort.

A transaction is recorded before its first segment is created, so that its segments can be found
after any failure. The record has the longest lease that was granted.

Invariants:
1. When a controller dies while it begins a transaction, no segment of it remains after its lease.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
2. When a client repeats a request to commit or abort, it gets the same answer: the first decision
   was recorded before it was answered.
   Held by ``test_decisions_stay_and_unknown_transactions_are_refused``.
3. When a transaction was begun through one controller, every other controller can renew and end it.
   Held by ``test_any_controller_answers_for_any_transaction``.
4. When a lease is renewed for no longer than before, nothing is written.
   Held by ``test_a_renewal_for_no_longer_than_before_writes_nothing``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import structlog
import trio
from msgspec import structs

from pravega_controller.errors import (
    ControllerError,
    EpochDroppedError,
    IllegalStateError,
    InvalidRequestError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.metadata.conflicts import until_unchanged
from pravega_controller.metadata.records import Create, Delete, Seal
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_outcomes import LISTED_MAX, OutcomeArchive
from pravega_controller.metadata.transaction_records import Outcome, TransactionRecord, dated
from pravega_controller.metadata.transaction_store import Stored, TransactionStore
from pravega_controller.rules.streams import ScaleType, Segment
from pravega_controller.rules.transactions import (
    LEASE_MS_MAX,
    TransactionState,
    execution_ms_max,
    generalize,
    make_id,
    number_ranges,
    segment_name,
    validate_lease,
)
from pravega_controller.store_client.segment_client import NewSegment, SegmentClient, run_all
from pravega_controller.store_client.table_client import NOT_EXISTS
from pravega_controller.transactions.aborts import CONFLICTS_MAX
from pravega_controller.transactions.open_transactions import StreamTransactions, Transaction
from pravega_controller.transactions.workflows import TransactionWorkflows

END_WAIT_SECONDS_MAX = 0.05
"""Maximum time, in seconds, for which a query waits for the end of a transaction that is committing
or aborting."""

KNOWN_SECONDS_MAX = 60.0
"""Maximum age, in seconds, of a stream's record in memory with which a transaction is begun. The
stored record is checked while the transaction's segments are created."""

_ENDED = frozenset({TransactionState.COMMITTED, TransactionState.ABORTED})

log = structlog.get_logger(__name__)


class PingAnswer(enum.Enum):
    """Outcomes of renewing a lease."""

    OK = enum.auto()
    LEASE_TOO_LARGE = enum.auto()
    EXECUTION_TIME_EXCEEDED = enum.auto()
    COMMITTED = enum.auto()
    ABORTED = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class BegunTransaction:
    """A new transaction: its id, and its segments, whose ids contain its epoch."""

    identifier: bytes
    segments: tuple[Segment, ...]


class TransactionOperations:
    """Answers requests about transactions."""

    def __init__(
        self,
        store: MetadataStore,
        segments: SegmentClient,
        transactions: TransactionStore,
        archive: OutcomeArchive,
        workflows: TransactionWorkflows,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._segments = segments
        self._transactions = transactions
        self._archive = archive
        self._workflows = workflows
        self._held = workflows.held
        self._now_ms = now_ms

    # ---- Begin -----------------------------------------------------------------------------------

    async def begin(self, scope: str, name: str, *, lease_ms: int) -> BegunTransaction:
        """Begin a transaction on a stream.

        Raises ``StreamNotFoundError``. Raises ``InvalidRequestError`` for a lease out of bounds and
        for a sealed stream: trying again does not help.
        """
        validate_lease(lease_ms)
        return await until_unchanged(partial(self._begin, scope, name, lease_ms))

    async def _begin(self, scope: str, name: str, lease_ms: int) -> BegunTransaction:
        """Begin a transaction like ``begin``.

        Raises ``VersionConflictError`` if the stream is deleted and created again meanwhile.
        """
        number = await self._transactions.next_number()
        known = self._store.streams.known(scope, name, age_seconds_max=KNOWN_SECONDS_MAX)
        if known is None or known.record.pending is not None or known.record.is_sealed:
            known = None
        elif known.record.epoch < known.history.first:
            # Since the stream was read, another controller has dropped this epoch.
            known = None
        stream = known or await self._store.streams.read(scope, name)
        try:
            epoch = (await stream.history.epoch(stream.record.epoch)).reference
        except EpochDroppedError as error:
            raise VersionConflictError(f"{scope}/{name} has gone on: {error}") from error
        of_stream = self._held.registry.of_stream(scope, name, stream.stream_id)
        _refuse_unless_open(stream, of_stream)
        identifier = make_id(epoch, number)

        async def verify() -> None:
            found = await self._store.streams.read(scope, name)
            if found.stream_id != stream.stream_id:
                raise VersionConflictError(f"another controller has created {scope}/{name} again")
            _refuse_unless_open(found, of_stream)
            _refuse_unless_kept(found, epoch)

        with of_stream.beginning():
            try:
                await self._record(of_stream, identifier, lease_ms, stream.active)
                # If the stream is sealed, or the epoch dropped, after this write, the record is
                # found then. If it was sealed or dropped before this write, ``verify`` notices
                # that.
                await run_all(partial(self._create_segments, stream, identifier), verify)
                await self._verify_open(of_stream, identifier)
            except ControllerError:
                self._workflows.failed_begins.start_undoing(of_stream, stream, identifier)
                raise
        return BegunTransaction(identifier, generalize(stream.active, epoch))

    async def _record(
        self,
        of_stream: StreamTransactions,
        identifier: bytes,
        lease_ms: int,
        segments: Sequence[Segment],
    ) -> None:
        record = TransactionRecord(
            TransactionState.OPEN,
            self._now_ms(),
            lease_ms,
            lease_ms,
            holder=self._held.instance_id,
            stream_id=of_stream.stream_id,
            segment_ranges=number_ranges(tuple(segment.number for segment in segments)),
        )
        async with self._held.locks.hold(identifier):
            solitude = self._held.members.solitude
            (version,) = await self._transactions.write(
                of_stream.scope, of_stream.stream, [(identifier, record, NOT_EXISTS)]
            )
            now = trio.current_time()
            self._held.watch(
                Transaction(
                    of_stream,
                    identifier,
                    record,
                    version,
                    lease_end=now + lease_ms / 1000,
                    execution_end=now + execution_ms_max(lease_ms) / 1000,
                    certain_in=solitude,
                )
            )

    async def _verify_open(self, of_stream: StreamTransactions, identifier: bytes) -> None:
        """Raise ``VersionConflictError`` if the transaction was aborted while it was begun.

        In this case its segments may have been created after the abort has deleted them.
        """
        transaction = of_stream.transactions.get(identifier)
        if transaction is not None and self._held.is_certain(transaction):
            is_open = transaction.is_running
        else:
            stored = await self._transactions.read(of_stream.scope, of_stream.stream, identifier)
            is_open = stored is not None and stored.record.state is TransactionState.OPEN
        if not is_open:
            raise VersionConflictError(f"transaction {identifier.hex()} ended while it was begun")
        if transaction is not None:
            transaction.is_begun = True

    async def _create_segments(self, stream: Stream, identifier: bytes) -> None:
        await self._segments.create_segments(
            NewSegment(
                segment_name(stream.scope.name, stream.name, segment.number, identifier),
                scale_type=int(ScaleType.FIXED),
                target_rate=0,
                rollover_bytes=stream.configuration.rollover_bytes,
            )
            for segment in stream.active
        )

    # ---- Renewals --------------------------------------------------------------------------------

    async def ping(self, scope: str, name: str, identifier: bytes, *, lease_ms: int) -> PingAnswer:
        """Renew a transaction's lease."""
        if lease_ms <= 0:
            raise InvalidRequestError(f"a lease of {lease_ms} ms ends before it begins")
        for _ in range(CONFLICTS_MAX):
            # Count the lease from before the record is read. If another controller renews it after
            # the read, the lease ends there no earlier than here.
            now = trio.current_time()
            found = await self._find(scope, name, identifier)
            if found is None:
                return PingAnswer.UNKNOWN
            if isinstance(found, TransactionState):
                return _ENDED_ANSWERS[found]
            if isinstance(found, Stored):
                self._refuse_unless_seen(identifier)
            try:
                async with self._held.locks.hold(identifier):
                    if isinstance(found, Stored):
                        return await self._renew_for_another(
                            scope, name, identifier, found, lease_ms
                        )
                    if found.of_stream.transactions.get(identifier) is found:
                        return await self._renew(found, lease_ms, now)
            except VersionConflictError as error:
                log.info("reading again", transaction=identifier.hex(), reason=str(error))
        raise VersionConflictError(f"others change transaction {identifier.hex()}")

    async def _renew(self, transaction: Transaction, lease_ms: int, now: float) -> PingAnswer:
        """Renew a lease that this controller watches; it counts from ``now``."""
        if not transaction.is_running:
            return _ENDED_ANSWERS[transaction.state]
        if lease_ms > LEASE_MS_MAX:
            return PingAnswer.LEASE_TOO_LARGE
        lease_end = now + lease_ms / 1000
        if lease_end > transaction.execution_end:
            return PingAnswer.EXECUTION_TIME_EXCEEDED
        record = transaction.record
        if lease_ms > record.lease_ms:
            await self._held.change(transaction, structs.replace(record, lease_ms=lease_ms))
        is_earlier = lease_end < transaction.lease_end
        transaction.lease_end = lease_end
        if is_earlier:
            self._held.timer.add(transaction)
        return PingAnswer.OK

    async def _renew_for_another(
        self, scope: str, name: str, identifier: bytes, stored: Stored, lease_ms: int
    ) -> PingAnswer:
        """Renew a lease that another controller watches; this controller watches it from now on."""
        if lease_ms > LEASE_MS_MAX:
            return PingAnswer.LEASE_TOO_LARGE
        record = dated(stored.record, self._now_ms())
        # The remaining execution time is computed from the wall clocks of two machines. The
        # execution time limits the new lease, but never shortens a lease that was granted before.
        age_ms = self._now_ms() - record.created_ms
        if lease_ms > execution_ms_max(record.begin_lease_ms) - age_ms:
            return PingAnswer.EXECUTION_TIME_EXCEEDED
        record = structs.replace(record, lease_ms=max(lease_ms, record.lease_ms))
        await self._held.adopt_from_another(scope, name, identifier, Stored(record, stored.version))
        return PingAnswer.OK

    # ---- Decisions -------------------------------------------------------------------------------

    async def commit(
        self, scope: str, name: str, identifier: bytes, *, writer_id: str, writer_ms: int | None
    ) -> bool:
        """Record that a transaction commits.

        Returns False if the transaction is unknown or aborts. If it was committed before, the
        writer and time of the first request are kept.
        """

        def committed(record: TransactionRecord) -> TransactionRecord:
            return structs.replace(
                record,
                state=TransactionState.COMMITTING,
                writer_id=writer_id,
                writer_ms=writer_ms,
            )

        return await self._decide(scope, name, identifier, committed, is_commit=True)

    async def abort(self, scope: str, name: str, identifier: bytes) -> bool:
        """Record that a transaction aborts; return False if it is unknown or commits."""

        def aborted(record: TransactionRecord) -> TransactionRecord:
            return structs.replace(record, state=TransactionState.ABORTING)

        return await self._decide(scope, name, identifier, aborted, is_commit=False)

    async def _decide(
        self,
        scope: str,
        name: str,
        identifier: bytes,
        decided: Callable[[TransactionRecord], TransactionRecord],
        *,
        is_commit: bool,
    ) -> bool:
        record_end = self._workflows.commits.record if is_commit else self._workflows.aborts.record
        for _ in range(CONFLICTS_MAX):
            found = await self._find(scope, name, identifier)
            if found is None:
                return False
            if isinstance(found, TransactionState):
                return _is_commit(found) is is_commit
            async with self._held.locks.hold(identifier):
                if isinstance(found, Transaction):
                    if found.of_stream.transactions.get(identifier) is not found:
                        continue
                    if not found.is_running:
                        return _is_commit(found.state) is is_commit
                else:
                    self._refuse_unless_seen(identifier)
                changed = Stored(decided(found.record), found.version)
                try:
                    await record_end(scope, name, identifier, changed)
                except VersionConflictError as error:
                    log.info("reading again", transaction=identifier.hex(), reason=str(error))
                    continue
                except StreamNotFoundError:
                    return False
            return True
        raise VersionConflictError(f"others change transaction {identifier.hex()}")

    def _refuse_unless_seen(self, identifier: bytes) -> None:
        """Raise an error if other controllers may not have noticed this one yet.

        Then it may not change transactions that others hold. The client asks the next controller.
        """
        if not self._held.members.is_seen:
            raise VersionConflictError(
                f"another controller holds transaction {identifier.hex()}, "
                "and may not know that this one is there"
            )

    # ---- Questions -------------------------------------------------------------------------------

    async def state(self, scope: str, name: str, identifier: bytes) -> TransactionState | None:
        """Return the state of a transaction, or None if it or its stream does not exist.

        Clients that wait for the end ask repeatedly. So while this controller commits or aborts the
        transaction, the answer waits for the end for up to ``END_WAIT_SECONDS_MAX``.
        """
        found = await self._find(scope, name, identifier)
        if isinstance(found, Transaction) and found.state is not TransactionState.OPEN:
            with trio.move_on_after(END_WAIT_SECONDS_MAX):
                await found.wait_until_gone()
            found = await self._find(scope, name, identifier)
        if isinstance(found, Stored):
            return found.record.state
        return found.state if isinstance(found, Transaction) else found

    async def completed(self, scope: str, name: str) -> list[Outcome]:
        """Return the latest outcomes of a stream's transactions, oldest first.

        There are at most ``LISTED_MAX``.
        """
        stream = await self._store.streams.read(scope, name)
        archived = await self._archive.latest(scope, name)
        of_stream = self._held.registry.find(scope, name)
        latest = {outcome.identifier: outcome for outcome in archived}
        if of_stream is not None and of_stream.stream_id in ("", stream.stream_id):
            latest.update((o.identifier, o) for o in of_stream.ended.values())
        if self._held.members.solitude is None:
            others = await self._workflows.stream_ends.outcomes_stored(stream)
            latest.update((o.identifier, o) for o in others)
        return list(latest.values())[-LISTED_MAX:]

    async def unfinished(
        self, scope: str, name: str, count_max: int
    ) -> list[tuple[bytes, TransactionRecord]]:
        """Return transactions that have not ended, at most ``count_max``, with their ids.

        Raises ``StreamNotFoundError``.
        """
        stream = await self._store.streams.read(scope, name)
        found: list[tuple[bytes, TransactionRecord]] = []
        stored = self._transactions.load_stream(scope, name, stream.stream_id)
        async with aclosing(stored) as transactions:
            async for each in transactions:
                if each.stored.record.state not in _ENDED:
                    found.append((each.identifier, each.stored.record))
                    if len(found) == count_max:
                        break
        return found

    async def _find(
        self, scope: str, name: str, identifier: bytes
    ) -> Transaction | Stored | TransactionState | None:
        """Return the present state of a transaction, or None.

        Returns the object in memory if this controller watches the lease or carries out the end.
        Returns the stored record if the transaction is open and another controller watches it.
        Otherwise returns only its state.
        """
        of_stream = self._held.registry.find(scope, name)
        if of_stream is not None:
            transaction = of_stream.transactions.get(identifier)
            if transaction is not None and not self._held.is_certain(transaction):
                await self._held.check(transaction)
                transaction = of_stream.transactions.get(identifier)
            if transaction is not None:
                return transaction
            if (ended := of_stream.ended.get(identifier)) is not None:
                return _ended_state(is_committed=ended.is_committed)
        # Look for the record first: an outcome is in the archive before its record is removed.
        stored = await self._transactions.read(scope, name, identifier)
        if stored is not None:
            return await self._workflows.adoption.adopt_one(scope, name, identifier, stored)
        archived = await self._archive.find(scope, name, identifier)
        return None if archived is None else _ended_state(is_committed=archived.is_committed)


_ENDED_ANSWERS = {
    TransactionState.COMMITTING: PingAnswer.COMMITTED,
    TransactionState.COMMITTED: PingAnswer.COMMITTED,
    TransactionState.ABORTING: PingAnswer.ABORTED,
    TransactionState.ABORTED: PingAnswer.ABORTED,
}


def _is_commit(state: TransactionState) -> bool:
    return state in (TransactionState.COMMITTING, TransactionState.COMMITTED)


def _ended_state(*, is_committed: bool) -> TransactionState:
    return TransactionState.COMMITTED if is_committed else TransactionState.ABORTED


def _refuse_unless_kept(stream: Stream, epoch: int) -> None:
    """Raise ``VersionConflictError`` if an epoch of the stream was dropped or is expiring."""
    record = stream.record
    if epoch < max(record.first_epoch, record.expiring.before if record.expiring else 0):
        raise VersionConflictError(f"{stream.scope.name}/{stream.name} has left epoch {epoch}")


def _refuse_unless_open(stream: Stream, of_stream: StreamTransactions) -> None:
    record = stream.record
    name = f"{stream.scope.name}/{stream.name}"
    if isinstance(record.pending, Create):
        raise IllegalStateError(f"stream {name} is still being created")
    is_closing = isinstance(record.pending, Seal | Delete)
    if record.is_sealed or is_closing or of_stream.is_closed:
        raise InvalidRequestError(f"stream {name} is sealed: no transaction can be begun")
