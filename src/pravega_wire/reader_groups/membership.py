"""Decides what one reader of a group does to the group's state, and when: without I/O.

Owns: the timers of a reader, and the changes that it makes in one revision. The reader calls
``decide`` with the newest state, appends the changes under the condition that the state is the
newest still, and calls ``decide`` again on a newer state if it is not.

Changes in one revision, in this order: the checkpoint that waits for the reader; a new checkpoint
if one is due; segments that were read to their ends; a segment that is too many; segments that
nobody reads; where the reader is. Segments stay while a checkpoint waits for the reader, so that
each segment is in the positions of one reader at each checkpoint.

Invariants:
1. When readers come, go and vanish at any moments, each event is processed at least once, and once
   only unless its reader vanished. Held by ``test_each_event_is_processed_in_order``.
2. When a checkpoint completes, its positions are those of one moment for each key. Held by
   ``test_the_positions_of_a_checkpoint_are_a_cut``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pravega_wire.reader_groups.changes import (
    Change,
    CheckpointBegun,
    CheckpointReached,
    CheckpointsCleared,
    PositionTold,
    ReaderRemoved,
    SegmentAcquired,
    SegmentCompleted,
    SegmentReleased,
)
from pravega_wire.reader_groups.fields import KeyRange
from pravega_wire.reader_groups.shares import (
    count_acquirable,
    estimate_distance,
    has_too_many,
    rank_reader,
)
from pravega_wire.reader_groups.states import GroupState

UNIT_SECONDS = 1.0
"""Readers decide at distances of this: the one with the least load takes segments first."""


class ReaderRemovedError(Exception):
    """The reader is not in the group any more: it was removed, or the group was reset."""


@dataclass(frozen=True, slots=True)
class EndedSegment:
    """A segment that was read to its end, with its successors and what has to be read before
    each."""

    successors: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ranges: Mapping[str, KeyRange] = field(default_factory=dict)


class Membership:
    """The reader ``reader`` of a group. Times are seconds of one clock."""

    def __init__(self, reader: str, now: float, make_name: Callable[[], str]) -> None:
        self.reader = reader
        self._make_name = make_name
        self._refresh_at = now
        self._acquire_at = now
        self._release_at = now + UNIT_SECONDS
        self._checkpoint_at = now + UNIT_SECONDS
        self._tell_at = now + UNIT_SECONDS

    def needs_refresh(self, now: float) -> bool:
        """Return whether the newest state has to be read."""
        return now >= self._refresh_at

    def note_refresh(self, state: GroupState, now: float) -> None:
        """Note that the newest state was read."""
        self._refresh_at = now + state.settings.refresh_ms / 1000

    def find_checkpoint(self, state: GroupState) -> str | None:
        """Return the checkpoint that waits for the reader."""
        return state.checkpoints.next_of(self.reader)

    def due_at(self, state: GroupState) -> float:
        """Return when ``decide`` may have something to do if nothing changes before."""
        due = min(self._refresh_at, self._tell_at)
        if state.unassigned:
            due = min(due, self._acquire_at)
        if has_too_many(state, self.reader):
            due = min(due, self._release_at)
        if state.settings.checkpoint_ms > 0:
            due = min(due, self._checkpoint_at)
        return due

    def decide(
        self,
        state: GroupState,
        now: float,
        positions: Mapping[str, int],
        ended: Mapping[str, EndedSegment],
        reached: str | None = None,
    ) -> list[Change]:
        """Return the changes to make now; ``note_changes`` has to be called when they were made.

        ``positions`` has the next offset of each of the reader's segments, -1 at the end of a
        sealed one. ``ended`` has those that were read to their ends, and ``reached`` is the
        checkpoint for which the program is ready. Raises ``ReaderRemovedError``.
        """
        self.check(state)
        draft = GroupState()
        draft.apply([state.compact()])
        changes: list[Change] = []

        def make(change: Change) -> None:
            changes.append(change)
            draft.apply([change])

        mine = draft.assigned[self.reader]
        if reached is not None and draft.checkpoints.next_of(self.reader) == reached:
            make(CheckpointReached(reached, self.reader, _restrict(positions, mine)))
        if self._is_checkpoint_due(draft, now):
            name = self._make_name()
            make(CheckpointBegun(name))
            make(CheckpointsCleared(name))
        is_telling = now >= self._tell_at
        if draft.checkpoints.next_of(self.reader) is None:
            for segment in [each for each in ended if each in mine]:
                end = ended[segment]
                ranges = {segment: draft.ranges.get(segment), **end.ranges}
                make(SegmentCompleted(self.reader, segment, end.successors, ranges))
            if now >= self._release_at and has_too_many(draft, self.reader):
                segment = next(reversed(mine))
                make(SegmentReleased(self.reader, segment, positions.get(segment, mine[segment])))
                is_telling = True
            elif now >= self._acquire_at:
                for segment in list(draft.unassigned)[: count_acquirable(draft, self.reader)]:
                    make(SegmentAcquired(self.reader, segment))
                    is_telling = True
        if is_telling:
            where = {segment: positions.get(segment, offset) for segment, offset in mine.items()}
            ranges = {segment: draft.ranges.get(segment) for segment in where}
            distance = estimate_distance(draft, self.reader)
            make(PositionTold(self.reader, distance, where, ranges))
        return changes

    def note_changes(self, state: GroupState, changes: Sequence[Change], now: float) -> None:
        """Note that changes were made, or that there was nothing to do; ``state`` has them."""
        kinds = {type(change) for change in changes}
        readers, rank = len(state.assigned), rank_reader(state, self.reader)
        if kinds & {SegmentAcquired, SegmentReleased}:
            self._release_at = now + UNIT_SECONDS * (1 + rank)
        if kinds & {SegmentAcquired, SegmentReleased} or now >= self._acquire_at:
            self._acquire_at = now + UNIT_SECONDS * (readers - rank)
        if SegmentCompleted in kinds:
            self._acquire_at = now
        if kinds & {CheckpointBegun, CheckpointReached}:
            self._checkpoint_at = now + state.settings.checkpoint_ms / 1000
        elif now >= self._checkpoint_at:
            self._checkpoint_at = now + UNIT_SECONDS
        if now >= self._release_at:
            self._release_at = now + UNIT_SECONDS
        if PositionTold in kinds:
            self._tell_at = now + UNIT_SECONDS * (readers + 1)

    def leave(self, state: GroupState, positions: Mapping[str, int]) -> list[Change]:
        """Return the changes by which the reader goes, and others continue at its positions."""
        if self.reader not in state.assigned:
            return []
        mine = state.assigned[self.reader]
        return [ReaderRemoved(self.reader, _restrict(positions, mine))]

    def check(self, state: GroupState) -> None:
        """Raise ``ReaderRemovedError`` if the reader is not in the group."""
        if self.reader not in state.assigned:
            raise ReaderRemovedError(self.reader)

    def _is_checkpoint_due(self, state: GroupState, now: float) -> bool:
        if state.settings.checkpoint_ms <= 0 or now < self._checkpoint_at:
            return False
        return not state.checkpoints.waiting


def _restrict(positions: Mapping[str, int], mine: Mapping[str, int]) -> dict[str, int]:
    """Return the positions of these segments alone."""
    return {segment: positions.get(segment, offset) for segment, offset in mine.items()}
