"""Commits: recorded in the line of their stream, and carried out in batches by the line's leader.

Owns: ``Commits``, the steps from the decision to commit until the transaction leaves the line.

    decision -> COMMITTING, in the line -> first batch of the line (``commit_batches``) -> COMMITTED
                                        -> or the stream is rolled (``rolls``)          -> COMMITTED

A batch has transactions of one epoch. Transactions of the active epoch, or of the epoch that it
repeats, are merged into the active segments. For those of an earlier epoch the stream is rolled,
which takes longer. The line has the epoch of the last batch. Example: epoch 2 is active, and three
transactions wait, a of epoch 2, b of epoch 0 and c of epoch 2.

    the line has     batches
    epoch 1          b, then a and c      the lowest epoch first: the stream is rolled once
    epoch 2          a, then b, then c    a crash may have interrupted a batch with a: finish it

In the second case b comes before c: no interrupted batch can have contained c, which came after b.

A controller merges a batch under the lock of the stream, so that no scale, truncation or update of
this controller runs at the same time.

Invariants:
1. When commits wait, they are merged in the order of the line, and several of them by one request
   for each segment. Held by ``test_commits_are_merged_in_their_order_in_batches``.
2. When commits come through several controllers, a batch is complete in every segment before the
   next one begins. Held by ``test_commits_through_two_controllers_have_one_order_in_all_segments``.
3. When transactions are of an earlier epoch, the stream is rolled, and continues with its active
   segments under new ids.
   Held by ``test_transactions_of_an_earlier_epoch_are_taken_in_by_two_epochs``.
4. When a batch was interrupted by a crash, its transactions are the first part of the next batch.
   Held by ``test_what_a_crash_left_half_done_is_the_first_part_of_the_next_batch``.
"""

from __future__ import annotations

from contextlib import suppress

import structlog
from msgspec import structs

from pravega_controller.background.background import RETRIED_ERRORS, Background
from pravega_controller.errors import (
    ControllerError,
    EpochDroppedError,
    ScopeNotFoundError,
    StoreAnswerError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.metadata.conflicts import until_unchanged
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_store import (
    Stored,
    StoredTransaction,
    TransactionStore,
)
from pravega_controller.rules.transactions import (
    ABORTED_WITH_THEIR_STREAM,
    TransactionState,
    choose_batch,
)
from pravega_controller.streams.pending_work import PendingWork, stream_intent
from pravega_controller.transactions.aborts import Aborts
from pravega_controller.transactions.commit_batches import CommitBatches
from pravega_controller.transactions.commit_lines import KnownLine
from pravega_controller.transactions.held_transactions import HeldTransactions
from pravega_controller.transactions.open_transactions import StreamTransactions
from pravega_controller.transactions.rolls import Rolls

log = structlog.get_logger(__name__)


class Commits:
    """Records and carries out commits."""

    def __init__(
        self,
        held: HeldTransactions,
        aborts: Aborts,
        batches: CommitBatches,
        rolls: Rolls,
        store: MetadataStore,
        work: PendingWork,
        transactions: TransactionStore,
        background: Background,
    ) -> None:
        self._held = held
        self._aborts = aborts
        self._batches = batches
        self._rolls = rolls
        self._store = store
        self._work = work
        self._transactions = transactions
        self._background = background

    async def record(self, scope: str, name: str, identifier: bytes, stored: Stored) -> None:
        """Record the commit of an open transaction and carry it out; the caller holds its lock.

        ``stored`` has the new record and the version of the old one. Raises
        ``VersionConflictError``.
        """
        of_stream = await self._held.known_owner(scope, name, identifier)
        solitude = self._held.members.solitude
        record = structs.replace(stored.record, holder=self._held.instance_id)
        try:
            version = await self._held.lines.enter(of_stream, (identifier, record, stored.version))
        except VersionConflictError:
            if (known := of_stream.transactions.get(identifier)) is not None:
                await self._held.reload(known)
            # If only the reply was lost, this commit itself has changed the transaction.
            self.start(of_stream)
            raise
        except ControllerError:
            # The commit may be recorded in spite of the error, with this controller as the leader.
            # Then no other controller carries it out.
            self.start_leading(of_stream)
            raise
        was_here = identifier in of_stream.transactions
        if self._held.lines.leads(of_stream):
            transaction = self._held.adopt(of_stream, identifier, Stored(record, version))
            transaction.certain_in = solitude
            self.start(of_stream)
        else:
            of_stream.drop(identifier)
        if was_here:
            # The lease ends only now, when the transaction is removed from memory.
            self._held.timer.count_early_end()

    def start(self, of_stream: StreamTransactions) -> None:
        """Start a task that commits the waiting transactions, if this controller leads.

        Does nothing if such a task runs already.
        """
        if self._held.lines.leads(of_stream) and not of_stream.is_committing:
            of_stream.is_committing = True
            self._background.start(
                lambda: self._commit_all(of_stream),
                work="commit",
                scope=of_stream.scope,
                stream=of_stream.stream,
            )

    def start_leading(self, of_stream: StreamTransactions) -> None:
        """Carry out, in the background, the commits of a stream that have no living leader."""
        if of_stream.is_looking:
            return
        of_stream.is_looking = True

        async def look() -> None:
            try:
                if not of_stream.stream_id:
                    found = await self._store.streams.read(of_stream.scope, of_stream.stream)
                    of_stream.stream_id = found.stream_id
                await self._held.lines.lead(of_stream)
                of_stream.is_looking = False
                self.start(of_stream)
            except RETRIED_ERRORS:
                raise
            except Exception:
                of_stream.is_looking = False
                raise

        self._background.start(
            look, work="look for commits", scope=of_stream.scope, stream=of_stream.stream
        )

    async def _commit_all(self, of_stream: StreamTransactions) -> None:
        try:
            while self._held.lines.leads(of_stream):
                await until_unchanged(lambda: self._commit_next(of_stream))
        except RETRIED_ERRORS:
            raise
        except Exception:
            of_stream.is_committing = False
            await self._give_up(of_stream)
            raise
        # No await has happened since the line was empty, so no commit is overlooked: the next one
        # starts another task.
        of_stream.is_committing = False

    async def _give_up(self, of_stream: StreamTransactions) -> None:
        """Stop leading the commits of a stream; another controller or a later attempt may lead."""
        try:
            await self._held.lines.give_up(of_stream)
        except ControllerError as error:
            log.warning(
                "commits not given up",
                scope=of_stream.scope,
                stream=of_stream.stream,
                reason=str(error),
            )

    async def _commit_next(self, of_stream: StreamTransactions) -> None:
        async with self._work.exclusive(of_stream.scope, of_stream.stream):
            try:
                await self._commit_into_known(of_stream)
            except (StreamNotFoundError, ScopeNotFoundError):
                await self._discard(of_stream)

    async def _commit_into_known(self, of_stream: StreamTransactions) -> None:
        """Commit the next batch with the stream's record in memory; raise if the stream is gone."""
        known: Stream | None = None
        try:
            known = await self._work.known_or_finish_and_read(of_stream.scope, of_stream.stream)
            if known.stream_id != of_stream.stream_id:
                # The stream in memory may be an earlier stream of this name.
                known = await self._work.finish_and_read(of_stream.scope, of_stream.stream)
            if known.stream_id != of_stream.stream_id:
                raise StreamNotFoundError(f"stream {of_stream.scope}/{of_stream.stream} is gone")
            if self._held.lines.leads(of_stream):
                await self.commit_batch(of_stream, known)
        except (StoreAnswerError, EpochDroppedError) as error:
            # Another controller may have changed the stream since it was last read.
            found = await self._finish_stream_work(of_stream)
            if known is not None and found.version != known.version:
                raise VersionConflictError(f"the stream was changed: {error}") from error
            raise
        except VersionConflictError:
            await self._finish_stream_work(of_stream)
            raise

    async def _finish_stream_work(self, of_stream: StreamTransactions) -> Stream:
        """Finish the stream's pending work, unless another controller has; return the stream."""
        stream = await self._work.finish_and_read(of_stream.scope, of_stream.stream)
        self._store.intents.remove(stream_intent(of_stream.scope, of_stream.stream))
        return stream

    async def _discard(self, of_stream: StreamTransactions) -> None:
        """Remove the waiting transactions of a deleted stream, which has no segments any more."""
        log.warning("transactions of no stream", scope=of_stream.scope, stream=of_stream.stream)
        begun = [
            StoredTransaction(
                of_stream.scope, of_stream.stream, t.identifier, Stored(t.record, t.version)
            )
            for t in of_stream.transactions.values()
            if t.record.state in ABORTED_WITH_THEIR_STREAM
        ]
        await self._aborts.abort_all(of_stream, begun)
        committing = [t.identifier for t in of_stream.in_state(TransactionState.COMMITTING)]
        waiting = [commit.identifier for commit in of_stream.line.commits()]
        identifiers = list(dict.fromkeys([*committing, *waiting]))
        await self._transactions.remove(of_stream.scope, of_stream.stream, identifiers)
        await self._transactions.remove_line(of_stream.scope, of_stream.stream, of_stream.stream_id)
        of_stream.line = KnownLine()
        for identifier in identifiers:
            of_stream.drop(identifier)

    async def commit_batch(self, of_stream: StreamTransactions, stream: Stream) -> Stream:
        """Commit the next batch of transactions; the caller holds the stream exclusively."""
        line = of_stream.line
        batch = choose_batch(line.commits(), begun_epoch=line.record.epoch)
        epoch = batch[0].epoch
        if line.record.epoch != epoch and not await self._held.lines.begin_epoch(of_stream, epoch):
            return stream
        identifiers = [commit.identifier for commit in batch]
        transactions = await self._batches.load(of_stream, identifiers)
        if len(transactions) < len(identifiers):
            # Another controller has committed the missing ones: remove them from the line.
            there = {transaction.identifier for transaction in transactions}
            absent = [one for one in identifiers if one not in there]
            await self._held.lines.leave(of_stream, [], absent=absent)
            return stream
        active = await stream.history.epoch(stream.record.epoch)
        if active.reference != epoch:
            return await self._rolls.start(stream, active, epoch, transactions)
        offsets = await self._batches.merge(stream, stream.active, transactions)
        await self._batches.end(of_stream, transactions, offsets)
        return stream

    async def enter_line(
        self, of_stream: StreamTransactions, found: list[StoredTransaction]
    ) -> None:
        """Add the commits of one stream that are in no line to its line, read after ``found``.

        They are carried out in the order in which they were begun: which one was committed first is
        lost with the line.
        """
        for one in sorted(found, key=lambda one: one.stored.record.created_ms):
            is_of_stream = one.stored.record.stream_id == of_stream.stream_id
            if is_of_stream and one.identifier.hex() not in of_stream.line.record.waiting:
                change = (one.identifier, one.stored.record, one.stored.version)
                # If a transaction was committed meanwhile, it has another version.
                with suppress(VersionConflictError):
                    await self._held.lines.enter(of_stream, change)
