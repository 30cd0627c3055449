"""Records the times up to which a writer has written everything, by which a time is a stream cut.

Owns: the name of the writer at the controller, which makes the watermarks of a stream of the times
of all of its writers.

A position is the tail of the stream when the time is recorded: all events of the writer lie before
it.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from pravega_wire.names import scoped_name
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import tail_offsets
from segstore_client.errors import StreamSealedError, UsageError
from segstore_client.inputs import to_milliseconds


class WriterTimes:
    """The times of one writer. Its events must be stored before their time is recorded."""

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, patience: float
    ) -> None:
        self._controller = controller
        self._patient = controller.with_patience(patience)
        self._scope = scope
        self._stream = stream
        self._writer = str(uuid.uuid4())
        self._last_ms: int | None = None
        """The time that was recorded last."""

    def record(self, time: datetime) -> None:
        """Record that the writer has written all of its events up to a time.

        Raises ``UsageError`` for a time before the last one of this writer, or without a zone, and
        ``StreamSealedError`` for a sealed stream.
        """
        time_ms = to_milliseconds(time)
        name = scoped_name(self._scope, self._stream)
        # The controller forgets a writer that it does not wait for any more.
        if self._last_ms is not None and time_ms < self._last_ms:
            raise UsageError(f"the time of a writer of {name} went back")
        position = tail_offsets(self._patient, self._scope, self._stream)
        if not position:
            raise StreamSealedError(f"stream {name} is sealed, so its times have ended")
        self._patient.note_time(
            self._scope,
            self._stream,
            writer=self._writer,
            time_ms=time_ms,
            position=position,
        )
        self._last_ms = time_ms

    def end(self) -> None:
        """Tell the controller, if it knows the writer, not to wait for its times any more."""
        if self._last_ms is not None:
            self._controller.remove_writer(self._scope, self._stream, writer=self._writer)
