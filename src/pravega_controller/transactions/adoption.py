"""Adopts the transactions of controllers that have died.

Owns: ``Adoption``, what a controller does at its start, and when it finds another one dead. It
reads all transactions, and holds those that no living controller holds: it watches their leases,
and carries out their recorded commits and aborts.

| found in the store                            | what this controller does               |
|-----------------------------------------------|-----------------------------------------|
| any, and its holder lives                     | nothing                                 |
| OPEN, and its holder is dead                  | holds it, with a whole lease            |
| ABORTING, and its holder is dead              | holds it, and carries out the abort     |
| COMMITTING, in a line without a living leader | leads the line, and carries out commits |
| COMMITTING, in no line                        | adds it to the line, and carries it out |
| COMMITTED or ABORTED, and its holder is dead  | archives the outcome                    |

A commit is recorded together with its place in the line. It is in no line only if entries of the
controller's tables were lost: ``segstore recover`` restores what is left of them.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from pravega_controller.background.background import Background
from pravega_controller.metadata.transaction_store import (
    Stored,
    StoredLine,
    StoredTransaction,
    TransactionStore,
)
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.transactions.commits import Commits
from pravega_controller.transactions.held_transactions import HeldTransactions, outcome_of
from pravega_controller.transactions.open_transactions import StreamTransactions, Transaction


class Adoption:
    """Takes over the transactions of dead controllers."""

    def __init__(
        self,
        held: HeldTransactions,
        commits: Commits,
        transactions: TransactionStore,
        background: Background,
    ) -> None:
        self._held = held
        self._commits = commits
        self._transactions = transactions
        self._background = background

    async def adopt_all(self) -> None:
        """Read all transactions, and take over transactions and lines of dead controllers.

        Open transactions get their whole lease again, because clients could not renew them while
        their holder was dead. Transactions of other living controllers stay with these.
        """
        # This controller has its own transactions in memory, or is about to.
        dead: dict[str, bool] = {"": True, self._held.instance_id: False}
        taken: list[Transaction] = []
        committing: dict[tuple[str, str], list[StoredTransaction]] = {}
        async with aclosing(self._transactions.load()) as stored:
            async for found in stored:
                if isinstance(found, StoredLine):
                    self._record_line(found)
                    continue
                record = found.stored.record
                if record.state is TransactionState.COMMITTING:
                    committing.setdefault((found.scope, found.stream), []).append(found)
                    continue
                if record.holder not in dead:
                    dead[record.holder] = await self._held.members.is_dead(record.holder)
                if not dead[record.holder]:
                    continue
                of_stream = self._held.registry.of_record(
                    found.scope, found.stream, record.stream_id
                )
                transaction = self._adopt_found(of_stream, found)
                if transaction is not None:
                    taken.append(transaction)
        for of_stream in self._held.registry.all():
            of_stream.ended = dict(
                sorted(of_stream.ended.items(), key=lambda item: item[1].ended_ms)
            )
            self._held.resume_decided(of_stream)
            if of_stream.line.record.waiting and not self._held.lines.leads(of_stream):
                self._commits.start_leading(of_stream)
        self._held.start_holding(taken)
        self._start_entering_lines(committing)

    def _record_line(self, found: StoredLine) -> None:
        of_stream = self._held.registry.of_stream(found.scope, found.stream, found.stream_id)
        if of_stream.line.version < found.version:
            of_stream.line.record, of_stream.line.version = found.record, found.version

    def start_adopting_all(self) -> None:
        """Begin, in the background, to take over the transactions of a controller that died."""
        self._background.start(self.adopt_all, work="take over transactions")

    async def adopt_one(
        self, scope: str, stream: str, identifier: bytes, stored: Stored
    ) -> Transaction | Stored | TransactionState:
        """Return a transaction that is not in memory; hold it from now on if its holder is dead.

        Returns the stored record if the transaction is open and a living controller holds it.
        Returns only the state if the transaction has ended, is committing, or is being aborted by a
        living controller.
        """
        record = stored.record
        is_abandoned = record.holder == "" or await self._held.members.is_dead(record.holder)
        if record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            return record.state
        if record.state is TransactionState.COMMITTING:
            if is_abandoned:
                self._commits.start_leading(await self._held.owner_now(scope, stream))
            return record.state
        if not is_abandoned:
            return stored if record.state is TransactionState.OPEN else record.state
        of_stream = self._held.registry.of_record(scope, stream, record.stream_id)
        transaction = of_stream.transactions.get(identifier)
        if transaction is None:
            transaction = self._held.adopt(of_stream, identifier, stored)
            self._held.start_holding([transaction])
            self._held.resume_decided(of_stream)
        return transaction

    def _start_entering_lines(
        self, committing: dict[tuple[str, str], list[StoredTransaction]]
    ) -> None:
        """Add commits that are in no line to their streams' lines."""

        async def enter(scope: str, stream: str, found: list[StoredTransaction]) -> None:
            of_stream = await self._held.owner_now(scope, stream)
            await self._held.lines.refresh(of_stream)
            await self._commits.enter_line(of_stream, found)
            self._commits.start(of_stream)

        for (scope, stream), found in committing.items():
            waiting = self._held.registry.of(scope, stream).line.record.waiting
            left = [one for one in found if one.identifier.hex() not in waiting]
            if left:
                self._background.start(
                    partial(enter, scope, stream, left),
                    work="add commits to their line",
                    scope=scope,
                    name=stream,
                )

    def _adopt_found(
        self, of_stream: StreamTransactions, found: StoredTransaction
    ) -> Transaction | None:
        """Load a transaction that no other controller holds into memory.

        Returns the transaction if it was not in memory as it is stored, and has not ended.
        """
        record = found.stored.record
        if found.identifier in of_stream.ended:
            return None
        if record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            of_stream.record_end(found.identifier, outcome_of(found.identifier, record))
            return None
        known = of_stream.transactions.get(found.identifier)
        if known is not None and known.version == found.stored.version:
            return None
        return self._held.adopt(of_stream, found.identifier, found.stored)
