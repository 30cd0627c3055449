"""What the controller has in memory of transactions: all that have no end, and the latest ends.

Owns: the indexes by stream and id. No I/O: the caller writes a record before it changes the index.

Invariants:
1. Every transaction whose lease this controller watches is here, from its start on, and those whose
   ends it carries out. Questions are answered from memory while no other controller is at work.
2. A transaction is in ``transactions`` until its end is stored, then in ``ended`` until the archive
   has it; it is never in neither in between.
3. What is known of a stream ends with the stream: one that was deleted and created again has
   another id, and begins with nothing. What is left of the old one stays apart until it is done
   with.
4. Of streams without any of either, and without a task at work on them, a bounded number takes
   memory, for their lines of commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from pravega_controller.commit_lines import KnownLine
from pravega_controller.transaction_records import Outcome, TransactionRecord
from pravega_controller.transactions import TransactionState
from pravega_wire import names

IDLE_STREAMS_MAX = 10_000


class Transaction:
    """A transaction without an end."""

    __slots__ = (
        "_gone",
        "certain_in",
        "execution_end",
        "identifier",
        "is_begun",
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
        certain_in: int | None,
    ) -> None:
        self.owner = owner
        self.identifier = identifier
        self.record = record
        self.version = version
        self.lease_end = lease_end
        """Time, by trio's clock; ``execution_end`` too."""
        self.execution_end = execution_end
        self.certain_in = certain_in
        """The solitude (see ``members``) since which no other controller can have changed it."""
        self.is_begun = False
        """Whether it is known that its segments were created: no request for them comes late."""
        self._gone: trio.Event | None = None

    @property
    def state(self) -> TransactionState:
        return self.record.state

    @property
    def is_running(self) -> bool:
        """Return whether its lease matters. It does not once its end is decided, or another object
        stands for the transaction.
        """
        is_here = self.owner.transactions.get(self.identifier) is self
        return is_here and self.record.state is TransactionState.OPEN

    @property
    def epoch(self) -> int:
        """Return the reference epoch on which it was begun."""
        return names.transaction_epoch(self.identifier)

    async def wait_until_gone(self) -> None:
        """Return when this object does not stand for the transaction any more."""
        if self.owner.transactions.get(self.identifier) is self:
            if self._gone is None:
                self._gone = trio.Event()
            await self._gone.wait()

    def wake_waiters(self) -> None:
        """Wake those who wait for that."""
        if self._gone is not None:
            self._gone.set()


@dataclass(slots=True, eq=False)
class StreamTransactions:
    """The transactions of one stream."""

    scope: str
    stream: str
    stream_id: str = ""
    """The stream's id; empty as long as only its name is known."""
    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    line: KnownLine = field(default_factory=KnownLine)
    """The transactions whose commits are recorded and not carried out."""
    ended: dict[bytes, Outcome] = field(default_factory=dict)
    """Outcomes that are not archived yet, in the order in which the transactions ended."""
    is_closed: bool = False
    """Whether no transaction can be begun any more: the stream is being sealed."""
    is_committing: bool = False
    """Whether a task commits batches."""
    is_looking: bool = False
    """Whether a task looks for commits that another controller may have left."""
    _begins: int = 0
    _begins_ended: trio.Event = field(default_factory=trio.Event)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Mark that a transaction is being begun in the block; closing the stream waits for it."""
        self._begins += 1
        try:
            yield
        finally:
            self._begins -= 1
            if not self._begins:
                self._begins_ended.set()
                self._begins_ended = trio.Event()

    async def close(self) -> None:
        """Refuse new transactions, and wait for those that are being begun."""
        self.is_closed = True
        while self._begins:
            await self._begins_ended.wait()

    def in_state(self, state: TransactionState) -> list[Transaction]:
        return [t for t in self.transactions.values() if t.record.state is state]

    def add(self, transaction: Transaction) -> None:
        """Add a transaction to those that are in memory."""
        self.drop(transaction.identifier)
        self.transactions[transaction.identifier] = transaction

    def record_end(self, identifier: bytes, outcome: Outcome) -> None:
        """Record that a transaction's end is stored."""
        self.ended[identifier] = outcome
        self.drop(identifier)

    def drop(self, identifier: bytes) -> None:
        """Remove a transaction from those that are in memory."""
        gone = self.transactions.pop(identifier, None)
        if gone is not None:
            gone.wake_waiters()

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is lost when this is forgotten."""
        # What waits in the line is carried out by a task, or by another controller.
        is_at_work = self.is_committing or self.is_looking or self._begins
        return not (self.transactions or self.ended or is_at_work)


class TransactionRegistry:
    """The streams that have transactions."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], StreamTransactions] = {}
        self._replaced: list[StreamTransactions] = []
        """Entries of streams whose names other streams have now, until their work is done."""

    def find(self, scope: str, stream: str) -> StreamTransactions | None:
        """Return the transactions of a stream, or None if there are none."""
        return self._streams.get((scope, stream))

    def of_stream(self, scope: str, stream: str, stream_id: str) -> StreamTransactions:
        """Return the transactions of the stream with this id, to add to."""
        owner = self.of(scope, stream)
        if owner.stream_id not in ("", stream_id):
            del self._streams[scope, stream]
            self._replaced.append(owner)
            owner = self.of(scope, stream)
        owner.stream_id = stream_id
        return owner

    def of(self, scope: str, stream: str) -> StreamTransactions:
        """Return the transactions of a stream of this name, to add to."""
        found = self._streams.get((scope, stream))
        if found is None:
            found = self._streams[scope, stream] = StreamTransactions(scope, stream)
        return found

    def all(self) -> list[StreamTransactions]:
        return [*self._streams.values(), *self._replaced]

    def forget_idle(self) -> None:
        """Remove the streams without transactions or work, except the latest ones."""
        self._replaced = [owner for owner in self._replaced if not owner.is_idle]
        idle = [owner for owner in self._streams.values() if owner.is_idle]
        for owner in idle[: max(0, len(idle) - IDLE_STREAMS_MAX)]:
            self.forget(owner)

    def forget(self, owner: StreamTransactions) -> None:
        """Remove a stream without transactions or work."""
        if self._streams.get((owner.scope, owner.stream)) is owner:
            del self._streams[owner.scope, owner.stream]
