"""Reads the events of a stream, in the order of each key, without blocking.

Owns: one feed for each segment that is read now, and the handing over to the program: event by
event, or in ``Batches``, which the readers of groups have, too.

Invariants:
1. When segments are merged or split, a successor is read after all of its predecessors. Held by
   ``test_events_are_read_in_the_order_of_their_keys_through_scalings``.
2. When connections break, no event is lost, and none is returned twice. Held by
   ``test_events_go_to_and_fro_between_it_and_the_java_client``.
3. When the stream is deleted and made again while it is read, the reader raises an error: it does
   not end as at its end. Held by
   ``test_an_async_reader_of_a_stream_that_was_made_again_is_told_so``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from _fast.wire.ready_events import ReadyEvents
from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent, SegmentOrder
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.connections.calls import call_blocking
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.cuts.bounds import At, find_bounds
from segstore_client.errors import ClosedError, PravegaError
from segstore_client.frames import frame_schema, make_frame
from segstore_client.positions import Position
from segstore_client.reading.piece_queue import PieceQueue
from segstore_client.reading.segment_feed import SegmentFeed
from segstore_client.serializers import BYTES, Serializer, T

if TYPE_CHECKING:
    import pyarrow as pa


B = TypeVar("B")


class Batches(Generic[B]):
    """The events of a reader in batches, for ``async for``. ``take`` returns the next one, or
    raises ``StopAsyncIteration``."""

    def __init__(self, take: Callable[[], Awaitable[B]]) -> None:
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> B:
        """Return the next events, at least one."""
        return await self._take()


class EventReader(Generic[T]):
    """Reads one stream: ``async for`` gives its events. Use it in an ``async with`` block.

    ``Store.reader`` makes it. One task reads at a time.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        start: At = Position.HEAD,
        end: At | None = None,
        serializer: Serializer[T] = BYTES,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._start = start
        self._end = end
        self._decode = serializer.decoder
        self._patience = patience
        self._access = controller.store_access(scope, stream, Purpose.READ)
        self._ends: Mapping[int, int] = {}
        self._order = SegmentOrder()
        self._reading = 0
        """The number of segments whose ends the program has not come to."""
        self._ready = ReadyEvents(self.__anext__)
        self._error: Exception | None = None
        self._group: TaskGroup | None = None
        self._is_open = False
        self._stack = AsyncExitStack()
        self._pieces = PieceQueue[list[ReadEvent[Any]] | Exception | None]()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {scoped_name(self._scope, self._stream)}>"

    async def __aenter__(self) -> Self:
        bounds = await call_blocking(
            partial(
                find_bounds,
                self._controller.with_patience(self._patience),
                self._scope,
                self._stream,
                start=self._start,
                end=self._end,
            )
        )
        self._ends = bounds.ends
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        for segment, offset in bounds.offsets.items():
            self._open(segment, offset)
        self._is_open = True
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._group is not None
        self._is_open = False
        self._ready.replace([])
        self._group.cancel_scope.cancel()
        await self._stack.aclose()

    def __aiter__(self) -> AsyncIterator[ReadEvent[T]]:
        return self._ready

    async def __anext__(self) -> ReadEvent[T]:
        """Return the next event; it ends where reading was to stop, or at the end of a sealed
        stream.

        Raises ``PravegaError`` if the stream's bytes are no events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        if not self._ready:
            await self._wait()
        return self._ready.take()

    async def next_event(self, *, timeout: float | None = None) -> ReadEvent[T] | None:
        """Return the next event; None after ``timeout`` seconds without one, or at the end. With 0
        it looks for what has come. Raises errors as ``async for``."""
        if self._ready.has_next:
            return self._ready.take()
        with anyio.move_on_after(timeout), suppress(StopAsyncIteration):
            return await self.__anext__()
        return None

    async def next_batch(self, *, timeout: float | None = None) -> list[ReadEvent[T]]:
        """Return all events that are there, once there are some; none where ``next_event`` returns
        None. Raises errors as that."""
        with anyio.move_on_after(timeout), suppress(StopAsyncIteration):
            return await self._take_batch()
        return []

    def batches(self) -> Batches[list[ReadEvent[T]]]:
        """Return an iterator by which ``async for`` gives lists of all events that are there.

        It ends, and raises errors, as that of events. Both can be used in turns.
        """
        return Batches(self._take_batch)

    def arrow_batches(self) -> Batches[pa.RecordBatch]:
        """Return an iterator by which ``async for`` gives all events that are there as rows of
        Apache Arrow, as ``frame_schema`` describes them. Raises ``UsageError`` without ``pyarrow``.
        """
        frame_schema()
        return Batches(self._take_frame)

    async def _take_batch(self) -> list[ReadEvent[T]]:
        if not self._ready:
            await self._wait()
        return self._ready.take_all()

    async def _take_frame(self) -> pa.RecordBatch:
        return make_frame(await self._take_batch())

    async def _wait(self) -> None:
        """Wait until there are events. Raises ``ClosedError`` outside of the block."""
        if not self._is_open:
            name = scoped_name(self._scope, self._stream)
            raise ClosedError(f"the reader of {name} is not entered, or closed")
        while not self._ready:
            if self._error is not None:
                raise type(self._error)(*self._error.args) from self._error
            if not self._reading:
                raise StopAsyncIteration
            await self._pieces.wait()
            piece = self._pieces.take()
            if piece is None:
                self._reading -= 1
            elif isinstance(piece, Exception):
                self._error = piece
            else:
                self._ready.replace(piece)

    # ---- Segments --------------------------------------------------------------------------------

    def _open(self, segment: int, offset: int) -> None:
        assert self._group is not None
        name = segment_name(self._scope, self._stream, segment)
        self._order.begin(segment)
        self._reading += 1
        self._group.start_soon(
            self._read,
            EventCursor(segment, name, offset, self._ends.get(segment), decode=self._decode),
        )

    async def _read(self, cursor: EventCursor) -> None:
        """Read one segment to its end, and open those that follow it."""
        feed = SegmentFeed(
            self._controller,
            self._scope,
            self._stream,
            cursor,
            access=self._access,
            patience=self._patience,
        )
        try:
            await feed.read(self._pieces.put)
            successors = await feed.find_successors()
            for segment in self._order.complete(cursor.segment_id, successors):
                self._open(segment, 0)
        except PravegaError as error:
            # The other segments wait until the reader is left.
            await self._pieces.put(error)
        else:
            await self._pieces.put(None)
