"""Deletes segments again, once no late request of a dead controller can create them.

A controller asks the segment store to create segments: those of a transaction, of a stream, or of a
key-value table. It may die before the segment store carries out these requests. Another controller
then finishes or undoes its work, and clients may end the transaction, or truncate or delete what
has the segments, all before the requests of the dead controller are carried out. These then create
segments that nothing refers to. So a controller that continues or undoes such work first records an
intent. After ``LATE_SECONDS`` it deletes the segments that nothing needs.

Owns: which segments are to be deleted again, and when. Which of them are still needed is decided,
at that time, by the module that registers for their kind.

Invariants:
1. The intent is durable before the work that it is about can end, and is removed only after the
   deletion. So a controller that dies leaves this duty to another.
2. A controller that takes the duty over waits for the whole time again.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import structlog
import trio

from pravega_controller.background import Background
from pravega_controller.records import IntentRecord
from pravega_controller.store import MetadataStore

LATE_SECONDS = 60.0
"""Time in which a request that was sent reaches the segment store and is carried out, or never: far
longer than a store takes for what is in the sockets of a controller that was killed, and longer
than the kernel keeps sending what a network that was cut for some seconds has lost."""
AGAIN_SECONDS_MIN = 5.0
"""Time, in seconds, until a deletion that failed is tried again; twice as long each time."""
AGAIN_SECONDS_MAX = 300.0
DELETIONS_AT_A_TIME_MAX = 64

DeleteUnneeded: TypeAlias = Callable[[IntentRecord], Awaitable[None]]
"""Deletes those segments of an intent that nothing needs."""

log = structlog.get_logger(__name__)


class LateSegments:
    """Deletes segments again that late requests may have created."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._deleters: dict[str, DeleteUnneeded] = {}
        self._due: list[tuple[float, int, IntentRecord]] = []
        """A heap by the time of trio's clock at which segments are to be deleted again."""
        self._ties = itertools.count()
        self._versions: dict[tuple[str, str, str], int | None] = {}
        """The version at which each intent was written when its time was set."""
        self._pauses: dict[tuple[str, str, str], float] = {}
        """Seconds until the next attempt, for intents whose deletion has failed."""
        self._due_at: dict[tuple[str, str, str], float] = {}
        """The time at which each intent is due; entries of the heap with other times are old."""
        self._is_added = trio.Event()

    def register(self, kind: str, delete: DeleteUnneeded) -> None:
        """Register the function that deletes the segments of intents of a kind."""
        assert kind not in self._deleters
        self._deleters[kind] = delete

    def register_in(self, background: Background) -> None:
        """Register ``finish`` for the intents of all kinds that have a deleter."""
        for kind in self._deleters:
            background.register(kind, partial(self.finish, kind))

    async def promise(self, intent: IntentRecord) -> None:
        """Record that segments are to be deleted again unless they are needed, and do it later.

        A promise that is repeated is kept after the whole time again.
        """
        await self._store.intents.put(intent)
        # With what an earlier promise under the same name covers.
        self._delete_after(LATE_SECONDS, await self._store.intents.find(intent))

    async def finish(self, kind: str, scope: str, name: str) -> None:
        """Take over what another controller promised: delete the segments later."""
        intent = await self._store.intents.find(IntentRecord(kind, scope, name))
        key, version = _key(intent), self._store.intents.version_of(intent)
        # One that was taken over once more was written once more.
        if key not in self._due_at or self._versions[key] != version:
            self._delete_after(LATE_SECONDS, intent)

    def _delete_after(self, seconds: float, intent: IntentRecord) -> None:
        due = trio.current_time() + seconds
        self._due_at[_key(intent)] = due
        self._versions[_key(intent)] = self._store.intents.version_of(intent)
        heapq.heappush(self._due, (due, next(self._ties), intent))
        self._is_added.set()

    async def run(self) -> None:
        """Delete segments when their time comes, for ever."""
        places = trio.CapacityLimiter(DELETIONS_AT_A_TIME_MAX)
        async with trio.open_nursery() as nursery:
            while True:
                self._is_added = trio.Event()
                with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                    await self._is_added.wait()
                while self._due and self._due[0][0] <= trio.current_time():
                    due, _, intent = heapq.heappop(self._due)
                    nursery.start_soon(self._delete, intent, due, places)

    async def _delete(self, intent: IntentRecord, due: float, places: trio.CapacityLimiter) -> None:
        """Delete the segments of one intent; on a failure, put it back for another time.

        Does nothing if the intent is not due at this time any more: it was promised once more.
        """
        key = _key(intent)
        try:
            async with places:
                if self._due_at.get(key) == due:
                    await self._deleters[intent.kind](intent)
            if self._due_at.get(key) == due:
                del self._due_at[key], self._versions[key]
                self._pauses.pop(key, None)
                self._store.intents.remove(intent)
        except Exception as error:
            # Whatever is wrong with one, the others are to be deleted.
            log.warning(
                "late segments not deleted yet",
                kind=intent.kind,
                scope=intent.scope,
                name=intent.name,
                reason=str(error),
            )
            if self._due_at.get(key) == due:
                pause = self._pauses.get(key, AGAIN_SECONDS_MIN)
                self._pauses[key] = min(2 * pause, AGAIN_SECONDS_MAX)
                self._delete_after(pause, intent)


def _key(intent: IntentRecord) -> tuple[str, str, str]:
    return intent.kind, intent.scope, intent.name
