"""Requests about transactions: their checks, refusals and answers.

Owns: beginning and renewing transactions, and the decisions to commit and abort.

Invariants:
1. A transaction is recorded before its first segment is created. So after any failure its record
   can be found, and its segments with it.
2. A decision is recorded before it is answered, and never changes: a client that asks again gets
   the same answer.
3. Every controller can answer requests about every transaction. The controller that renews a lease
   watches it from then on.
4. The longest lease that was promised is stored. A renewal for the same or a shorter time writes
   nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
import trio
from msgspec import structs

from pravega_controller.conflicts import until_unchanged
from pravega_controller.errors import (
    ControllerError,
    EpochDroppedError,
    IllegalStateError,
    InvalidRequestError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.open_transactions import StreamTransactions, Transaction
from pravega_controller.records import Create, Delete, Seal
from pravega_controller.segment_client import NewSegment, SegmentClient, run_all
from pravega_controller.store import MetadataStore, Stream
from pravega_controller.streams import ScaleType, Segment
from pravega_controller.table_client import NOT_EXISTS
from pravega_controller.transaction_outcomes import LISTED_MAX, OutcomeArchive
from pravega_controller.transaction_records import Outcome, TransactionRecord
from pravega_controller.transaction_store import Stored, TransactionStore
from pravega_controller.transaction_workflows import CONFLICTS_MAX, TransactionWorkflows
from pravega_controller.transactions import (
    LEASE_MS_MAX,
    TransactionState,
    execution_ms_max,
    generalize,
    make_id,
    number_ranges,
    segment_name,
    validate_lease,
)

END_WAIT_SECONDS_MAX = 0.05
"""Maximum time, in seconds, for which a question about a transaction waits while its end is carried
out."""

KNOWN_SECONDS_MAX = 60.0
"""Maximum age, in seconds, of a stream's record in memory with which a transaction is begun. The
stored record is checked while the transaction's segments are created."""

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
        """Begin a transaction like ``begin``. Raises ``VersionConflictError`` if the stream is
        replaced meanwhile.
        """
        number = await self._transactions.next_number()
        known = self._store.known(scope, name, age_seconds_max=KNOWN_SECONDS_MAX)
        if known is None or known.record.pending is not None or known.record.is_sealed:
            known = None
        elif known.record.epoch < known.history.first:
            # A question has shown since that another controller dropped this epoch.
            known = None
        stream = known or await self._store.stream(scope, name)
        try:
            epoch = (await stream.history.epoch(stream.record.epoch)).reference
        except EpochDroppedError as error:
            raise VersionConflictError(f"{scope}/{name} has gone on: {error}") from error
        owner = self._workflows.registry.of_stream(scope, name, stream.stream_id)
        _refuse_unless_open(stream, owner)
        identifier = make_id(epoch, number)

        async def verify() -> None:
            found = await self._store.stream(scope, name)
            if found.stream_id != stream.stream_id:
                raise VersionConflictError(f"another controller has created {scope}/{name} again")
            _refuse_unless_open(found, owner)
            _refuse_unless_kept(found, epoch)

        with owner.beginning():
            try:
                await self._record(owner, identifier, lease_ms, stream.active)
                # If the stream is sealed or the epoch is dropped later, this record is found then.
                # If this happened earlier, ``verify`` notices it.
                await run_all(partial(self._create_segments, stream, identifier), verify)
                await self._verify_open(owner, identifier)
            except ControllerError:
                self._workflows.undo_begin(owner, stream, identifier)
                raise
        return BegunTransaction(identifier, generalize(stream.active, epoch))

    async def _record(
        self,
        owner: StreamTransactions,
        identifier: bytes,
        lease_ms: int,
        segments: Sequence[Segment],
    ) -> None:
        record = TransactionRecord(
            TransactionState.OPEN,
            self._now_ms(),
            lease_ms,
            lease_ms,
            holder=self._workflows.instance_id,
            stream_id=owner.stream_id,
            segment_ranges=number_ranges(tuple(segment.number for segment in segments)),
        )
        async with self._workflows.locks.hold(identifier):
            solitude = self._workflows.members.solitude
            (version,) = await self._transactions.write(
                owner.scope, owner.stream, [(identifier, record, NOT_EXISTS)]
            )
            now = trio.current_time()
            self._workflows.watch(
                Transaction(
                    owner,
                    identifier,
                    record,
                    version,
                    lease_end=now + lease_ms / 1000,
                    execution_end=now + execution_ms_max(lease_ms) / 1000,
                    certain_in=solitude,
                )
            )

    async def _verify_open(self, owner: StreamTransactions, identifier: bytes) -> None:
        """Raise ``VersionConflictError`` if the transaction has ended while it was begun.

        In this case its segments may have been created after the abort deleted them.
        """
        transaction = owner.transactions.get(identifier)
        if transaction is not None and self._workflows.is_certain(transaction):
            is_open = transaction.is_running
        else:
            stored = await self._transactions.read(owner.scope, owner.stream, identifier)
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
            # The lease counts from before the look: another controller that renews it later
            # promises at least as much.
            now = trio.current_time()
            found = await self._find(scope, name, identifier)
            if found is None:
                return PingAnswer.UNKNOWN
            if isinstance(found, TransactionState):
                return _ENDED_ANSWERS[found]
            if isinstance(found, Stored):
                self._refuse_unless_seen(identifier)
            try:
                async with self._workflows.locks.hold(identifier):
                    if isinstance(found, Stored):
                        return await self._renew_for_another(
                            scope, name, identifier, found, lease_ms
                        )
                    if found.owner.transactions.get(identifier) is found:
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
            await self._workflows.change(transaction, structs.replace(record, lease_ms=lease_ms))
        is_earlier = lease_end < transaction.lease_end
        transaction.lease_end = lease_end
        if is_earlier:
            self._workflows.timer.add(transaction)
        return PingAnswer.OK

    async def _renew_for_another(
        self, scope: str, name: str, identifier: bytes, stored: Stored, lease_ms: int
    ) -> PingAnswer:
        """Renew a lease that another controller watches; this controller watches it from now on."""
        record = stored.record
        if lease_ms > LEASE_MS_MAX:
            return PingAnswer.LEASE_TOO_LARGE
        # The clocks of two machines decide how much time is left for a new promise. They never end
        # a lease that was promised before.
        age_ms = self._now_ms() - record.created_ms
        if lease_ms > execution_ms_max(record.begin_lease_ms) - age_ms:
            return PingAnswer.EXECUTION_TIME_EXCEEDED
        record = structs.replace(record, lease_ms=max(lease_ms, record.lease_ms))
        await self._workflows.take_over(scope, name, identifier, Stored(record, stored.version))
        return PingAnswer.OK

    # ---- Decisions -------------------------------------------------------------------------------

    async def commit(
        self, scope: str, name: str, identifier: bytes, *, writer_id: str, writer_ms: int | None
    ) -> bool:
        """Record that a transaction commits.

        Returns False if the transaction is unknown or aborts. The first decision sets the writer
        and its time.
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
        record_end = self._workflows.commit if is_commit else self._workflows.abort
        for _ in range(CONFLICTS_MAX):
            found = await self._find(scope, name, identifier)
            if found is None:
                return False
            if isinstance(found, TransactionState):
                return _is_commit(found) is is_commit
            async with self._workflows.locks.hold(identifier):
                if isinstance(found, Transaction):
                    if found.owner.transactions.get(identifier) is not found:
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
        """Raise an error if this controller may not yet change transactions that others hold.

        The client then asks the next controller.
        """
        if not self._workflows.members.is_seen:
            raise VersionConflictError(
                f"another controller holds transaction {identifier.hex()}, "
                "and may not know that this one is there"
            )

    # ---- Questions -------------------------------------------------------------------------------

    async def state(self, scope: str, name: str, identifier: bytes) -> TransactionState | None:
        """Return the state of a transaction, or None if it or its stream does not exist.

        Clients that wait for the end ask repeatedly. While this controller carries out the end, the
        answer waits for it a short time. So the client asks once instead of many times, and learns
        of the end at once.
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
        stream = await self._store.stream(scope, name)
        archived = await self._archive.latest(scope, name)
        owner = self._workflows.registry.find(scope, name)
        latest = {outcome.identifier: outcome for outcome in archived}
        if owner is not None and owner.stream_id in ("", stream.stream_id):
            latest.update((o.identifier, o) for o in owner.ended.values())
        if self._workflows.members.solitude is None:
            others = await self._workflows.outcomes_stored(stream)
            latest.update((o.identifier, o) for o in others)
        return list(latest.values())[-LISTED_MAX:]

    async def _find(
        self, scope: str, name: str, identifier: bytes
    ) -> Transaction | Stored | TransactionState | None:
        """Return the present state of a transaction, or None.

        Returns the object in memory if this controller watches the lease or carries out the end.
        Returns the stored record if the transaction is open and another controller watches it.
        Otherwise returns only its state.
        """
        owner = self._workflows.registry.find(scope, name)
        if owner is not None:
            transaction = owner.transactions.get(identifier)
            if transaction is not None and not self._workflows.is_certain(transaction):
                await self._workflows.check(transaction)
                transaction = owner.transactions.get(identifier)
            if transaction is not None:
                return transaction
            if (ended := owner.ended.get(identifier)) is not None:
                return _ended_state(is_committed=ended.is_committed)
        # The order matters: an outcome is in the archive before its record is removed.
        stored = await self._transactions.read(scope, name, identifier)
        if stored is not None:
            return await self._workflows.take_over_one(scope, name, identifier, stored)
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
    """Raise ``VersionConflictError`` if an epoch of the stream is expired or about to expire."""
    record = stream.record
    if epoch < max(record.first_epoch, record.expiring.before if record.expiring else 0):
        raise VersionConflictError(f"{stream.scope.name}/{stream.name} has left epoch {epoch}")


def _refuse_unless_open(stream: Stream, owner: StreamTransactions) -> None:
    record = stream.record
    name = f"{stream.scope.name}/{stream.name}"
    if isinstance(record.pending, Create):
        raise IllegalStateError(f"stream {name} is still being created")
    is_closing = isinstance(record.pending, Seal | Delete)
    if record.is_sealed or is_closing or owner.is_closed:
        raise InvalidRequestError(f"stream {name} is sealed: no transaction can be begun")
