"""Aborts: recorded, then carried out by deleting a transaction's segments.

Owns: ``Aborts``, the steps from ABORTING to ABORTED.

    decision -> ABORTING -> (intent to delete again) -> segments deleted -> ABORTED

The begin of a transaction may still be under way when it is aborted, and create segments after they
were deleted. So they are deleted once more later (``late_segments``).

Invariants:
1. When a controller dies after it has recorded an abort, another one carries it out.
   Held by ``test_a_decision_that_was_recorded_is_carried_out_without_being_asked_again``.
2. When a late request creates segments of an aborted transaction, these are deleted.
   Held by ``test_a_segment_that_a_killed_controller_asked_for_late_is_deleted``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import trio
from msgspec import structs

from pravega_controller.background.background import Background
from pravega_controller.background.late_segments import LateSegments
from pravega_controller.errors import VersionConflictError
from pravega_controller.metadata.records import IntentRecord
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.transaction_store import (
    Stored,
    StoredTransaction,
    TransactionStore,
)
from pravega_controller.rules.transactions import TransactionState, numbers_in, segment_name
from pravega_controller.store_client.segment_client import SegmentClient, for_each
from pravega_controller.transactions.held_transactions import HeldTransactions
from pravega_controller.transactions.open_transactions import StreamTransactions, Transaction

ABORTS_AT_A_TIME_MAX = 64
CONFLICTS_MAX = 5
"""Maximum number of attempts of a change that conflicts with those of other controllers."""
LATE_KIND = "transaction-segments"
"""Kind of the intents to delete the segments of aborted transactions again."""
BEGIN_SECONDS_MAX = 300.0
"""Time, in seconds, after this controller has learned of a transaction, in which its begin may
still be under way: recording it, and creating its segments, are repeated for 30 s each."""


class Aborts:
    """Records and carries out aborts."""

    def __init__(
        self,
        held: HeldTransactions,
        store: MetadataStore,
        segments: SegmentClient,
        transactions: TransactionStore,
        late: LateSegments,
        background: Background,
    ) -> None:
        self._held = held
        self._store = store
        self._segments = segments
        self._transactions = transactions
        self._late = late
        late.register(LATE_KIND, self._delete_late)
        self._background = background

    async def record(self, scope: str, name: str, identifier: bytes, stored: Stored) -> None:
        """Record the abort of an open transaction and start to carry it out.

        The arguments and errors are those of ``Commits.record``.
        """
        of_stream = await self._held.known_owner(scope, name, identifier)
        transaction = of_stream.transactions.get(identifier)
        record = structs.replace(stored.record, holder=self._held.instance_id)
        if transaction is None:
            solitude = self._held.members.solitude
            change = (identifier, record, stored.version)
            (version,) = await self._transactions.write(scope, name, [change])
            transaction = self._held.adopt(of_stream, identifier, Stored(record, version))
            transaction.certain_in = solitude
        else:
            if transaction.version != stored.version:
                # Another task has taken it into memory, or decided it, since the caller read it.
                raise VersionConflictError(f"transaction {identifier.hex()} has changed")
            await self._held.decide(transaction, record)
        # The begin was answered, because the client knows the transaction's id.
        transaction.is_begun = True
        self.start(of_stream, [transaction])

    def start(self, of_stream: StreamTransactions, transactions: Sequence[Transaction]) -> None:
        """Carry out, in the background, aborts that are recorded."""
        self._background.start(
            lambda: for_each(transactions, self.finish, limit=ABORTS_AT_A_TIME_MAX),
            work="abort",
            scope=of_stream.scope,
            stream=of_stream.stream,
        )

    async def finish(self, transaction: Transaction) -> None:
        of_stream = transaction.of_stream
        async with self._held.locks.hold(transaction.identifier):
            if (
                transaction.identifier not in of_stream.transactions
                or transaction.state is not TransactionState.ABORTING
            ):
                return
            numbers = numbers_in(transaction.record.segment_ranges)
            known_seconds = trio.current_time() - transaction.known_since
            if not transaction.is_begun and known_seconds < BEGIN_SECONDS_MAX:
                # Requests to create the segments may still be under way.
                await self.promise_deletion(of_stream, transaction.identifier, numbers)
            await self.delete_segments(of_stream, transaction.identifier, numbers)
            await self.write_aborted(transaction)

    async def record_open(self, transaction: Transaction) -> None:
        """Record an open transaction's abort; the caller holds its lock."""
        if transaction.is_running:
            record = structs.replace(
                transaction.record, state=TransactionState.ABORTING, holder=self._held.instance_id
            )
            await self._held.decide(transaction, record)

    async def abort_all(
        self, of_stream: StreamTransactions, found: Sequence[StoredTransaction]
    ) -> None:
        """Abort transactions, except those that another controller changes at this moment."""

        async def abort(one: StoredTransaction) -> None:
            with suppress(VersionConflictError):
                async with self._held.locks.hold(one.identifier):
                    transaction = of_stream.transactions.get(one.identifier)
                    # The copy in memory may be newer than the record that was found.
                    if transaction is None or transaction.version < one.stored.version:
                        transaction = self._held.adopt(of_stream, one.identifier, one.stored)
                    await self.record_open(transaction)
                await self.finish(transaction)

        await for_each(found, abort, limit=ABORTS_AT_A_TIME_MAX)

    async def write_aborted(self, transaction: Transaction) -> None:
        """Write that a transaction is aborted; the caller holds its lock."""
        of_stream, identifier = transaction.of_stream, transaction.identifier
        for _ in range(CONFLICTS_MAX):
            if of_stream.transactions.get(identifier) is not transaction:
                return
            end = self._held.end_of(transaction, TransactionState.ABORTED)
            try:
                await self._transactions.write(of_stream.scope, of_stream.stream, [end])
            except VersionConflictError:
                await self._held.reload(transaction)
                continue
            self._held.record_ends(of_stream, [(identifier, end[1])])
            return
        raise VersionConflictError("another controller changes the same transaction")

    async def delete_segments(
        self, of_stream: StreamTransactions, identifier: bytes, numbers: Iterable[int]
    ) -> None:
        await self._segments.delete_segments(
            segment_name(of_stream.scope, of_stream.stream, number, identifier)
            for number in numbers
        )

    async def promise_deletion(
        self, of_stream: StreamTransactions, identifier: bytes, numbers: Iterable[int]
    ) -> None:
        """Record that a transaction's segments are deleted again: late requests may create them."""
        name = f"{of_stream.stream}/{identifier.hex()}"
        intent = IntentRecord(LATE_KIND, of_stream.scope, name, segment_numbers=tuple(numbers))
        await self._late.promise(intent)

    async def _delete_late(self, intent: IntentRecord) -> None:
        """Delete the segments of an aborted transaction that late requests have created."""
        stream, _, digits = intent.name.partition("/")
        await self._segments.delete_segments(
            segment_name(intent.scope, stream, number, bytes.fromhex(digits))
            for number in intent.segment_numbers
        )
