"""Writes events to a stream, each once, through restarts and scalings, without blocking.

Owns: the events of a segment that has ended, which its successors get.

Invariants:
1. When a stream is scaled while events are under way, the events of one key are stored in the order
   in which they were handed over. Held by ``test_events_follow_their_keys_through_scalings``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Self

from pravega_wire.sessions.append_session import AppendSession
from segstore_client.backoff import Patience
from segstore_client.connections.calls import call_blocking, repeat_calls
from segstore_client.cuts.writer_times import WriterTimes
from segstore_client.errors import PravegaError, StreamSealedError
from segstore_client.serializers import T
from segstore_client.writing.keyed_writer import KeyedWriter
from segstore_client.writing.segment_pump import Event, SegmentPump


class EventWriter(KeyedWriter[T]):
    """Writes events to one stream. Use it in an ``async with`` block; leaving it without an error
    waits until all events are stored.

    ``Store.writer`` makes it. All tasks of a program may use one writer. An event over 8 MiB is
    written in pieces, which readers see together.
    """

    _times: WriterTimes

    async def __aenter__(self) -> Self:
        patient = self._controller.with_patience(self._patience)
        current = await call_blocking(partial(patient.current_segments, self._scope, self._stream))
        if not current.ranges:
            raise StreamSealedError(f"stream {self._name} is sealed")
        self._times = WriterTimes(
            self._controller, self._scope, self._stream, patience=self._patience
        )
        await self._start(current.ranges)
        return self

    async def note_time(self, time: datetime) -> None:
        """Wait until all that was handed over is stored, and record that it has all events up to a
        time: readers may begin and end at times.

        Raises ``UsageError`` for a time before the last one of this writer, and errors as
        ``write``. A new writer may begin before the times that others have recorded: it counts when
        it comes behind them.
        """
        await self.flush()
        await call_blocking(partial(self._times.record, time))

    async def _finish(self) -> None:
        await super()._finish()
        # Watermarks do not wait long for the times of a writer that was not removed.
        with suppress(PravegaError):
            await call_blocking(self._times.end)

    async def _replace(self, pump: SegmentPump) -> None:
        """Give the unstored events of a segment that has ended to its successors."""
        successors = await repeat_calls(
            partial(self._controller.successors, self._scope, self._stream, pump.segment),
            Patience(self._patience),
            f"{self._name} could not be written to",
        )
        # Nothing may be awaited from here on: other tasks add events of the same keys.
        assert self._routes is not None
        if not successors:
            raise StreamSealedError(f"stream {self._name} is sealed")
        self._replacements += 1
        events = pump.session.release()
        del self._pumps[pump.segment]
        for segment in self._routes.replace(pump.segment, [each.range for each in successors]):
            self._make_pump(segment)
        for event in events:
            self._pumps[self._routes.find(event[0])].move(event)

    def _new_session(self) -> AppendSession[Event]:
        return AppendSession(os.urandom(16), takes_long=True)
