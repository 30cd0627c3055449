"""Reads the bytes of slices in tasks: from tier 2 if a plan names them, otherwise over the wire.

Owns: ``SliceReader``: the change from tier 2 to the wire, and the lease of a task.

A task takes a lease on the chunks that it reads before the first byte, and releases it at its end.
If the store refuses the lease, the task asks for another plan.

Invariants:
1. When a plan ends early, or its chunks are missing, the reader continues at its position with
   another plan, or over the wire: each byte of the slice comes once, in order.
   Held by ``test_direct_and_wire_give_the_same_rows_through_merges_truncation_and_epochs``.
2. When the stream is deleted while a task has its plan, the task still reads all bytes of the plan.
   Held by ``test_what_was_planned_is_read_though_the_stream_was_deleted``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from pravega_spark.errors import PlanRefusedError, TierMissingError, TierUnreachableError
from pravega_spark.options import DIRECT, Options
from pravega_spark.reading.cuts import Slice
from pravega_spark.reading.scan_plans import LEASE_MS, ScanPlan, ScanPlans, new_lease_id
from pravega_spark.reading.segments import Piece, SegmentStores
from pravega_spark.reading.tier_two import TierTwo, open_tier, read_chunk
from pravega_wire.errors import ProtocolError

RENEWAL_SECONDS = LEASE_MS / 1000 / 4


class SliceReader:
    """Reads one slice with a task's connections."""

    def __init__(
        self, options: Options, stores: SegmentStores, piece: Slice, plan: ScanPlan | None
    ) -> None:
        self._options = options
        self._stores = stores
        self._plans = ScanPlans(stores)
        self._piece = piece
        self._plan = plan
        self._offset = piece.start
        self._lease_id = new_lease_id()
        self._held_at = 0.0

    def read(self) -> Iterator[Piece]:
        """Yield the slice's bytes with their offsets. Raises ``PravegaError``."""
        if self._plan is not None:
            try:
                yield from self._read_planned()
            finally:
                with suppress(ProtocolError, OSError):
                    self._plans.release(self._piece.segment_id, self._lease_id)
        rest = Slice(self._piece.segment_id, self._offset, self._piece.end)
        yield from self._stores.read_slice(rest, fail_on_data_loss=self._options.fail_on_data_loss)

    def _read_planned(self) -> Iterator[Piece]:
        """Yield the bytes that are in tier 2. The caller reads the others over the wire."""
        assert self._plan is not None
        tier: TierTwo | None = None
        missing_at = -1
        try:
            tier = open_tier(self._plan.address)
            if not self._hold():
                self._plan_again()
            while self._plan is not None:
                try:
                    yield from self._read_plan(tier, self._plan)
                    return
                except TierMissingError:
                    # The store has joined objects and deleted the old ones, or the lease has ended.
                    if missing_at == self._offset:
                        raise
                    missing_at = self._offset
                    self._plan_again()
        except (TierUnreachableError, TierMissingError, PlanRefusedError):
            if self._options.read_path == DIRECT:
                raise
        finally:
            if tier is not None:
                tier.close()

    def _read_plan(self, tier: TierTwo, plan: ScanPlan) -> Iterator[Piece]:
        for chunk in plan.chunks:
            start = max(self._offset, chunk.start_offset)
            end = min(plan.end, chunk.start_offset + chunk.length)
            if start >= end:
                continue
            if start != self._offset:
                return
            base = chunk.start_offset
            for data in read_chunk(tier, chunk, start - base, end - base):
                data_offset = self._offset
                self._offset += len(data)
                self._renew()
                yield data_offset, data

    def _hold(self) -> bool:
        """Begin or renew the task's lease; return False if the chunks may have been deleted.

        If the store does not answer, they are still there: it deletes nothing while it is down, nor
        soon after its start.
        """
        assert self._plan is not None
        self._held_at = time.monotonic()
        try:
            return self._plans.hold(self._piece.segment_id, self._plan, self._lease_id)
        except (ProtocolError, OSError):
            return True

    def _renew(self) -> None:
        if time.monotonic() - self._held_at > RENEWAL_SECONDS:
            # The answer does not matter: a read of a deleted chunk fails, and then plans again.
            self._hold()

    def _plan_again(self) -> None:
        self._plan = self._plans.request(
            self._piece.segment_id, self._offset, self._piece.end, self._lease_id
        )
