"""Aborts transactions whose leases have ended."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import trio

from pravega_controller.background.background import Background
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.transactions.aborts import ABORTS_AT_A_TIME_MAX, Aborts
from pravega_controller.transactions.held_transactions import HeldTransactions
from pravega_controller.transactions.open_transactions import Transaction

EXPIRE_AGAIN_SECONDS = 5.0
"""Pause, in seconds, between attempts to end a transaction whose lease has ended."""

log = structlog.get_logger(__name__)


class ExpiredLeases:
    """Watches the leases of the transactions that this controller holds."""

    def __init__(self, held: HeldTransactions, aborts: Aborts, background: Background) -> None:
        self._held = held
        self._aborts = aborts
        self._background = background

    async def run(self) -> None:
        """Abort each transaction when its lease has ended; runs forever."""
        await self._held.timer.run(self._expire)

    def _expire(self, transactions: Sequence[Transaction]) -> None:
        """Abort transactions whose leases have ended, one after the other."""

        async def abort(transaction: Transaction) -> None:
            try:
                await self._abort_expired(transaction)
            except Exception as error:
                # An error of one transaction or its stream must not stop the aborts of the others.
                log.warning(
                    "transaction not aborted yet after its lease",
                    scope=transaction.of_stream.scope,
                    stream=transaction.of_stream.stream,
                    transaction=transaction.identifier.hex(),
                    reason=str(error),
                )
                self._watch_again(transaction)

        self._background.start(
            lambda: for_each(transactions, abort, limit=ABORTS_AT_A_TIME_MAX),
            work="expire",
        )

    def _watch_again(self, transaction: Transaction) -> None:
        """Repeat a failed abort.

        If the abort is not recorded yet, the timer repeats it; otherwise a background task does.
        """
        if transaction.is_running:
            again = trio.current_time() + EXPIRE_AGAIN_SECONDS
            transaction.lease_end = max(transaction.lease_end, again)
            self._held.timer.add(transaction)
        else:
            self._aborts.start(transaction.of_stream, [transaction])

    async def _abort_expired(self, transaction: Transaction) -> None:
        async with self._held.locks.hold(transaction.identifier):
            if transaction.is_running and transaction.lease_end > trio.current_time():
                # A ping has renewed the lease.
                self._held.timer.add(transaction)
                return
            await self._aborts.record_open(transaction)
        await self._aborts.finish(transaction)
