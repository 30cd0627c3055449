"""A nursery whose tasks still run while the block that uses them ends.

Owns: ``open_lasting_nursery``. Use it for tasks that other parts still need while they close: when
the block is cancelled from outside, the tasks are cancelled only after the block has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_lasting_nursery() -> AsyncIterator[trio.Nursery]:
    """Open the nursery. Its tasks are cancelled at the end of the block, and an error of one of
    them cancels the block."""
    async with trio.open_nursery() as outer:
        scope = trio.CancelScope(shield=True)
        inner = await outer.start(_hold, scope)
        try:
            yield inner
        finally:
            scope.cancel()


async def _hold(scope: trio.CancelScope, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with scope:
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()
