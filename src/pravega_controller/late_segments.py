"""Deletes the segments of aborted transactions again, once no late request can create them.

A controller that begins a transaction asks the segment store to create its segments. Another
controller may abort the transaction, because the stream is sealed or the first controller has died,
before the segment store carries out these requests. The segments are then created after they were
deleted, and no transaction has them. So a controller that aborts a transaction whose requests may
still come records an intent first, and deletes the segments again after ``LATE_SECONDS``.

Owns: which segments are to be deleted again, and when.

Invariants:
1. The intent is durable before the transaction's record says that it is aborted, and is removed
   only after the second deletion. So a controller that dies leaves this duty to another.
2. A controller that takes the duty over waits for the whole time again.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence

import structlog
import trio

from pravega_controller.records import IntentRecord
from pravega_controller.segment_client import SegmentClient, for_each
from pravega_controller.store import MetadataStore
from pravega_controller.transactions import segment_name

INTENT_KIND = "transaction-segments"
LATE_SECONDS = 60.0
"""Time in which a request that was sent reaches the segment store and is carried out, or never: far
longer than a store takes for what is in the sockets of a controller that was killed, and longer
than the kernel keeps sending what a network that was cut for some seconds has lost."""
BEGIN_SECONDS_MAX = 300.0
"""Maximum age of a transaction whose beginning may still be under way: recording it and asking for
its segments are repeated for 30 s each, and the clocks of two machines tell the age."""
AGAIN_SECONDS = 5.0
"""Time after a deletion that failed until it is tried again."""
DELETIONS_AT_A_TIME_MAX = 64

log = structlog.get_logger(__name__)


class LateSegments:
    """Deletes segments again that late requests may have created."""

    def __init__(
        self, store: MetadataStore, segments: SegmentClient, *, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._segments = segments
        self._now_ms = now_ms
        self._due: list[tuple[float, int, IntentRecord]] = []
        """A heap by the time of trio's clock at which segments are to be deleted again."""
        self._ties = itertools.count()
        self._known: set[tuple[str, str]] = set()
        self._is_added = trio.Event()

    def may_come(self, created_ms: int) -> bool:
        """Return whether requests for the segments of a transaction of this time may still come."""
        return self._now_ms() - created_ms < BEGIN_SECONDS_MAX * 1000

    async def promise(
        self, scope: str, stream: str, identifier: bytes, segment_numbers: Sequence[int]
    ) -> None:
        """Record that the segments of a transaction are to be deleted again, and do it later."""
        name = f"{stream}/{identifier.hex()}"
        intent = IntentRecord(INTENT_KIND, scope, name, segment_numbers=tuple(segment_numbers))
        await self._store.put_intent(intent)
        self._add(intent)

    async def finish(self, scope: str, name: str) -> None:
        """Take over what another controller promised: delete the segments later."""
        self._add(await self._store.intents.find(IntentRecord(INTENT_KIND, scope, name)))

    def _add(self, intent: IntentRecord) -> None:
        key = (intent.scope, intent.name)
        if key not in self._known:
            self._known.add(key)
            self._delete_after(LATE_SECONDS, intent)

    def _delete_after(self, seconds: float, intent: IntentRecord) -> None:
        heapq.heappush(self._due, (trio.current_time() + seconds, next(self._ties), intent))
        self._is_added.set()

    async def run(self) -> None:
        """Delete segments when their time comes, for ever."""
        while True:
            self._is_added = trio.Event()
            with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                await self._is_added.wait()
            intents: list[IntentRecord] = []
            while self._due and self._due[0][0] <= trio.current_time():
                intents.append(heapq.heappop(self._due)[2])
            await for_each(intents, self._delete, limit=DELETIONS_AT_A_TIME_MAX)

    async def _delete(self, intent: IntentRecord) -> None:
        """Delete the segments of one transaction; on a failure, put it back for another time."""
        stream, _, digits = intent.name.partition("/")
        identifier = bytes.fromhex(digits)
        try:
            await self._segments.delete_segments(
                segment_name(intent.scope, stream, number, identifier)
                for number in intent.segment_numbers
            )
            await self._store.remove_intent(intent)
        except Exception as error:
            # Whatever is wrong with one, the others are to be deleted.
            log.warning(
                "segments of a transaction not deleted again yet",
                scope=intent.scope,
                stream=stream,
                transaction=digits,
                reason=str(error),
            )
            self._delete_after(AGAIN_SECONDS, intent)
            return
        self._known.discard((intent.scope, intent.name))
