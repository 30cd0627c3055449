"""What the controller has in memory of transactions: all that have no end, and the latest ends.

Owns: the indexes by stream and id. No I/O: the caller writes a record before it changes the index.

Invariants:
1. Every transaction without an end is here, from the start of the controller on: questions about
   one are answered from memory.
2. A transaction is in ``transactions`` until its end is stored, then in ``ended`` until the archive
   has it; it is never in neither in between.
3. What is known of a stream ends with the stream: one that was deleted and created anew has another
   id, and begins with nothing. What is left of the old one stays apart until it is done with.
4. Of streams without any of either, and without a task at work on them, a bounded number takes
   memory, for the epoch of their latest batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from pravega_controller.transaction_records import Outcome, TransactionRecord
from pravega_controller.transactions import Commit, TransactionState
from pravega_wire import names

IDLE_STREAMS_MAX = 10_000


class Transaction:
    """A transaction without an end."""

    __slots__ = (
        "execution_end",
        "identifier",
        "is_doubted",
        "lease_end",
        "owner",
        "record",
        "version",
    )

    def __init__(
        self,
        owner: StreamTransactions,
        identifier: bytes,
        record: TransactionRecord,
        version: int,
        *,
        lease_end: float,
        execution_end: float,
    ) -> None:
        self.owner = owner
        self.identifier = identifier
        self.record = record
        self.version = version
        self.lease_end = lease_end
        """By trio's clock, as is the next."""
        self.execution_end = execution_end
        self.is_doubted = False
        """Whether another controller may hold it: this one was taken for dead while it held it."""

    @property
    def state(self) -> TransactionState:
        return self.record.state

    @property
    def is_running(self) -> bool:
        """Whether its lease matters: once its end is decided, the lease does not."""
        return self.record.state is TransactionState.OPEN

    @property
    def epoch(self) -> int:
        """The reference epoch it was begun on."""
        return names.transaction_epoch(self.identifier)


@dataclass(slots=True, eq=False)
class StreamTransactions:
    """The transactions of one stream."""

    scope: str
    stream: str
    stream_id: str = ""
    """The stream's id; empty as long as only its name is known."""
    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    committing: dict[bytes, Transaction] = field(default_factory=dict)
    """Transactions whose commits are recorded."""
    ended: dict[bytes, Outcome] = field(default_factory=dict)
    """Outcomes that are not archived yet, in the order in which the transactions ended."""
    next_order: int = 0
    begun_epoch: int | None = None
    """The epoch that the stored record names for the latest batch, if known."""
    is_closed: bool = False
    """Whether none can be begun any more: the stream is being sealed."""
    is_committing: bool = False
    """Whether a task commits batches."""
    _begins: int = 0
    _begins_ended: trio.Event = field(default_factory=trio.Event)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Mark a transaction as being begun during this block; closing the stream waits for it."""
        self._begins += 1
        try:
            yield
        finally:
            self._begins -= 1
            if not self._begins:
                self._begins_ended.set()
                self._begins_ended = trio.Event()

    async def close(self) -> None:
        """Let none be begun from now on, and wait for those that are being begun."""
        self.is_closed = True
        while self._begins:
            await self._begins_ended.wait()

    def in_state(self, state: TransactionState) -> list[Transaction]:
        return [t for t in self.transactions.values() if t.record.state is state]

    def commits(self) -> list[Commit]:
        """The transactions whose commits are recorded and not carried out."""
        return [Commit(t.identifier, t.record.order) for t in self.committing.values()]

    def knows(self, identifier: bytes) -> bool:
        """Whether a transaction is here, maybe with an end that is not in the archive yet."""
        return identifier in self.transactions or identifier in self.ended

    def note(self, transaction: Transaction) -> None:
        """A transaction was begun, or its record has changed."""
        self.transactions[transaction.identifier] = transaction
        if transaction.record.state is TransactionState.COMMITTING:
            self.committing[transaction.identifier] = transaction
            self.next_order = max(self.next_order, transaction.record.order + 1)

    def take_order(self) -> int:
        """The place of the next commit."""
        order = self.next_order
        self.next_order += 1
        return order

    def note_end(self, identifier: bytes, outcome: Outcome) -> None:
        """A transaction's end is stored."""
        self.drop(identifier)
        self.ended[identifier] = outcome

    def drop(self, identifier: bytes) -> None:
        """A transaction is here no more."""
        self.transactions.pop(identifier, None)
        self.committing.pop(identifier, None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost by forgetting this."""
        return not (self.transactions or self.ended or self.is_committing or self._begins)


class TransactionRegistry:
    """The streams that have transactions."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], StreamTransactions] = {}
        self._replaced: list[StreamTransactions] = []
        """Of streams whose names are others' now, as long as there is something to do for them."""

    def find(self, scope: str, stream: str) -> StreamTransactions | None:
        """The transactions of a stream, or None if there are none."""
        return self._streams.get((scope, stream))

    def of_stream(self, scope: str, stream: str, stream_id: str) -> StreamTransactions:
        """The transactions of a stream with this id, to add to; no other stream's of its name."""
        owner = self.of(scope, stream)
        if owner.stream_id not in ("", stream_id):
            del self._streams[scope, stream]
            self._replaced.append(owner)
            owner = self.of(scope, stream)
        owner.stream_id = stream_id
        return owner

    def of(self, scope: str, stream: str) -> StreamTransactions:
        """The transactions of a stream of this name, to add to."""
        found = self._streams.get((scope, stream))
        if found is None:
            found = self._streams[scope, stream] = StreamTransactions(scope, stream)
        return found

    def all(self) -> list[StreamTransactions]:
        return [*self._streams.values(), *self._replaced]

    def forget_idle(self) -> None:
        """Take out streams that have nothing here, but for the latest ones."""
        self._replaced = [owner for owner in self._replaced if not owner.is_idle]
        idle = [owner for owner in self._streams.values() if owner.is_idle]
        for owner in idle[: max(0, len(idle) - IDLE_STREAMS_MAX)]:
            self.forget(owner)

    def forget(self, owner: StreamTransactions) -> None:
        """Take a stream out that has nothing here any more."""
        if self._streams.get((owner.scope, owner.stream)) is owner:
            del self._streams[owner.scope, owner.stream]
