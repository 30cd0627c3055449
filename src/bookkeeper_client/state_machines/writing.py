"""The state machine of the one client that writes a ledger.

Owns: the choice of the bookies for each entry, and the decision that an entry is durable.

When a bookie fails, entries still go to the others. If another bookie accepts writes, the metadata
are changed so that it takes the place from the first unconfirmed entry on, and it gets the
unconfirmed entries. Otherwise the same bookie gets its place back when it answers again, and gets
the unconfirmed entries; those that it missed have fewer copies. While too few bookies confirm, the
writer waits; its owner limits the time.

Example: a ledger on the bookies a, b, c with a write quorum of 3 and an ack quorum of 2; the
entries 0, 1 and 2 were sent to all three::

    a and b confirm entry 0                 entry 0 is durable
    b fails, a confirms 1, a and c 2        nothing: entry 1 has one confirmation of two
    the bookies a, c and d are available    new metadata are sent: "a, d, c from entry 1 on"
    c confirms 1                            nothing, while the metadata are being stored
    the metadata are stored                 1 and 2 are sent to d; both are durable on a and c

Invariants:
1. When fewer bookies than the ack quorum have confirmed an entry, or an earlier one is not
   confirmed, the entry is not durable. Held by ``test_an_entry_is_confirmed_by_its_quorum`` and
   ``test_entries_are_confirmed_in_their_order``.
2. When a bookie was replaced, its late answers do not count. Held by
   ``test_an_answer_of_a_bookie_that_was_replaced_counts_nothing``.
3. When the bookies in the metadata are being changed, no entry is confirmed: a recovery would not
   ask the new bookies yet. Held by
   ``test_another_bookie_gets_the_place_and_nothing_is_confirmed_meanwhile``.
4. When a bookie says that the ledger is fenced, the writer fails and does not change the metadata.
   Held by ``test_a_fenced_writer_writes_no_metadata``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bookkeeper_client.errors import (
    ClosedError,
    FencedError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bookkeeper_client.metadata import LedgerMetadata, State
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.state_machines.effects import (
    Closed,
    Confirmed,
    Effect,
    Failed,
    FetchMetadata,
    FindBookies,
    SendAdd,
    StoreMetadata,
)
from bookkeeper_client.wire.entry_format import EntryFormat
from bookkeeper_client.wire.protocol import Buffer, Code


class _Pending:
    """An entry that is not confirmed."""

    __slots__ = ("answered", "entry", "length")

    def __init__(self, entry: Sequence[Buffer], length: int) -> None:
        self.entry = entry
        self.length = length
        """Length of the ledger up to and including this entry."""
        self.answered = 0
        """The indices of the bookies that have confirmed the entry, as bits."""


class LedgerWriter:
    """See the module. ``metadata`` are those of a ledger that this client has just made."""

    def __init__(self, metadata: LedgerMetadata, version: int, entries: EntryFormat) -> None:
        self.effects: deque[Effect] = deque()
        self.error: Exception | None = None
        """The error that ended the writer; None while entries can be added."""
        self.last_confirmed = -1
        self._confirmed_length = 0
        self._next_id = 0
        self._length = 0
        self._pending: dict[int, _Pending] = {}
        self._entries = entries
        self._quorums = metadata.quorums
        self._metadata = metadata
        self._version = version
        self._wanted: LedgerMetadata | None = None
        """The metadata that are being stored."""
        self._is_closing = False
        self._lost: set[int] = set()
        """Indices of the bookies that have failed."""
        self._bookies: list[str] = []
        self._index_of: dict[str, int] = {}
        self._set_bookies(metadata.last_segment.bookies)

    # ---- State and commands ----------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Return the number of bytes of all payloads that were added."""
        return self._length

    @property
    def quorums(self) -> Quorums:
        """Return how many bookies the ledger is on, and how many of them confirm an entry."""
        return self._quorums

    @property
    def lost_bookies(self) -> list[str]:
        """Return the bookies that get no entries at present."""
        return [self._bookies[index] for index in sorted(self._lost)]

    @property
    def kept_bookies(self) -> list[str]:
        """Return the present bookies, which a search for others takes into account."""
        return [each for index, each in enumerate(self._bookies) if index not in self._lost]

    @property
    def wants_bookies(self) -> bool:
        """Return whether the writer needs other bookies."""
        return bool(self._lost) and self.error is None and self._wanted is None

    def add(self, payload: Sequence[Buffer]) -> int:
        """Send an entry, and return its id. Raises the error that ended the writer."""
        if self.error is not None:
            raise self.error
        if self._is_closing:
            raise ClosedError("the ledger is being closed")
        entry_id = self._next_id
        length = self._length + sum(map(len, payload))
        entry = self._entries.encode(
            entry_id, last_confirmed=self.last_confirmed, length=length, payload=payload
        )
        self._next_id += 1
        self._length = length
        self._pending[entry_id] = _Pending(entry, length)
        for index in self._quorums.write_set(entry_id):
            if index not in self._lost:
                self.effects.append(SendAdd(self._bookies[index], entry_id, entry))
        return entry_id

    def close(self) -> None:
        """Close the ledger when all entries are confirmed. Later calls of ``add`` fail."""
        if self.error is None and not self._is_closing:
            self._is_closing = True
            self._close_if_idle()

    def fail(self, error: Exception) -> None:
        """Stop without closing the ledger; a recovery finds its end."""
        if self.error is None:
            self.error = error
            self._pending.clear()
            self.effects.append(Failed(error))

    # ---- Outcomes of the effects -----------------------------------------------------------------

    def on_added(self, bookie: str, entry_id: int, code: Code | None) -> None:
        """Process a bookie's answer to an add; ``code`` is None if it did not answer."""
        if self.error is not None:
            return
        if code is Code.FENCED:
            self.fail(FencedError(f"{bookie}: another client has taken the ledger"))
            return
        if code is Code.UNAUTHORIZED:
            self.fail(UnauthorizedError(f"{bookie}: the ledger has another password"))
            return
        index = self._index_of.get(bookie)
        if index is None:
            return
        if code is not Code.OK:
            self._lose(index)
            return
        pending = self._pending.get(entry_id)
        if pending is not None and index in self._quorums.write_set(entry_id):
            pending.answered |= 1 << index
            self._confirm()

    def on_bookies_found(self, available: Sequence[str]) -> None:
        """Replace lost bookies by available ones, or use a lost bookie again if it is available."""
        if not self.wants_bookies:
            return
        spare = [bookie for bookie in available if bookie not in self._index_of]
        bookies = list(self._bookies)
        for index in sorted(self._lost):
            if spare:
                bookies[index] = spare.pop(0)
            elif bookies[index] in available:
                self._lost.discard(index)
                self._send_pending(index)
        if bookies != self._bookies:
            first = self.last_confirmed + 1
            self._store(self._metadata.change_bookies(first, tuple(bookies)))

    def on_stored(self, version: int) -> None:
        """Continue after the metadata were stored."""
        if self._wanted is None or self.error is not None:
            return
        self._metadata, self._wanted = self._wanted, None
        self._version = version
        if self._metadata.state is State.CLOSED:
            self.error = ClosedError("the ledger is closed")
            self.effects.append(Closed(self._metadata))
            return
        before = self._bookies
        self._set_bookies(self._metadata.last_segment.bookies)
        for index, bookie in enumerate(self._bookies):
            if bookie != before[index]:
                self._lost.discard(index)
                for pending in self._pending.values():
                    pending.answered &= ~(1 << index)
                self._send_pending(index)
        if self._lost:
            self.effects.append(FindBookies())
        self._confirm()
        self._close_if_idle()

    def on_store_doubtful(self) -> None:
        """Read the metadata again, because they may have been stored or not."""
        if self._wanted is not None and self.error is None:
            self.effects.append(FetchMetadata())

    def on_fetched(self, metadata: LedgerMetadata | None, version: int) -> None:
        """Continue with the metadata that were read; None if there are none."""
        if self._wanted is None or self.error is not None:
            return
        if metadata is None:
            self.fail(NoSuchLedgerError("the ledger was deleted"))
        elif metadata == self._wanted:
            self.on_stored(version)
        elif metadata.state is not State.OPEN:
            self.fail(FencedError("another client recovers the ledger"))
        elif metadata.segments != self._metadata.segments:
            self.fail(FencedError("another client has changed the ledger's bookies"))
        else:
            self._version = version
            self.effects.append(StoreMetadata(self._wanted, version))

    # ---- Inside ----------------------------------------------------------------------------------

    def _set_bookies(self, bookies: Sequence[str]) -> None:
        self._bookies = list(bookies)
        self._index_of = {bookie: index for index, bookie in enumerate(bookies)}

    def _lose(self, index: int) -> None:
        if index not in self._lost:
            self._lost.add(index)
            if self._wanted is None:
                self.effects.append(FindBookies())

    def _send_pending(self, index: int) -> None:
        for entry_id, pending in self._pending.items():
            if index in self._quorums.write_set(entry_id) and not pending.answered >> index & 1:
                self.effects.append(SendAdd(self._bookies[index], entry_id, pending.entry))

    def _store(self, metadata: LedgerMetadata) -> None:
        self._wanted = metadata
        self.effects.append(StoreMetadata(metadata, self._version))

    def _confirm(self) -> None:
        if self._wanted is not None:
            return
        before = self.last_confirmed
        while (pending := self._pending.get(self.last_confirmed + 1)) is not None:
            if pending.answered.bit_count() < self._quorums.ack:
                break
            self.last_confirmed += 1
            self._confirmed_length = pending.length
            del self._pending[self.last_confirmed]
        if self.last_confirmed != before:
            self.effects.append(Confirmed(self.last_confirmed))
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_closing and not self._pending and self._wanted is None and self.error is None:
            self._store(self._metadata.close(self.last_confirmed, self._confirmed_length))
