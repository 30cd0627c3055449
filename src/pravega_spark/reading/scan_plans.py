"""Asks segment stores where a segment's bytes are in tier 2, and to keep them there.

Owns: ``ScanPlan``, ``ScanPlans``: requests for plans, and for the leases that come with them. While
a lease lasts, the store deletes none of the plan's chunks.

Invariants:
1. When a server closes the connection because it does not know these requests, it is asked once
   more, and then its segments are read over the wire.
   Held by ``test_a_server_that_ends_the_connection_is_read_over_the_wire``.
2. When a plan is too long for one reply, the chunks of several replies make one plan without gaps.
   Held by ``test_a_long_plan_is_asked_for_in_parts``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from pravega_spark.errors import PlanRefusedError
from pravega_spark.reading.segments import RETRY_SECONDS, SegmentStores
from pravega_spark.reading.tier_two import TierAddress
from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError

LEASE_MS = 600_000
LEASE_ID_BYTES = 16
HELD_TOGETHER_MAX = 1_000
"""Maximum number of chunks in one request: a server accepts 4,096 items, and a frame has a
maximum length."""
ASKS_MAX = 2
"""Maximum number of attempts at a request. One attempt is not enough: a connection may also break
because the store restarts."""
REFUSALS_MAX = 3
"""Number of failed requests in a row after which the servers count as servers without plans."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The bytes [start, end) of a segment, in chunks of tier 2."""

    address: TierAddress
    start: int
    end: int
    chunks: tuple[wire.PlannedChunk, ...]

    def within(self, start: int, end: int) -> ScanPlan | None:
        """Return the plan for its bytes that are in [start, end); None if there are none."""
        start, end = max(start, self.start), min(end, self.end)
        if start >= end:
            return None
        chunks = tuple(
            chunk
            for chunk in self.chunks
            if chunk.start_offset < end and start < chunk.start_offset + chunk.length
        )
        return ScanPlan(self.address, start, end, chunks)


def new_lease_id() -> bytes:
    """Return an id that no other lease has."""
    return os.urandom(LEASE_ID_BYTES)


class ScanPlans:
    """Asks for plans over the connections of ``stores``."""

    def __init__(self, stores: SegmentStores) -> None:
        self._stores = stores
        self._refusals = 0

    @property
    def are_refused(self) -> bool:
        """Return whether ``REFUSALS_MAX`` requests in a row failed, so that no more are made."""
        return self._refusals >= REFUSALS_MAX

    def request(self, segment_id: int, start: int, end: int, lease_id: bytes) -> ScanPlan | None:
        """Return a plan for the bytes from ``start`` on that are in tier 2, with a lease on them.

        Returns None if the byte at ``start`` is not in tier 2, or was truncated. Raises
        ``PlanRefusedError`` when the server does not answer such requests.
        """
        chunks: list[wire.PlannedChunk] = []
        position = start
        while True:
            reply = self._ask(segment_id, position, end, lease_id)
            if not isinstance(reply, wire.ScanPlanned):
                break
            address = TierAddress(reply.location, reply.store_id, reply.endpoint, reply.region)
            chunks += reply.chunks if position < reply.planned_end else ()
            if reply.planned_end <= position or reply.planned_end >= reply.stored_end:
                position = max(position, reply.planned_end)
                break
            position = reply.planned_end
        if position <= start:
            return None
        return ScanPlan(address, start, min(position, end), tuple(chunks))

    def hold(self, segment_id: int, plan: ScanPlan, lease_id: bytes) -> bool:
        """Renew a lease on the plan's chunks for ``LEASE_MS`` from now.

        Returns False when the chunks may be gone. Raises ``ProtocolError`` or ``OSError`` when the
        store is unreachable.
        """
        names = [chunk.chunk_name for chunk in plan.chunks]
        for first in range(0, len(names), HELD_TOGETHER_MAX):
            part = tuple(names[first : first + HELD_TOGETHER_MAX])
            if not self._hold_some(segment_id, part, lease_id):
                return False
        return True

    def _hold_some(self, segment_id: int, names: tuple[str, ...], lease_id: bytes) -> bool:
        reply = self._stores.call(
            segment_id,
            lambda request_id, name: wire.HoldChunks(
                request_id, name, lease_id, LEASE_MS, names, self._stores.token()
            ),
        )
        return isinstance(reply, wire.ChunksHeld) and reply.lease_ms > 0

    def release(self, segment_id: int, lease_id: bytes) -> None:
        """End a lease. Raises like ``hold``."""
        self._stores.call(
            segment_id,
            lambda request_id, name: wire.HoldChunks(
                request_id, name, lease_id, 0, (), self._stores.token()
            ),
        )

    def _ask(self, segment_id: int, start: int, end: int, lease_id: bytes) -> wire.Reply:
        """Return the reply to a request; raise ``PlanRefusedError`` when the server gives none."""
        failure: Exception | None = None
        for _ in range(ASKS_MAX):
            try:
                reply = self._stores.call(
                    segment_id,
                    lambda request_id, name: wire.PlanScan(
                        request_id, name, start, end, lease_id, LEASE_MS, self._stores.token()
                    ),
                )
            except (ProtocolError, OSError) as error:
                failure = error
                continue
            if isinstance(reply, wire.WrongHost):
                # Another store has the segment now, or its container is being opened: ask the
                # controller again.
                time.sleep(RETRY_SECONDS)
                continue
            if isinstance(reply, wire.OperationUnsupported | wire.ErrorMessage):
                break
            self._refusals = 0
            return reply
        self._refusals += 1
        raise PlanRefusedError(
            "the segment store does not tell where tier 2 has the segments' bytes"
            + (f" ({failure})" if failure is not None else "")
        )
