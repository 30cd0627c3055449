"""Writes events to a stream, each exactly once, through restarts and scalings.

Owns: the successors of a segment that has ended. The rest is that of ``BlockingKeyedWriter``.

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
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self

from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.append_session import BUFFER_BYTES, AppendSession, Event
from pravega_wire.sessions.routes import Successor
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.blocking.keyed_writer import BlockingKeyedWriter
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.repeats import repeat_calls
from segstore_client.cuts.writer_times import WriterTimes
from segstore_client.delays import OnDelay
from segstore_client.errors import PravegaError, StreamSealedError
from segstore_client.serializers import BYTES, Serializer, T


class BlockingEventWriter(BlockingKeyedWriter[T]):
    """Writes events to a stream. Use it in one thread, within a ``with`` block.

    ``write`` returns when the event is stored, ``submit`` earlier; ``flush`` returns when all
    events are. Leaving the block without an error flushes. ``patience`` is the number of seconds
    for which servers may be unreachable, or delay requests. ``buffer_bytes`` bounds what is handed
    over and not stored yet. ``on_delay`` is called once a second with the reason of a delay.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] = BYTES,
        patience: float = PATIENCE_SECONDS,
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None = None,
    ) -> None:
        super().__init__(
            scope, stream, serializer=serializer, patience=patience, buffer_bytes=buffer_bytes
        )
        self._controller = controller
        self._on_delay = on_delay
        self._times = WriterTimes(controller, scope, stream, patience=patience)
        current = controller.with_patience(patience).current_segments(scope, stream)
        self._access = controller.store_access(scope, stream, Purpose.WRITE)
        if not current.ranges:
            raise StreamSealedError(f"stream {scoped_name(scope, stream)} is sealed")
        self._begin(current.ranges)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_type is None and self._closed is None:
                self.flush()
                # Watermarks do not wait long for the times of a writer that was not removed.
                with suppress(PravegaError):
                    self._times.end()
        finally:
            self.close()

    def note_time(self, time: datetime) -> None:
        """Wait until all events are stored, and record that the stream has all events of this
        writer up to a time: readers may begin and end at times.

        Raises ``UsageError`` for a time before the last one of this writer, and errors as
        ``flush``. A new writer may begin before the times that others have recorded: it counts when
        it comes behind them.
        """
        self.flush()
        self._times.record(time)

    def _new_writer(self, segment: int) -> SegmentWriter:
        locate = partial(self._controller.segment_address, self._scope, self._stream, segment)
        name = segment_name(self._scope, self._stream, segment)
        session = AppendSession[Event](os.urandom(16), takes_long=True)
        return SegmentWriter(
            name, locate, access=self._access, on_delay=self._on_delay, session=session
        )

    def _replace(self, ended: SegmentWriter) -> None:
        """Replace a segment that has ended by its successors, which get its unstored events."""
        (segment,) = (key for key, writer in self._segment_writers.items() if writer is ended)
        successors = [each.range for each in self._ask_successors(segment)]
        events = ended.session.unacknowledged_events
        if not successors:
            raise self._sealed(len(events))
        self._hand_over([segment], successors, events)

    def _ask_successors(self, segment: int) -> tuple[Successor, ...]:
        ask = partial(self._controller.successors, self._scope, self._stream, segment)
        return repeat_calls(ask, self._patience, f"{self._name} could not be written to")

    def _sealed(self, lost: int) -> StreamSealedError:
        return StreamSealedError(f"stream {self._name} is sealed; {lost} events were not stored")
