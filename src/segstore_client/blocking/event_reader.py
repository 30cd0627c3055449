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
5. When a call is interrupted, the next one gives the event that it would have given. Held by
   ``test_a_reader_that_was_interrupted_loses_and_doubles_nothing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Self

from _fast.wire.ready_events import ReadyEvents, ReadyLoop
from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent, SegmentOrder
from pravega_wire.sessions.time_limits import call_within, find_wait_left
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.blocking.segments.segment_reads import SegmentReads
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.cuts.bounds import At, Bounds, find_bounds
from segstore_client.errors import ClosedError, OutOfTimeError, PravegaError
from segstore_client.frames import frame_schema, make_frame
from segstore_client.positions import Position
from segstore_client.serializers import BYTES, Serializer, T

if TYPE_CHECKING:
    import pyarrow as pa


class BlockingEventReader(Generic[T]):
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
        serializer: Serializer[T] = BYTES,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._ready = ReadyEvents()
        """``is_unsure`` if the last wait was interrupted."""
        self._reads = SegmentReads[ReadEvent[Any]](controller, patience=patience)
        self._order = SegmentOrder()
        self._cursors: dict[int, EventCursor] = {}
        self._positions: dict[int, int] = {}
        """The offset in each segment behind the events that the program had at its last wait."""
        self._reached: dict[int, int] = {}
        """The offsets behind the events that have come since."""
        self._decode = serializer.decoder
        self._is_closed = False
        self._access = controller.store_access(scope, stream, Purpose.READ)
        if bounds is None:
            patient = controller.with_patience(patience)
            bounds = find_bounds(patient, scope, stream, start=start, end=end)
        self._ends = bounds.ends
        for segment, offset in bounds.offsets.items():
            self._open_cursor(segment, offset)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {scoped_name(self._scope, self._stream)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections: each call raises ``ClosedError`` then. Idempotent."""
        self._is_closed = True
        self._ready.replace([])
        self._reads.close()

    def __iter__(self) -> Iterator[ReadEvent[T]]:
        return ReadyLoop(self._ready, self.next_event)

    def __next__(self) -> ReadEvent[T]:
        """Return the next event; it ends where reading was to stop, or at the end of a sealed
        stream. Raises errors as ``next_event``."""
        event = self.next_event()
        if event is None:
            raise StopIteration
        return event

    @property
    def is_finished(self) -> bool:
        """Return whether every event has been returned and the reader has reached its end."""
        return not self._ready and not self._cursors

    @property
    def has_event(self) -> bool:
        """Return whether ``next_event`` can return an event without asking a server."""
        return bool(self._ready)

    def next_event(self, *, timeout: float | None = None) -> ReadEvent[T] | None:
        """Return the next event; None after ``timeout`` seconds without one, or at the end. With 0
        it looks for what has come, without waiting; where it has to connect first, that takes up to
        a second.

        Raises ``PravegaError`` if the stream's bytes are not events, and ``UnavailableError`` when
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

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator of all events that are there as rows of Apache Arrow, as
        ``frame_schema`` describes them. Raises ``UsageError`` without ``pyarrow``."""
        frame_schema()
        return map(make_frame, self.batches())

    def next_batch(self, *, timeout: float | None = None) -> list[ReadEvent[T]]:
        """Return all events that are there, once there are some; none where ``next_event`` returns
        None. Raises errors as that."""
        if not self._prepare(timeout):
            return []
        batch = self._ready.rest
        del self._ready.rest
        return batch

    def _prepare(self, timeout: float | None) -> bool:
        """Wait until there are events; return whether there are."""
        if self._is_closed:
            raise ClosedError(f"the reader of {scoped_name(self._scope, self._stream)} is closed")
        if self._ready.is_unsure:
            self._rewind()
        if self._ready:
            return True
        self._positions.update(self._reached)
        self._reached.clear()
        try:
            call_within(timeout, self._wait)
        except OutOfTimeError:
            # The next call goes on from here.
            pass
        except PravegaError:
            raise
        except BaseException:
            self._ready.is_unsure = True
            raise
        return bool(self._ready)

    def _wait(self) -> None:
        while not self._ready and self._cursors:
            # Without time left, too: the next call goes on from here.
            self._attempt()
            if find_wait_left() <= 0.0:
                return

    def _attempt(self) -> None:
        """Request data, and process the replies that come in the time of the call."""
        # The successors of a completed segment may be at their ends already, hence the loop.
        while ended := [cursor for cursor in self._cursors.values() if cursor.is_at_end]:
            for cursor in ended:
                self._complete(cursor)
        if self._cursors:
            events: list[ReadEvent[Any]] = []
            for found, piece in self._reads.receive(None):
                events += piece
                self._reached[found.segment_id] = piece[-1].end_offset
            self._ready.replace(events)

    # ---- Segments --------------------------------------------------------------------------------

    def _open_cursor(self, segment: int, offset: int) -> None:
        # A call that was interrupted may have opened it.
        if segment not in self._cursors:
            self._positions[segment] = offset
            self._read_from(segment, offset)
        self._order.begin(segment)

    def _read_from(self, segment: int, offset: int) -> None:
        name = segment_name(self._scope, self._stream, segment)
        cursor = EventCursor(segment, name, offset, self._ends.get(segment), decode=self._decode)
        self._reads.remove(name)
        self._cursors[segment] = cursor
        self._reads.add(cursor, self._scope, self._stream, access=self._access)

    def _rewind(self) -> None:
        """Read each segment from the program's position on: what was on its way when a call was
        interrupted may be lost."""
        self._ready.replace([])
        self._reached.clear()
        for segment in self._cursors:
            self._read_from(segment, self._positions[segment])
        self._ready.is_unsure = False

    def _complete(self, cursor: EventCursor) -> None:
        """End a segment, and begin those successors all of whose predecessors have ended.

        If this is interrupted, the segment has not ended, and comes here again.
        """
        successors = self._reads.find_successors(cursor, self._scope, self._stream)
        for segment in self._order.complete(cursor.segment_id, successors):
            self._open_cursor(segment, 0)
        self._reads.remove(cursor.name)
        del self._cursors[cursor.segment_id]
