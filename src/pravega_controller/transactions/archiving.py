"""Moves the outcomes of transactions to the archive.

Owns: ``Archiving``, the steps from COMMITTED or ABORTED to the archive of the stream.

A transaction's record is removed after its outcome is in the archive, so that it is always found.
"""

from __future__ import annotations

import structlog
import trio

from pravega_controller.errors import NotFoundError
from pravega_controller.metadata.locks import KeyedLocks
from pravega_controller.metadata.records import Delete
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.transaction_outcomes import CHUNK_OUTCOMES_MAX, OutcomeArchive
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.transactions.held_transactions import HeldTransactions
from pravega_controller.transactions.open_transactions import StreamTransactions

ARCHIVE_SECONDS = 5.0
"""Interval, in seconds, at which outcomes are moved to the archive."""
ARCHIVED_STREAMS_AT_A_TIME_MAX = 16

log = structlog.get_logger(__name__)


class Archiving:
    """Archives outcomes."""

    def __init__(
        self,
        held: HeldTransactions,
        store: MetadataStore,
        transactions: TransactionStore,
        archive: OutcomeArchive,
    ) -> None:
        self._held = held
        self._store = store
        self._transactions = transactions
        self._archive = archive
        self.locks = KeyedLocks()
        """Locks by scope and stream, for changes of a stream's archive."""

    async def run(self) -> None:
        """Archive outcomes again and again; runs forever."""

        async def archive(of_stream: StreamTransactions) -> None:
            try:
                await self.archive_ended(of_stream)
            except Exception as error:
                # An error of one stream's archive must not stop the work on the others.
                log.warning(
                    "outcomes not archived yet",
                    scope=of_stream.scope,
                    stream=of_stream.stream,
                    reason=str(error),
                )

        while True:
            await trio.sleep(ARCHIVE_SECONDS)
            owners = [of_stream for of_stream in self._held.registry.all() if of_stream.ended]
            await for_each(owners, archive, limit=ARCHIVED_STREAMS_AT_A_TIME_MAX)
            self._held.registry.forget_idle()

    async def archive_ended(self, of_stream: StreamTransactions) -> None:
        """Move a stream's outcomes to the archive, and remove old outcomes from it.

        Outcomes of a stream that another controller has deleted are dropped.
        """
        scope, stream = of_stream.scope, of_stream.stream
        async with self.locks.hold((scope, stream)):
            while of_stream.ended:
                moved = list(of_stream.ended.items())[:CHUNK_OUTCOMES_MAX]
                # Read the version before the check: if another controller deletes the stream after
                # the check, the archive has another version, and the addition fails.
                version = await self._archive.open(scope, stream)
                exists = await self._exists(of_stream)
                if exists:
                    outcomes = [outcome for _, outcome in moved]
                    now_ms = await self._archive.add(
                        scope, stream, outcomes, version=version, now_ms=self._held.now_ms()
                    )
                else:
                    await self._archive.close(scope, stream, version)
                await self._transactions.remove(scope, stream, [i for i, _ in moved])
                for identifier, _ in moved:
                    del of_stream.ended[identifier]
                if exists:
                    await self._archive.drop_old(scope, stream, now_ms=now_ms)

    async def _exists(self, of_stream: StreamTransactions) -> bool:
        """Return whether this stream still exists, and not only a later one of its name."""
        try:
            stream = await self._store.streams.read(of_stream.scope, of_stream.stream)
        except NotFoundError:
            return False
        is_deleted = isinstance(stream.record.pending, Delete)
        return of_stream.stream_id in ("", stream.stream_id) and not is_deleted
