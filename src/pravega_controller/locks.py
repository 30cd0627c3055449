"""Locks by key, for as many keys as are in use.

Owns: the locks; a key without a holder or waiter costs no memory.

``KeyedLocks`` are plain locks. ``WorkflowLocks`` are those of scopes, groups and tables, which have
workflows: a workflow that the loss of a segment store interrupted is finished later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

import trio

from pravega_controller.errors import StoreAnswerError, StoreUnavailableError
from pravega_controller.records import IntentRecord


class KeyedLocks:
    """One fair lock for every key. A task must not acquire a key twice."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[trio.StrictFIFOLock, list[None]]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold a key's lock for the ``async with`` block."""
        lock, users = self._locks.setdefault(key, (trio.StrictFIFOLock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]


class WorkflowLocks:
    """One lock for every thing that has workflows, named by its intent."""

    def __init__(self, finish_later: Callable[[IntentRecord], None]) -> None:
        self._finish_later = finish_later
        self._locks = KeyedLocks()

    @asynccontextmanager
    async def hold(self, intent: IntentRecord) -> AsyncIterator[None]:
        """Hold the lock of a thing for the ``async with`` block.

        If the segment store fails meanwhile, the thing's workflow is finished later.
        """
        async with self._locks.hold((intent.scope, intent.name)):
            try:
                yield
            except (StoreUnavailableError, StoreAnswerError):
                self._finish_later(intent)
                raise
