"""The transactions in the controller's memory: all open ones, and the latest outcomes.

Owns: the indexes by stream and id. No I/O: the caller writes a record before it changes the index.

Invariants:
1. If this controller watches the lease of a transaction, or carries out its end, it is in memory
   from the start of this work. Questions are answered from memory while no other controller is at
   work.
2. A transaction is in ``transactions`` until its end is stored. Then it is in ``ended`` until it is
   in the archive. It is always in one of them.
3. The state of a stream ends with the stream: a stream that was deleted and created again has
   another id, and begins empty. The state of the old stream is kept separately until its work is
   done.
4. Streams without transactions and without a running task stay in memory for their lines of
   commits; their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

import trio

from pravega_controller.commit_lines import KnownLine
from pravega_controller.transaction_records import Outcome, TransactionRecord
from pravega_controller.transactions import TransactionState
from pravega_wire import names

IDLE_STREAMS_MAX = 10_000


@dataclass(slots=True, eq=False, repr=False)
class Transaction:
    """A transaction that has not ended."""

    owner: StreamTransactions
    identifier: bytes
    record: TransactionRecord
    version: int
    _: KW_ONLY
    lease_end: float
    """Time by trio's clock, as ``execution_end``."""
    execution_end: float
    certain_in: int | None
    """The solitude (see ``members``) in which no other controller can have changed it."""
    is_begun: bool = False
    """True if its segments certainly exist, so that no request can create them later."""
    _gone: trio.Event | None = None

    @property
    def state(self) -> TransactionState:
        return self.record.state

    @property
    def is_running(self) -> bool:
        """Return whether its lease matters: no end is decided, and no newer object replaces it."""
        is_here = self.owner.transactions.get(self.identifier) is self
        return is_here and self.record.state is TransactionState.OPEN

    @property
    def epoch(self) -> int:
        """Return the reference epoch on which it was begun."""
        return names.transaction_epoch(self.identifier)

    async def wait_until_gone(self) -> None:
        """Wait until this object is removed or replaced."""
        if self.owner.transactions.get(self.identifier) is self:
            if self._gone is None:
                self._gone = trio.Event()
            await self._gone.wait()

    def wake_waiters(self) -> None:
        """Wake the tasks in ``wait_until_gone``."""
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
    """The transactions whose commits are recorded, but not yet carried out."""
    ended: dict[bytes, Outcome] = field(default_factory=dict)
    """Outcomes that are not archived yet, in the order in which the transactions ended."""
    is_closed: bool = False
    """True if no transaction can be begun any more: the stream is being sealed."""
    is_committing: bool = False
    """True if a task commits batches."""
    is_looking: bool = False
    """True if a task looks for commits that another controller may have left."""
    _begins: int = 0
    _begins_ended: trio.Event = field(default_factory=trio.Event)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Mark that the block begins a transaction: ``close`` waits until the block ends."""
        self._begins += 1
        try:
            yield
        finally:
            self._begins -= 1
            if not self._begins:
                self._begins_ended.set()
                self._begins_ended = trio.Event()

    async def close(self) -> None:
        """Refuse new transactions, and wait until those that are being begun are complete."""
        self.is_closed = True
        while self._begins:
            await self._begins_ended.wait()

    def in_state(self, state: TransactionState) -> list[Transaction]:
        return [t for t in self.transactions.values() if t.record.state is state]

    def add(self, transaction: Transaction) -> None:
        """Add a transaction to those in memory."""
        self.drop(transaction.identifier)
        self.transactions[transaction.identifier] = transaction

    def record_end(self, identifier: bytes, outcome: Outcome) -> None:
        """Record that a transaction's end is stored."""
        self.ended[identifier] = outcome
        self.drop(identifier)

    def drop(self, identifier: bytes) -> None:
        """Remove a transaction from those in memory."""
        gone = self.transactions.pop(identifier, None)
        if gone is not None:
            gone.wake_waiters()

    @property
    def is_idle(self) -> bool:
        """Return whether this entry can be removed from memory without loss."""
        # The line may have waiting commits: a task or another controller carries them out.
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
        """Return the entry of the stream with this id, to add to it: it has the name now."""
        owner = self.of(scope, stream)
        if owner.stream_id not in ("", stream_id):
            found = self._find_replaced(scope, stream, stream_id)
            if found is not None:
                self._replaced.remove(found)
            self._replaced.append(owner)
            owner = found or StreamTransactions(scope, stream)
            self._streams[scope, stream] = owner
        owner.stream_id = stream_id
        return owner

    def of_record(self, scope: str, stream: str, stream_id: str) -> StreamTransactions:
        """Return the entry of the stream with this id, to add to it.

        The name may belong to another stream now.
        """
        owner = self.of(scope, stream)
        if not owner.stream_id:
            owner.stream_id = stream_id
        if owner.stream_id == stream_id:
            return owner
        found = self._find_replaced(scope, stream, stream_id)
        if found is None:
            found = StreamTransactions(scope, stream, stream_id)
            self._replaced.append(found)
        return found

    def _find_replaced(self, scope: str, stream: str, stream_id: str) -> StreamTransactions | None:
        for owner in self._replaced:
            if (owner.scope, owner.stream, owner.stream_id) == (scope, stream, stream_id):
                return owner
        return None

    def of(self, scope: str, stream: str) -> StreamTransactions:
        """Return the entry of the stream with this name, to add to it; make it if there is none."""
        found = self._streams.get((scope, stream))
        if found is None:
            found = self._streams[scope, stream] = StreamTransactions(scope, stream)
        return found

    def all(self) -> list[StreamTransactions]:
        return [*self._streams.values(), *self._replaced]

    def forget_idle(self) -> None:
        """Remove streams without transactions or work; keep the latest ``IDLE_STREAMS_MAX``."""
        self._replaced = [owner for owner in self._replaced if not owner.is_idle]
        idle = [owner for owner in self._streams.values() if owner.is_idle]
        for owner in idle[: max(0, len(idle) - IDLE_STREAMS_MAX)]:
            self.forget(owner)

    def forget(self, owner: StreamTransactions) -> None:
        """Remove a stream that has no transactions and no work, or whose name is free again."""
        if self._streams.get((owner.scope, owner.stream)) is owner:
            del self._streams[owner.scope, owner.stream]
        self.keep_until_idle(owner)

    def keep_until_idle(self, owner: StreamTransactions) -> None:
        """Keep an entry that was removed until its work is done."""
        if not owner.is_idle and all(owner is not known for known in self.all()):
            self._replaced.append(owner)
