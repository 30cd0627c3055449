"""Reads the events of a stream, in the order of each routing key, through restarts and scalings.

Owns: one cursor per segment, and which segments are read.

Invariants:
1. When segments are merged or split, a successor is read only after all of its predecessors were
   read to their ends. Held by ``test_a_segment_is_read_after_all_of_its_predecessors``.
2. When a connection breaks, the reader requests the missing bytes again: no event is lost, and none
   is returned twice. Held by ``test_no_event_is_lost_or_doubled_when_connections_break``.
3. When events are written after a reader that ends at the tail was opened, it does not return them.
   Held by ``test_reading_ends_at_the_tail_at_which_the_reader_was_opened``.
4. When the stream is deleted and made again while it is read, the reader raises an error: it does
   not end as at the end of a sealed stream.
   Held by ``test_a_reader_of_a_stream_that_was_made_again_is_told_so``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from pravega_wire.names import segment_name
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent, SegmentOrder
from pravega_wire.sessions.routes import Successor
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.blocking.segments.segment_reads import SegmentReads, find_successors
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.cuts.bounds import At, Bounds, find_bounds
from segstore_client.frames import frame_schema, make_frame
from segstore_client.positions import Position

if TYPE_CHECKING:
    import pyarrow as pa


class BlockingEventReader:
    """Reads a stream. Use it in one thread, within a ``with`` block.

    It begins and ends at places of the stream, as ``find_bounds`` has them, or with ``bounds`` at
    these offsets, which need not be whole stream cuts. ``patience`` is the number of seconds for
    which servers may be unreachable.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        start: At = Position.HEAD,
        end: At | None = None,
        bounds: Bounds | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._patience = patience
        self._events: deque[ReadEvent] = deque()
        self._reads = SegmentReads[ReadEvent](controller, patience=patience)
        self._order = SegmentOrder()
        self._cursors: dict[int, EventCursor] = {}
        self._access = controller.store_access(scope, stream, Purpose.READ)
        if bounds is None:
            bounds = find_bounds(controller, scope, stream, start=start, end=end)
        self._ends = bounds.ends
        for segment, offset in bounds.offsets.items():
            self._open_cursor(segment, offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._reads.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReadEvent:
        """Return the next event; it ends where reading was to stop, or at the end of a sealed
        stream. Raises errors as ``next_event``."""
        event = self.next_event()
        if event is None:
            raise StopIteration
        return event

    @property
    def is_finished(self) -> bool:
        """Return whether every event has been returned and the reader has reached its end."""
        return not self._events and not self._cursors

    @property
    def has_event(self) -> bool:
        """Return whether ``next_event`` can return an event without asking a server."""
        return bool(self._events)

    def next_event(self, *, timeout: float | None = None) -> ReadEvent | None:
        """Return the next event; None after ``timeout`` seconds without one, or at the end.

        Raises ``PravegaError`` if the stream's bytes are not events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        return self._events.popleft() if self._prepare(timeout) else None

    def batches(self) -> Iterator[list[ReadEvent]]:
        """Yield lists of all events that are there.

        It ends, and raises errors, as a loop over events. Both can be used in turns.
        """
        while batch := self.next_batch():
            yield batch

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator of all events that are there as rows of Apache Arrow, as
        ``frame_schema`` describes them. Raises ``UsageError`` without ``pyarrow``."""
        frame_schema()
        return map(make_frame, self.batches())

    def next_batch(self, *, timeout: float | None = None) -> list[ReadEvent]:
        """Return all events that are there, once there are some; none where ``next_event`` returns
        None. Raises errors as that."""
        self._prepare(timeout)
        batch = list(self._events)
        self._events.clear()
        return batch

    def _prepare(self, timeout: float | None) -> bool:
        """Wait until there are events; return whether there are."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._events and self._cursors:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._attempt(left)
        return bool(self._events)

    def _attempt(self, timeout: float | None) -> None:
        """Request data, and process the replies within ``timeout`` seconds."""
        # The successors of a completed segment may be at their ends already, hence the loop.
        while ended := [cursor for cursor in self._cursors.values() if cursor.is_at_end]:
            for cursor in ended:
                self._complete(cursor)
        if self._cursors:
            for _, events in self._reads.receive(timeout):
                self._events.extend(events)

    # ---- Segments --------------------------------------------------------------------------------

    def _open_cursor(self, segment: int, offset: int) -> None:
        name = segment_name(self._scope, self._stream, segment)
        cursor = EventCursor(segment, name, offset, self._ends.get(segment))
        self._order.begin(segment)
        self._cursors[segment] = cursor
        self._reads.add(cursor, self._scope, self._stream, access=self._access)

    def _complete(self, cursor: EventCursor) -> None:
        """End a segment, and begin those successors all of whose predecessors have ended."""
        successors: tuple[Successor, ...] = ()
        # The controller tells of a segment that is gone whether the stream is another one now.
        if cursor.end is None or cursor.is_gone or cursor.pending:
            successors = find_successors(
                self._controller, self._scope, self._stream, cursor, patience=self._patience
            )
        del self._cursors[cursor.segment_id]
        self._reads.remove(cursor.name)
        if cursor.end is not None:
            successors = ()
        for segment in self._order.complete(cursor.segment_id, successors):
            self._open_cursor(segment, 0)
