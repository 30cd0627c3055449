"""Writes the events of one transaction.

Owns: one writer for each segment of the transaction, and the map from routing keys to them.

All events of one routing key go to one segment, over one connection, so they keep their order.
Readers see the events only after the transaction was committed.

Invariants:
1. When ``flush`` returns, every event is stored once, in the order of its key, even if connections
   have broken. Held by ``test_a_flush_of_a_transaction_returns_when_all_its_events_are_stored``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from pravega_wire.names import segment_name, transaction_segment_name
from segstore_client.access.tokens import PLAIN, StoreAccess
from segstore_client.addresses import Address
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import PATIENCE_SECONDS, Patience
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.controller.controller_client import BegunTransaction
from segstore_client.delays import OnDelay
from segstore_client.errors import TransactionEndedError, UsageError
from segstore_client.inputs import to_position


class TransactionWriter:
    """Writes events to the segments of a transaction. Use it in one thread.

    ``locate`` returns the store of a segment of the stream; ``access`` is the way to the stores.
    ``patience`` is the number of seconds for which servers may be unreachable, or delay requests;
    ``on_delay`` is called once a second with the reason of a delay.
    """

    def __init__(
        self,
        scope: str,
        stream: str,
        transaction: BegunTransaction,
        locate: Callable[[int], Address],
        *,
        access: StoreAccess = PLAIN,
        patience: float = PATIENCE_SECONDS,
        on_delay: OnDelay | None = None,
    ) -> None:
        ranges = sorted(transaction.ranges, key=lambda item: item.low)
        self._lows = [item.low for item in ranges]
        self._writers = [
            SegmentWriter(
                transaction_segment_name(
                    segment_name(scope, stream, item.segment_id), transaction.identifier
                ),
                partial(locate, item.segment_id),
                access=access,
                on_delay=on_delay,
            )
            for item in ranges
        ]
        self._patience = Patience(patience)
        self._next = int.from_bytes(os.urandom(2), "big") % len(self._writers)

    def write(self, events: Sequence[bytes | str], keys: Sequence[str | None] | None) -> None:
        """Write events, each with its routing key; an event without a key goes to any segment.

        Raises ``UsageError`` for an event that cannot be stored, ``TransactionEndedError`` when
        the transaction has ended, ``UnavailableError`` when servers are unreachable for too long.
        """
        if keys is None:
            # All go to one segment, which keeps their order. The next call uses another segment.
            writer = self._next_writer()
            for event in events:
                if writer.add((0.0, _bytes_of(event))):
                    self._drive(writer, drain=False)
            return
        for event, key in zip(events, keys, strict=True):
            if key is None:
                writer = self._next_writer()
            else:
                writer = self._writers[bisect_right(self._lows, to_position(key)) - 1]
            if writer.add((0.0, _bytes_of(event))):
                self._drive(writer, drain=False)

    def flush(self) -> None:
        """Wait until every event is durable."""
        for writer in self._writers:
            self._drive(writer, drain=False)
        for writer in self._writers:
            self._drive(writer, drain=True)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        for writer in self._writers:
            writer.disconnect()

    def _next_writer(self) -> SegmentWriter:
        self._next = (self._next + 1) % len(self._writers)
        return self._writers[self._next]

    def _drive(self, writer: SegmentWriter, *, drain: bool) -> None:
        try:
            writer.drive(self._patience, drain=drain)
        except SegmentEndedError:
            raise TransactionEndedError(
                f"transaction segment {writer.name} is gone: the transaction has ended, by its"
                " lease (transaction_timeout_ms) or with its stream"
            ) from None


def _bytes_of(event: bytes | str | None) -> bytes:
    if event is None:
        raise UsageError("a row has no event: the column event is null")
    return event.encode() if isinstance(event, str) else event
