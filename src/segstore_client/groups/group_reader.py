"""Reads the events of a group's streams, together with the other readers of the group.

Owns: one feed for each segment that the reader has now. What the reader does, and when, is that of
``ReaderSteps``.

Invariants:
1. When readers come and go, each event is read once, and the events of a key in order. Held by
   ``test_readers_share_streams_through_scalings``.
2. When a reader vanishes, another one continues at its last checkpoint once it was removed. Held by
   ``test_a_reader_that_vanished_is_replaced``.
3. When Java readers are in the group, too, all of this holds. Held by
   ``test_a_group_of_java_and_python_readers_reads_each_event``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from _fast.wire.ready_events import ReadyEvents
from pravega_wire.names import parse_segment_name, scoped_name
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent
from pravega_wire.sessions.steps import run_steps_async
from pravega_wire.sessions.time_limits import ATTEMPT_SECONDS_MIN
from segstore_client.access.tokens import StoreAccess
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import ClosedError, PravegaError
from segstore_client.event_reader import Batches
from segstore_client.groups.group_log import GroupLog
from segstore_client.reading.piece_queue import PieceQueue
from segstore_client.reading.segment_feed import SegmentFeed
from segstore_client.serializers import BYTES, Serializer, T
from segstore_client.steps.group_requests import Request, Steps, Tell, Wait
from segstore_client.steps.reader_steps import Piece, ReaderSteps, describe_end

R = TypeVar("R")
LEAVE_SECONDS_MAX = 10.0

OnCheckpoint = Callable[[str, Mapping[str, int]], Awaitable[None]]


class _Feeds:
    """The tasks that read segments. ``tasks`` runs them."""

    def __init__(self, controller: ControllerClient, *, patience: float) -> None:
        self.tasks: TaskGroup | None = None
        self.pieces = PieceQueue[Piece]()
        self._controller = controller
        self._patience = patience
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._accesses: dict[tuple[str, str], StoreAccess] = {}

    def open(self, cursor: EventCursor) -> None:
        """Read the segment of a cursor from now on."""
        assert self.tasks is not None
        scope = self._scopes[cursor.name] = anyio.CancelScope()
        self.tasks.start_soon(self._read, cursor, scope)

    def close(self, name: str) -> None:
        """Read a segment no more."""
        self._scopes.pop(name).cancel()

    async def _read(self, cursor: EventCursor, scope: anyio.CancelScope) -> None:
        """Deliver the events of one segment, then the end."""
        segment = parse_segment_name(cursor.name)
        key = segment.scope, segment.stream
        if key not in self._accesses:
            self._accesses[key] = self._controller.store_access(*key, Purpose.READ)
        feed = SegmentFeed(
            self._controller,
            *key,
            cursor,
            access=self._accesses[key],
            patience=self._patience,
        )
        with scope:
            try:
                await feed.read(self.pieces.put)
                await self.pieces.put(describe_end(cursor, await feed.find_successors()))
            except PravegaError as error:
                # The other segments wait until the reader is left.
                await self.pieces.put(error)


class GroupReader(Generic[T]):
    """A reader of a group: ``async for`` gives its events. Use it in an ``async with`` block.

    ``ReaderGroup.reader`` makes it. One task reads at a time.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        group: str,
        name: str,
        *,
        serializer: Serializer[T] = BYTES,
        patience: float,
        on_checkpoint: OnCheckpoint | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self._group = scoped_name(scope, group)
        self._on_checkpoint = on_checkpoint
        self._clock = clock or time.monotonic
        self._log = GroupLog(controller, scope, group, patience=patience)
        self._feeds = _Feeds(controller, patience=patience)
        self._ready = ReadyEvents(self.__anext__, clock)
        self._steps = ReaderSteps(
            controller,
            scope,
            group,
            name,
            state=self._log.state,
            segments=self._feeds,
            ready=self._ready,
            decode=serializer.decoder,
            clock=clock,
        )
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._group}>"

    async def __aenter__(self) -> Self:
        """Join the group.

        Raises ``NotFoundError`` if there is no such group, and ``ConflictError`` if it has a reader
        of this name.
        """
        self._stack.push_async_callback(self._log.aclose)
        try:
            await self._run(self._steps.join())
        except BaseException:
            with suppress(PravegaError):
                await self._leave()
            raise
        self._feeds.tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the group; the other readers continue where this one is."""
        tasks, self._feeds.tasks = self._feeds.tasks, None
        if tasks is None:
            return
        if kind is None:
            self._steps.note_done()
        tasks.cancel_scope.cancel()
        await self._leave()

    async def _leave(self) -> None:
        try:
            with anyio.move_on_after(LEAVE_SECONDS_MAX, shield=True):
                await self._run(self._steps.leave())
        finally:
            self._ready.replace([])
            await self._stack.aclose()

    async def drop(self) -> None:
        """End without leaving the group, as a process does that is killed."""
        assert self._feeds.tasks is not None
        tasks, self._feeds.tasks = self._feeds.tasks, None
        tasks.cancel_scope.cancel()
        self._ready.replace([])
        await self._stack.aclose()

    @property
    def positions(self) -> Mapping[str, int]:
        """Return the next offset of each segment that the reader has, by the segment's name: -1 at
        the end of a sealed one."""
        return self._steps.positions

    def __aiter__(self) -> AsyncIterator[ReadEvent[T]]:
        return self._ready

    async def __anext__(self) -> ReadEvent[T]:
        """Return the next event; it ends when the group has read everything that there will be.

        Raises ``RemovedFromGroupError`` if the reader was removed from the group, or the group was
        reset; ``PravegaError`` if a stream's bytes are no events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        await self._prepare()
        return self._ready.take()

    async def next_event(self, *, timeout: float | None = None) -> ReadEvent[T] | None:
        """Return the next event; None after ``timeout`` seconds without one, or at the end. With 0
        it looks for what has come; where the group's state has to be asked first, that takes up to
        a second. Raises errors as ``async for``."""
        if self._ready.has_next or await self._prepare_within(timeout):
            return self._ready.take()
        return None

    async def next_batch(self, *, timeout: float | None = None) -> list[ReadEvent[T]]:
        """Return all events that are there, once there are some; none where ``next_event`` returns
        None. Raises errors as that."""
        return self._ready.take_all() if await self._prepare_within(timeout) else []

    def batches(self) -> Batches[list[ReadEvent[T]]]:
        """Return an iterator by which ``async for`` gives lists of all events that are there.

        It ends, and raises errors, as that of events. Both can be used in turns.
        """
        return Batches(self._take_batch)

    async def _take_batch(self) -> list[ReadEvent[T]]:
        await self._prepare()
        return self._ready.take_all()

    async def _prepare(self) -> None:
        """Do what the group wants now, and wait until there are events."""
        if not await self._prepare_within(None):
            raise StopAsyncIteration

    async def _prepare_within(self, timeout: float | None) -> bool:
        """Do the same for at most so many seconds; return whether there are events.

        Raises ``ClosedError`` outside of the block.
        """
        if self._feeds.tasks is None:
            raise ClosedError(f"reader {self.name} is not entered, or closed")
        if timeout is None:
            return await self._run(self._steps.prepare())
        # What is cut off begins anew with the next call, and would never be done in short times.
        with anyio.move_on_after(max(timeout, ATTEMPT_SECONDS_MIN)):
            return await self._run(self._steps.prepare(self._clock() + timeout))
        return False

    async def _run(self, steps: Steps[R]) -> R:
        return await run_steps_async(steps, self._fulfil)

    async def _fulfil(self, request: Request) -> Any:
        if isinstance(request, Wait):
            with anyio.move_on_after(request.seconds):
                await self._feeds.pieces.wait()
                return self._feeds.pieces.take()
            return None
        if isinstance(request, Tell):
            if self._on_checkpoint is not None:
                await self._on_checkpoint(request.checkpoint, request.positions)
            return None
        return await self._log.fulfil(request)
