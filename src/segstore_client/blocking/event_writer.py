"""Writes events to a stream, each exactly once, through restarts and scalings.

Owns: one writer per segment.

Invariants:
1. When a stream is scaled while events are under way, the unacknowledged events of a sealed segment
   go to its successors before any later event of the same keys. So the events of one key are stored
   in the order of the calls.
   Held by ``test_events_in_flight_follow_their_keys_through_scalings`` and
   ``test_long_events_follow_their_keys_through_scalings``.
2. When segment stores are killed and restarted, each event is stored exactly once.
   Held by ``test_nothing_is_lost_or_doubled_when_the_segment_store_is_killed``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Generic, Self

from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.append_session import AppendSession, Event
from pravega_wire.sessions.routes import Routes, Successor
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import PATIENCE_SECONDS, Patience
from segstore_client.blocking.calls import repeat_calls
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.cuts.writer_times import WriterTimes
from segstore_client.delays import OnDelay
from segstore_client.errors import PravegaError, StreamSealedError
from segstore_client.inputs import to_position
from segstore_client.serializers import BYTES, Serializer, T


class BlockingEventWriter(Generic[T]):
    """Writes events to a stream. Use it in one thread, within a ``with`` block.

    ``write`` returns when the event is stored, ``submit`` earlier; ``flush`` returns when all
    events are. Leaving the block without an error flushes. ``patience`` is the number of seconds
    for which servers may be unreachable, or delay requests. ``on_delay`` is called once a second
    with the reason of a delay.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] = BYTES,
        patience: float = PATIENCE_SECONDS,
        on_delay: OnDelay | None = None,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._encode = serializer.encoder
        self._patience = Patience(patience)
        self._on_delay = on_delay
        self._retired_events = 0
        self._random = random.Random()
        self._times = WriterTimes(controller, scope, stream)
        current = controller.current_segments(scope, stream)
        self._access = controller.store_access(scope, stream, Purpose.WRITE)
        if not current.ranges:
            raise StreamSealedError(f"stream {scoped_name(scope, stream)} is sealed")
        self._routes = Routes(current.ranges)
        self._segment_writers = {
            segment: self._new_writer(segment) for segment in self._routes.segments
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_type is None:
                self.flush()
                # Watermarks do not wait long for the times of a writer that was not removed.
                with suppress(PravegaError):
                    self._times.end()
        finally:
            self.close()

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
        """Close the connections, without waiting for anything."""
        for writer in self._writers():
            writer.disconnect()

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
        unreachable for too long.
        """
        event = self._encode(data)
        position = self._random.random() if key is None else to_position(key)
        writer = self._route(position)
        if writer.add((position, event)):
            self._drive(writer, drain=False)

    def send(self) -> None:
        """Send every event that waits for its batch to fill, without waiting for an answer."""
        for writer in self._writers():
            self._drive(writer, drain=False)

    def flush(self) -> None:
        """Wait until every event written so far is stored."""
        # When a segment ends here, its successors get its events to send, hence the loop.
        while busy := [writer for writer in self._writers() if not writer.is_idle]:
            for writer in busy:
                self._drive(writer, drain=False)
            for writer in busy:
                self._drive(writer, drain=True)

    def note_time(self, time: datetime) -> None:
        """Wait until all events are stored, and record that the stream has all events of this
        writer up to a time: readers may begin and end at times.

        Raises ``UsageError`` for a time before the last one, and errors as ``flush``.
        """
        self.flush()
        self._times.record(time)

    def _writers(self) -> list[SegmentWriter]:
        return list(self._segment_writers.values())

    def _new_writer(self, segment: int) -> SegmentWriter:
        locate = partial(self._controller.segment_address, self._scope, self._stream, segment)
        name = segment_name(self._scope, self._stream, segment)
        session = AppendSession[Event](os.urandom(16), takes_long=True)
        return SegmentWriter(
            name, locate, access=self._access, on_delay=self._on_delay, session=session
        )

    def _route(self, position: float) -> SegmentWriter:
        return self._segment_writers[self._routes.find(position)]

    def _drive(self, writer: SegmentWriter, *, drain: bool) -> None:
        """Send a writer's batch and receive replies as ``SegmentWriter.drive`` does.

        If the segment has ended, its successors get the events that are not stored.
        """
        try:
            writer.drive(self._patience, drain=drain)
        except SegmentEndedError:
            self._replace(writer)

    def _replace(self, ended: SegmentWriter) -> None:
        """Replace a segment that has ended by its successors, which get its unstored events."""
        (segment,) = (key for key, writer in self._segment_writers.items() if writer is ended)
        successors = self._ask_successors(segment)
        events = ended.release()
        if not successors:
            raise StreamSealedError(
                f"stream {scoped_name(self._scope, self._stream)} is sealed;"
                f" {len(events)} events were not stored"
            )
        self._retired_events += ended.acknowledged_events
        self._hand_over({segment}, successors)
        for event in events:
            self._route(event[0]).add(event)

    def _hand_over(self, ended: Iterable[int], successors: Iterable[Successor]) -> None:
        """Give the keys of segments that have ended to their successors."""
        ranges = [each.range for each in successors]
        for segment in ended:
            del self._segment_writers[segment]
            for new in self._routes.replace(segment, ranges):
                self._segment_writers[new] = self._new_writer(new)

    def _ask_successors(self, segment: int) -> tuple[Successor, ...]:
        ask = partial(self._controller.successors, self._scope, self._stream, segment)
        name = scoped_name(self._scope, self._stream)
        return repeat_calls(ask, self._patience, f"{name} could not be written to")
