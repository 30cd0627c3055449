"""Locks by key, for as many keys as are in use.

Owns: nothing but the locks; a key without a holder or waiter costs no memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio


class KeyedLocks:
    """One fair lock for every key. A task must not take a key it already holds."""

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
