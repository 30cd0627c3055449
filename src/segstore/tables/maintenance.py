"""Chooses when each table of a container is indexed and compacted.

Owns: ``Maintenance``: the tables that are due, and the tasks that maintain them.

Invariants:
1. When the maintenance of one table waits or fails, other tables are maintained. Held by
   ``test_a_table_that_waits_or_fails_keeps_no_other_from_being_maintained``.
2. At most ``MAINTAINED_MAX`` tables are maintained at a time, and each by one task. Held by
   ``test_so_many_tables_are_maintained_at_a_time_and_each_by_one_task``.
3. When a table becomes due while it is maintained, it is maintained again afterwards. Held by
   ``test_a_table_that_becomes_due_while_it_is_maintained_is_maintained_again``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, NoReturn

import structlog
import trio

from segstore.errors import SegmentStoreError
from segstore.tables.table_segment import TableSegment

MAINTAINED_MAX: Final = 16
"""Maximum count of tables that are maintained at the same time: each compaction holds a bounded
amount of memory."""

logger = structlog.get_logger(__name__)


class Maintenance:
    """Calls ``maintain`` for each table that is due. Times are those of the event loop, in seconds.

    When ``maintain`` raises a ``SegmentStoreError``, the error is logged, and the table is due
    again after ``retry_seconds``.
    """

    def __init__(
        self, maintain: Callable[[TableSegment], Awaitable[None]], *, retry_seconds: float
    ) -> None:
        self._call = maintain
        self._retry_seconds = retry_seconds
        self._due: dict[TableSegment, float] = {}
        self._under_way: set[TableSegment] = set()
        self._waits_until = -inf
        self._work = trio.Event()

    def is_due(self, table: TableSegment) -> bool:
        """Return whether the table is to be maintained, now or later."""
        return table in self._due

    def ask(self, table: TableSegment, at: float) -> None:
        """Make a table due at the time ``at``. An earlier time that was asked for stays."""
        if at < self._due.get(table, inf):
            self._due[table] = at
            if at < self._waits_until:
                self._work.set()

    def forget(self, table: TableSegment) -> None:
        """Forget a table that needs no maintenance any more."""
        self._due.pop(table, None)

    async def run(self) -> NoReturn:
        """Maintain the tables that are due, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._waits_until = self._next_due()
                with trio.move_on_at(self._waits_until):
                    await self._work.wait()
                self._work = trio.Event()
                for table in self._remove_due():
                    nursery.start_soon(self._maintain, table)
        raise AssertionError("it ends by cancellation or an error")

    def _next_due(self) -> float:
        if len(self._under_way) >= MAINTAINED_MAX:
            return inf
        waiting = (at for table, at in self._due.items() if table not in self._under_way)
        return min(waiting, default=inf)

    def _remove_due(self) -> list[TableSegment]:
        """Remove and return as many due tables as may be maintained now, in the order of their
        times."""
        now = trio.current_time()
        due = [
            table for table, at in self._due.items() if at <= now and table not in self._under_way
        ]
        due.sort(key=self._due.__getitem__)
        taken = due[: MAINTAINED_MAX - len(self._under_way)]
        for table in taken:
            del self._due[table]
        self._under_way.update(taken)
        return taken

    async def _maintain(self, table: TableSegment) -> None:
        try:
            await self._call(table)
        except SegmentStoreError as error:
            logger.warning("table not maintained", segment=table.name, error=str(error))
            # Each update of the table asks for maintenance, too; none of them brings the next
            # attempt forward.
            self._due[table] = trio.current_time() + self._retry_seconds
        finally:
            self._under_way.discard(table)
            self._work.set()
