"""Events of keys, as a program that blocks hands them over to a writer or a transaction.

Owns: one writer for each segment, the map from keys to them, and the bound of what waits. There is
no thread: what waits is sent, and replies are taken, by the calls of the program.

Invariants:
1. When ``buffer_bytes`` wait to be stored, ``submit`` waits, and ``write_nowait`` raises, so that
   memory is bounded. Held by ``test_a_writer_that_blocks_takes_no_more_than_its_buffer``.
2. When a call is interrupted while segments are replaced, each event is stored once, in the order
   of its key. Held by ``test_events_are_stored_once_however_a_replacement_is_interrupted``.
3. When the writer is closed, each call raises ``WriterClosedError``, and connects to nothing. Held
   by ``test_a_writer_that_is_closed_says_so``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from pravega_wire.codec import HEADER_BYTES
from pravega_wire.names import scoped_name
from pravega_wire.sessions.append_session import Event
from pravega_wire.sessions.routes import Routes, SegmentRange
from pravega_wire.sessions.time_limits import call_within
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import Patience
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.errors import BufferFullError, PravegaError, WriterClosedError
from segstore_client.inputs import to_position
from segstore_client.serializers import Serializer, T


class BlockingAcknowledgement:
    """Tells whether an event is stored, and waits for it. ``write_nowait`` gives it."""

    __slots__ = ("_number", "_owner", "writer")

    def __init__(self, owner: BlockingKeyedWriter[Any], writer: SegmentWriter, number: int) -> None:
        self._owner = owner
        self.writer = writer
        self._number = number

    @property
    def is_done(self) -> bool:
        """Return whether the event is known to be stored, by the replies that were taken: calls of
        the writer take them."""
        return self.writer.session.stored_number >= self._number

    def wait(self, *, timeout: float | None = None) -> None:
        """Return when the event is stored.

        Raises ``TimedOutError`` after ``timeout`` seconds, and errors as ``flush``.
        """
        call_within(timeout, self._wait)

    def follow(self, writer: SegmentWriter) -> None:
        """Note that the event is the last one of another segment now."""
        self.writer, self._number = writer, writer.session.last_number

    def _wait(self) -> None:
        while not self.is_done:
            self._owner.drain(self)


class BlockingKeyedWriter(ABC, Generic[T]):
    """Writes events to segments of one stream, by their keys. Use it in one thread."""

    def __init__(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        patience: float,
        buffer_bytes: int,
    ) -> None:
        self._scope = scope
        self._stream = stream
        self._name = scoped_name(scope, stream)
        self._encode = serializer.encoder
        self._patience = Patience(patience)
        self._buffer_bytes = buffer_bytes
        self._buffered_bytes = 0
        """At least the number of bytes that may not be stored."""
        self._retired_events = 0
        self._random = random.Random()
        self._closed: PravegaError | None = None
        self._routes = Routes(())
        self._segment_writers: dict[int, SegmentWriter] = {}
        self._moving: deque[Event] = deque()
        """The unstored events of segments that have ended; each call moves them on first."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}>"

    @property
    def acknowledged_events(self) -> int:
        """Return the number of events that were acknowledged."""
        return self._retired_events + sum(w.acknowledged_events for w in self._writers())

    @property
    def sent_events(self) -> int:
        """Return the number of events that may be stored: those that were acknowledged, and those
        that were sent and have no answer yet."""
        return self._retired_events + sum(w.sent_events for w in self._writers())

    def close(self) -> None:
        """Close the connections, without waiting for anything. Idempotent."""
        self._shut(f"the writer of {self._name} is closed")

    def write(self, data: T, *, key: str | None = None) -> None:
        """Write an event, and those before it; return when they are stored. Raises errors as
        ``submit``."""
        self.submit(data, key=key)
        self.flush()

    def submit(self, data: T, *, key: str | None = None) -> None:
        """Queue an event as soon as there is room for it; without a key it goes to any segment.

        What is queued is sent in batches: by the event that fills one, by ``send`` and ``flush``.
        An event over 8 MiB is sent at once, in pieces that readers see together, after all that
        was sent before it is stored. Raises ``UsageError`` for an event that is too long,
        ``StreamSealedError`` when the stream has been sealed, ``UnavailableError`` when servers are
        unreachable for too long, and ``WriterClosedError`` after the end of the block.
        """
        event, position = self._encode(data), self._find_position(key)
        self._prepare()
        while self._buffered_bytes >= self._buffer_bytes and not self._has_room():
            fullest = max(self._writers(), key=lambda each: each.session.unacknowledged_bytes)
            self._drive(fullest, drain=True)
        writer = self._route(position)
        is_ready = writer.add((position, event))
        self._buffered_bytes += len(event) + HEADER_BYTES
        if is_ready:
            self._drive(writer, drain=False)

    def write_nowait(self, data: T, *, key: str | None = None) -> BlockingAcknowledgement:
        """Queue an event without waiting for replies; return what waits for its storage.

        The event that fills a batch sends it. Raises ``BufferFullError`` when there is no room, and
        errors as ``submit``.
        """
        event, position = self._encode(data), self._find_position(key)
        self._prepare()
        writer = self._route(position)
        if self._buffered_bytes >= self._buffer_bytes or writer.session.is_full:
            for each in self._writers():
                self._try(each, each.take_arrived)
            writer = self._route(position)
            if not self._has_room() or writer.session.is_full:
                raise BufferFullError(f"{self._buffered_bytes} bytes wait to be stored")
        acknowledgement = BlockingAcknowledgement(self, writer, writer.session.last_number + 1)
        is_ready = writer.add((position, event, acknowledgement))
        self._buffered_bytes += len(event) + HEADER_BYTES
        if is_ready:
            self._try(writer, lambda: writer.send(self._patience))
        return acknowledgement

    def send(self) -> None:
        """Send every event that waits for its batch to fill, without waiting for an answer."""
        self._prepare()
        for writer in self._writers():
            self._drive(writer, drain=False)

    def flush(self) -> None:
        """Wait until every event written so far is stored. Raises errors as ``submit``."""
        self._prepare()
        # When a segment ends here, its successors get its events to send, hence the loop.
        while busy := [writer for writer in self._writers() if not writer.is_idle]:
            for writer in busy:
                self._drive(writer, drain=False)
            for writer in busy:
                self._drive(writer, drain=True)

    def drain(self, acknowledgement: BlockingAcknowledgement) -> None:
        """Wait until what the segment of an event got so far is stored, or given to others."""
        self._prepare()
        self._drive(acknowledgement.writer, drain=True)

    # ---- Segments --------------------------------------------------------------------------------

    @abstractmethod
    def _new_writer(self, segment: int) -> SegmentWriter:
        """Return a writer of one segment."""

    @abstractmethod
    def _replace(self, ended: SegmentWriter) -> None:
        """Do what is to be done with the unstored events of a segment that has ended."""

    def _begin(self, ranges: Iterable[SegmentRange]) -> None:
        self._routes = Routes(ranges)
        self._segment_writers = {each: self._new_writer(each) for each in self._routes.segments}

    def _prepare(self) -> None:
        """Do what comes before each call. Raises ``WriterClosedError`` after the end."""
        if self._closed is not None:
            raise type(self._closed)(*self._closed.args)
        if self._moving:
            self._move()

    def _shut(self, sentence: str) -> None:
        """Take no more events, for the reason in a sentence, and close the connections."""
        if self._closed is None:
            self._closed = WriterClosedError(sentence)
        for writer in self._writers():
            writer.disconnect()

    def _writers(self) -> list[SegmentWriter]:
        return list(self._segment_writers.values())

    def _route(self, position: float) -> SegmentWriter:
        return self._segment_writers[self._routes.find(position)]

    def _find_position(self, key: str | None) -> float:
        return self._random.random() if key is None else to_position(key)

    def _has_room(self) -> bool:
        self._buffered_bytes = sum(each.session.unacknowledged_bytes for each in self._writers())
        return self._buffered_bytes < self._buffer_bytes

    def _drive(self, writer: SegmentWriter, *, drain: bool) -> None:
        """Send a writer's batch and receive replies as ``SegmentWriter.drive`` does."""
        self._try(writer, lambda: writer.drive(self._patience, drain=drain))

    def _try(self, writer: SegmentWriter, act: Callable[[], None]) -> None:
        """Call ``act``, unless the writer's segment was replaced meanwhile. When the segment has
        ended, its successors get the events that are not stored."""
        if writer not in self._segment_writers.values():
            return
        try:
            act()
        except SegmentEndedError:
            self._replace(writer)

    def _hand_over(
        self, ended: Iterable[int], successors: Sequence[SegmentRange], events: Iterable[Event]
    ) -> None:
        """Give the keys of segments that have ended to their successors, and their unstored
        events."""
        routes, writers = self._routes.copy(), dict(self._segment_writers)
        retired, moving = self._retired_events, deque(events)
        for segment in ended:
            retired += writers.pop(segment).acknowledged_events
            for new in routes.replace(segment, successors):
                writers[new] = self._new_writer(new)
        # Python interrupts calls, and this line has none: it is done as a whole, or not at all.
        self._routes, self._segment_writers, self._retired_events, self._moving = (
            routes,
            writers,
            retired,
            moving,
        )
        self._move()

    def _move(self) -> None:
        """Add the events of segments that have ended to their successors."""
        while self._moving:
            event = self._moving[0]
            writer = self._route(event[0])
            # An interrupt may have come behind the call that added it.
            if writer.session.last_event is not event:
                writer.add(event)
            acknowledgement = event[-1]
            if isinstance(acknowledgement, BlockingAcknowledgement):
                acknowledgement.follow(writer)
            del self._moving[0]
