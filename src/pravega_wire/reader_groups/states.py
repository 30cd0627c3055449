"""The state by which the readers of a group agree: who reads which segment, and from where.

Owns: ``GroupState``, and what each change makes of it. ``changes.py`` has the bytes.

A segment is assigned to one reader, or unassigned, or it waits for the segments before it:

    GroupBegun -> unassigned -> SegmentAcquired -> assigned -> SegmentCompleted -> gone
                       ^                              |                |
                       +-- SegmentReleased, ReaderRemoved              +-> successors: future
                       +------------------- all segments before it are completed --+

A reader's position has two values. ``assigned`` has the offset at which it began, or was at its
last checkpoint: there another reader continues if it vanishes. ``last_read`` has the offset that it
told last, some seconds ago.

Invariants:
1. When the same revisions are added, the state is that of the official library. Held by
   ``test_a_state_is_what_the_official_library_says``.
2. When a state is compacted, the compacted one and each later change give the same state as before.
   Held by ``test_a_compacted_state_goes_on_alike``.
3. When a change does not fit the state, such as one of a reader that is gone, it changes nothing.
   Held by ``test_changes_that_do_not_fit_change_nothing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.names import InvalidNameError, parse_segment_name
from pravega_wire.reader_groups.changes import (
    Change,
    CheckpointBegun,
    CheckpointPublished,
    CheckpointReached,
    CheckpointsCleared,
    CheckpointsDropped,
    GroupBegun,
    PositionTold,
    ReaderAdded,
    ReaderRemoved,
    SegmentAcquired,
    SegmentCompleted,
    SegmentReleased,
    StateCompacted,
    UnknownChange,
    UpdateBegun,
    decode_revision,
)
from pravega_wire.reader_groups.checkpoints import Checkpoints, is_silent
from pravega_wire.reader_groups.fields import KeyRange
from pravega_wire.reader_groups.settings import GroupSettings

DISTANCE_MS_MIN = 30_000
"""A reader that is nearer to the tail than this counts as this far from it."""
DISTANCE_UNKNOWN = (1 << 63) - 1
"""The distance of a reader that has told none."""


@dataclass(slots=True)
class GroupState:
    """The state of a group after the revisions that were added. It is empty until a revision with a
    whole state (``GroupBegun`` or ``StateCompacted``) was added. Segments are their names."""

    configuration: bytes = b""
    settings: GroupSettings = field(default_factory=lambda: GroupSettings({}, {}))
    """The decoded configuration."""
    is_updating: bool = False
    assigned: dict[str, dict[str, int]] = field(default_factory=dict)
    unassigned: dict[str, int] = field(default_factory=dict)
    future: dict[str, set[int]] = field(default_factory=dict)
    """Segments that nobody may read yet, with the ids of those that have to be read before."""
    last_read: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    distances: dict[str, int] = field(default_factory=dict)
    """The distance of readers from the tail, in milliseconds."""
    ranges: dict[str, KeyRange] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    is_understood: bool = True
    """False after a change of a later version: this state cannot be compacted."""

    @property
    def is_begun(self) -> bool:
        """Return whether a whole state was added."""
        return bool(self.configuration)

    @property
    def generation(self) -> int | None:
        """Return the configuration's generation; None if a client before 0.10 wrote it."""
        return self.settings.generation if self.is_begun else None

    @property
    def readers(self) -> list[str]:
        """Return the names of the readers that are online, in order."""
        return sorted(self.assigned)

    @property
    def read_to(self) -> dict[str, int]:
        """Return how far each segment was read, as far as readers have told."""
        return {**self.last_read, **self.unassigned}

    @property
    def is_at_end(self) -> bool:
        """Return whether everything was read: streams are sealed, or the group's ends reached."""
        return not self.future and not self.unassigned and not any(self.assigned.values())

    @property
    def segment_count(self) -> int:
        """Return the number of segments that are read, or wait for a reader."""
        return len(self.unassigned) + sum(map(len, self.assigned.values()))

    def positions(self) -> dict[str, int]:
        """Return the offsets at which readers would continue if all of them vanished."""
        found = dict(self.unassigned)
        for each in self.assigned.values():
            found |= each
        return found

    def add(self, revision: bytes) -> None:
        """Take the next revision. Raises ``RemoteProtocolError``."""
        self.apply(decode_revision(revision))

    def apply(self, changes: Iterable[Change | UnknownChange]) -> None:
        """Take changes, one after the other."""
        for change in changes:
            if isinstance(change, UnknownChange):
                self.is_understood = False
            else:
                _TAKERS[type(change)](self, change)

    def compact(self) -> StateCompacted:
        """Return a change that has the whole state, and does not change with it."""
        names = [*self.future, *self.positions(), *self.last_read]
        return StateCompacted(
            configuration=self.configuration,
            checkpoints=self.checkpoints.copy(),
            distances=dict(self.distances),
            future={name: sorted(before) for name, before in self.future.items()},
            assigned={reader: dict(each) for reader, each in self.assigned.items()},
            unassigned=dict(self.unassigned),
            ends=dict(self.ends),
            last_read=dict(self.last_read),
            ranges={name: self.ranges.get(name) for name in names},
            is_updating=self.is_updating,
        )

    # ---- Whole states ----------------------------------------------------------------------------

    def _begin(self, change: GroupBegun) -> None:
        self._configure(change)
        self.assigned, self.future, self.distances = {}, {}, {}
        self.unassigned = dict(change.positions)
        self.last_read = dict(change.positions)
        self.checkpoints = Checkpoints()

    def _restore(self, change: StateCompacted) -> None:
        self._configure(change)
        self.checkpoints = change.checkpoints.copy()
        self.distances = dict(change.distances)
        self.future = {name: set(before) for name, before in change.future.items()}
        self.assigned = {reader: dict(each) for reader, each in change.assigned.items()}
        self.unassigned = dict(change.unassigned)
        self.last_read = dict(self.positions() if change.last_read is None else change.last_read)

    def _configure(self, change: GroupBegun | StateCompacted) -> None:
        self.settings = GroupSettings.decode(change.configuration)
        self.configuration = change.configuration
        self.ends = dict(change.ends)
        self.ranges = dict(change.ranges)
        self.is_updating = change.is_updating
        self.is_understood = True

    # ---- Readers ---------------------------------------------------------------------------------

    def _add_reader(self, change: ReaderAdded) -> None:
        self.assigned.setdefault(change.reader, {})
        self.distances.setdefault(change.reader, DISTANCE_UNKNOWN)

    def _remove_reader(self, change: ReaderRemoved) -> None:
        segments = self.assigned.pop(change.reader, {})
        last = {name: change.positions.get(name, offset) for name, offset in segments.items()}
        self.unassigned.update(last)
        self.distances.pop(change.reader, None)
        self.checkpoints.remove_reader(change.reader, last)

    def _tell(self, change: PositionTold) -> None:
        if change.reader in self.assigned:
            self.distances[change.reader] = max(DISTANCE_MS_MIN, change.distance)
        for name, offset in change.positions.items():
            if name in self.last_read:
                self.last_read[name] = offset

    # ---- Segments --------------------------------------------------------------------------------

    def _acquire(self, change: SegmentAcquired) -> None:
        if change.reader in self.assigned and change.segment in self.unassigned:
            offset = self.unassigned.pop(change.segment)
            self.assigned[change.reader][change.segment] = offset

    def _release(self, change: SegmentReleased) -> None:
        if self.assigned.get(change.reader, {}).pop(change.segment, None) is not None:
            self.unassigned[change.segment] = change.offset
            self.last_read[change.segment] = change.offset

    def _complete(self, change: SegmentCompleted) -> None:
        if self.assigned.get(change.reader, {}).pop(change.segment, None) is None:
            return
        self.last_read.pop(change.segment, None)
        self.ranges.pop(change.segment, None)
        for successor, before in change.successors.items():
            self.future.setdefault(successor, set(before))
            self.ranges[successor] = change.ranges.get(successor)
        completed = _read_identifier(change.segment)
        for successor, waits_for in list(self.future.items()):
            waits_for.discard(completed)
            if not waits_for:
                del self.future[successor]
                self.unassigned[successor] = 0
                self.last_read.setdefault(successor, 0)

    # ---- Checkpoints, configuration --------------------------------------------------------------

    def _begin_checkpoint(self, change: CheckpointBegun) -> None:
        self.checkpoints.begin(change.checkpoint, self.readers, self.unassigned)

    def _reach_checkpoint(self, change: CheckpointReached) -> None:
        self.checkpoints.reach(change.checkpoint, change.reader, change.positions)
        mine = self.assigned.get(change.reader, {})
        for name in change.positions.keys() & mine.keys():
            self.last_read[name] = change.positions[name]
            # A silent one changes nothing of where another reader continues.
            if not is_silent(change.checkpoint):
                mine[name] = change.positions[name]

    def _clear_checkpoints(self, change: CheckpointsCleared) -> None:
        self.checkpoints.clear_before(change.checkpoint)

    def _publish(self, change: CheckpointPublished) -> None:
        self.checkpoints.is_published = change.is_published

    def _drop_checkpoints(self, change: CheckpointsDropped) -> None:
        self.checkpoints.drop_outstanding()

    def _set_updating(self, change: UpdateBegun) -> None:
        self.is_updating = change.is_updating


_TAKERS: dict[type[Change], Callable[[GroupState, Any], None]] = {
    GroupBegun: GroupState._begin,
    StateCompacted: GroupState._restore,
    ReaderAdded: GroupState._add_reader,
    ReaderRemoved: GroupState._remove_reader,
    SegmentReleased: GroupState._release,
    SegmentAcquired: GroupState._acquire,
    PositionTold: GroupState._tell,
    SegmentCompleted: GroupState._complete,
    CheckpointReached: GroupState._reach_checkpoint,
    CheckpointBegun: GroupState._begin_checkpoint,
    CheckpointsCleared: GroupState._clear_checkpoints,
    CheckpointPublished: GroupState._publish,
    UpdateBegun: GroupState._set_updating,
    CheckpointsDropped: GroupState._drop_checkpoints,
}


def _read_identifier(segment: str) -> int:
    try:
        return parse_segment_name(segment).segment_id
    except InvalidNameError as error:
        raise RemoteProtocolError(f"{segment!r} is no segment") from error
