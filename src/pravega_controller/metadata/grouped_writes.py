"""Groups writes of many tasks: writes that wait during a request form the next request together.

Owns: the order of the writes, and the answer to each. ``GroupedWrites`` joins a group of writes to
one table into one request.

Example: five tasks write one key each, "0" to "4". The write of "0" is sent at once. The others
wait for its answer, and form one request. If key "3" has another version than its write expects,
that request fails, and each of its writes is sent again alone:

    without a conflict    ["0"]  ["1", "2", "3", "4"]
    with a conflict       ["0"]  ["1", "2", "3", "4"]  ["1"]  ["2"]  ["3"] fails  ["4"]

Invariants:
1. When several writes wait, they reach the table in the order in which they were submitted.
   Held by ``test_what_waits_goes_together_in_order``.
2. When one write of a group conflicts with the table, only this write fails.
   Held by ``test_a_conflict_is_the_fault_of_one``.
3. When the task that sends a group is cancelled, another task sends the writes of the others again.
   Held by ``test_a_task_that_goes_away_while_it_sends_for_others_fails_none_of_their_writes``.
4. When the table does not exist, the first write creates it.
   Held by ``test_the_first_write_creates_the_table``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from pravega_controller.errors import NoSuchTableError, VersionConflictError
from pravega_controller.store_client.table_client import Change, TableClient

GROUPED_CHANGES_MAX = 500

W = TypeVar("W")
A = TypeVar("A")


@dataclass(slots=True, eq=False, repr=False)
class PendingWrite(Generic[W, A]):
    """A write that waits to be sent, or for its answer."""

    write: W
    size: int
    answer: A | None = None
    error: Exception | None = None
    woken: trio.Event = field(default_factory=trio.Event)
    """Set when the write has its answer, or when its task must send the next group."""

    @property
    def is_answered(self) -> bool:
        return self.answer is not None or self.error is not None

    def complete(self, answer: A) -> None:
        """Wake the task that submitted the write, with the answer."""
        self.answer = answer
        self.woken.set()

    def fail(self, error: Exception) -> None:
        """Wake the task that submitted the write, with an error: it failed, or may have failed."""
        self.error = error
        self.woken.set()


class Groups(Generic[W, A]):
    """Sends the writes of many tasks, one group after the other.

    ``send`` must complete or fail every write of a group. The next group waits until ``send``
    returns. After a cancellation ``send`` may get a write again, so a write must be idempotent.
    """

    def __init__(self, send: Callable[[list[PendingWrite[W, A]]], Awaitable[None]]) -> None:
        self._send_group = send
        self._waiting: deque[PendingWrite[W, A]] = deque()
        self._is_sending = False

    async def submit(self, write: W, *, size: int = 1) -> A:
        """Send a write with its group, and return its answer.

        Raises the error with which ``send`` failed the write: ``StoreUnavailableError`` when it is
        unknown whether it was stored.
        """
        waiting: PendingWrite[W, A] = PendingWrite(write, size)
        self._waiting.append(waiting)
        if self._is_sending:
            await self._wait(waiting)
        if not waiting.is_answered:
            # The task of the first waiting write sends all waiting writes.
            await self._send()
        if waiting.error is not None:
            raise waiting.error
        assert waiting.answer is not None
        return waiting.answer

    async def _wait(self, waiting: PendingWrite[W, A]) -> None:
        try:
            await waiting.woken.wait()
        except trio.Cancelled:
            if waiting in self._waiting:
                is_next = self._waiting[0] is waiting and waiting.woken.is_set()
                self._waiting.remove(waiting)
                if is_next:
                    self._wake_next_sender()
            raise

    async def _send(self) -> None:
        self._is_sending = True
        group = self._next_group()
        try:
            await self._send_group(group)
        finally:
            # If other writes have no answer, this task was cancelled: the next task sends them.
            left = [waiting for waiting in group[1:] if not waiting.is_answered]
            self._waiting.extendleft(reversed(left))
            self._wake_next_sender()

    def _next_group(self) -> list[PendingWrite[W, A]]:
        group = [self._waiting.popleft()]
        size = group[0].size
        while self._waiting:
            size += self._waiting[0].size
            if size > GROUPED_CHANGES_MAX:
                break
            group.append(self._waiting.popleft())
        return group

    def _wake_next_sender(self) -> None:
        """Wake the task of the next write to send, if there is one."""
        self._is_sending = bool(self._waiting)
        if self._waiting:
            self._waiting[0].woken.set()


_TableWrite = PendingWrite[Sequence[Change], list[int]]


class GroupedWrites:
    """Writes to one table."""

    def __init__(self, tables: TableClient, table: str) -> None:
        self._tables = tables
        self._table = table
        self._groups: Groups[Sequence[Change], list[int]] = Groups(self._store)

    async def write(self, changes: Sequence[Change]) -> list[int]:
        """Write these keys, all or none, and return their new versions.

        Raises ``VersionConflictError``, or ``StoreUnavailableError`` if it is unknown whether the
        keys were written.
        """
        # A group with a conflict is sent again in parts, which must recognize what it has written.
        return await self._groups.submit(self._tables.marked(changes), size=len(changes))

    async def _store(self, group: list[_TableWrite]) -> None:
        try:
            versions = await self._update([c for waiting in group for c in waiting.write])
        except VersionConflictError as error:
            if len(group) == 1:
                group[0].fail(error)
                return
            for waiting in group:
                await self._store([waiting])
        except Exception as error:
            for waiting in group:
                waiting.fail(error)
        else:
            position = 0
            for waiting in group:
                end = position + waiting.size
                waiting.complete(versions[position:end])
                position = end

    async def _update(self, changes: list[Change]) -> list[int]:
        try:
            return await self._tables.update(self._table, changes)
        except NoSuchTableError:
            await self._tables.create(self._table)
            return await self._tables.update(self._table, changes)
