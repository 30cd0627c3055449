"""Tells of the completion of an operation when it comes, not when the task that waits goes on.

Owns: ``NotingWaiter``, which the container uses during a run, and ``told_of_completion``.

Invariants:
1. Who is told hears of each completion before anything that the container completes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from unittest.mock import patch

from segstore import container
from segstore.api import Waiter
from segstore.errors import SegmentStoreError

Note = Callable[[SegmentStoreError | None], None]

_told: ContextVar[Note | None] = ContextVar("told", default=None)


class NotingWaiter(Waiter):
    """A waiter that reports its completion to a function that its task may set."""

    __slots__ = ("_note",)

    def __init__(self) -> None:
        super().__init__()
        self._note = _told.get()

    def complete(self, error: SegmentStoreError | None, number: int) -> None:
        """Complete the operation: it is durable, or refused."""
        if self._note is not None:
            self._note(error)
        super().complete(error, number)


def completions_noted() -> AbstractContextManager[object]:
    """Make containers use waiters that tell about their completions."""
    return patch.object(container, "Waiter", NotingWaiter)


@contextmanager
def told_of_completion(note: Note) -> Iterator[None]:
    """Tell ``note`` of what completes of the calls that are made inside the block."""
    before = _told.set(note)
    try:
        yield
    finally:
        _told.reset(before)
