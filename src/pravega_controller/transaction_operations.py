"""Requests about transactions: their checks, refusals and answers.

Owns: beginning and renewing transactions, and the decisions to commit and abort.

Invariants:
1. A transaction is recorded before its first segment is created: whatever happens, it is found
   again, and its segments with it.
2. A decision is recorded before it is answered, and stays: a client that asks again gets the same
   answer.
3. Any controller answers for any transaction. The one that renews a lease watches it from then on.
4. A lease that was promised is stored: renewing it by the same or a shorter time stores nothing.
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
"""Maximum time, in seconds, that a question about a transaction waits for its end, while that is
carried out."""

KNOWN_SECONDS_MAX = 60.0
"""Maximum age, in seconds, of what is known of a stream on which a transaction is begun before
that is checked."""

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
    """A new transaction: its id, and the segments to write to under ids that carry its epoch."""

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

        Raises ``InvalidRequestError`` for a lease out of bounds and for a sealed stream, neither of
        which gets better, and ``StreamNotFoundError``.
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
            # A question has come upon what another controller has dropped since.
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
                # A later seal of the stream, or drop of the epoch, finds the record; an earlier one
                # is found here.
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
            solitude = self._workflows.solitude
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

        Its segments may have been deleted then before they were created.
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
            # Another controller that is asked from now on promises no less than this one may.
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
        """Renew a lease that this controller watches, from a time before it looked."""
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
        """Renew a lease that another controller watches: watch it from now on."""
        record = stored.record
        if lease_ms > LEASE_MS_MAX:
            return PingAnswer.LEASE_TOO_LARGE
        # The clocks of two machines tell how much is left; no lease that was promised ends by them.
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
        """Record that a transaction commits, and return True; return False if it is unknown or
        aborts.

        The first decision sets the writer and its time.
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
        """Record that a transaction aborts, and return True; return False if it is unknown or
        commits.
        """

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
        """Raise an error while this controller may not change what others hold: clients then ask
        the next one.
        """
        if not self._workflows.may_take_over:
            raise VersionConflictError(
                f"another controller holds transaction {identifier.hex()}, "
                "and may not know that this one is there"
            )

    # ---- Questions -------------------------------------------------------------------------------

    async def state(self, scope: str, name: str, identifier: bytes) -> TransactionState | None:
        """Return where a transaction is in its life, or None if there is no such transaction or
        stream.

        Clients that wait for an end ask again and again. While this controller carries it out, the
        answer waits for it a little: one question instead of many, and no pause after the end.
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
        """Return the transactions of a stream that ended last, up to ``LISTED_MAX``, oldest
        first.
        """
        stream = await self._store.stream(scope, name)
        archived = await self._archive.latest(scope, name)
        owner = self._workflows.registry.find(scope, name)
        latest = {outcome.identifier: outcome for outcome in archived}
        if owner is not None and owner.stream_id in ("", stream.stream_id):
            latest.update((o.identifier, o) for o in owner.ended.values())
        if self._workflows.solitude is None:
            others = await self._workflows.outcomes_stored(stream)
            latest.update((o.identifier, o) for o in others)
        return list(latest.values())[-LISTED_MAX:]

    async def _find(
        self, scope: str, name: str, identifier: bytes
    ) -> Transaction | Stored | TransactionState | None:
        """Return a transaction as it is now, or None.

        It comes from memory if this controller watches its lease or carries out its end, and from
        the store if it is open and another controller watches it; otherwise its state alone is
        returned.
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
        # In this order: what has no record any more has been archived before.
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
    """Raise ``VersionConflictError`` if the stream has left an epoch so far behind that it goes."""
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
