"""Reads the events of a group's streams, together with the other readers of the group.

Owns: one feed for each segment that the reader has now, the positions after the events that the
program has taken, and the changes of the group's state. ``pravega_wire.reader_groups.membership``
decides on them.

A reader changes the state only while the program asks for the next event. By asking, the program
says that it has processed the event before: so each position is behind processed events alone, and
an ``async for`` loop needs no acknowledgements. When the block is left by an exception, the last
event counts as not processed, and another reader gets it again. A program that takes batches says
so of a whole batch.

Invariants:
1. When readers come and go, each event is read once, and the events of a key in order. Held by
   ``test_readers_share_streams_through_scalings``.
2. When a reader vanishes, another one continues at its last checkpoint once it was removed. Held by
   ``test_a_reader_that_vanished_is_replaced``.
3. When Java readers are in the group, too, all of this holds. Held by
   ``test_a_group_of_java_and_python_readers_reads_each_event``.
4. When the reader is cancelled while it gives a segment up, it reads no event that others have read
   before the segment comes back. Held by
   ``test_a_segment_that_comes_back_after_a_cancellation_is_read_on``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from _fast.wire.ready_events import ReadyEvents
from pravega_wire.names import parse_segment_name, segment_name
from pravega_wire.reader_groups.changes import Change, CheckpointPublished, ReaderAdded
from pravega_wire.reader_groups.membership import EndedSegment, Membership, ReaderRemovedError
from pravega_wire.reader_groups.settings import RETENTION_AUTOMATIC, GroupSettings
from pravega_wire.reader_groups.states import GroupState
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent
from segstore_client.access.tokens import StoreAccess
from segstore_client.connections.calls import call_blocking
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.group_configuration import find_configured
from segstore_client.errors import ConflictError, PravegaError
from segstore_client.event_reader import Batches
from segstore_client.groups.group_log import GroupLog
from segstore_client.reading.piece_queue import PieceQueue
from segstore_client.reading.segment_feed import SegmentFeed

UPDATE_SECONDS = 10.0
"""Time, in seconds, before a reader writes a new configuration that another client announced: that
client does so itself if it lives."""
LEAVE_SECONDS_MAX = 10.0

OnCheckpoint = Callable[[str, Mapping[str, int]], Awaitable[None]]


class RemovedFromGroupError(PravegaError):
    """The reader is not in its group any more: it was removed, or the group was reset."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of a segment, after its last event. ``offset`` is -1, or the group's end."""

    segment: str
    offset: int
    found: EndedSegment


@dataclass(slots=True)
class _OpenFeed:
    """A segment that the reader has, and where the program is in it."""

    position: int
    scope: anyio.CancelScope
    ended: EndedSegment | None = None


class GroupReader:
    """A reader of a group: ``async for`` gives its events. Use it in an ``async with`` block.

    ``ReaderGroup.reader`` makes it. One task reads at a time.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        group: str,
        name: str,
        *,
        patience: float,
        on_checkpoint: OnCheckpoint | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self._controller = controller
        self._scope, self._group = scope, group
        self._patience = patience
        self._on_checkpoint = on_checkpoint
        self._clock = clock or time.monotonic
        self._log = GroupLog(controller, scope, group, patience=patience)
        self._membership = Membership(name, self._clock(), lambda: str(uuid.uuid4()))
        self._is_removed = False
        self._update_at = 0.0
        self._feeds: dict[str, _OpenFeed] = {}
        self._accesses: dict[tuple[str, str], StoreAccess] = {}
        self._ready = ReadyEvents(self.__anext__, clock)
        """The events of one segment that the program has, and those that it gets next. ``due`` is
        when the group's state has to be looked at."""
        self._ready.due = 0.0
        self._ready_segment = ""
        self._error: Exception | None = None
        self._tasks: TaskGroup | None = None
        self._stack = AsyncExitStack()
        self._pieces = PieceQueue[list[ReadEvent] | _Ended | Exception]()

    async def __aenter__(self) -> Self:
        """Join the group.

        Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if it has a reader
        of this name.
        """
        self._stack.push_async_callback(self._log.aclose)
        try:
            await self._log.change(self._join)
            self._log.watch(self._note_losses)
        except BaseException:
            await self._stack.aclose()
            raise
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the group; the other readers continue where this one is."""
        if self._tasks is None:
            return
        if kind is None:
            self._note_done()
        self._tasks.cancel_scope.cancel()
        try:
            with anyio.move_on_after(LEAVE_SECONDS_MAX, shield=True):
                await self._log.change(self._leave)
        finally:
            await self._stack.aclose()

    async def drop(self) -> None:
        """End without leaving the group, as a process does that is killed."""
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        tasks.cancel_scope.cancel()
        await self._stack.aclose()

    @property
    def positions(self) -> Mapping[str, int]:
        """Return the next offset of each segment that the reader has, by the segment's name: -1 at
        the end of a sealed one."""
        positions = {name: feed.position for name, feed in self._feeds.items()}
        first = self._ready.first
        if first is not None and first.segment in positions:
            # The program is done with those before it, of which no note was made.
            positions[first.segment] = first.offset
        return positions

    def __aiter__(self) -> AsyncIterator[ReadEvent]:
        return self._ready

    async def __anext__(self) -> ReadEvent:
        """Return the next event; it ends when the group has read everything that there will be.

        Raises ``RemovedFromGroupError`` if the reader was removed from the group, or the group was
        reset; ``PravegaError`` if a stream's bytes are no events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        await self._prepare()
        return self._ready.take()

    def batches(self) -> Batches:
        """Return an iterator by which ``async for`` gives lists of all events that are there.

        It ends, and raises errors, as that of events. Both can be used in turns.
        """
        return Batches(self._take_batch)

    async def _take_batch(self) -> list[ReadEvent]:
        await self._prepare()
        return self._ready.take_all()

    async def _prepare(self) -> None:
        """Do what the group wants now, and wait until there are events."""
        self._note_done()
        while True:
            if self._error is not None:
                raise type(self._error)(*self._error.args) from self._error
            if self._clock() >= self._ready.due:
                await self._update()
            if self._ready:
                return
            await self._wait()

    def _note_done(self) -> None:
        """Note that the program is done with its events."""
        last = self._ready.last
        self._ready.release()
        if last is not None and (feed := self._feeds.get(last.segment)) is not None:
            feed.position = last.end_offset

    async def _wait(self) -> None:
        """Wait for a piece of a segment, or until the group's state has to be looked at."""
        with anyio.move_on_after(max(0.0, self._ready.due - self._clock())):
            await self._pieces.wait()
            piece = self._pieces.take()
            if isinstance(piece, Exception):
                self._error = piece
                raise piece
            # It may be the last one of a segment that was given up.
            segment = piece.segment if isinstance(piece, _Ended) else piece[0].segment
            feed = self._feeds.get(segment)
            if feed is None:
                return
            if isinstance(piece, _Ended):
                feed.position, feed.ended = piece.offset, piece.found
                self._ready.due = 0.0
            else:
                self._ready.replace(piece)
                self._ready_segment = segment

    # ---- The state of the group ------------------------------------------------------------------

    def _join(self, state: GroupState) -> list[Change]:
        if self.name in state.assigned:
            raise ConflictError(
                f"reader group {self._log.name} has a reader {self.name} already: remove it if it"
                " has vanished"
            )
        return [ReaderAdded(self.name)]

    def _note_losses(self, state: GroupState) -> None:
        """Note when the reader was removed, even if one of its name has joined since, and give up
        segments that it has lost, even if they have come back since."""
        self._is_removed |= self.name not in state.assigned
        if not self._is_removed:
            self._give_up(self._feeds.keys() - state.assigned[self.name].keys())

    def _leave(self, state: GroupState) -> list[Change]:
        return [] if self._is_removed else self._membership.leave(state, self.positions)

    async def _update(self) -> None:
        """Do what the group wants of this reader now."""
        try:
            await self._update_state()
        except ReaderRemovedError:
            self._error = RemovedFromGroupError(
                f"reader {self.name} is not in reader group {self._log.name} any more: it was"
                " removed, or the group was reset"
            )
            raise self._error from None
        if self._log.state.is_at_end:
            raise StopAsyncIteration

    async def _update_state(self) -> None:
        member, now = self._membership, self._clock()
        if member.needs_refresh(now):
            state = await self._log.read()
            member.note_refresh(state, now)
            if state.is_updating:
                await self._follow_configuration(now)
            await self._log.compact_if_long()
        member.check(self._log.state)
        await self._make_changes(None)
        while (checkpoint := member.find_checkpoint(self._log.state)) is not None:
            if self._on_checkpoint is not None:
                await self._on_checkpoint(checkpoint, self.positions)
            await self._make_changes(checkpoint)
        await self._publish_checkpoint()
        self._ready.due = member.due_at(self._log.state)

    async def _make_changes(self, reached: str | None) -> None:
        member, now = self._membership, self._clock()

        def decide(state: GroupState) -> list[Change]:
            if self._is_removed:
                raise ReaderRemovedError(self.name)
            ended = {name: each.ended for name, each in self._feeds.items() if each.ended}
            return member.decide(state, now, self.positions, ended, reached)

        changes = await self._log.change(decide)
        state = self._log.state
        member.check(state)
        member.note_changes(state, changes, now)
        self._follow_assignments(state)

    async def _publish_checkpoint(self) -> None:
        """Tell the controller of the last checkpoint, if retention goes by it."""
        state = self._log.state
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
                self._log.name,
                settings,
                cut,
            )
            # A refusal concerns retention alone; the next checkpoint is told again.
            with suppress(PravegaError):
                await call_blocking(publish)
        await self._log.change(lambda _: [CheckpointPublished(is_published=True)])

    async def _follow_configuration(self, now: float) -> None:
        """Let the group begin anew with the controller's configuration, if nobody else does."""
        if now < self._update_at:
            return
        if self._update_at == 0.0:
            self._update_at = now + UPDATE_SECONDS
            return
        self._update_at = 0.0
        begun = await call_blocking(
            partial(find_configured, self._controller, self._scope, self._group)
        )
        generation = GroupSettings.decode(begun.configuration).generation or 0

        def begin(state: GroupState) -> list[Change]:
            return [begun] if (state.generation or 0) < generation else []

        await self._log.change(begin)

    # ---- Segments --------------------------------------------------------------------------------

    def _follow_assignments(self, state: GroupState) -> None:
        """Read the segments that the reader has in the state, and no others."""
        mine = state.assigned[self.name]
        self._give_up(self._feeds.keys() - mine.keys())
        for name in mine.keys() - self._feeds.keys():
            self._open(name, mine[name], state.ends.get(name))

    def _give_up(self, segments: Set[str]) -> None:
        """Read these segments no more."""
        for name in segments:
            self._feeds.pop(name).scope.cancel()
        if self._ready_segment in segments:
            self._ready.replace([])

    def _open(self, name: str, offset: int, end: int | None) -> None:
        assert self._tasks is not None
        feed = self._feeds[name] = _OpenFeed(offset, anyio.CancelScope())
        segment = parse_segment_name(name)
        cursor = EventCursor(segment.segment_id, name, offset, end)
        # A negative offset is the end of a segment that was read.
        cursor.is_sealed = offset < 0
        self._tasks.start_soon(self._read, feed, cursor)

    async def _read(self, feed: _OpenFeed, cursor: EventCursor) -> None:
        """Deliver the events of one segment, then the end."""
        segment = parse_segment_name(cursor.name)
        key = segment.scope, segment.stream
        if key not in self._accesses:
            self._accesses[key] = self._controller.store_access(*key, Purpose.READ)
        source = SegmentFeed(
            self._controller,
            *key,
            cursor,
            access=self._accesses[key],
            patience=self._patience,
        )

        with feed.scope:
            try:
                await source.read(self._pieces.put)
                offset = -1 if cursor.is_sealed else cursor.offset
                found = await find_ended(source, cursor)
                await self._pieces.put(_Ended(cursor.name, offset, found))
            except PravegaError as error:
                # The other segments wait until the reader is left.
                await self._pieces.put(error)


async def find_ended(feed: SegmentFeed, cursor: EventCursor) -> EndedSegment:
    """Return what follows a segment that was read, as the group's state has it."""
    if cursor.end is not None:
        # The group ends in this segment.
        return EndedSegment()
    segment = parse_segment_name(cursor.name)
    successors = {
        segment_name(segment.scope, segment.stream, each.range.segment_id): each
        for each in await feed.find_successors()
    }
    return EndedSegment(
        {name: sorted(each.predecessors) for name, each in successors.items()},
        {name: (each.range.low, each.range.high) for name, each in successors.items()},
    )
