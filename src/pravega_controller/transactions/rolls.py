"""Rolls: merges transactions that were begun on an epoch which is not active any more.

Owns: ``Rolls``. The stream gets two epochs: one that repeats the epoch of the transactions, into
which they are merged, and one that repeats the active epoch.

    Rolling recorded with both epochs -> segments of the first created -> transactions merged
        -> active segments sealed -> segments of the second created -> those of the first sealed
        -> COMMITTED -> the second epoch active

The names of a transaction's segments follow from the epoch on which it was begun. Example: the
stream ``s/a`` has segments 0 and 1 in epoch 0. A transaction is begun. Then a scale replaces
segment 0 by 2 and 3, in epoch 1. To commit the transaction, a roll makes

    epoch 2    s/a/0.#epoch.2, s/a/1.#epoch.2                     the transaction is merged here
    epoch 3    s/a/1.#epoch.3, s/a/2.#epoch.3, s/a/3.#epoch.3     the active segments afterwards

Invariants:
1. When a transaction of an earlier epoch is committed, the stream continues with the key ranges of
   the active epoch, and each sealed segment has successors.
   Held by ``test_transactions_of_an_earlier_epoch_are_taken_in_by_two_epochs``.
2. When a controller dies at any step of a roll, another one finishes it, with the transactions that
   the stream's record names.
   Held by ``test_a_roll_is_finished_with_the_transactions_of_the_controller_that_died``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pravega_controller.errors import StepRefusedError, StoreAnswerError, VersionConflictError
from pravega_controller.metadata.records import Rolling
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.history import Epoch
from pravega_controller.rules.streams import Segment
from pravega_controller.rules.transactions import rolled_epochs
from pravega_controller.streams.workflows import StreamWorkflows
from pravega_controller.transactions.commit_batches import CommitBatches
from pravega_controller.transactions.held_transactions import HeldTransactions
from pravega_controller.transactions.open_transactions import Transaction


class Rolls:
    """Starts and finishes rolls of streams."""

    def __init__(
        self, held: HeldTransactions, batches: CommitBatches, streams: StreamWorkflows
    ) -> None:
        self._held = held
        self._batches = batches
        self._streams = streams

    async def start(
        self, stream: Stream, active: Epoch, epoch: int, transactions: Sequence[Transaction]
    ) -> Stream:
        """Merge transactions of an earlier epoch; the caller holds the stream exclusively."""
        history = stream.history
        epochs = rolled_epochs(
            await history.segments_in(epoch),
            await history.epoch(epoch),
            stream.active,
            active,
            now_ms=self._held.now_ms(),
        )
        rolling = Rolling(tuple(transaction.identifier.hex() for transaction in transactions))
        stream = await self._streams.work.start_roll(stream, rolling, epochs)
        try:
            return await self.finish(stream, rolling)
        except VersionConflictError:
            await self._streams.segments.delete_strays(stream)
            raise

    async def finish(self, stream: Stream, rolling: Rolling) -> Stream:
        """Merge transactions into the first of two new epochs, and make the second one active.

        Both epochs were recorded before, so that a client that finds an active segment sealed
        learns its successors.
        """
        of_stream = self._held.owner_of(stream)
        wanted = [bytes.fromhex(digits) for digits in rolling.transactions]
        transactions = await self._batches.load(of_stream, wanted)
        number = stream.record.epoch + 1
        merged = await stream.history.epoch(number)
        resumed = await stream.history.epoch(number + 1)
        streams = self._streams

        async def create(segments: Iterable[Segment], *, is_fixed: bool = False) -> None:
            try:
                await streams.segments.create([(stream, s) for s in segments], is_fixed=is_fixed)
            except StepRefusedError as error:
                # Clients were told that the transactions commit, so retry until it succeeds.
                raise StoreAnswerError(str(error)) from error

        await create(merged.created, is_fixed=True)
        offsets = await self._batches.merge(stream, merged.created, transactions)
        sizes = {resumed.number: await streams.segments.seal(stream, resumed.sealed_ids)}
        await create(resumed.created)
        sizes[merged.number] = await streams.segments.seal(stream, merged.sealed_ids)
        await self._batches.end(of_stream, transactions, offsets)
        # Other commits may wait in the line, and its leader may have died.
        self._held.work.start_commits(of_stream)
        return await streams.work.end_roll(stream, resumed.number, sizes)
