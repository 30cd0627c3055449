"""Locks by key.

Owns: the locks. A lock is in memory only while a task holds it or waits for it.

``KeyedLocks`` are plain locks. ``WorkflowLocks`` are the locks of scopes, groups and tables: if the
loss of a segment store ends a workflow under the lock, the workflow is finished later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

import trio

from pravega_controller.errors import (
    StoreAnswerError,
    StoreUnavailableError,
    UncertainConflictError,
)
from pravega_controller.metadata.records import IntentRecord


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
    """One lock for each object that has workflows; the object's intent is the key."""

    def __init__(self, finish_later: Callable[[IntentRecord], None]) -> None:
        self._finish_later = finish_later
        self._locks = KeyedLocks()

    @asynccontextmanager
    async def hold(self, intent: IntentRecord) -> AsyncIterator[None]:
        """Hold the lock of an object for the ``async with`` block.

        If a segment store fails in the block, or a write is in doubt, the object's workflow is
        finished in the background.
        """
        async with self._locks.hold((intent.scope, intent.name)):
            try:
                yield
            except (StoreUnavailableError, StoreAnswerError, UncertainConflictError):
                self._finish_later(intent)
                raise
