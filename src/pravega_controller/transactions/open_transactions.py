"""The transactions in the controller's memory: all open ones, and the latest outcomes.

Owns: the indexes by stream and id. No I/O: the caller writes a record before it changes the index.

A transaction is in memory while this controller watches its lease or carries out its end. It is in
``transactions`` until its end is stored, and then in ``ended`` until it is in the archive. While no
other controller is at work, queries are answered from memory.

Invariants:
1. When a transaction has ended, and is not in the archive yet, it is listed with those in the
   archive. Held by ``test_completed_transactions_are_listed_by_stream_and_kept_for_a_day``.
2. When a stream is deleted and created again, the new stream begins without the transactions of the
   old one. Held by ``test_a_stream_sealed_here_and_made_anew_elsewhere_takes_transactions``.
3. When other controllers carry out the commits of many streams, the number of streams in memory is
   bounded. Held by ``test_streams_whose_commits_others_carry_out_are_forgotten``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

import trio

from pravega_controller.metadata.transaction_records import Outcome, TransactionRecord
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.transactions.commit_lines import KnownLine
from pravega_wire import names

IDLE_STREAMS_MAX = 10_000


@dataclass(slots=True, eq=False, repr=False)
class Transaction:
    """A transaction that has not ended."""

    of_stream: StreamTransactions
    identifier: bytes
    record: TransactionRecord
    version: int
    _: KW_ONLY
    lease_end: float
    """The time at which the lease ends, by trio's clock, as ``execution_end``."""
    execution_end: float
    certain_in: int | None
    """Number of the solitude (``Members.solitude``) in which this copy was read or written; None if
    another controller may have changed the record since."""
    known_since: float = field(default_factory=trio.current_time)
    is_begun: bool = False
    """True if its segments certainly exist, so that no late request can create them."""
    _gone: trio.Event | None = None

    @property
    def state(self) -> TransactionState:
        return self.record.state

    @property
    def is_running(self) -> bool:
        """Return whether its lease runs: it is open, and this object was not replaced."""
        is_here = self.of_stream.transactions.get(self.identifier) is self
        return is_here and self.record.state is TransactionState.OPEN

    @property
    def epoch(self) -> int:
        """Return the reference epoch on which it was begun."""
        return names.transaction_epoch(self.identifier)

    async def wait_until_gone(self) -> None:
        """Wait until this object is removed or replaced."""
        if self.of_stream.transactions.get(self.identifier) is self:
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
    """The stream's id; empty while only its name is known."""
    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    line: KnownLine = field(default_factory=KnownLine)
    """A copy of the stream's line of commits, which are recorded but not carried out yet."""
    ended: dict[bytes, Outcome] = field(default_factory=dict)
    """Outcomes that are not archived yet, in the order in which the transactions ended."""
    is_closed: bool = False
    """True if no transaction can be begun any more: the stream is being sealed."""
    is_committing: bool = False
    """True if a task commits batches."""
    is_looking: bool = False
    """True if a task checks whether a dead controller has left commits."""
    _begins: int = 0
    _begins_ended: trio.Event = field(default_factory=trio.Event)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Begin a transaction in the block; ``close`` waits until the block ends."""
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
        """Move a transaction whose end is stored from ``transactions`` to ``ended``."""
        self.ended[identifier] = outcome
        self.drop(identifier)

    def drop(self, identifier: bytes) -> None:
        """Remove a transaction from those in memory."""
        gone = self.transactions.pop(identifier, None)
        if gone is not None:
            gone.wake_waiters()

    @property
    def is_idle(self) -> bool:
        """Return whether this entry has nothing that would be lost with it."""
        # Commits may wait in the line, but another controller carries them out.
        is_at_work = self.is_committing or self.is_looking or self._begins
        return not (self.transactions or self.ended or is_at_work)


class TransactionRegistry:
    """The streams that have transactions."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], StreamTransactions] = {}
        self._replaced: list[StreamTransactions] = []
        """Entries of earlier streams whose names later streams have, until their work is done."""

    def find(self, scope: str, stream: str) -> StreamTransactions | None:
        """Return the transactions of a stream, or None if there are none."""
        return self._streams.get((scope, stream))

    def of_stream(self, scope: str, stream: str, stream_id: str) -> StreamTransactions:
        """Return the entry of the stream that has this name and id; make it if there is none.

        An entry of an earlier stream of the name is moved aside, and kept until its work is done.
        """
        of_stream = self.of(scope, stream)
        if of_stream.stream_id not in ("", stream_id):
            found = self._find_replaced(scope, stream, stream_id)
            if found is not None:
                self._replaced.remove(found)
            self._replaced.append(of_stream)
            of_stream = found or StreamTransactions(scope, stream)
            self._streams[scope, stream] = of_stream
        of_stream.stream_id = stream_id
        return of_stream

    def of_record(self, scope: str, stream: str, stream_id: str) -> StreamTransactions:
        """Return the entry of the stream that a stored record names; make it if there is none.

        A later stream may have the name now. Its entry is kept.
        """
        of_stream = self.of(scope, stream)
        if not of_stream.stream_id:
            of_stream.stream_id = stream_id
        if of_stream.stream_id == stream_id:
            return of_stream
        found = self._find_replaced(scope, stream, stream_id)
        if found is None:
            found = StreamTransactions(scope, stream, stream_id)
            self._replaced.append(found)
        return found

    def _find_replaced(self, scope: str, stream: str, stream_id: str) -> StreamTransactions | None:
        for of_stream in self._replaced:
            if (of_stream.scope, of_stream.stream, of_stream.stream_id) == (
                scope,
                stream,
                stream_id,
            ):
                return of_stream
        return None

    def of(self, scope: str, stream: str) -> StreamTransactions:
        """Return the entry of the stream with this name; make it if there is none."""
        found = self._streams.get((scope, stream))
        if found is None:
            found = self._streams[scope, stream] = StreamTransactions(scope, stream)
        return found

    def all(self) -> list[StreamTransactions]:
        return [*self._streams.values(), *self._replaced]

    def forget_idle(self) -> None:
        """Remove streams without transactions or work; keep the latest ``IDLE_STREAMS_MAX``."""
        self._replaced = [of_stream for of_stream in self._replaced if not of_stream.is_idle]
        idle = [of_stream for of_stream in self._streams.values() if of_stream.is_idle]
        for of_stream in idle[: max(0, len(idle) - IDLE_STREAMS_MAX)]:
            self.forget(of_stream)

    def forget(self, of_stream: StreamTransactions) -> None:
        """Remove the entry of a stream that has no transactions and no work, or was deleted."""
        if self._streams.get((of_stream.scope, of_stream.stream)) is of_stream:
            del self._streams[of_stream.scope, of_stream.stream]
        self.keep_until_idle(of_stream)

    def keep_until_idle(self, of_stream: StreamTransactions) -> None:
        """Keep an entry that was removed until its work is done."""
        if not of_stream.is_idle and all(of_stream is not known for known in self.all()):
            self._replaced.append(of_stream)
