"""The answers that clients of two controllers got, compared with what the segment store keeps.

Owns: ``Ledger``, the record of every transaction, and the rules.

Rules:
1. A transaction whose commit was answered is committed, and one that was answered as committed is
   in every segment once; one that was answered as aborted is in none.
2. What two clients are told of one transaction never differs once it is decided.
3. Of two transactions, the one whose commit was answered before the other's was asked for comes
   first for every key, unless it was begun on a later epoch.
4. No lease ends before the time that was promised, unless somebody asked for an abort or a seal.
5. At the end no transaction has a segment, no stream has a segment that its history does not name,
   no name was used twice, what is behind the active epoch is sealed, and no intent is left.
6. Clients of a stream that is made again get no segment that an earlier stream of its name had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import decode
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.rules.streams import Segment
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.testing.memory_segment_store import MemorySegment, MemorySegmentStore
from pravega_wire import commands as wire
from pravega_wire import names

DECIDED = {
    TransactionState.COMMITTING: True,
    TransactionState.COMMITTED: True,
    TransactionState.ABORTING: False,
    TransactionState.ABORTED: False,
}


DELETED_STREAMS = ("b", "_MARKb")
"""Streams that clients delete, each time that they have made them."""
RETAINED_INTENT = b"/stream/s/r"
"""End of the key of the intent of the stream that retention truncates."""


class ViolationError(Exception):
    """A rule does not hold."""


@dataclass
class Told:
    """What is known of one transaction."""

    stream: str
    segments: tuple[Segment, ...]
    promised_until: float
    commit_asked: int | None = None
    """By the ledger's own count of events, as is the next."""
    commit_answered: int | None = None
    is_abort_asked: bool = False
    """Whether somebody asked for its abort, or for its stream to be sealed."""
    is_committed: bool | None = None
    """What somebody was told of its end."""
    held_since: float = 0.0
    """When it was last written as open: who takes it over begins its lease anew."""


class WatchedStore(MemorySegmentStore):
    """A segment store that shows each write of a transaction's record before it happens."""

    def __init__(self, note: Callable[[bytes, TransactionRecord], None]) -> None:
        super().__init__()
        self._note = note
        self.deleted: list[MemorySegment] = []
        """Segments that were deleted, with what was merged into them."""

    def _update_table(self, q: wire.UpdateTableEntries) -> wire.Reply:
        reply = super()._update_table(q)
        if isinstance(reply, wire.TableEntriesUpdated) and "/transactions-" in q.segment:
            for entry in q.table_entries:
                if entry.key.key.startswith(b"t/"):
                    identifier = bytes.fromhex(entry.key.key.decode().rpartition("/")[2])
                    self._note(identifier, decode(entry.value, TransactionRecord))
        return reply

    def _apply(self, request: wire.Request) -> wire.Reply:
        if isinstance(request, wire.UpdateTableEntries):
            return self._update_table(request)
        if isinstance(request, wire.DeleteSegment) and request.segment in self.segments:
            self.deleted.append(self.segments[request.segment])
        return super()._apply(request)


@dataclass
class Ledger:
    """What was told to clients."""

    trace: Callable[[str], None]
    transactions: dict[bytes, Told] = field(default_factory=dict)
    seen: dict[str, set[int]] = field(default_factory=dict)
    """By stream, the segments that clients got of all streams of its name, deleted ones too."""
    is_busy: bool = False
    """Whether the clients of this run give the controllers no rest."""
    events: int = 0

    def count(self) -> int:
        """Count an event; return its place."""
        self.events += 1
        return self.events

    def tell_state(self, identifier: bytes, state: TransactionState | None) -> None:
        """Take note of an answer about a transaction."""
        told = self.transactions[identifier]
        if state is None:
            raise ViolationError(f"{identifier.hex()} is not known any more")
        if state in DECIDED:
            self.tell_end(identifier, is_committed=DECIDED[state])
        elif told.is_committed is not None:
            raise ViolationError(f"{identifier.hex()} is {state} after it was decided")

    def tell_end(self, identifier: bytes, *, is_committed: bool) -> None:
        """Take note of how a transaction was said to end."""
        self.trace(
            f"{identifier.hex()[-6:]} told to be {'committed' if is_committed else 'aborted'}"
        )
        told = self.transactions[identifier]
        if told.is_committed not in (None, is_committed):
            raise ViolationError(f"{identifier.hex()} was told to be committed and aborted")
        told.is_committed = is_committed

    def note_record(self, identifier: bytes, record: TransactionRecord) -> None:
        """Look at a record that is being written."""
        self.trace(f"{identifier.hex()[-6:]} written: {record.state.value} by {record.holder[:4]}")
        told = self.transactions.get(identifier)
        if told is not None and record.state is TransactionState.OPEN:
            told.held_since = trio.current_time()
        if told is None or record.state is not TransactionState.ABORTING:
            return
        if not told.is_abort_asked and trio.current_time() < told.promised_until:
            raise ViolationError(
                f"{identifier.hex()} was aborted "
                f"{told.promised_until - trio.current_time():.3f} s before its lease ended"
            )

    def tell_new(self, stream: str, segments: Sequence[Segment]) -> None:
        """Take note of the segments of a stream that was just made."""
        identifiers = {segment.segment_id for segment in segments}
        seen = self.seen.setdefault(stream, set())
        if not identifiers or identifiers & seen:
            raise ViolationError(f"{stream} was made with {identifiers}, after {seen}")
        seen |= identifiers

    def check_that_stream_is_whole(
        self, store: MemorySegmentStore, stream: str, segments: Sequence[Segment]
    ) -> None:
        """Check that a stream that nobody sealed has its segments, and its mark stream, too."""
        for segment in segments:
            name = names.segment_name("s", stream, segment.segment_id)
            if name not in store.segments or store.segments[name].is_sealed:
                raise ViolationError(f"{name} cannot be written to")
        mark = f"s/{names.mark_stream(stream)}/"
        if not any(name.startswith(mark) for name in store.segments):
            raise ViolationError(f"{mark} has no segment")

    # ---- At the end ------------------------------------------------------------------------------

    def check_streams(self, store: MemorySegmentStore) -> None:
        """Check that each committed transaction is there once and whole, and no other one is."""
        places: dict[tuple[bytes, int], int] = {}
        for name in store.segments:
            if names.is_transaction_segment(name):
                raise ViolationError(f"{name} is left")
        for segment in (*store.segments.values(), *store.deleted):
            for source in segment.merged:
                parsed = names.parse_segment_name(source)
                assert parsed.transaction_id is not None
                part = (parsed.transaction_id, parsed.segment_number)
                places[part] = places.get(part, 0) + 1
        for identifier, told in self.transactions.items():
            counts = [places.get((identifier, segment.number), 0) for segment in told.segments]
            # Of one that nobody asked about again before its stream was deleted the end is unknown.
            is_known = told.is_committed is not None
            wanted = int(bool(told.is_committed)) if is_known else min(1, counts[0])
            if any(count != wanted for count in counts):
                raise ViolationError(
                    f"{identifier.hex()} ({told.is_committed=}) is {counts} times in the "
                    f"segments {told.segments}"
                )
        again = [name for name, count in Counter(store.created).items() if count > 1]
        # A request that comes late may make a segment for a while that was deleted.
        again = [name for name in again if not _may_be_made_late(name)]
        if again:
            raise ViolationError(f"names were used twice: {again}")

    def check_order(self, store: MemorySegmentStore) -> None:
        """Check that for every key commits have the same order as in the stream."""
        committed = {i: t for i, t in self.transactions.items() if t.is_committed}
        read: dict[int, list[tuple[int, int, bytes]]] = {}
        for name, segment in store.segments.items():
            own = names.parse_segment_name(name)
            if own.stream != "a" or own.transaction_id is not None:
                continue
            for place, source in enumerate(segment.merged):
                parsed = names.parse_segment_name(source)
                assert parsed.transaction_id is not None
                line = read.setdefault(parsed.segment_number, [])
                line.append((own.epoch, place, parsed.transaction_id))
        for number, line in read.items():
            order = [identifier for _, _, identifier in sorted(line)]
            places = {identifier: place for place, identifier in enumerate(order)}
            for first in order:
                for second in order:
                    if _must_precede(first, committed[first], second, committed[second]) and (
                        places[first] > places[second]
                    ):
                        raise ViolationError(
                            f"{first.hex()} was committed before {second.hex()} was to be, and "
                            f"comes after it in the segments of number {number}"
                        )

    def check_metadata(self, store: MemorySegmentStore) -> None:
        """Check that no record of unfinished work is left."""
        intents = store.tables[INTENTS].entries
        # Retention goes on truncating its stream during the checks.
        if left := [key for key in intents if not key.endswith(RETAINED_INTENT)]:
            raise ViolationError(f"intents are left: {left}")
        for table, content in store.tables.items():
            for key, (value, _) in content.entries.items():
                if "/transactions-" in table and key.startswith(b"t/"):
                    record = decode(value, TransactionRecord)
                    raise ViolationError(f"{key.decode()} is left: {record}")


def _may_be_made_late(name: str) -> bool:
    return not names.is_transaction_segment(name)


def _must_precede(first: bytes, one: Told, second: bytes, other: Told) -> bool:
    if one.commit_answered is None or other.commit_asked is None:
        return False
    is_earlier = one.commit_answered < other.commit_asked
    return is_earlier and names.transaction_epoch(first) <= names.transaction_epoch(second)
