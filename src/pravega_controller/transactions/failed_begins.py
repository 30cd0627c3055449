"""Undoes failed begins of transactions, whether or not the transactions were recorded.

If the reply to a write was lost, the write may still arrive. So the record of an aborted
transaction is written under the key, with which the late write conflicts. Segments that are created
late are deleted again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pravega_controller.background.background import Background
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.metadata.transaction_store import Stored, TransactionStore
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.store_client.table_client import NOT_EXISTS
from pravega_controller.transactions.aborts import Aborts
from pravega_controller.transactions.held_transactions import HeldTransactions, outcome_of
from pravega_controller.transactions.open_transactions import StreamTransactions


class FailedBegins:
    """Aborts transactions whose begins have failed, and which may be recorded."""

    def __init__(
        self,
        held: HeldTransactions,
        aborts: Aborts,
        transactions: TransactionStore,
        background: Background,
    ) -> None:
        self._held = held
        self._aborts = aborts
        self._transactions = transactions
        self._background = background

    def start_undoing(
        self, of_stream: StreamTransactions, stream: Stream, identifier: bytes
    ) -> None:
        """Abort a transaction whose begin failed, whether or not it was recorded.

        ``stream`` is the stream on which it was begun; the stream may have been deleted since.
        """

        async def undo() -> None:
            try:
                await self._undo(of_stream, [s.number for s in stream.active], identifier)
            finally:
                # Since the begin failed, the stream may have been deleted, and removed from memory.
                self._held.registry.keep_until_idle(of_stream)

        self._background.start(
            undo, work="undo a begin", scope=of_stream.scope, stream=of_stream.stream
        )

    async def _undo(
        self, of_stream: StreamTransactions, numbers: Sequence[int], identifier: bytes
    ) -> None:
        async with self._held.locks.hold(identifier):
            stored = await self._transactions.read(of_stream.scope, of_stream.stream, identifier)
            if stored is None:
                # The write of the open transaction may arrive later, and must conflict.
                stored = await self._block_late_begin(of_stream, identifier)
            if stored.record.state in (TransactionState.COMMITTING, TransactionState.COMMITTED):
                return
            if stored.record.state is TransactionState.ABORTED:
                # The segments may have been created after they were deleted for the abort.
                await self._aborts.delete_segments(of_stream, identifier, numbers)
                return
            transaction = of_stream.transactions.get(identifier)
            if transaction is None:
                transaction = self._held.adopt(of_stream, identifier, stored)
            await self._aborts.record_open(transaction)
            if transaction.state is TransactionState.ABORTING:
                await self._aborts.promise_deletion(of_stream, identifier, numbers)
                await self._aborts.delete_segments(of_stream, identifier, numbers)
                await self._aborts.write_aborted(transaction)

    async def _block_late_begin(self, of_stream: StreamTransactions, identifier: bytes) -> Stored:
        now = self._held.now_ms()
        record = TransactionRecord(
            TransactionState.ABORTED,
            now,
            0,
            0,
            ended_ms=now,
            holder=self._held.instance_id,
            stream_id=of_stream.stream_id,
        )
        (version,) = await self._transactions.write(
            of_stream.scope, of_stream.stream, [(identifier, record, NOT_EXISTS)]
        )
        of_stream.record_end(identifier, outcome_of(identifier, record))
        return Stored(record, version)
