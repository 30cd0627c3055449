"""The steps of a reader of a group, without I/O: pieces of segments in, events and changes out.

Owns: ``ReaderSteps``: the positions after the events that the program has taken, the segments that
the reader has now, and the changes of the group's state, on which
``pravega_wire.reader_groups.membership`` decides. Its operations are generators, which a client
that blocks and an async one run.

A reader changes the state only while the program asks for the next event. By asking, the program
says that it has processed the event before: so each position is behind processed events alone, and
a loop over the events needs no acknowledgements. When the reader is left by an exception, the last
event counts as not processed, and another reader gets it again. A program that takes batches says
so of a whole batch.

Invariants:
1. When the reader is cancelled while it gives a segment up, it reads no event that others have read
   before the segment comes back. Held by
   ``test_a_segment_that_comes_back_after_a_cancellation_is_read_on``.
2. When the reader was removed from the group, and one of its name has joined since, it fails, and
   does not take that one's place. Held by
   ``test_a_reader_that_was_removed_is_not_the_next_one_of_its_name`` and
   ``test_a_reader_that_blocks_and_was_removed_fails``.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from _fast.wire.ready_events import ReadyEvents
from pravega_wire.names import parse_segment_name, segment_name
from pravega_wire.reader_groups.changes import (
    Change,
    CheckpointPublished,
    ReaderAdded,
    ReaderRemoved,
)
from pravega_wire.reader_groups.membership import EndedSegment, Membership, ReaderRemovedError
from pravega_wire.reader_groups.settings import RETENTION_AUTOMATIC, GroupSettings
from pravega_wire.reader_groups.states import GroupState
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent
from pravega_wire.sessions.routes import Successor
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.group_configuration import find_configured
from segstore_client.errors import ConflictError, PravegaError, RemovedFromGroupError
from segstore_client.steps.group_requests import Steps, Tell, Wait, call
from segstore_client.steps.group_steps import GroupSteps

UPDATE_SECONDS = 10.0
"""Time, in seconds, before a reader writes a new configuration that another client announced: that
client does so itself if it lives."""


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The end of a segment, after its last event. ``offset`` is -1, or the group's end."""

    segment: str
    offset: int
    found: EndedSegment


Piece: TypeAlias = list[ReadEvent[Any]] | SegmentEnd | Exception
"""Events of one segment, at least one, or its end, or the error that ends the reader."""


class Segments(Protocol):
    """The way to the segments that a reader has."""

    def open(self, cursor: EventCursor) -> None:
        """Read the segment of a cursor from now on: its pieces answer the requests ``Wait``."""

    def close(self, name: str) -> None:
        """Read a segment no more. A piece of it may still come."""


@dataclass(slots=True)
class _Place:
    """The position of the program in a segment, and what follows the segment when it was read."""

    offset: int
    end: int | None
    """The group's end in the segment."""
    ended: EndedSegment | None = None


class ReaderSteps:
    """The reader ``name`` of a group. ``ready`` is what the program takes its events from; they get
    their values by ``decode``.

    ``clock`` tells the time in seconds.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        group: str,
        name: str,
        *,
        state: GroupSteps,
        segments: Segments,
        ready: ReadyEvents,
        decode: Callable[[ReadEvent[Any]], Any] | None,
        clock: Callable[[], float] | None,
    ) -> None:
        self.is_at_end = False
        """True when the group has read everything that there will be."""
        self._name = name
        self._controller = controller
        self._scope, self._group = scope, group
        self._state = state
        self._segments = segments
        self._decode = decode
        self._clock = clock or time.monotonic
        self._membership = Membership(name, self._clock(), lambda: str(uuid.uuid4()))
        self._may_be_in = self._has_joined = False
        self._is_removed = False
        self._update_at = 0.0
        self._places: dict[str, _Place] = {}
        self._ready = ready
        """The events of one segment that the program has, and those that it gets next. ``due`` is
        when the group's state has to be looked at."""
        ready.due = 0.0
        self._ready_segment = ""
        self._error: Exception | None = None

    @property
    def positions(self) -> Mapping[str, int]:
        """Return the next offset of each segment that the reader has, by the segment's name: -1 at
        the end of a sealed one."""
        positions = {name: place.offset for name, place in self._places.items()}
        first = self._ready.first
        if first is not None and first.segment in positions:
            # The program is done with those before it, of which no note was made.
            positions[first.segment] = first.offset
        return positions

    def join(self) -> Steps[None]:
        """Join the group.

        Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if it has a reader
        of this name.
        """
        yield from self._state.change(self._join)
        self._has_joined = True
        self._state.watch(self._note_losses)

    def leave(self) -> Steps[None]:
        """Leave the group; the other readers continue where this one is.

        After a ``join`` that failed or was cancelled, the reader is in the group no more, and will
        not come into it.
        """
        if self._may_be_in:
            yield from self._state.change(self._leave)

    def note_done(self) -> None:
        """Note that the program is done with its events."""
        last = self._ready.last
        if last is not None and (place := self._places.get(last.segment)) is not None:
            place.offset = last.end_offset
        self._ready.release()

    def prepare(self, deadline: float = math.inf) -> Steps[bool]:
        """Do what the group wants now, and wait until there are events; return whether there are.

        There are none when the group is at its end, or after the deadline, a time of the clock.
        Raises ``RemovedFromGroupError`` if the reader was removed from the group, or the group was
        reset; ``PravegaError`` if a stream's bytes are no events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        self.note_done()
        has_waited = False
        while True:
            if self._error is not None:
                raise type(self._error)(*self._error.args) from self._error
            if self._clock() >= self._ready.due:
                yield from self._update()
                if self.is_at_end:
                    return False
            if self._ready:
                return True
            now = self._clock()
            # Without time left, too, it looks for a piece: the next call goes on from there.
            if has_waited and now >= deadline:
                return False
            has_waited = True
            self._take((yield Wait(max(0.0, min(self._ready.due, deadline) - now))))

    def rewind(self) -> None:
        """Read each segment from the program's position on, after ``prepare`` was interrupted: a
        piece may have been on its way. If this is interrupted, it can be done again."""
        self._ready.replace([])
        for name, place in self._places.items():
            if place.ended is None:
                self._segments.close(name)
                self._segments.open(self._make_cursor(name, place))

    def _take(self, piece: Piece | None) -> None:
        """Take a piece of a segment. It may be the last one of a segment that was given up."""
        if piece is None:
            return
        if isinstance(piece, Exception):
            self._error = piece
            raise piece
        segment = piece.segment if isinstance(piece, SegmentEnd) else piece[0].segment
        place = self._places.get(segment)
        if place is None:
            return
        if isinstance(piece, SegmentEnd):
            place.offset, place.ended = piece.offset, piece.found
            self._ready.due = 0.0
        else:
            self._ready.replace(piece)
            self._ready_segment = segment

    # ---- The state of the group ------------------------------------------------------------------

    def _join(self, state: GroupState) -> list[Change]:
        # If it was asked before, another client was faster: that attempt has changed nothing.
        self._may_be_in = False
        if self._name in state.assigned:
            raise ConflictError(
                f"reader group {self._state.name} has a reader {self._name} already: remove it if"
                " it has vanished"
            )
        self._may_be_in = True
        return [ReaderAdded(self._name)]

    def _note_losses(self, state: GroupState) -> None:
        """Note when the reader was removed, even if one of its name has joined since, and give up
        segments that it has lost, even if they have come back since."""
        self._is_removed |= self._name not in state.assigned
        if not self._is_removed:
            self._give_up(self._places.keys() - state.assigned[self._name].keys())

    def _leave(self, state: GroupState) -> list[Change]:
        if self._is_removed:
            return []
        changes = self._membership.leave(state, self.positions)
        if not changes and not self._has_joined:
            # The attempt to join may still be on its way to the log: any other change ends it.
            return [ReaderAdded(self._name), ReaderRemoved(self._name, {})]
        return changes

    def _update(self) -> Steps[None]:
        """Do what the group wants of this reader now."""
        try:
            yield from self._update_state()
        except ReaderRemovedError:
            self._error = RemovedFromGroupError(
                f"reader {self._name} is not in reader group {self._state.name} any more: it was"
                " removed, or the group was reset"
            )
            raise self._error from None
        self.is_at_end = self._state.state.is_at_end

    def _update_state(self) -> Steps[None]:
        member, now = self._membership, self._clock()
        if member.needs_refresh(now):
            state = yield from self._state.read()
            member.note_refresh(state, now)
            if state.is_updating:
                yield from self._follow_configuration(now)
            yield from self._state.compact_if_long()
        member.check(self._state.state)
        yield from self._make_changes(None)
        while (checkpoint := member.find_checkpoint(self._state.state)) is not None:
            yield Tell(checkpoint, self.positions)
            yield from self._make_changes(checkpoint)
        yield from self._publish_checkpoint()
        self._ready.due = member.due_at(self._state.state)

    def _make_changes(self, reached: str | None) -> Steps[None]:
        member, now = self._membership, self._clock()

        def decide(state: GroupState) -> list[Change]:
            if self._is_removed:
                raise ReaderRemovedError(self._name)
            ended = {name: each.ended for name, each in self._places.items() if each.ended}
            return member.decide(state, now, self.positions, ended, reached)

        changes = yield from self._state.change(decide)
        state = self._state.state
        member.check(state)
        member.note_changes(state, changes, now)
        self._follow_assignments(state)

    def _publish_checkpoint(self) -> Steps[None]:
        """Tell the controller of the last checkpoint, if retention goes by it."""
        state = self._state.state
        settings, checkpoints = state.settings, state.checkpoints
        if settings.retention != RETENTION_AUTOMATIC or checkpoints.is_published:
            return
        cuts: dict[tuple[str, str], dict[int, int]] = {}
        for name, offset in checkpoints.last.items():
            segment = parse_segment_name(name)
            cuts.setdefault((segment.scope, segment.stream), {})[segment.segment_id] = offset
        for (scope, stream), cut in cuts.items():
            publish = partial(
                self._controller.update_subscriber,
                scope,
                stream,
                self._state.name,
                settings,
                cut,
            )
            # A refusal concerns retention alone; the next checkpoint is told again.
            with suppress(PravegaError):
                yield from call(publish)
        yield from self._state.change(lambda _: [CheckpointPublished(is_published=True)])

    def _follow_configuration(self, now: float) -> Steps[None]:
        """Let the group begin anew with the controller's configuration, if nobody else does."""
        if now < self._update_at:
            return
        if self._update_at == 0.0:
            self._update_at = now + UPDATE_SECONDS
            return
        self._update_at = 0.0
        begun = yield from call(
            partial(find_configured, self._controller, self._scope, self._group)
        )
        generation = GroupSettings.decode(begun.configuration).generation or 0

        def begin(state: GroupState) -> list[Change]:
            return [begun] if (state.generation or 0) < generation else []

        yield from self._state.change(begin)

    # ---- Segments --------------------------------------------------------------------------------

    def _follow_assignments(self, state: GroupState) -> None:
        """Read the segments that the reader has in the state, and no others."""
        mine = state.assigned[self._name]
        self._give_up(self._places.keys() - mine.keys())
        for name in mine.keys() - self._places.keys():
            self._open(name, mine[name], state.ends.get(name))

    def _give_up(self, segments: Set[str]) -> None:
        """Read these segments no more."""
        for name in segments:
            del self._places[name]
            self._segments.close(name)
        if self._ready_segment in segments:
            self._ready.replace([])

    def _open(self, name: str, offset: int, end: int | None) -> None:
        place = self._places[name] = _Place(offset, end)
        self._segments.open(self._make_cursor(name, place))

    def _make_cursor(self, name: str, place: _Place) -> EventCursor:
        return EventCursor(
            parse_segment_name(name).segment_id,
            name,
            place.offset,
            place.end,
            # A negative offset is the end of a segment that was read.
            is_sealed=place.offset < 0,
            decode=self._decode,
        )


def describe_end(cursor: EventCursor, successors: Iterable[Successor]) -> SegmentEnd:
    """Return the end of a segment that was read, with what follows it as the group's state has it.

    ``successors`` are none where the group ends in the segment.
    """
    segment = parse_segment_name(cursor.name)
    found = {
        segment_name(segment.scope, segment.stream, each.range.segment_id): each
        for each in successors
    }
    ended = EndedSegment(
        {name: sorted(each.predecessors) for name, each in found.items()},
        {name: (each.range.low, each.range.high) for name, each in found.items()},
    )
    return SegmentEnd(cursor.name, -1 if cursor.is_sealed else cursor.offset, ended)
