"""The transactions that this controller holds: it watches their leases, and carries out their
aborts.

Owns: ``HeldTransactions``: which controller holds a transaction, and all changes of its record
except those of commits, which are made together with the stream's line (``commit_lines``).

The record of a transaction names its holder. That is the controller that last began or renewed the
transaction for a client. If another controller is asked, or finds the holder dead, it becomes the
holder by a conditional write. A record is changed first, and then the copy in memory. A controller
answers a query from memory only while it is alone; otherwise it reads the record.

Invariants:
1. When anything happens to a transaction in any state, its record takes only steps of
   ``rules.transactions.NEXT_STATES``.
   Held by ``test_each_happening_in_each_state_takes_steps_of_the_table_alone``.
2. When controllers are asked in turn to renew a lease, the last one watches it, and no other aborts
   the transaction. Held by ``test_any_controller_answers_for_any_transaction``.
3. When a controller dies, another one watches the leases of its transactions.
   Held by ``test_a_living_controller_takes_over_what_a_dead_one_held``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
import trio
from msgspec import structs

from pravega_controller.background.background import Background
from pravega_controller.background.members import Members
from pravega_controller.errors import VersionConflictError
from pravega_controller.metadata.locks import KeyedLocks
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_records import Outcome, TransactionRecord, dated
from pravega_controller.metadata.transaction_store import (
    Stored,
    StoredTransaction,
    TransactionStore,
)
from pravega_controller.rules.transactions import (
    NEXT_STATES,
    TransactionState,
    execution_ms_left,
)
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.transactions.commit_lines import CommitLines, RecordChange
from pravega_controller.transactions.leases import LeaseTimer
from pravega_controller.transactions.open_transactions import (
    StreamTransactions,
    Transaction,
    TransactionRegistry,
)

HELD_AT_A_TIME_MAX = 500

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DecidedWork:
    """Functions that start, in the background, commits and aborts that are recorded."""

    start_commits: Callable[[StreamTransactions], None]
    start_leading: Callable[[StreamTransactions], None]
    start_aborts: Callable[[StreamTransactions, Sequence[Transaction]], None]


class HeldTransactions:
    """Holds transactions in memory, and changes their records."""

    def __init__(
        self,
        store: MetadataStore,
        transactions: TransactionStore,
        members: Members,
        background: Background,
        work: DecidedWork,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._background = background
        self.work = work
        self.members = members
        self.instance_id = members.instance_id
        self.lines = CommitLines(transactions, members)
        self.now_ms = now_ms
        self.registry = TransactionRegistry()
        self.locks = KeyedLocks()
        """Locks by transaction id. A task that changes a transaction holds its lock meanwhile."""
        self.timer: LeaseTimer[Transaction] = LeaseTimer()

    def is_certain(self, transaction: Transaction) -> bool:
        """Return whether the copy in memory certainly equals the stored record."""
        solitude = self.members.solitude
        return solitude is not None and transaction.certain_in == solitude

    async def check(self, transaction: Transaction) -> None:
        """Read a transaction's record into memory; drop it if another controller holds it."""
        async with self.locks.hold(transaction.identifier):
            if transaction.of_stream.transactions.get(transaction.identifier) is transaction:
                await self.reload(transaction)

    def owner_of(self, stream: Stream) -> StreamTransactions:
        return self.registry.of_stream(stream.scope.name, stream.name, stream.stream_id)

    async def owner_now(self, scope: str, name: str) -> StreamTransactions:
        """Return the entry of the stream that has this name now. Raises ``NotFoundError``."""
        return self.owner_of(await self._store.streams.read(scope, name))

    async def known_owner(self, scope: str, name: str, identifier: bytes) -> StreamTransactions:
        """Return the entry that has the transaction, or else that of the present stream."""
        of_stream = self.registry.find(scope, name)
        if of_stream is not None and of_stream.stream_id and identifier in of_stream.transactions:
            return of_stream
        return await self.owner_now(scope, name)

    def start_holding(self, transactions: Sequence[Transaction]) -> None:
        """Record that this controller holds transactions that a dead controller held.

        From then on every write of the other controller to these records fails.
        """
        taken = [t for t in transactions if t.record.holder != self.instance_id]
        if taken:
            self._background.start(
                lambda: for_each(taken, self._record_holder, limit=HELD_AT_A_TIME_MAX), work="hold"
            )

    async def _record_holder(self, transaction: Transaction) -> None:
        async with self.locks.hold(transaction.identifier):
            record = transaction.record
            is_here = transaction.of_stream.transactions.get(transaction.identifier) is transaction
            if is_here and record.holder != self.instance_id:
                try:
                    await self.change(transaction, structs.replace(record, holder=self.instance_id))
                except VersionConflictError:
                    log.info("not held any more", transaction=transaction.identifier.hex())

    def resume_decided(self, of_stream: StreamTransactions) -> None:
        """Carry out, in the background, the recorded commits and aborts of a stream."""
        self.work.start_commits(of_stream)
        if aborting := of_stream.in_state(TransactionState.ABORTING):
            self.work.start_aborts(of_stream, aborting)

    def adopt(
        self, of_stream: StreamTransactions, identifier: bytes, stored: Stored
    ) -> Transaction:
        """Load a stored transaction into memory, with its whole lease.

        Until the record names this controller as the holder, other controllers may change it. So
        until then the copy in memory may be stale.
        """
        record, now = dated(stored.record, self.now_ms()), trio.current_time()
        left = execution_ms_left(
            record.begin_lease_ms, record.lease_ms, age_ms=self.now_ms() - record.created_ms
        )
        transaction = Transaction(
            of_stream,
            identifier,
            record,
            stored.version,
            lease_end=now + record.lease_ms / 1000,
            execution_end=now + left / 1000,
            certain_in=None,
        )
        self.watch(transaction)
        return transaction

    def watch(self, transaction: Transaction) -> None:
        """Keep a transaction in memory, and abort it when its lease ends."""
        transaction.of_stream.add(transaction)
        if transaction.is_running:
            self.timer.add(transaction)

    async def adopt_from_another(
        self, scope: str, name: str, identifier: bytes, stored: Stored
    ) -> Transaction:
        """Take over a transaction that another controller holds, with a whole lease from now on.

        The caller holds its lock. ``stored`` has the new record and the version of the old one.
        Raises ``VersionConflictError`` if the stored record was changed meanwhile.
        """
        of_stream = await self.owner_now(scope, name)
        solitude = self.members.solitude
        record = structs.replace(stored.record, holder=self.instance_id)
        change = (identifier, record, stored.version)
        (version,) = await self._transactions.write(scope, name, [change])
        transaction = self.adopt(of_stream, identifier, Stored(record, version))
        transaction.certain_in = solitude
        return transaction

    async def decide(self, transaction: Transaction, record: TransactionRecord) -> None:
        """Record a transaction's decided end; the caller holds its lock.

        Raises ``VersionConflictError`` if another controller has changed the record. The new record
        is then read into memory.
        """
        try:
            await self.change(transaction, record)
        finally:
            if not transaction.is_running:
                self.timer.count_early_end()

    async def change(self, transaction: Transaction, record: TransactionRecord) -> None:
        """Replace a transaction's record; the caller holds its lock. Raises like ``decide``."""
        assert record.state in NEXT_STATES[transaction.state]
        of_stream = transaction.of_stream
        solitude = self.members.solitude
        change = (transaction.identifier, record, transaction.version)
        try:
            (version,) = await self._transactions.write(of_stream.scope, of_stream.stream, [change])
        except VersionConflictError:
            await self.reload(transaction)
            raise
        transaction.record, transaction.version = record, version
        transaction.certain_in = solitude

    async def reload(self, transaction: Transaction) -> None:
        """Read the transaction's record into memory again; the caller holds its lock."""
        of_stream, identifier = transaction.of_stream, transaction.identifier
        solitude = self.members.solitude
        stored = await self._transactions.read(of_stream.scope, of_stream.stream, identifier)
        if stored is None:
            self._drop(transaction)
            return
        record = stored.record
        if record.state is TransactionState.COMMITTING and not self.lines.leads(of_stream):
            self._drop(transaction)
            self.work.start_leading(of_stream)
            return
        if record.holder not in ("", self.instance_id):
            if not await self.members.is_dead(record.holder):
                # Another controller was asked to renew the lease, or has taken this controller for
                # dead.
                self._drop(transaction)
                return
            self.start_holding([transaction])
        if record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            self.record_ends(of_stream, [(identifier, record)])
            return
        transaction.certain_in = solitude
        if stored.version != transaction.version:
            transaction.record, transaction.version = record, stored.version
            # The controller that changed it may have renewed the lease just before it died.
            lease_end = trio.current_time() + record.lease_ms / 1000
            transaction.lease_end = max(transaction.lease_end, lease_end)
            self.resume_decided(of_stream)

    def _drop(self, transaction: Transaction) -> None:
        """Remove a transaction from memory, because another controller holds it."""
        if transaction.is_running:
            self.timer.count_early_end()
        transaction.of_stream.drop(transaction.identifier)

    def end_of(self, transaction: Transaction, state: TransactionState) -> RecordChange:
        """Return the change that records the end of a transaction."""
        assert state in NEXT_STATES[transaction.state]
        record = structs.replace(
            transaction.record,
            state=state,
            ended_ms=self.now_ms(),
            holder=self.instance_id,
            segment_ranges=(),
        )
        return transaction.identifier, record, transaction.version

    def record_ends(
        self, of_stream: StreamTransactions, ends: Iterable[tuple[bytes, TransactionRecord]]
    ) -> None:
        for identifier, record in ends:
            of_stream.record_end(identifier, outcome_of(identifier, record))

    def load_stream(self, of_stream: StreamTransactions) -> AsyncIterator[StoredTransaction]:
        return self._transactions.load_stream(
            of_stream.scope, of_stream.stream, of_stream.stream_id
        )


def outcome_of(identifier: bytes, record: TransactionRecord) -> Outcome:
    """Return the outcome in the record of a transaction that has ended."""
    is_committed = record.state is TransactionState.COMMITTED
    return Outcome(identifier.hex(), is_committed, record.ended_ms)
