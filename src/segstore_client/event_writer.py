"""Writes events to a stream, each once, through restarts and scalings, without blocking.

Owns: one pump for each segment, the map from keys to segments, and the bound of what waits.

Invariants:
1. When a stream is scaled while events are under way, the events of one key are stored in the order
   in which they were handed over. Held by ``test_events_follow_their_keys_through_scalings``.
2. When ``BUFFER_BYTES`` wait to be stored, ``submit`` waits and ``write_nowait`` raises, so that
   memory is bounded. Held by ``test_a_writer_takes_no_more_than_its_buffer``.
3. When the writer has failed, each event that is not stored gets the error, and so does each later
   call. Held by ``test_an_error_reaches_all_who_wait``.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from pravega_blocking.backoff import Patience
from pravega_blocking.controller_client import ControllerClient, Purpose
from pravega_blocking.delays import OnDelay
from pravega_blocking.errors import PravegaError, StreamSealedError, UsageError
from pravega_wire.errors import EventTooLongError
from pravega_wire.hashing import routing_key_hash
from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.append_session import HEADER_BYTES
from pravega_wire.sessions.routes import Routes
from segstore_client.acknowledgement import Acknowledgement
from segstore_client.calls import call_blocking, repeat_calls
from segstore_client.segment_pump import SegmentPump

PATIENCE_SECONDS = 60.0
BUFFER_BYTES = 16 * 1024 * 1024


class WriterClosedError(PravegaError):
    """The writer was left, or never entered."""


class EventWriter:
    """Writes events to one stream. Use it in an ``async with`` block; leaving it without an error
    waits until all events are stored.

    ``Store.writer`` makes it. All tasks of a program may use one writer.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        patience: float = PATIENCE_SECONDS,
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None = None,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._name = scoped_name(scope, stream)
        self._patience = patience
        self._buffer_bytes = buffer_bytes
        self._on_delay = on_delay
        self._access = controller.store_access(scope, stream, Purpose.WRITE)
        self._pumps: dict[int, SegmentPump] = {}
        self._routes: Routes | None = None
        self._replacements = 0
        """Number of segments that have ended."""
        self._waiting_bytes = 0
        self._room = anyio.Event()
        self._error: Exception | None = None
        self._random = random.Random()
        self._group: TaskGroup | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        current = await call_blocking(
            partial(self._controller.current_segments, self._scope, self._stream)
        )
        if not current.ranges:
            raise StreamSealedError(f"stream {self._name} is sealed")
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        self._routes = Routes(current.ranges)
        for segment in self._routes.segments:
            self._start_pump(segment)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._group is not None
        try:
            if exc_type is None:
                await self.flush()
        finally:
            self._group.cancel_scope.cancel()
            await self._stack.aclose()
            self.fail(WriterClosedError(f"the writer of {self._name} is closed"))

    # ---- Events ----------------------------------------------------------------------------------

    async def write(self, data: bytes, *, key: str | None = None) -> None:
        """Write an event; return when it is stored. Events of one key are stored in order.

        Raises ``UsageError`` for an event over 8 MiB, ``StreamSealedError`` when the stream has
        been sealed, ``UnavailableError`` when servers are unreachable for too long. When it is
        cancelled, the event may be stored or not.
        """
        await (await self.submit(data, key=key))

    async def submit(self, data: bytes, *, key: str | None = None) -> Acknowledgement:
        """Queue an event as soon as there is room for it; return what to await for its
        storage. Raises errors as ``write``."""
        while not self._has_room() and self._error is None:
            await self._room.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return self._add(data, key)

    def write_nowait(self, data: bytes, *, key: str | None = None) -> Acknowledgement:
        """Queue an event; return what to await for its storage.

        Raises ``anyio.WouldBlock`` when there is no room, and errors as ``write``.
        """
        if not self._has_room() and self._error is None:
            raise anyio.WouldBlock
        return self._add(data, key)

    async def flush(self) -> None:
        """Wait until every event that was handed over so far is stored. Raises errors as
        ``write``."""
        await anyio.lowlevel.checkpoint()
        replacements = -1
        # When a segment ends meanwhile, its last event may be stored before the others are.
        while replacements != self._replacements:
            replacements = self._replacements
            last = [pump.session.last_event for pump in self._pumps.values()]
            for event in last:
                if event is not None:
                    await event[2]
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error

    def _add(self, data: bytes, key: str | None) -> Acknowledgement:
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error
        if self._routes is None:
            raise WriterClosedError(f"the writer of {self._name} is not entered")
        position = self._random.random() if key is None else routing_key_hash(key)
        acknowledgement = Acknowledgement()
        try:
            self._pumps[self._routes.find(position)].add((position, data, acknowledgement))
        except EventTooLongError as error:
            raise UsageError(str(error)) from None
        self._waiting_bytes += len(data) + HEADER_BYTES
        return acknowledgement

    def _has_room(self) -> bool:
        return self._waiting_bytes < self._buffer_bytes

    # ---- What pumps tell -------------------------------------------------------------------------

    def take_acknowledged(self, byte_count: int) -> None:
        """Take note that events, of so many bytes with their headers, are stored."""
        self._waiting_bytes -= byte_count
        if self._has_room():
            self._room.set()
            self._room = anyio.Event()

    async def replace(self, pump: SegmentPump) -> None:
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
            self._start_pump(segment)
        for event in events:
            self._pumps[self._routes.find(event[0])].add(event)

    def fail(self, error: Exception) -> None:
        """End the writer: each event that is not stored gets the error."""
        if self._error is None:
            self._error = error
        for pump in self._pumps.values():
            for event in pump.session.release():
                event[2].complete(self._error)
        self._room.set()

    def _start_pump(self, segment: int) -> None:
        assert self._group is not None
        locate = partial(self._controller.segment_address, self._scope, self._stream, segment)
        pump = SegmentPump(
            segment,
            segment_name(self._scope, self._stream, segment),
            locate,
            self,
            access=self._access,
            patience=self._patience,
            on_delay=self._on_delay,
        )
        self._pumps[segment] = pump
        self._group.start_soon(pump.run)
