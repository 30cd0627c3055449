"""Elects a leader among processes, by a queue of nodes in ZooKeeper as in Pravega.

Owns: ``LeaderLatch``.

    <path>/_c_<uuid>-lock-<10 digits>     ephemeral and sequential; the lowest number leads

The names are those of Curator's leader selector, so that Pravega's controllers and these can
replace each other. Of a name only the number after ``lock-`` matters. A process that waits watches
only the node right before its own, so that the end of one process wakes one other. The result of
``leads`` may be outdated when the caller has it: a caller that then changes something needs a
condition of its own, see ``monitor``.

Invariants:
1. When answers of ZooKeeper get lost, each session has one node all the same: a node is found again
   by its uuid. Held by ``test_lost_answers_make_no_second_node``.
2. When the leader's node or session ends, the next process in the queue leads at once. Held by
   ``test_turns_are_taken_in_order``.
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
    """One process's place in the queue, in one session."""

    def __init__(self, zookeeper: ZooKeeper, path: str, *, random: Random) -> None:
        self._zookeeper = zookeeper
        self._path = path
        self._prefix = f"_c_{uuid.UUID(int=random.getrandbits(128), version=4)}-{_LOCK}"

    async def wait_to_lead(self) -> None:
        """Wait until this process leads. Raises ``SessionLostError`` if the session ends."""
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
        """Return whether this process's node is now the first one. Raises ``ZooKeeperError``."""
        queue = await self._queue()
        return bool(queue) and queue[0].startswith(self._prefix)

    async def give_up(self) -> None:
        """Leave the queue. Raises ``ZooKeeperError``; the node then ends with the session."""
        for name in await self._queue():
            if name.startswith(self._prefix):
                with suppress(NoNodeError):
                    await self._zookeeper.delete(f"{self._path}/{name}")

    async def _stand_first(self, on_change: OnChange) -> bool:
        """Join the queue if necessary; return whether this process's node is the first one.
        Otherwise ``on_change`` is called when the node right before it changes."""
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
        """Return the names of all nodes in the order of their numbers. Names without a number are
        skipped."""
        try:
            names = await self._zookeeper.children(self._path)
        except NoNodeError:
            return []
        numbered = [name for name in names if name.rpartition(_LOCK)[2].isdecimal()]
        return sorted(numbered, key=lambda name: int(name.rpartition(_LOCK)[2]))
