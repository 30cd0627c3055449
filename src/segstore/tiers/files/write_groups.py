"""Groups short writes that come at the same time, so that one call of a thread does several.

Owns: ``WriteGroups``, the queue of writes that wait for a thread, and the choice of each group.

Invariants:
1. When the caller of ``write`` is cancelled after a thread has taken the write, the call returns
   only when the thread is done. Held by ``test_a_group_ends_before_whoever_gave_it_up_goes_on``.
2. When several writes to the same path wait, each is in another group. Held by
   ``test_writes_to_the_same_file_are_never_in_one_group``.
3. When several writes to the same path wait, they begin in the order of the calls. Held by
   ``test_writes_to_the_same_file_begin_in_the_order_of_their_calls``.
4. When a group ends without a result, each of its writes fails. Held by
   ``test_no_write_succeeds_whose_group_was_broken_off``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from segstore.errors import StorageError
from segstore.tiers.api import Buffer

WRITES_MAX = 8
"""Maximum number of writes in one group. A group's files are synced one after the other, at the
same time as those of other groups."""


@dataclass(slots=True, eq=False)
class ShortWrite:
    """One write, and its error when it has ended with one."""

    name: str
    path: str
    offset: int
    data: Sequence[Buffer]
    error: Exception | None = None
    is_taken: bool = False
    done: trio.Event = field(default_factory=trio.Event)


class WriteGroups:
    """Calls ``write_group`` in threads with groups of writes; it sets ``error`` of those that
    failed."""

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
        """Do a write, in a group with other waiting ones, when a thread is free. Raises its
        error."""
        self._waiting[write] = None
        try:
            async with self._places:
                # Another task may already have taken this write in its group.
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
        """Remove and return the first waiting writes, at least one and no two to the same path."""
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
    """Call ``function`` with a write, and store its error in the write."""
    try:
        function(write)
    except Exception as error:
        write.error = error
