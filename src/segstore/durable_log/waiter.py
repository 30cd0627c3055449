"""Waiting for an operation.

Owns: ``Waiter``.

Invariants:
1. A cancelled waiter leaves the operation alone.
"""

from __future__ import annotations

import trio

from segstore.errors import SegmentStoreError


class Waiter:
    """Turns an operation's completion into an await."""

    __slots__ = ("_event", "error", "number")

    def __init__(self) -> None:
        self._event = trio.Event()
        self.error: SegmentStoreError | None = None
        self.number = -1

    def complete(self, error: SegmentStoreError | None, number: int) -> None:
        """The operation is durable, or refused."""
        self.error, self.number = error, number
        self._event.set()

    async def wait(self) -> int:
        """The operation's number; raises its error."""
        await self._event.wait()
        if self.error is not None:
            raise self.error
        return self.number
