"""The state machine that recovers a ledger: it fences the writer, finds the last entry, and closes
the ledger.

Owns: the decision about a ledger's last entry. Several clients may recover a ledger at the same
time; one of them stores its end in the metadata, and all report that end.

    mark      set the state in the metadata, so that the writer cannot change them any more
    fence     fence so many bookies of the last ensemble that the writer can confirm nothing more
    recover   read and write again each entry after the last one that is known to be confirmed
    measure   if it is unknown, read the length of the ledger up to its last entry
    close     store the end in the metadata

Example: a ledger on the bookies a, b, c with an ack quorum of 2, and entries of 10 bytes; b lacks
entry 3, and a alone is known to have entry 4::

    fence         a has entry 4, c has entry 3; both say "confirmed up to 2": 2 of 3 are fenced
    recover 3     b lacks it, c returns it: it is written again, a and b confirm
    recover 4     a returns it: it is written again, a and c confirm
    recover 5     b and c lack it: one bookie alone cannot have confirmed it, so it is dropped
    close         last entry 4, length 50

Invariants:
1. When a bookie does not answer, or answers with an error or a damaged copy, it does not count as a
   bookie that lacks the entry; if too few are left, the recovery fails. Held by
   ``test_a_bookie_that_says_nothing_proves_nothing``.
2. When an entry may have been confirmed, it is written again until an ack quorum of the bookies in
   the metadata has it. Held by ``test_what_may_have_been_confirmed_is_written_again``.
3. When a recovery has closed the ledger, the writer's later entries are refused: each read of the
   recovery fences its bookie. Held by ``test_a_recovery_ends_the_writer``.
4. When the recovery gives a bookie's place to another one, it still reads later entries from the
   bookies to which the writer sent them. Held by
   ``test_a_bookie_that_lost_its_place_is_still_asked_for_later_entries`` and
   ``test_recovery_reads_from_the_bookies_that_the_writer_wrote_to``.
5. When a recovery fails after it has written entries again, the next recovery does not take these
   copies for confirmed: they say only which entry was confirmed before the recovery. Held by
   ``test_recovery_does_not_trust_what_a_failed_recovery_wrote``.
6. When another recovery has stored its end first, this one reports that end. Held by
   ``test_the_end_that_another_recovery_stored_holds``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum

from bookkeeper_client.errors import (
    DigestMismatchError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
    UnreadableEntryError,
)
from bookkeeper_client.metadata import NO_ENTRY_ID, LedgerMetadata, State
from bookkeeper_client.state_machines.effects import (
    Closed,
    Effect,
    Failed,
    FetchMetadata,
    FindBookies,
    SendAdd,
    SendRead,
    StoreMetadata,
)
from bookkeeper_client.wire.entry_format import Entry, EntryFormat
from bookkeeper_client.wire.protocol import LAST_ENTRY, Buffer, Code

_ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)


class _Stage(Enum):
    MARK = "mark"
    FENCE = "fence"
    READ = "read"
    ADD = "add"
    MEASURE = "measure"
    CLOSE = "close"
    ENDED = "ended"


class LedgerRecovery:
    """See the module. It requests its first effects at once, and ends with ``Closed`` or
    ``Failed``."""

    def __init__(self, metadata: LedgerMetadata, version: int, entries: EntryFormat) -> None:
        self.effects: deque[Effect] = deque()
        self._entries = entries
        self._found = metadata
        """The metadata when the recovery began. They name the bookies that have the writer's
        entries."""
        self._metadata = metadata
        """The metadata with the bookies to which entries were written again."""
        self._version = version
        self._wanted: LedgerMetadata | None = None
        self._stage = _Stage.MARK
        self._entry_id = NO_ENTRY_ID
        """The entry that is being recovered, or read for its length."""
        self._last = NO_ENTRY_ID
        """The last entry that is certainly part of the ledger."""
        self._confirmed = NO_ENTRY_ID
        """The last confirmed entry, as the fenced bookies reported it."""
        self.is_length_certain = True
        """True if the length is exact. Otherwise no bookie knew it, and it is the greatest that any
        reported."""
        self._length: int | None = 0
        """Length of the ledger up to ``_last``, in bytes; None if it is unknown."""
        self._length_seen = 0
        """Greatest length that the fenced bookies reported, in bytes."""
        self._silent: set[int] = set()
        """Indices of the bookies that have not answered."""
        self._absent: set[int] = set()
        """Indices of the bookies that answered that they lack the entry."""
        self._rewritten: list[Buffer] = []
        """The encoded entry that is being written again."""
        self._rewritten_length = 0
        self._kept: set[int] = set()
        """Indices of the bookies that have stored the entry that is being written again."""
        self._lost: set[int] = set()
        """Indices of the bookies that failed to store it."""
        self._begin(metadata, version)

    @property
    def kept_bookies(self) -> list[str]:
        """Return the present bookies, which a search for others takes into account."""
        bookies = self._metadata.last_segment.bookies
        return [each for index, each in enumerate(bookies) if index not in self._lost]

    @property
    def lost_bookies(self) -> list[str]:
        """Return the bookies that others should replace."""
        return [self._metadata.last_segment.bookies[index] for index in sorted(self._lost)]

    @property
    def wants_bookies(self) -> bool:
        """Return whether the recovery waits for ``on_bookies_found``."""
        return self._stage is _Stage.ADD and not self._can_still_add()

    def fail(self, error: Exception) -> None:
        """End without a result."""
        if self._stage is not _Stage.ENDED:
            self._stage = _Stage.ENDED
            self.effects.append(Failed(error))

    # ---- Outcomes of the effects -----------------------------------------------------------------

    def on_stored(self, version: int) -> None:
        """Continue after the metadata were stored."""
        if self._wanted is None:
            return
        self._metadata, self._wanted = self._wanted, None
        self._version = version
        if self._metadata.state is State.CLOSED:
            self._end()
        else:
            self._fence()

    def on_store_doubtful(self) -> None:
        """Read the metadata again, because they may have been stored or not."""
        if self._wanted is not None:
            self.effects.append(FetchMetadata())

    def on_fetched(self, metadata: LedgerMetadata | None, version: int) -> None:
        """Continue with the metadata that were read; None if there are none."""
        if self._wanted is None:
            return
        if metadata is None:
            self._wanted = None
            self.fail(NoSuchLedgerError("the ledger was deleted"))
        elif metadata == self._wanted:
            self.on_stored(version)
        else:
            # Another recovery has ended, or bookies were replaced: begin again.
            self._wanted = None
            self._begin(metadata, version)

    def on_read(self, bookie: str, entry_id: int, code: Code | None, data: Buffer = b"") -> None:
        """Process a bookie's answer to a read; ``code`` is None if it did not answer."""
        if self._stage not in (_Stage.FENCE, _Stage.READ, _Stage.MEASURE):
            return
        if entry_id != (LAST_ENTRY if self._stage is _Stage.FENCE else self._entry_id):
            return
        if code is Code.UNAUTHORIZED:
            self.fail(UnauthorizedError(f"{bookie}: the ledger has another password"))
            return
        bookies = self._found.segment_of(self._entry_id).bookies
        if self._stage is _Stage.FENCE:
            bookies = self._found.last_segment.bookies
        index = bookies.index(bookie) if bookie in bookies else None
        if index is None or index not in self._silent:
            return
        self._silent.discard(index)
        entry = None
        if code is Code.OK:
            try:
                entry = self._entries.decode(data, entry_id)
            except DigestMismatchError:
                code = None
        {
            _Stage.FENCE: self._process_fencing_read,
            _Stage.READ: self._process_read,
            _Stage.MEASURE: self._process_length_read,
        }[self._stage](index, entry, is_absent=code in _ABSENT)

    def on_added(self, bookie: str, entry_id: int, code: Code | None) -> None:
        """Process a bookie's answer to an add; ``code`` is None if it did not answer."""
        if self._stage is not _Stage.ADD or entry_id != self._entry_id:
            return
        bookies = self._metadata.last_segment.bookies
        index = bookies.index(bookie) if bookie in bookies else None
        if index is None or index not in self._metadata.quorums.write_set(entry_id):
            return
        if code is Code.UNAUTHORIZED:
            self.fail(UnauthorizedError(f"{bookie}: the ledger has another password"))
        elif code is Code.OK:
            self._lost.discard(index)
            self._kept.add(index)
            if len(self._kept) >= self._metadata.quorums.ack:
                self._last, self._length = entry_id, self._rewritten_length
                self._read(entry_id + 1)
        elif index not in self._kept:
            self._lost.add(index)
            if not self._can_still_add():
                self.effects.append(FindBookies())

    def on_bookies_found(self, available: Sequence[str]) -> None:
        """Write the entry to available bookies, in the places of those that failed to store it."""
        if not self.wants_bookies:
            return
        bookies = list(self._metadata.last_segment.bookies)
        spare = [bookie for bookie in available if bookie not in bookies]
        replaced = dict(zip(sorted(self._lost), spare, strict=False))
        self._lost.difference_update(replaced)
        if not self._can_still_add():
            self.fail(NotEnoughBookiesError(f"entry {self._entry_id} cannot be written again"))
            return
        # This is stored in ZooKeeper together with the end. Earlier entries stay on their bookies.
        for index, bookie in replaced.items():
            bookies[index] = bookie
        self._metadata = self._metadata.change_bookies(self._entry_id, tuple(bookies))
        for index in replaced:
            self._send_add(index)

    # ---- Mark and fence --------------------------------------------------------------------------

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        self._metadata = metadata
        self._version = version
        if metadata.state is State.CLOSED:
            self._end()
        elif metadata.state is State.IN_RECOVERY:
            self._fence()
        else:
            self._store(_Stage.MARK, metadata.begin_recovery())

    def _store(self, stage: _Stage, metadata: LedgerMetadata) -> None:
        self._stage = stage
        self._wanted = metadata
        self.effects.append(StoreMetadata(metadata, self._version))

    def _fence(self) -> None:
        self._found = self._metadata
        segment = self._found.last_segment
        self._stage = _Stage.FENCE
        self._last = segment.first_entry_id - 1
        self._length = 0 if self._last < 0 else None
        self._length_seen = 0
        self._silent = set(range(len(segment.bookies)))
        self._absent = set()
        self._lost = set()
        for bookie in segment.bookies:
            self.effects.append(SendRead(bookie, LAST_ENTRY, is_fencing=True))

    def _process_fencing_read(self, index: int, entry: Entry | None, *, is_absent: bool) -> None:
        if entry is not None:
            self._length_seen = max(self._length_seen, entry.length)
            if entry.last_confirmed > self._last:
                self._last = entry.last_confirmed
                self._length = None
            if entry.entry_id == self._last:
                self._length = entry.length
            elif entry.entry_id == self._last + 1:
                self._length = entry.length - len(entry.payload)
        elif not is_absent:
            self._lost.add(index)
        if self._metadata.quorums.is_covered(self._silent | self._lost):
            self._confirmed = self._last
            self._read(self._last + 1)
        elif not self._silent:
            self.fail(NotEnoughBookiesError("too few bookies of the ledger can be fenced"))

    # ---- Recover ---------------------------------------------------------------------------------

    def _read(self, entry_id: int) -> None:
        """Read the entry from all bookies of its write set, which fences them."""
        self._stage = _Stage.READ
        self._ask(entry_id)

    def _ask(self, entry_id: int) -> None:
        self._entry_id = entry_id
        bookies = self._found.segment_of(entry_id).bookies
        self._silent = set(self._metadata.quorums.write_set(entry_id))
        self._absent = set()
        for index in self._metadata.quorums.write_set(entry_id):
            self.effects.append(SendRead(bookies[index], entry_id, is_fencing=True))

    def _process_read(self, index: int, entry: Entry | None, *, is_absent: bool) -> None:
        if entry is not None:
            self._add(entry)
            return
        if is_absent:
            self._absent.add(index)
        if self._metadata.quorums.proves_absence(len(self._absent)):
            self._measure()
        elif not self._silent:
            self.fail(UnreadableEntryError(f"entry {self._entry_id}: too few bookies can be asked"))

    def _add(self, entry: Entry) -> None:
        """Write the entry again to all bookies of its write set."""
        self._stage = _Stage.ADD
        self._rewritten_length = entry.length
        self._rewritten = self._entries.encode(
            entry.entry_id,
            last_confirmed=self._confirmed,
            length=entry.length,
            payload=(entry.payload,),
        )
        self._kept = set()
        self._lost = set()
        for index in self._metadata.quorums.write_set(entry.entry_id):
            self._send_add(index)

    def _send_add(self, index: int) -> None:
        bookie = self._metadata.last_segment.bookies[index]
        self.effects.append(SendAdd(bookie, self._entry_id, self._rewritten, is_recovery=True))

    def _can_still_add(self) -> bool:
        quorums = self._metadata.quorums
        return quorums.write - len(self._lost) >= quorums.ack

    # ---- Measure and close -----------------------------------------------------------------------

    def _measure(self) -> None:
        if self._length is None:
            self._stage = _Stage.MEASURE
            self._ask(self._last)
        else:
            self._close(self._length)

    def _process_length_read(self, index: int, entry: Entry | None, *, is_absent: bool) -> None:
        if entry is not None:
            self._close(entry.length)
        elif not self._silent:
            # The last entry is certain, only the length is not: close the ledger all the same,
            # because its bookies may be gone for ever.
            self.is_length_certain = False
            self._close(self._length_seen)

    def _close(self, length: int) -> None:
        self._store(_Stage.CLOSE, self._metadata.close(self._last, length))

    def _end(self) -> None:
        self._stage = _Stage.ENDED
        self.effects.append(Closed(self._metadata))


def check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Raise ``UnauthorizedError`` if the ledger has another password."""
    if metadata.password is not None and metadata.password != password:
        raise UnauthorizedError("the ledger has another password")
