"""Writes of many tasks to one table, sent together: what waits while a request is under way is the
next request.

Owns: the order of the writes of one table, and who is told what became of them.

Invariants:
1. Writes reach the table in the order in which they were handed in: a write that is stored tells
   that every earlier one was stored or has failed.
2. A write is stored whole or not at all, and fails only for reasons of its own: when a request with
   several writes meets a conflict, each is sent again by itself.
3. A table that does not exist yet is created by the first write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from pravega_controller.errors import (
    NoSuchTableError,
    StoreUnavailableError,
    VersionConflictError,
)
from pravega_controller.table_client import Change, TableClient

GROUPED_CHANGES_MAX = 500


class _Write:
    """A write that waits to be sent, or for its answer."""

    __slots__ = ("changes", "error", "versions", "woken")

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes
        self.versions: list[int] | None = None
        self.error: Exception | None = None
        self.woken = trio.Event()
        """Set when the write has its answer, and when its task is to send the next request."""

    @property
    def is_answered(self) -> bool:
        return self.versions is not None or self.error is not None


class GroupedWrites:
    """Writes to one table."""

    def __init__(self, tables: TableClient, table: str) -> None:
        self._tables = tables
        self._table = table
        self._waiting: deque[_Write] = deque()
        self._is_sending = False

    async def write(self, changes: Sequence[Change]) -> list[int]:
        """Write these keys, all or none, and return their new versions. ``VersionConflictError``.

        Raises ``StoreUnavailableError`` when it is not known whether they were written.
        """
        write = _Write(changes)
        self._waiting.append(write)
        if self._is_sending:
            await self._wait(write)
        if not write.is_answered:
            # The task of the write at the head of the line sends for all that wait behind it.
            await self._send()
        if write.error is not None:
            raise write.error
        assert write.versions is not None
        return write.versions

    async def _wait(self, write: _Write) -> None:
        try:
            await write.woken.wait()
        except trio.Cancelled:
            if write in self._waiting:
                is_next = self._waiting[0] is write and write.woken.is_set()
                self._waiting.remove(write)
                if is_next:
                    self._hand_over()
            raise

    async def _send(self) -> None:
        self._is_sending = True
        group = self._take()
        try:
            await self._store(group)
        finally:
            for write in group:
                if not write.is_answered:
                    write.error = StoreUnavailableError("the controller stopped while it wrote")
                write.woken.set()
            self._hand_over()

    def _take(self) -> list[_Write]:
        group = [self._waiting.popleft()]
        count = len(group[0].changes)
        while self._waiting:
            count += len(self._waiting[0].changes)
            if count > GROUPED_CHANGES_MAX:
                break
            group.append(self._waiting.popleft())
        return group

    def _hand_over(self) -> None:
        """Let the task of the next write send, if there is one."""
        self._is_sending = bool(self._waiting)
        if self._waiting:
            self._waiting[0].woken.set()

    async def _store(self, group: list[_Write]) -> None:
        try:
            versions = await self._update([c for write in group for c in write.changes])
        except VersionConflictError as error:
            if len(group) == 1:
                group[0].error = error
                return
            for write in group:
                await self._store([write])
        except Exception as error:
            for write in group:
                write.error = error
        else:
            position = 0
            for write in group:
                end = position + len(write.changes)
                write.versions = versions[position:end]
                position = end

    async def _update(self, changes: list[Change]) -> list[int]:
        try:
            return await self._tables.update(self._table, changes)
        except NoSuchTableError:
            await self._tables.create(self._table)
            return await self._tables.update(self._table, changes)
