"""Reads the bytes of a byte stream, from any offset, without blocking.

Owns: one task that fetches ahead, and the piece from which the program takes bytes. Two pieces are
in memory at most: that one, and one that the task has to hand over.

The task begins with the first ``read``, and again where ``seek`` leaves the piece, or after an
error. When a ``read`` is cancelled, the task goes on.

Invariants:
1. When connections break, the same bytes come out. Held by
   ``test_bytes_come_once_however_connections_break``.
2. When a ``read`` is cancelled, also by asyncio itself, no byte is lost, and none is read twice.
   Held by ``test_a_read_that_is_cancelled_loses_nothing``.
3. When bytes were truncated, ``read`` raises ``TruncatedError`` with the new head; it never goes on
   at other bytes than those that were asked for. Held by
   ``test_truncated_bytes_are_told_with_the_new_head``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from pravega_wire.errors import TruncatedBytesError
from pravega_wire.sessions.read_cursor import ByteCursor
from segstore_client.byte_streams.byte_segment import ByteSegment
from segstore_client.connections.calls import call_blocking
from segstore_client.connections.request_pool import RequestPool
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import ClosedError, PravegaError, UsageError
from segstore_client.positions import End
from segstore_client.reading.piece_queue import PieceQueue
from segstore_client.reading.segment_fetch import READ_BYTES, SegmentFetch
from segstore_client.steps.byte_segment_steps import ReadPiece, check_offset

Pieces = PieceQueue[list[bytes] | PravegaError]
"""The way from one fetching task to ``read``; an empty list is the end."""


class ByteReader:
    """Reads one byte stream; ``async for`` gives its pieces. Use it in an ``async with`` block.

    ``Store.byte_reader`` makes it. One task reads at a time.
    """

    def __init__(
        self,
        controller: ControllerClient,
        pool: RequestPool,
        scope: str,
        stream: str,
        *,
        offset: int | End,
        patience: float,
    ) -> None:
        self._start = offset
        self._patience = patience
        self._access = controller.store_access(scope, stream, Purpose.READ)
        self._segment = ByteSegment(
            controller, pool, scope, stream, access=self._access, patience=patience
        )
        self._piece = ReadPiece()
        self._group: TaskGroup | None = None
        self._stack = AsyncExitStack()
        self._fetching = anyio.CancelScope()
        self._pieces: Pieces | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._segment.steps.name}>"

    async def __aenter__(self) -> Self:
        await call_blocking(self._segment.steps.find)
        await self.seek(await self._segment.run(self._segment.steps.find_start(self._start)))
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._group is not None
        self._end_fetch()
        self._group.cancel_scope.cancel()
        await self._stack.aclose()
        self._group = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece, as it comes; it ends at the end of a sealed stream. Raises errors
        as ``read``."""
        piece = await self.read(READ_BYTES)
        if not piece:
            raise StopAsyncIteration
        return piece

    async def read(self, length_max: int) -> bytes:
        """Return the next bytes, at least one and at most ``length_max``; at the tail, as soon as
        there are some. ``b""`` is the end of a sealed stream.

        Raises ``TruncatedError`` if the bytes were deleted, ``NotFoundError`` if the stream was,
        and ``UnavailableError`` when servers are unreachable for too long. When it is cancelled,
        the next call returns the same bytes.
        """
        if length_max < 1:
            raise UsageError(f"{length_max} bytes cannot be read: at least 1")
        if self._group is None:
            raise ClosedError(f"the reader of {self._segment.steps.name} is not entered, or closed")
        if self._piece.is_used_up:
            self._piece.replace(await self._fetch_piece())
        else:
            await anyio.lowlevel.checkpoint()
        return self._piece.take(length_max)

    async def seek(self, offset: int) -> None:
        """Continue at an offset. Behind the tail, ``read`` waits for bytes there.

        Outside of the last piece, the next ``read`` connects again.
        """
        check_offset(offset)
        await anyio.lowlevel.checkpoint()
        if self._piece.move(offset):
            self._end_fetch()

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._piece.offset

    async def head(self) -> int:
        """Return the offset of the first byte that is left now."""
        return (await self._segment.run(self._segment.steps.find_bounds()))[0]

    async def tail(self) -> int:
        """Return the offset behind the last byte that is stored now."""
        return (await self._segment.run(self._segment.steps.find_bounds()))[1]

    # ---- Pieces ----------------------------------------------------------------------------------

    async def _fetch_piece(self) -> bytes:
        """Return the next piece; ``b""`` at the end."""
        if self._pieces is None:
            self._pieces = self._begin_fetch()
        await self._pieces.wait()
        received = self._pieces.take()
        if isinstance(received, PravegaError):
            self._end_fetch()
            raise received
        if not received:
            self._end_fetch()
        return b"".join(received)

    def _begin_fetch(self) -> Pieces:
        assert self._group is not None
        cursor = self._segment.steps.open_cursor(self._piece.offset)
        # A task that was cancelled may not have taken its piece back yet.
        pieces = Pieces()
        self._fetching = anyio.CancelScope()
        self._group.start_soon(self._fetch, cursor, pieces, self._fetching)
        return pieces

    def _end_fetch(self) -> None:
        self._fetching.cancel()
        self._pieces = None

    async def _fetch(self, cursor: ByteCursor, pieces: Pieces, scope: anyio.CancelScope) -> None:
        steps = self._segment.steps
        fetch = SegmentFetch(
            cursor,
            steps.locate,
            pieces.put,
            what=steps.name,
            access=self._access,
            patience=self._patience,
        )
        with scope:
            try:
                await fetch.run()
                if cursor.is_gone:
                    raise steps.gone()
                await pieces.put([])
            except TruncatedBytesError as error:
                await pieces.put(steps.truncated(error))
            except PravegaError as error:
                await pieces.put(error)
