"""A buffer in front of the segments that store what is written: events, or pieces of bytes.

Owns: one pump for each segment, the map from keys to segments, and the bound of what waits.

Invariants:
1. When ``buffer_bytes`` wait to be stored, a write waits, and ``write_nowait`` raises, so that
   memory is bounded. Held by ``test_a_writer_takes_no_more_than_its_buffer`` and
   ``test_a_byte_writer_takes_no_more_than_its_buffer``.
2. When the writer has failed, or its block is left, each event that is not stored gets the error,
   and so does each later call. Held by ``test_an_error_reaches_all_who_wait`` and
   ``test_a_block_that_is_cancelled_tells_all_who_wait``.
3. When a call that queues an event is cancelled, also by asyncio itself, the event is not queued.
   A busy program is cancelled at the next block, at the latest. Held by
   ``test_a_write_that_is_cancelled_has_taken_what_it_tells`` and
   ``test_a_busy_program_is_cancelled_at_the_next_block``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from pravega_wire.codec import HEADER_BYTES
from pravega_wire.errors import EventTooLongError
from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.append_session import BUFFER_BYTES, AppendSession
from pravega_wire.sessions.routes import Routes, SegmentRange
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.delays import OnDelay
from segstore_client.errors import BufferFullError, UsageError, WriterClosedError
from segstore_client.writing.acknowledgement import Acknowledgement
from segstore_client.writing.segment_pump import Event, SegmentPump


class _WouldBlockError(BufferFullError, anyio.WouldBlock):
    """AnyIO's error, too, of what would have to wait."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The part of a writer that its pumps see, and a program does not."""

    start: Callable[[SegmentPump], None]
    take_ready: Callable[[], None]
    take_acknowledged: Callable[[int], None]
    replace: Callable[[SegmentPump], Awaitable[None]]
    fail: Callable[[Exception], None]


class BufferedWriter(ABC):
    """Writes to the segments of one stream; a byte stream's pieces are events of this class."""

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
        self._owner = _Owner(
            self._start_pump, self._take_ready, self._take_acknowledged, self._replace, self._fail
        )
        self._routes: Routes | None = None
        self._replacements = 0
        """Number of segments that have ended."""
        self._waiting_bytes = 0
        self._is_block_ready = False
        """True when enough was added to be sent, and the pumps may not have run since."""
        self._is_clear = False
        """True when a call has looked whether it is cancelled, and no block was ready or stored
        since: a busy program looks once for a block, and not for each event."""
        self._room = anyio.Event()
        self._error: Exception | None = None
        self._group: TaskGroup | None = None
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}>"

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_type is None:
                await self._finish()
        finally:
            await self._stop()

    # ---- Buffer ----------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until all that was handed over so far is stored. Raises errors as ``write``."""
        await anyio.lowlevel.checkpoint()
        replacements = -1
        # When a segment ends meanwhile, its last event may be stored before the others are.
        while replacements != self._replacements:
            replacements = self._replacements
            last = [pump.session.last_event for pump in self._pumps.values()]
            for event in last:
                if event is not None:
                    await event[2]
        self._raise_error()

    async def _submit(self, data: bytes, position: float) -> Acknowledgement:
        """Queue an event for the segment of a position as soon as there is room for it; return what
        to await."""
        if not self._is_clear or not self._has_room():
            await self._wait_for_room()
        return self._add(data, position)

    def _submit_nowait(self, data: bytes, position: float) -> Acknowledgement:
        """Queue an event; return what to await. Raises ``BufferFullError`` without room."""
        if not self._has_room() and self._error is None:
            raise _WouldBlockError(f"{self._waiting_bytes} bytes wait to be stored")
        return self._add(data, position)

    async def _wait_for_room(self) -> None:
        """Wait until an event may be queued; if the call is cancelled, that is raised here."""
        if self._is_block_ready:
            # A program that waits for nothing else would fill the buffer before anything is sent.
            self._is_block_ready = False
            await anyio.lowlevel.checkpoint()
        while not self._has_room() and self._error is None:
            await self._room.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._is_clear = True

    def _add(self, data: bytes, position: float) -> Acknowledgement:
        """Queue an event for the segment of a position; return what to await."""
        if self._error is not None:
            self._raise_error()
        if self._routes is None:
            raise WriterClosedError(f"the writer of {self._name} is not entered")
        try:
            acknowledgement = self._pumps[self._routes.find(position)].add(position, data)
        except EventTooLongError as error:
            raise UsageError(str(error)) from None
        self._waiting_bytes += len(data) + HEADER_BYTES
        return acknowledgement

    def _raise_error(self) -> None:
        """Raise the error of the writer, if it has failed."""
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error

    def _has_room(self) -> bool:
        return self._waiting_bytes < self._buffer_bytes

    # ---- Pumps -----------------------------------------------------------------------------------

    def _take_ready(self) -> None:
        """Take note that a pump has enough to be sent."""
        self._is_block_ready = True
        self._is_clear = False

    def _take_acknowledged(self, byte_count: int) -> None:
        """Take note that events, of so many bytes with their headers, are stored."""
        self._waiting_bytes -= byte_count
        self._is_clear = False
        if self._has_room():
            self._room.set()
            self._room = anyio.Event()

    def _start_pump(self, pump: SegmentPump) -> None:
        """Run a pump, which has an event."""
        assert self._group is not None
        self._group.start_soon(pump.run)

    @abstractmethod
    async def _replace(self, pump: SegmentPump) -> None:
        """Do what is to be done with the unstored events of a segment that has ended."""

    def _fail(self, error: Exception) -> None:
        """End the writer: each event that is not stored gets the error."""
        if self._error is None:
            self._error = error
        for pump in self._pumps.values():
            for event in pump.session.release():
                event[2].complete(self._error)
        self._room.set()

    async def _start(self, ranges: Iterable[SegmentRange]) -> None:
        """Make a pump for each segment, and a task group for those that have events."""
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        self._routes = Routes(ranges)
        for segment in self._routes.segments:
            self._make_pump(segment)

    async def _finish(self) -> None:
        """Do what is left to do when the block is left without an error."""
        await self.flush()

    async def _stop(self) -> None:
        """End the pumps; what is not stored gets ``WriterClosedError``."""
        assert self._group is not None
        # Before anything is awaited: what is added now would start a pump.
        self._fail(WriterClosedError(f"the writer of {self._name} is closed"))
        self._group.cancel_scope.cancel()
        await self._stack.aclose()

    def _new_session(self) -> AppendSession[Event]:
        """Return the state of the appends to one segment."""
        return AppendSession(os.urandom(16))

    def _segment_name(self, segment: int) -> str:
        return segment_name(self._scope, self._stream, segment)

    def _make_pump(self, segment: int) -> None:
        locate = partial(self._controller.segment_address, self._scope, self._stream, segment)
        self._pumps[segment] = SegmentPump(
            segment,
            self._segment_name(segment),
            locate,
            self._owner,
            access=self._access,
            patience=self._patience,
            on_delay=self._on_delay,
            session=self._new_session(),
        )
