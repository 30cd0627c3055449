"""Ends the transactions of streams that are sealed or deleted.

Owns: ``StreamEnds``. A stream is sealed only when all of its transactions have ended: open ones are
aborted, recorded commits are finished. A deletion removes their records.
"""

from __future__ import annotations

from functools import partial

from pravega_controller.errors import CorruptMetadataError, NotFoundError
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_outcomes import OutcomeArchive
from pravega_controller.metadata.transaction_records import Outcome
from pravega_controller.metadata.transaction_store import StoredTransaction, TransactionStore
from pravega_controller.rules.transactions import ABORTED_WITH_THEIR_STREAM, TransactionState
from pravega_controller.transactions.aborts import Aborts
from pravega_controller.transactions.archiving import Archiving
from pravega_controller.transactions.commits import Commits
from pravega_controller.transactions.held_transactions import HeldTransactions, outcome_of
from pravega_controller.transactions.open_transactions import StreamTransactions


class StreamEnds:
    """Ends transactions with their streams."""

    def __init__(
        self,
        held: HeldTransactions,
        aborts: Aborts,
        commits: Commits,
        archiving: Archiving,
        store: MetadataStore,
        transactions: TransactionStore,
        archive: OutcomeArchive,
    ) -> None:
        self._held = held
        self._aborts = aborts
        self._commits = commits
        self._archiving = archiving
        self._store = store
        self._transactions = transactions
        self._archive = archive

    async def end_all(self, stream: Stream) -> Stream:
        """End all transactions before a stream is sealed: abort open ones, finish recorded commits.

        The caller holds the stream exclusively. Returns the stream after the last change.
        """
        of_stream = self._held.owner_of(stream)
        await of_stream.close()
        while True:
            committing: list[StoredTransaction] = []
            aborted: list[StoredTransaction] = []
            async for found in self._held.load_stream(of_stream):
                if found.stored.record.state is TransactionState.COMMITTING:
                    committing.append(found)
                elif found.stored.record.state in ABORTED_WITH_THEIR_STREAM:
                    aborted.append(found)
            if not committing and not aborted:
                return stream
            # Another controller may record a commit at the same time. The next round finds it.
            await self._aborts.abort_all(of_stream, aborted)
            if committing:
                # Lead the line here: another leader would wait for this seal, and the seal for it.
                await self._held.lines.lead(of_stream, takes_over=True)
                await self._commits.enter_line(of_stream, committing)
            while self._held.lines.leads(of_stream):
                stream = await self._commits.commit_batch(of_stream, stream)

    async def outcomes_stored(self, stream: Stream) -> list[Outcome]:
        """Return the outcomes of a stream that no controller has archived yet, oldest first."""
        found = [
            outcome_of(one.identifier, one.stored.record)
            async for one in self._held.load_stream(self._held.owner_of(stream))
            if one.stored.record.state in (TransactionState.COMMITTED, TransactionState.ABORTED)
        ]
        return sorted(found, key=lambda outcome: outcome.ended_ms)

    async def forget_all(self, stream: Stream) -> None:
        """Remove all records of a deleted stream's transactions.

        The seal of the stream has ended all transactions that clients know. A controller that did
        not know of the seal may have begun others, and died. These are aborted first.
        """
        scope, name = stream.scope.name, stream.name
        of_stream = self._held.owner_of(stream)
        await of_stream.close()
        async with self._archiving.locks.hold((scope, name)):
            identifiers = list(of_stream.ended)
            if of_stream.transactions or self._held.members.solitude is None:
                # Another controller may still be about to archive outcomes of this stream.
                identifiers += await self._abort_late_begins(of_stream)
            if identifiers:
                await self._transactions.remove(scope, name, identifiers)
                for identifier in identifiers:
                    of_stream.ended.pop(identifier, None)
            await self._transactions.remove_line(scope, name, stream.stream_id)
            await self._archive.remove(
                scope, name, may_have_name=partial(self._may_have_name, stream)
            )
            self._held.registry.forget(of_stream)

    async def _may_have_name(self, stream: Stream) -> bool:
        """Return whether no other stream has taken the name of a stream.

        Even if this controller is alone now, another one may have deleted the stream while this one
        was stopped.
        """
        try:
            found = await self._store.streams.read(stream.scope.name, stream.name)
        except (NotFoundError, CorruptMetadataError):
            return True
        return found.stream_id == stream.stream_id

    async def _abort_late_begins(self, of_stream: StreamTransactions) -> list[bytes]:
        """Abort the open transactions; return the ids of all stored ones when each has ended."""
        while True:
            identifiers: list[bytes] = []
            begun: list[StoredTransaction] = []
            async for found in self._held.load_stream(of_stream):
                identifiers.append(found.identifier)
                if found.stored.record.state in ABORTED_WITH_THEIR_STREAM:
                    begun.append(found)
            if not begun:
                return identifiers
            await self._aborts.abort_all(of_stream, begun)
