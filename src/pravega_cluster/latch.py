"""The election of a leader among processes: a queue of nodes in ZooKeeper, as the original has it.

Owns: ``LeaderLatch``.

    <path>/_c_<uuid>-lock-<10 digits>     ephemeral and sequential; the lowest number leads

The names are those of Curator's leader selector, so that the original's controllers and these can
replace each other: of a name only the number behind ``lock-`` counts.

Invariants:
1. This session has one node at most. After a lost answer the node is searched by its uuid, and
   created again only if it does not exist.
2. A process that waits watches the node right before its own: one end wakes one process.
3. ``leads`` is true of the moment in which ZooKeeper answered. A caller that acts on it needs a
   condition of its own, see ``monitor``.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from random import Random

import structlog
import trio

from pravega_cluster.following import LOOK_SECONDS, RETRY_SECONDS, wait_for_change
from zookeeper_client.api import (
    NoNodeError,
    OnChange,
    SessionLostError,
    ZooKeeper,
    ZooKeeperError,
    ensure_path,
)

_LOCK = "lock-"

log = structlog.get_logger(__name__)


class LeaderLatch:
    """The place of one process in the queue, in one session."""

    def __init__(self, zookeeper: ZooKeeper, path: str, *, random: Random) -> None:
        self._zookeeper = zookeeper
        self._path = path
        self._prefix = f"_c_{uuid.UUID(int=random.getrandbits(128), version=4)}-{_LOCK}"

    async def wait_to_lead(self) -> None:
        """Wait for this process's turn. Raises ``SessionLostError`` if the session ends."""
        while True:
            changed = trio.Event()
            seconds = LOOK_SECONDS
            try:
                if await self._stand_first(changed.set):
                    return
            except SessionLostError:
                raise
            except ZooKeeperError as error:
                log.warning("cannot wait for leadership now", reason=repr(error))
                seconds = RETRY_SECONDS
            await wait_for_change(self._zookeeper, changed, seconds)

    async def leads(self) -> bool:
        """Return whether this process's node is the first one now. Raises ``ZooKeeperError``."""
        queue = await self._queue()
        return bool(queue) and queue[0].startswith(self._prefix)

    async def give_up(self) -> None:
        """Leave the queue. Raises ``ZooKeeperError``; the node then goes with the session."""
        for name in await self._queue():
            if name.startswith(self._prefix):
                with suppress(NoNodeError):
                    await self._zookeeper.delete(f"{self._path}/{name}")

    async def _stand_first(self, on_change: OnChange) -> bool:
        """Join the queue if necessary, and return whether no process is before this one. If one is,
        call ``on_change`` when the node right before this one changes.
        """
        queue = await self._queue()
        own = [place for place, name in enumerate(queue) if name.startswith(self._prefix)]
        if not own:
            node = f"{self._path}/{self._prefix}"
            try:
                await self._zookeeper.create(node, b"", is_ephemeral=True, is_sequential=True)
            except NoNodeError:
                await ensure_path(self._zookeeper, self._path)
            on_change()
            return False
        if own[0] == 0:
            return True
        try:
            await self._zookeeper.get(f"{self._path}/{queue[own[0] - 1]}", on_change)
        except NoNodeError:
            on_change()
        return False

    async def _queue(self) -> list[str]:
        """Return the names of all nodes in their order; foreign names are skipped."""
        try:
            names = await self._zookeeper.children(self._path)
        except NoNodeError:
            return []
        numbered = [name for name in names if name.rpartition(_LOCK)[2].isdecimal()]
        return sorted(numbered, key=lambda name: int(name.rpartition(_LOCK)[2]))
