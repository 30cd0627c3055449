"""Deletes segments that late requests of dead controllers have created.

A controller asks the segment store to create segments: those of a transaction, of a stream, or of a
key-value table. It may die before the segment store carries out these requests. Another controller
then finishes or undoes its work, and clients may end the transaction, or truncate or delete the
stream or table. All of this may happen before the requests of the dead controller are carried out.
These then create segments that nothing refers to. So a controller that continues or undoes such
work first records an intent. After ``LATE_SECONDS`` it deletes those segments of the intent that
nothing refers to.

Owns: which segments are to be deleted again, and when. For each kind of segment, another module
registers a function that decides which are still needed.

The intent is durable before the work that it is about can end, and is removed after the deletion.

Invariants:
1. When a dead controller's request creates a segment that nothing refers to, the segment is
   deleted. A segment that its stream or table has is kept. Held by
   ``test_a_segment_that_a_killed_controller_creates_late_is_deleted_unless_it_is_needed``.
2. When the controller that must delete dies, another one takes over its intent, waits for the whole
   ``LATE_SECONDS``, and deletes.
   Held by ``test_a_promise_that_is_taken_over_is_kept_after_the_whole_time_again``.
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

from pravega_controller.background.background import Background
from pravega_controller.metadata.records import IntentRecord
from pravega_controller.metadata.store import MetadataStore

LATE_SECONDS = 60.0
"""Time, in seconds, after which a request that was sent has either been carried out or never will
be. It is far longer than a store needs for the requests in the socket of a killed controller. It is
also longer than the kernel repeats packets after the network was cut for some seconds."""
AGAIN_SECONDS_MIN = 5.0
"""Pause, in seconds, after the first failure of a deletion. Each further failure doubles it."""
AGAIN_SECONDS_MAX = 300.0
DELETIONS_AT_A_TIME_MAX = 64

DeleteUnneeded: TypeAlias = Callable[[IntentRecord], Awaitable[None]]
"""A function that deletes those segments of an intent that nothing refers to."""

log = structlog.get_logger(__name__)


class LateSegments:
    """Deletes segments again that late requests may have created."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._deleters: dict[str, DeleteUnneeded] = {}
        self._due: list[tuple[float, int, IntentRecord]] = []
        """A heap of intents by the time, of trio's clock, at which their segments are deleted."""
        self._ties = itertools.count()
        self._versions: dict[tuple[str, str, str], int | None] = {}
        """The version that the record of each intent had when its time was set."""
        self._pauses: dict[tuple[str, str, str], float] = {}
        """Seconds until the next attempt, for intents whose deletion has failed."""
        self._due_at: dict[tuple[str, str, str], float] = {}
        """The time at which each intent is due. Entries of the heap with another time are stale."""
        self._is_added = trio.Event()

    def register(self, kind: str, delete: DeleteUnneeded) -> None:
        """Register the function that deletes the segments of intents of a kind."""
        assert kind not in self._deleters
        self._deleters[kind] = delete

    def register_in(self, background: Background) -> None:
        """Register ``finish`` as the function for the intents of all registered kinds."""
        for kind in self._deleters:
            background.register(kind, partial(self.finish, kind))

    async def promise(self, intent: IntentRecord) -> None:
        """Record that segments will be deleted if nothing refers to them, and do so later.

        If this is called again for the same intent, the whole time begins again.
        """
        await self._store.intents.put(intent)
        # The stored intent also covers the segments of earlier calls for the same name.
        self._delete_after(LATE_SECONDS, await self._store.intents.find(intent))

    async def finish(self, kind: str, scope: str, name: str) -> None:
        """Take over the intent of another controller: delete its segments later."""
        intent = await self._store.intents.find(IntentRecord(kind, scope, name))
        key, version = _key(intent), self._store.intents.version_of(intent)
        # If the version has changed, this controller took the intent over again meanwhile. Then the
        # time until the deletion begins again.
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
        """Delete the segments of one intent; after a failure, schedule another attempt.

        Does nothing if the intent has another time now, because ``promise`` was called again.
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
            # An error about one intent must not stop the deletion for the others.
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
