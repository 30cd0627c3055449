"""A store of a cluster opens the containers that the map gives to it, in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from segstore.process.cluster_assembly import _ClusterOpener


class Map:
    def __init__(self) -> None:
        self.mine = {0, 1}

    async def wait_assigned(self, container_id: int) -> None:
        while container_id not in self.mine:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_the_map_is_looked_at_right_before_an_opening() -> None:
    """Container 1 waits for its place among the openings; meanwhile the map gives it away.

    A store that is cut off is not told.
    """
    assignments, opened, goes_on = Map(), [], trio.Event()

    class Opening:
        @asynccontextmanager
        async def open_on(self, logs: object, number: int, **_: object) -> AsyncIterator[None]:
            opened.append(number)
            if number == 0:
                await goes_on.wait()
            yield

    async def confirm() -> None:
        await trio.lowlevel.checkpoint()

    opener = _ClusterOpener(Opening(), None, assignments, confirm, trio.CapacityLimiter(1))  # type: ignore[arg-type]

    async def keep(number: int) -> None:
        async with opener.open(number):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, 0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(keep, 1)
        await trio.testing.wait_all_tasks_blocked()
        assignments.mine = {0}
        goes_on.set()
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert opened == [0]
