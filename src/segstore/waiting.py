"""Awaiting what completes by a call.

Owns: ``Waiter`` for operations, ``read_and_wait`` for reads.

Invariants:
1. A cancelled waiter leaves the operation alone; a cancelled read is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from segstore.api import OnRead, ReadHandle, ReadResult
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


async def read_and_wait(start: Callable[[OnRead], ReadHandle | None]) -> ReadResult:
    """The result of the read that ``start`` begins (a ``read_nowait``); raises its error."""
    done = trio.Event()
    outcome: list[SegmentStoreError | ReadResult] = []

    def complete(error: SegmentStoreError | None, result: ReadResult | None) -> None:
        answer = error or result
        assert answer is not None
        outcome.append(answer)
        done.set()

    handle = start(complete)
    try:
        await done.wait()
    finally:
        if handle is not None:
            handle.cancel()
    [answer] = outcome
    if isinstance(answer, SegmentStoreError):
        raise answer
    return answer
