"""A nursery whose tasks outlive what was cancelled, for as long as that takes to end.

Owns: ``open_lasting_nursery``. For what others need while they are closed: a cancellation from
outside reaches the tasks only when the block has been left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_lasting_nursery() -> AsyncIterator[trio.Nursery]:
    """Open the nursery; its tasks are cancelled at the end of the block, and an error of one of
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
