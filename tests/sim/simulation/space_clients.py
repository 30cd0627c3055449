"""Clients that free space: what operators, retention and deletions do to a store that is full.

Owns: ``SpaceFreer``, and ``free_everything``, after which there has to be space.
"""

from __future__ import annotations

import trio

from segstore.errors import ContainerOfflineError, SegmentError, StorageError
from simulation.clients import RETRY_SECONDS, Client, World
from simulation.host import Session

WAIT_SECONDS = 20.0
"""Time, in simulated seconds, for which a client waits when somebody looks for the reason."""
FREED_SHARE = 0.75
"""Maximum share of the space that is used after everything was truncated."""
FREED_SECONDS = 900.0
"""Maximum time, in simulated seconds, until that is so."""
_DELETED = ("/lifecycle", "/conditional", "/attributes")


class SpaceFreer(Client):
    """Operators who truncate, seal and delete while space is short or clients wait, until they are
    cancelled. None waits for the others: a deletion may have to wait for what another one frees."""

    async def run(self) -> None:
        """Look at the space again and again."""
        host = self.world.host
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self.random.choice([0.5, 3, 10]))
                enough = self.random.choice([0.8, 0.95, 2])
                if host.used_share > enough or host.overdue(seconds=WAIT_SECONDS):
                    nursery.start_soon(self.attempt)

    async def step(self, session: Session) -> None:
        """Free something."""
        names = names_of(self.world)
        if names:
            await self.free(session, self.random.choice(names))

    async def free(self, session: Session, name: str) -> None:
        container, choose = session.container, self.random
        try:
            info = await container.find_info(name)
            if any(each in name for each in _DELETED) and choose.random() < 0.5:
                await container.delete_segment(name)
                return
            if "/stream/" in name and choose.random() < 0.2:
                await container.seal_segment(name)
            offset = info.length
            if choose.random() < 0.2:
                offset = choose.randint(info.start_offset, info.length)
            await container.truncate_segment(name, offset=offset)
        except SegmentError:
            return


def names_of(world: World) -> list[str]:
    """Return the names of segments that may be truncated at any place."""
    return [
        name
        for name in world.model.attribute_ids
        if "#" not in name.partition(".#epoch.")[2] and "/_tables/" not in name
    ]


async def free_everything(world: World) -> None:
    """Truncate all segments to their ends, and see that this makes space."""
    host = world.host
    began = trio.current_time()
    while host.used_share > FREED_SHARE:
        if trio.current_time() - began > FREED_SECONDS:
            raise world.model.violated(
                f"{host.used_share:.0%} of the space are used although everything was truncated"
            )
        session = await host.connect()
        for name in names_of(world):
            try:
                info = await session.container.find_info(name)
                await session.container.truncate_segment(name, offset=info.length)
            except SegmentError:
                continue
            except (ContainerOfflineError, StorageError):
                await trio.sleep(RETRY_SECONDS)
                break
        await trio.sleep(1)
