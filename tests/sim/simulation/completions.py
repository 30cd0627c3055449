"""Tells of the completion of an operation when it comes, not when the task that waits goes on.

Owns: ``NotingWaiter``, which the container uses during a run, and ``told_of_completion``.

The container refuses an operation when tier 2 fails to read what the operation needs. It answers
the operation only after those before it. From the refusal on, the operation can have no effect. So
a function that hears of completions may have an attribute ``refused``: it is called at the refusal.

Invariants:
1. Who is told hears of each completion before anything that the container completes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from unittest.mock import patch

from segstore import api, container
from segstore.api import Waiter
from segstore.durable_log import prefetch
from segstore.errors import SegmentStoreError
from segstore.model.operations import Operation, RefusedOperation

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

    def refused(self) -> None:
        """Note that the operation is refused; its completion comes later."""
        note_refusal(self._note)


def note_refusal(told: object) -> None:
    """Tell the function that hears of a completion that the operation is refused."""
    if (refused := getattr(told, "refused", None)) is not None:
        refused()


def _refuse(operation: Operation, error: SegmentStoreError) -> RefusedOperation:
    told: object = operation.on_complete
    if isinstance(waiter := getattr(told, "__self__", None), NotingWaiter):
        told = waiter
    note_refusal(told)
    return RefusedOperation(operation, error)


@contextmanager
def completions_noted() -> Iterator[None]:
    """Make containers tell about completions and refusals."""
    with (
        patch.object(container, "Waiter", NotingWaiter),
        patch.object(api, "Waiter", NotingWaiter),
        patch.object(prefetch, "RefusedOperation", _refuse),
    ):
        yield


@contextmanager
def told_of_completion(note: Note) -> Iterator[None]:
    """Tell ``note`` of what completes of the calls that are made inside the block."""
    before = _told.set(note)
    try:
        yield
    finally:
        _told.reset(before)
