"""The queue of pieces that feeds hand over to their reader: at most one of each feed waits.

Owns: ``PieceQueue``. A feed goes on when the reader has taken its piece, so memory is bounded.

Invariants:
1. When a reader's wait is cancelled, also by asyncio itself, no piece is lost. Held by
   ``test_a_wait_that_is_cancelled_loses_nothing``.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class PieceQueue(Generic[T]):
    """A queue of many feeds and one reader, all tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[T, anyio.Event]] = deque()
        self._news = anyio.Event()

    async def put(self, piece: T) -> None:
        """Add a piece; return when the reader has taken it."""
        waiting = piece, anyio.Event()
        self._waiting.append(waiting)
        self._news.set()
        try:
            await waiting[1].wait()
        finally:
            if not waiting[1].is_set():
                self._waiting.remove(waiting)

    async def wait(self) -> None:
        """Wait until there is a piece to take."""
        while not self._waiting:
            self._news = anyio.Event()
            await self._news.wait()

    def take(self) -> T:
        """Return the next piece; there has to be one."""
        piece, taken = self._waiting.popleft()
        taken.set()
        return piece
