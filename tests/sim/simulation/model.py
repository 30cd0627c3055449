"""The states that a container's segments may have, by the calls that were made and their answers.

Owns: ``Model``, the queue of calls that may have taken effect, and what counts as a violation.

Invariants:
1. Calls on one segment take effect in the order in which they were made; a merge is a call on two.
   What frees space may pass calls that wait (``Kind``); then it is answered before them.
   An answer proves that its call and all those before it are durable; so does everything else that
   anybody sees.
2. After a crash a segment's state is that after some prefix of its calls, and the prefix holds
   every call that was proved durable. So nothing acknowledged is lost or doubled, and no effect is
   half there.
3. A call's outcome is the one that the plainest implementation gives at its place in the order.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import combinations, takewhile

from segstore.errors import SegmentStoreError
from segstore.model.attributes import SegmentType
from support.models.memory_segments import MemorySegment, MemorySegments

Outcome = int | tuple[object, ...]
"""A number, or what tells an error from others."""


class Kind(Enum):
    """A kind of calls: of those that free space, each may pass some others that wait."""

    WRITE = auto()
    MERGE = auto()
    TRUNCATE = auto()
    SEAL = auto()
    DELETE = auto()
    CREATE = auto()
    """It passes others only if its segment exists: its refusal frees what waits behind it."""
    OTHER = auto()


_PASSED = {
    Kind.TRUNCATE: {Kind.WRITE, Kind.MERGE, Kind.SEAL, Kind.DELETE},
    Kind.SEAL: {Kind.WRITE},
    Kind.DELETE: {Kind.WRITE},
    Kind.CREATE: {Kind.WRITE},
}
PASSING_MAX = 4
"""Maximum count of waiting calls on a segment of which all combinations are tried."""


class ViolationError(AssertionError):
    """The container did something that it must never do."""


def outcome_of(error: SegmentStoreError) -> Outcome:
    """Return the facts of an error."""
    names = ("segment", "start_offset", "expected", "actual", "attribute_id")
    return (type(error).__name__, *(getattr(error, name, None) for name in names))


@dataclass(eq=False, slots=True)
class Call:
    """One call that changes something. ``expected`` is known once it must have taken effect."""

    number: int
    what: str
    names: tuple[str, ...]
    apply: Callable[[], int]
    kind: Kind = Kind.OTHER
    expected: Outcome | None = None
    is_refused: bool = False
    """True if tier 2 failed what it needs: it has no effect, and its answer comes later."""
    refusals: set[Outcome] = field(default_factory=set)
    """Refusals that it may have got before others passed it; the answers may be on the way."""

    def may_pass(self, other: Call) -> bool:
        """Return whether it may take effect before a call that was made earlier."""
        return other.kind in _PASSED.get(self.kind, ())


@dataclass(frozen=True, slots=True)
class Observed:
    """A segment as a client found it; ``data`` begins at the start offset."""

    segment_type: int
    start_offset: int
    length: int
    sealed: bool
    attributes: dict[bytes, int]
    data: bytes

    def difference(self, segment: MemorySegment | None) -> str | None:
        """Return the difference between it and the model's segment, cheap comparisons first."""
        if segment is None:
            return "should not exist"
        facts = (self.start_offset, self.length, self.sealed, self.segment_type)
        wanted = (segment.start_offset, len(segment.data), segment.sealed, segment.segment_type)
        if facts != wanted:
            return f"(start, length, sealed, type) is {facts}, should be {wanted}"
        if self.attributes != segment.attributes:
            found, kept = self.attributes.items(), segment.attributes.items()
            return f"attributes {sorted(found - kept)} should be {sorted(kept - found)}"
        if self.data != memoryview(segment.data)[self.start_offset :]:
            return f"bytes differ from {first_difference(self.data, segment, self.start_offset)} on"
        return None


def first_difference(data: bytes, segment: MemorySegment, offset: int) -> int:
    """Return the first offset of the segment at which ``data``, which lies at ``offset``, is
    wrong."""
    for position, byte in enumerate(data):
        if byte != segment.data[offset + position]:
            return offset + position
    return offset + len(data)


class Model:
    """The model of a container; see the module.

    ``segments`` is the state that is proved to be durable.
    """

    def __init__(
        self, trace: Callable[[str], None], on_violation: Callable[[ViolationError], None]
    ) -> None:
        self._trace = trace
        self._on_violation = on_violation
        self._lanes: dict[str, deque[Call]] = {}
        self._call_count = 0
        self.segments = MemorySegments()
        self.incarnations: dict[str, list[MemorySegment]] = {}
        self.attribute_ids: dict[str, dict[bytes, None]] = {}
        self.on_commit: list[Callable[[], None]] = []

    def violated(self, message: str) -> ViolationError:
        """Return the error to raise; the run ends with it even if it is caught."""
        error = ViolationError(message)
        self._on_violation(error)
        return error

    def note(self, name: str, attribute_ids: Iterable[bytes]) -> None:
        """Remember a name that may exist, and attributes that its segment may have."""
        self.attribute_ids.setdefault(name, {}).update(dict.fromkeys(attribute_ids))

    # ---- Calls -----------------------------------------------------------------------------------

    def call(
        self,
        what: str,
        names: tuple[str, ...],
        apply: Callable[[], int],
        kind: Kind = Kind.OTHER,
    ) -> Call:
        """Note that a call on these segments is being made now."""
        self._call_count += 1
        call = Call(self._call_count, what, names, apply, kind)
        for name in names:
            self._lanes.setdefault(name, deque()).append(call)
        self._trace(f"call {call.number}: {what}")
        return call

    def answered(self, call: Call, outcome: Outcome) -> None:
        """Note the answer to a call.

        Calls that it may pass, or that may pass it, have taken effect before it if the answer says
        so: then their own answers are on the way.
        """
        if call.is_refused:
            raise self.violated(f"{call.what}: refused, and answered {outcome}")
        if call.expected is None and outcome in call.refusals:
            self._withdraw(call)
            call.expected = outcome
        if call.expected is None and isinstance(outcome, tuple):
            self._take_passing(call, outcome)
        self._commit_what_it_did_not_pass(call, lambda found: found == outcome)
        self._commit(call)
        if call.expected != outcome:
            raise self.violated(f"{call.what}: answered {outcome}, must be {call.expected}")
        self._trace(f"answer {call.number}: {outcome}")

    def took_effect(self, call: Call) -> None:
        """Note that a call is durable and was not refused; its answer comes later."""
        self._commit_what_it_did_not_pass(call, lambda found: not isinstance(found, tuple))
        self._commit(call)

    def create(self, name: str, attributes: dict[bytes, int]) -> int:
        """Create a segment in the model, to be called by a ``Call``."""
        self.segments.create(name, attributes)
        self.incarnations.setdefault(name, []).append(self.segments.by_name[name])
        return 0

    def withdrawn(self, call: Call) -> None:
        """Note that a call has failed without having had an effect."""
        if call.expected is not None:
            raise self.violated(f"{call.what}: failed, and took effect")
        if not call.is_refused:
            self._withdraw(call)
        self._trace(f"withdrawn {call.number}")

    def refused(self, call: Call) -> None:
        """Note that a call can have no effect any more; the answer that tells it comes later."""
        if call.expected is not None:
            raise self.violated(f"{call.what}: refused, and took effect")
        self._withdraw(call)
        call.is_refused = True
        self._trace(f"refused {call.number}")

    def _withdraw(self, call: Call) -> None:
        for name in call.names:
            self._lanes[name].remove(call)

    def _commit(self, call: Call) -> None:
        """Commit a call, after all calls before it on its segments, but for those that it passes:
        they would have been answered before it."""
        while call.expected is None:
            earlier = next(self._not_passed(call), None)
            if earlier is None:
                self._take(call)
            else:
                self._commit(earlier)

    def _not_passed(self, call: Call) -> Iterator[Call]:
        """Yield the calls before it on its segments that it may not pass."""
        for name in call.names:
            for earlier in self._lanes[name]:
                if earlier is call:
                    break
                if not call.may_pass(earlier):
                    yield earlier

    def _commit_what_it_did_not_pass(self, call: Call, agrees: Callable[[Outcome], bool]) -> None:
        """Commit the calls that one might have passed and, by its outcome, did not pass."""
        if call.kind not in _PASSED:
            return
        while call.expected is None:
            while (earlier := next(self._not_passed(call), None)) is not None:
                self._commit(earlier)
            [name] = call.names
            first = self._lanes[name][0]
            if first is call or agrees(self._outcome_of(call)):
                return
            self._commit(first)

    def _take_passing(self, call: Call, outcome: Outcome) -> None:
        """Take the calls that may have passed a refused one, as far as its refusal tells it."""
        if any(self._not_passed(call)) or self._outcome_of(call) == outcome:
            return
        passing = [
            later
            for name in call.names
            for later in self._lanes[name]
            if later.may_pass(call) and not any(self._not_passed(later))
        ]
        for count in range(1, len(passing) + 1):
            if self._outcome_of(call, passing[:count]) == outcome:
                for later in passing[:count]:
                    self._take(later)
                return

    def _outcome_of(self, call: Call, before: Iterable[Call] = ()) -> Outcome:
        """Return the outcome that a call would have now, after others; nothing is changed."""
        segments = self.segments.by_name
        saved = dict(segments)
        names = {name for each in (call, *before) for name in each.names}
        made = {name: len(self.incarnations.get(name, ())) for name in names}
        for name in names & saved.keys():
            segments[name] = copy.copy(saved[name])
            segments[name].data = bytearray(saved[name].data)
            segments[name].attributes = dict(saved[name].attributes)
            segments[name].parked = []
        try:
            for each in before:
                each.apply()
            return call.apply()
        except SegmentStoreError as error:
            return outcome_of(error)
        finally:
            segments.clear()
            segments.update(saved)
            for name, count in made.items():
                del self.incarnations.get(name, [])[count:]

    def _take(self, call: Call) -> None:
        if call.kind in _PASSED:
            for passed in takewhile(lambda each: each is not call, self._lanes[call.names[0]]):
                if isinstance(outcome := self._outcome_of(passed), tuple):
                    passed.refusals.add(outcome)
        self._withdraw(call)
        try:
            call.expected = call.apply()
        except SegmentStoreError as error:
            call.expected = outcome_of(error)
        for notify in self.on_commit:
            notify()

    # ---- Sights ----------------------------------------------------------------------------------

    def prove(self, name: str, holds: Callable[[], bool], what: str) -> None:
        """Commit the calls that explain ``holds``, which somebody saw of a segment: they are
        durable."""
        while not holds():
            lane = self._lanes.get(name)
            if not lane:
                raise self.violated(f"{what}: no state of the container explains it")
            if not self._pass(name, holds):
                self._commit(lane[0])

    def _pass(self, name: str, holds: Callable[[], bool]) -> bool:
        """Commit calls that have passed others, if these alone explain ``holds``; return whether
        they do."""
        lane = self._lanes[name]
        passing = [each for each in lane if each is not lane[0] and not any(self._not_passed(each))]
        passing = passing[:PASSING_MAX]
        for count in range(1, len(passing) + 1):
            for chosen in combinations(passing, count):
                if self._would_hold(name, chosen, holds):
                    for call in chosen:
                        self._take(call)
                    return True
        return False

    def _would_hold(self, name: str, calls: Iterable[Call], holds: Callable[[], bool]) -> bool:
        """Return what ``holds`` would say after these calls, which have no effect yet."""
        segments = self.segments.by_name
        segment = segments.get(name)
        before = (segment.start_offset, segment.sealed) if segment is not None else None
        try:
            for call in calls:
                call.apply()
            return holds()
        except SegmentStoreError:
            return False
        finally:
            if segment is not None and before is not None:
                segments[name] = segment
                segment.start_offset, segment.sealed = before

    def recovered(self, observed: dict[str, Observed]) -> Call:
        """Take the state with which the container came back; what it does not show is lost for
        ever.

        Transient segments go at every start, so they may be there or not; returns the container's
        own call that deletes them.
        """
        settled = False
        while not settled:
            settled = True
            for name in dict.fromkeys([*observed, *self.segments.by_name, *self._lanes]):
                # A merge changes another segment, so all are looked at until none has moved.
                settled = self._settle(name, observed.get(name)) and settled
        lost = {call.number for lane in self._lanes.values() for call in lane}
        self._lanes.clear()
        self._trace(f"recovered: {self._call_count} calls, {len(lost)} lost")
        transient = tuple(
            name
            for name, segment in self.segments.by_name.items()
            if segment.segment_type & SegmentType.TRANSIENT
        )
        return self.call("transient segments go", transient, self._delete_transient_segments)

    def _settle(self, name: str, seen: Observed | None) -> bool:
        """Find the prefix of a segment's calls that explains it; whether none had to be taken."""
        nearest = self._difference(name, seen)
        moved = False
        while (difference := self._difference(name, seen)) is not None:
            nearest = difference
            lane = self._lanes.get(name)
            if not lane:
                raise self.violated(f"recovered, after no prefix of its calls: {name} {nearest}")
            if not self._pass(name, lambda: self._difference(name, seen) is None):
                self._commit(lane[0])
            moved = True
        return not moved

    def _difference(self, name: str, seen: Observed | None) -> str | None:
        segment = self.segments.by_name.get(name)
        kinds = (seen.segment_type if seen else 0) | (segment.segment_type if segment else 0)
        if kinds & SegmentType.TRANSIENT:
            return None
        if seen is None:
            return "is missing" if segment is not None else None
        return seen.difference(segment)

    def _delete_transient_segments(self) -> int:
        for segment in list(self.segments.by_name.values()):
            if segment.segment_type & SegmentType.TRANSIENT:
                self.segments.delete(segment.name)
        return 0
