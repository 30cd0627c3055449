"""Short writes that come at the same time are handed to a thread together.

Owns: what waits for a thread, and who takes it there.

Invariants:
1. ``write`` returns, or raises what it was told, when its write has ended: a cancellation is heeded
   only before a thread has it.
2. Writes to the same path are never in the same group, and begin in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from segstore.errors import StorageError
from segstore.tiers.api import Buffer

WRITES_MAX = 8
"""Maximum count of files in one group. They are synced one after the other, beside other groups."""


@dataclass(slots=True, eq=False)
class ShortWrite:
    """One write, and in the end its result."""

    name: str
    path: str
    offset: int
    data: Sequence[Buffer]
    error: Exception | None = None
    is_taken: bool = False
    done: trio.Event = field(default_factory=trio.Event)


class WriteGroups:
    """``write_group`` runs in threads, and notes errors in the writes."""

    def __init__(
        self,
        write_group: Callable[[Sequence[ShortWrite]], None],
        *,
        limiter: trio.CapacityLimiter,
        groups_max: int,
    ) -> None:
        self._write_group = write_group
        self._limiter = limiter
        self._places = trio.Semaphore(groups_max)
        self._waiting: dict[ShortWrite, None] = {}

    async def write(self, write: ShortWrite) -> None:
        """Write it, with others that wait when a thread is free. Raises its error."""
        self._waiting[write] = None
        try:
            async with self._places:
                # A later one of the tasks that have a place may run first, and take the writes
                # before it, too.
                while not write.is_taken:
                    await self._run(self._pop_group())
        finally:
            if write.is_taken:
                with trio.CancelScope(shield=True):
                    await write.done.wait()
            else:
                del self._waiting[write]
        if write.error is not None:
            raise write.error

    def _pop_group(self) -> list[ShortWrite]:
        """Remove and return the first waiting writes, each of another path: at least one."""
        group: dict[str, ShortWrite] = {}
        for write in self._waiting:
            group.setdefault(write.path, write)
            if len(group) == WRITES_MAX:
                break
        for write in group.values():
            write.is_taken = True
            del self._waiting[write]
        return list(group.values())

    async def _run(self, group: list[ShortWrite]) -> None:
        failure: Exception | None = StorageError("it is unknown how a write to tier 2 ended")
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._write_group, group, limiter=self._limiter)
            failure = None
        except Exception as error:
            failure = error
        finally:
            for write in group:
                write.error = write.error or failure
                write.done.set()


def store_error(write: ShortWrite, function: Callable[[ShortWrite], None]) -> None:
    """Run a part of a write, and keep its error as the result of the write."""
    try:
        function(write)
    except Exception as error:
        write.error = error
