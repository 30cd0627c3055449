"""The state machine that reads one entry from the bookies of its write set, one after the other.

Bookies are asked in the order of the write set, those in ``asked_last`` after all others. The next
one is asked when an answer is an error, no entry or a damaged copy, and when ``on_slow`` is called.

Invariants:
1. When any bookie fails to answer or has a damaged copy, the entry does not count as absent: all
   bookies of the write set must report that they lack it. Held by
   ``test_an_entry_is_absent_only_if_all_say_so``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet

from bookkeeper_client.errors import (
    BookKeeperError,
    DigestMismatchError,
    NoSuchEntryError,
    UnauthorizedError,
    UnreadableEntryError,
)
from bookkeeper_client.metadata import LedgerMetadata
from bookkeeper_client.state_machines.effects import SendRead
from bookkeeper_client.wire.entry_format import Entry, EntryFormat
from bookkeeper_client.wire.protocol import Buffer, Code


class EntryRead:
    """See the module. At the end ``entry`` or ``error`` is set."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        entry_id: int,
        entries: EntryFormat,
        *,
        asked_last: AbstractSet[str] = frozenset(),
    ) -> None:
        bookies = metadata.segment_of(entry_id).bookies
        write_set = [bookies[index] for index in metadata.quorums.write_set(entry_id)]
        if asked_last:
            write_set.sort(key=asked_last.__contains__)
        self.effects: deque[SendRead] = deque()
        self.entry: Entry | None = None
        self.error: BookKeeperError | None = None
        self._entries = entries
        self._entry_id = entry_id
        self._unasked = deque(write_set)
        self._silent: set[str] = set()
        self._complaints: list[str] = []
        self._refusal: BookKeeperError | None = None
        self._ask_next()

    @property
    def has_ended(self) -> bool:
        """Return whether there is a result."""
        return self.entry is not None or self.error is not None

    @property
    def silent(self) -> AbstractSet[str]:
        """Return the bookies that were asked and have not answered."""
        return self._silent

    def on_slow(self) -> None:
        """Ask one more bookie, if there is one."""
        if not self.has_ended:
            self._ask_next()

    def on_read(self, bookie: str, code: Code | None, data: Buffer = b"") -> None:
        """Process a bookie's answer; ``code`` is None if it did not answer."""
        if self.has_ended or bookie not in self._silent:
            return
        self._silent.discard(bookie)
        if code is Code.OK:
            try:
                self.entry = self._entries.decode(data, self._entry_id)
            except DigestMismatchError as error:
                self._complaints.append(f"{bookie}: {error}")
            else:
                return
        elif code is Code.UNAUTHORIZED:
            self._refusal = UnauthorizedError(f"{bookie}: the ledger has another password")
        elif code not in (Code.NO_ENTRY, Code.NO_LEDGER):
            self._complaints.append(f"{bookie}: {'no answer' if code is None else code.name}")
        self._ask_next()
        if not self._silent:
            self.error = self._find_error()

    def _ask_next(self) -> None:
        if self._unasked:
            bookie = self._unasked.popleft()
            self._silent.add(bookie)
            self.effects.append(SendRead(bookie, self._entry_id))

    def _find_error(self) -> BookKeeperError:
        if self._refusal is not None:
            return self._refusal
        if self._complaints:
            said = "; ".join(self._complaints)
            return UnreadableEntryError(f"entry {self._entry_id} cannot be read: {said}")
        return NoSuchEntryError(f"no bookie has entry {self._entry_id}")
