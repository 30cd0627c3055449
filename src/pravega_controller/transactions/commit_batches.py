"""Batches of commits: merged into segments, and recorded as committed.

Owns: ``CommitBatches``, the steps from COMMITTING to COMMITTED of transactions of one epoch.

    waiting in the line -> merged in every segment -> times of writers recorded -> COMMITTED

Invariants:
1. When a transaction is recorded as committed, it is merged in every segment.
   Held by ``test_a_committed_transaction_is_merged_into_every_segment``.
2. When a controller dies within a batch, the batch is repeated, and merges each segment once: a
   transaction's segment that does not exist was merged before.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    NotFoundError,
    StoreAnswerError,
    VersionConflictError,
)
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.rules.streams import Segment
from pravega_controller.rules.transactions import TransactionState, segment_name
from pravega_controller.store_client.segment_client import SegmentClient
from pravega_controller.transactions.aborts import CONFLICTS_MAX
from pravega_controller.transactions.held_transactions import HeldTransactions
from pravega_controller.transactions.open_transactions import StreamTransactions, Transaction
from pravega_controller.watermarks.watermarks import OldPositionError, OldTimeError, Watermarks

log = structlog.get_logger(__name__)


class CommitBatches:
    """Merges batches of transactions."""

    def __init__(
        self,
        held: HeldTransactions,
        segments: SegmentClient,
        transactions: TransactionStore,
        watermarks: Watermarks,
    ) -> None:
        self._held = held
        self._segments = segments
        self._transactions = transactions
        self._watermarks = watermarks

    async def load(
        self, of_stream: StreamTransactions, identifiers: Sequence[bytes], *, is_known: bool = True
    ) -> list[Transaction]:
        """Return those of these transactions that are committing.

        A transaction that is not committing according to memory is read again.
        """
        found: dict[bytes, Transaction] = {}
        if is_known:
            for identifier in identifiers:
                transaction = of_stream.transactions.get(identifier)
                if transaction and transaction.state is TransactionState.COMMITTING:
                    found[identifier] = transaction
        missing = [identifier for identifier in identifiers if identifier not in found]
        if missing:
            records = await self._transactions.read_all(of_stream.scope, of_stream.stream, missing)
            for identifier, stored in zip(missing, records, strict=True):
                if stored is not None and stored.record.state is TransactionState.COMMITTING:
                    found[identifier] = self._held.adopt(of_stream, identifier, stored)
                elif stored is not None and self._has_committed(stored.record):
                    # This controller has recorded the end, but did not get the answer. So it has to
                    # archive the outcome.
                    self._held.record_ends(of_stream, [(identifier, stored.record)])
                else:
                    of_stream.drop(identifier)
        return [found[identifier] for identifier in identifiers if identifier in found]

    def _has_committed(self, record: TransactionRecord) -> bool:
        """Return whether this controller recorded the commit."""
        return (
            record.state is TransactionState.COMMITTED and record.holder == self._held.instance_id
        )

    async def merge(
        self, stream: Stream, segments: Iterable[Segment], transactions: Sequence[Transaction]
    ) -> dict[int, list[int]]:
        """Merge transactions into segments; return each segment's length after each transaction."""
        if not transactions:
            return {}
        scope, name = stream.scope.name, stream.name
        batches: dict[str, list[str]] = {}
        identifiers: list[int] = []
        for segment in segments:
            identifiers.append(segment.segment_id)
            batches[stream.segment_name(segment.segment_id)] = [
                segment_name(scope, name, segment.number, t.identifier) for t in transactions
            ]
        merged = await self._segments.merge_segments(batches)
        return dict(zip(identifiers, merged.values(), strict=True))

    async def end(
        self,
        of_stream: StreamTransactions,
        transactions: Sequence[Transaction],
        offsets: dict[int, list[int]],
    ) -> None:
        """Record the times of the writers, then that the transactions are committed.

        After a crash both records may be written again; the result is the same.
        """
        await self._record_times(of_stream, transactions, offsets)
        await self._write_committed(of_stream, transactions)
        log.debug(
            "transactions committed",
            scope=of_stream.scope,
            stream=of_stream.stream,
            transactions=len(transactions),
            segments=len(offsets),
        )

    async def _record_times(
        self,
        of_stream: StreamTransactions,
        transactions: Sequence[Transaction],
        offsets: dict[int, list[int]],
    ) -> None:
        """Record for each writer its latest time, and the stream's end after that transaction."""
        latest: dict[str, tuple[int, int]] = {}
        for index, transaction in enumerate(transactions):
            record = transaction.record
            if record.writer_id and record.writer_ms is not None:
                known = latest.get(record.writer_id, (record.writer_ms, index))
                latest[record.writer_id] = max(known, (record.writer_ms, index))
        for writer, (time, index) in latest.items():
            position = {segment_id: ends[index] for segment_id, ends in offsets.items()}
            try:
                await self._watermarks.record_mark(
                    of_stream.scope, of_stream.stream, writer, time, position
                )
            except (OldTimeError, OldPositionError, InvalidRequestError, NotFoundError) as error:
                log.info("a writer's time is not recorded", writer=writer, reason=str(error))
            except (CorruptMetadataError, StoreAnswerError) as error:
                # An error about a watermark must never delay a commit.
                log.error("a writer's time cannot be recorded", writer=writer, reason=str(error))

    async def _write_committed(
        self, of_stream: StreamTransactions, transactions: Sequence[Transaction]
    ) -> None:
        left = list(transactions)
        for _ in range(CONFLICTS_MAX):
            ends = [self._held.end_of(t, TransactionState.COMMITTED) for t in left]
            try:
                await self._held.lines.leave(of_stream, ends)
            except VersionConflictError:
                # Another controller has taken this one for dead, and has committed some of them.
                identifiers = [transaction.identifier for transaction in left]
                left = await self.load(of_stream, identifiers, is_known=False)
                if not left:
                    await self._held.lines.leave(of_stream, [], absent=identifiers)
                    return
                continue
            self._held.record_ends(
                of_stream, [(identifier, record) for identifier, record, _ in ends]
            )
            return
        raise VersionConflictError("another controller changes the same transactions")
