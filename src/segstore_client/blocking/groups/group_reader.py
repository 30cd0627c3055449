"""Reads the events of a group's streams, together with the other readers of the group, for a
program that blocks.

Owns: the segments that the reader has now, and the pieces of them that the program has not got.
What the reader does, and when, is that of ``ReaderSteps``.

There is no thread: the reader looks at the group's state, takes segments and gives them up, and
reaches checkpoints only while it is asked for events. One that is not asked keeps its segments.

Invariants:
1. When readers come and go, each event is read once, and the events of a key in order. Held by
   ``test_readers_that_block_share_streams_through_scalings``.
2. When a reader vanishes, another one continues at its last checkpoint once it was removed. Held by
   ``test_a_reader_that_blocks_and_vanished_is_replaced``.
3. When a call is interrupted, the next one gives the event that it would have given. Held by
   ``test_a_reader_that_is_interrupted_loses_nothing``.
4. When Java readers and async ones are in the group, too, all of this holds. Held by
   ``test_a_group_of_java_and_python_readers_reads_each_event``.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from _fast.wire.ready_events import ReadyEvents, ReadyLoop
from pravega_wire.names import parse_segment_name, scoped_name
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent
from pravega_wire.sessions.steps import run_steps
from pravega_wire.sessions.time_limits import call_unlimited, call_within
from segstore_client.access.tokens import StoreAccess
from segstore_client.blocking.groups.group_log import BlockingGroupLog
from segstore_client.blocking.segments.segment_reads import SegmentReads
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import ClosedError, OutOfTimeError, PravegaError, UnavailableError
from segstore_client.serializers import BYTES, Serializer, T
from segstore_client.steps.group_requests import Request, Steps, Tell, Wait
from segstore_client.steps.reader_steps import Piece, ReaderSteps, describe_end

R = TypeVar("R")
LEAVE_SECONDS_MAX = 10.0

OnCheckpoint = Callable[[str, Mapping[str, int]], None]


class _Segments:
    """The segments that a reader has now."""

    def __init__(self, controller: ControllerClient, *, patience: float) -> None:
        self._controller = controller
        self._reads = SegmentReads[ReadEvent[Any]](controller, patience=patience)
        self._cursors: dict[str, EventCursor] = {}
        """The positions in those whose ends have not come."""
        self._pieces: deque[tuple[str, list[ReadEvent[Any]]]] = deque()
        self._accesses: dict[tuple[str, str], StoreAccess] = {}

    def open(self, cursor: EventCursor) -> None:
        """Read the segment of a cursor from now on."""
        segment = parse_segment_name(cursor.name)
        key = segment.scope, segment.stream
        if key not in self._accesses:
            self._accesses[key] = self._controller.store_access(*key, Purpose.READ)
        self.close(cursor.name)
        self._cursors[cursor.name] = cursor
        self._reads.add(cursor, *key, access=self._accesses[key])

    def close(self, name: str) -> None:
        """Read a segment no more."""
        self._cursors.pop(name, None)
        self._reads.remove(name)
        self._pieces = deque(each for each in self._pieces if each[0] != name)

    def close_all(self) -> None:
        """Close the connections."""
        self._reads.close()

    def receive(self, timeout: float) -> Piece | None:
        """Return the next piece; None if there is none within ``timeout`` seconds."""
        try:
            if not self._pieces and (ended := self._find_ended()) is not None:
                return self._end(ended)
            if not self._pieces:
                found = self._reads.receive(timeout)
                self._pieces += [(cursor.name, events) for cursor, events in found]
        except OutOfTimeError:
            return None
        except PravegaError as error:
            return error
        return self._pieces.popleft()[1] if self._pieces else None

    def _find_ended(self) -> EventCursor | None:
        return next((each for each in self._cursors.values() if each.is_at_end), None)

    def _end(self, cursor: EventCursor) -> Piece:
        """Read no more of a segment that was read to its end, and return the end."""
        segment = parse_segment_name(cursor.name)
        successors = self._reads.find_successors(cursor, segment.scope, segment.stream)
        del self._cursors[cursor.name]
        self._reads.remove(cursor.name)
        return describe_end(cursor, successors)


class BlockingGroupReader(Generic[T]):
    """A reader of a group: a loop over it gives its events. Use it in one thread, within a ``with``
    block; it joins the group when it is made.

    Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if it has a reader of
    this name.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        group: str,
        name: str,
        *,
        serializer: Serializer[T] = BYTES,
        patience: float,
        on_checkpoint: OnCheckpoint | None = None,
    ) -> None:
        self.name = name
        self._group = scoped_name(scope, group)
        self._on_checkpoint = on_checkpoint
        self._log = BlockingGroupLog(controller, scope, group, patience=patience)
        self._segments = _Segments(controller, patience=patience)
        self._ready = ReadyEvents()
        """``is_unsure`` if the last call has not ended: what it had done is done again by the next
        one."""
        self._steps = ReaderSteps(
            controller,
            scope,
            group,
            name,
            state=self._log.state,
            segments=self._segments,
            ready=self._ready,
            decode=serializer.decoder,
            clock=None,
        )
        self._is_closed = False
        try:
            self._run(self._steps.join())
        except BaseException:
            with suppress(PravegaError):
                self._leave(is_done=False)
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._group}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(is_done=kind is None)

    def close(self) -> None:
        """Leave the group; the other readers continue behind the last event. Each call raises
        ``ClosedError`` then. Idempotent."""
        self._leave(is_done=True)

    def drop(self) -> None:
        """End without leaving the group, as a process does that is killed."""
        self._is_closed = True
        self._ready.replace([])
        self._segments.close_all()
        self._log.close()

    @property
    def positions(self) -> Mapping[str, int]:
        """Return the next offset of each segment that the reader has, by the segment's name: -1 at
        the end of a sealed one."""
        return self._steps.positions

    @property
    def is_finished(self) -> bool:
        """Return whether the group has read everything that there will be."""
        return self._steps.is_at_end

    def __iter__(self) -> Iterator[ReadEvent[T]]:
        return ReadyLoop(self._ready, self.next_event)

    def __next__(self) -> ReadEvent[T]:
        """Return the next event; it ends when the group has read everything that there will be.
        Raises errors as ``next_event``."""
        found = self.next_event()
        if found is None:
            raise StopIteration
        return found

    def next_event(self, *, timeout: float | None = None) -> ReadEvent[T] | None:
        """Return the next event; None after ``timeout`` seconds without one, or at the end. With 0
        it looks for what has come, without waiting; where it has to connect first, that takes up to
        a second.

        Raises ``RemovedFromGroupError`` if the reader was removed from the group, or the group was
        reset; ``PravegaError`` if a stream's bytes are no events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        if not self._ready.has_next and not self._prepare(timeout):
            return None
        # Behind a call, an interrupt might take the event away.
        event = self._ready.next
        del self._ready.next
        return event

    def batches(self) -> Iterator[list[ReadEvent[T]]]:
        """Yield lists of all events that are there.

        It ends, and raises errors, as a loop over events. Both can be used in turns.
        """
        while batch := self.next_batch():
            yield batch

    def next_batch(self, *, timeout: float | None = None) -> list[ReadEvent[T]]:
        """Return all events that are there, once there are some; none where ``next_event`` returns
        None. Raises errors as that."""
        if not self._prepare(timeout):
            return []
        batch = self._ready.rest
        del self._ready.rest
        return batch

    def _prepare(self, timeout: float | None) -> bool:
        """Do what the group wants now, and wait until there are events; return whether there
        are."""
        if self._is_closed:
            raise ClosedError(f"reader {self.name} is closed")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        if self._ready.is_unsure:
            # This may be interrupted, too.
            self._steps.rewind()
        self._ready.is_unsure = True
        try:
            found = call_within(timeout, lambda: self._run(self._steps.prepare(deadline)))
        except OutOfTimeError:
            # What the group wants is done by the next call.
            found = False
        except PravegaError:
            self._ready.is_unsure = False
            raise
        self._ready.is_unsure = False
        return found

    def _leave(self, *, is_done: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if is_done:
            self._steps.note_done()
        # Other readers get what is left.
        self._ready.replace([])
        self._segments.close_all()
        try:
            # Servers that are away would keep the program from ending.
            with suppress(UnavailableError, OutOfTimeError):
                call_within(LEAVE_SECONDS_MAX, lambda: self._run(self._steps.leave()))
        finally:
            self._log.close()

    def _run(self, steps: Steps[R]) -> R:
        return run_steps(steps, self._fulfil)

    def _fulfil(self, request: Request) -> Any:
        if isinstance(request, Wait):
            return self._segments.receive(request.seconds)
        if isinstance(request, Tell):
            tell = self._on_checkpoint
            if tell is not None:
                call_unlimited(lambda: tell(request.checkpoint, request.positions))
            return None
        return self._log.fulfil(request)
