"""Evicts idle segments from memory: chooses them, and makes them inactive.

Owns: the policy, and the task that looks for idle segments. An operation in the log makes segments
inactive and has their records, so each checkpoint without a segment comes after its record.

Invariants:
1. While tier 2 lacks bytes or attributes of a segment, the segment stays in memory. Held by
   ``test_what_tier_2_lacks_keeps_a_segment``.
2. A segment that was used after the last look, also in the moment of its eviction, stays in memory.
   Held by ``test_use_after_the_second_look_keeps_a_segment_too``.
3. When the process dies before the eviction of a segment is durable, the segment is active after
   the restart. Held by ``test_what_was_not_durable_when_the_process_died_did_not_leave``.
4. Tables, transient segments and segments with waiting readers stay in memory. Held by
   ``test_tables_transient_segments_and_those_with_waiting_readers_stay``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import structlog
import trio

from segstore.durable_log.prefetch import AttributePrefetcher
from segstore.durable_log.update_transaction import NothingIdleError
from segstore.errors import ContainerOfflineError, StorageError
from segstore.inactive.compaction import TOGETHER_MAX, RecordCompaction
from segstore.model.attributes import SegmentType
from segstore.model.metadata import ContainerMetadata, SegmentMetadata, records_name
from segstore.model.operations import EvictOperation
from segstore.read_index.read_index import ReadIndex
from segstore.writer.storage_writer import StorageWriter

BACKLOG_MAX: Final = 10_000
"""Maximum number of unflushed operations at which segments are evicted; each look for idle segments
scans all of these operations."""
CHANGES_MAX: Final = 2_000
"""Number of operations other than appends after which a checkpoint is written, so that a recovery
replays few of them."""
QUIET_CHANGES_MAX: Final = 100
QUIET_SHARE: Final = 10
"""Divisor of the number of active segments. In a quiet container, which has had no change since the
last look, a checkpoint is written after this quotient of operations, but not before
``QUIET_CHANGES_MAX``. A checkpoint contains all active segments."""
INDEX_SECONDS: Final = 0.5
"""Wait, in seconds, before the checkpoint of a quiet container. Meanwhile the attribute index of
the records is written, so that the checkpoint need not contain its changes."""
CHECKPOINT_SECONDS_MIN: Final = 2.0
_STAYING: Final = int(SegmentType.TABLE | SegmentType.TRANSIENT)
CORE_COUNT_MAX: Final = 256
"""Maximum number of core attributes of a segment that is evicted. Clients can add more, but then
the record would be longer than ``RECORD_BYTES_MAX``."""
logger = structlog.get_logger(__name__)
_idle_since = attrgetter("idle_since")


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """The conditions under which segments become inactive. Times are in seconds."""

    active_count_max: int = 2_500
    """Maximum count of active segments; above it, those that were idle for the longest time are
    evicted."""
    idle_seconds_max: float = 60.0
    """Time without use, in seconds, after which a segment becomes inactive, however few there are
    (the original's expiration)."""
    look_seconds: float = 1.0
    """Interval between looks for idle segments while more are active than ``active_count_max``."""
    relaxed_look_seconds: float = 5.0
    """Interval between looks for idle segments while fewer are active. Each look scans all active
    segments."""


ALL_STAY: Final = EvictionPolicy(active_count_max=sys.maxsize, idle_seconds_max=math.inf)
"""The policy under which no segment becomes inactive."""


class Eviction:
    """Evicts idle segments of one container. ``run`` is a task of its own."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        policy: EvictionPolicy,
        writer: StorageWriter,
        read_index: ReadIndex,
        prefetcher: AttributePrefetcher,
        compaction: RecordCompaction,
        *,
        wait: Callable[[EvictOperation], Awaitable[int]],
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._policy = policy
        self._writer = writer
        self._read_index = read_index
        self._prefetcher = prefetcher
        self._wait = wait
        self._checkpoint = checkpoint
        self._checkpoint_at = self._looked_at = trio.current_time()
        self._change_count = 0
        self.compaction = compaction

    async def run(self) -> None:
        """Look for idle segments until cancelled or the container stops."""
        while True:
            await trio.sleep(self._policy.look_seconds)
            is_quiet = self._metadata.change_count == self._change_count
            try:
                if self._is_look_due(trio.current_time()):
                    await self.evict(self.look(trio.current_time()))
                await self._checkpoint_when_due(is_quiet=is_quiet)
                await self._compact_when_due()
            except ContainerOfflineError:
                return
            self._change_count = self._metadata.change_count

    def _is_look_due(self, now: float) -> bool:
        policy = self._policy
        if len(self._metadata.by_name) > policy.active_count_max:
            return True
        relaxed_seconds = min(policy.relaxed_look_seconds, policy.idle_seconds_max)
        return now >= self._looked_at + relaxed_seconds

    def look(self, now: float) -> list[int]:
        """Record which segments were used since the last look. Return the ids of those that may be
        evicted; if there are too many active ones, those that were idle for longest come first."""
        self._looked_at = now
        idle = []
        for segment in self._metadata.by_name.values():
            if segment.was_used:
                segment.was_used = False
                segment.idle_since = now
            else:
                idle.append(segment)
        if not idle or self._writer.operation_count > BACKLOG_MAX:
            return []
        expired = now - self._policy.idle_seconds_max
        excess = len(self._metadata.by_name) - self._policy.active_count_max
        if excess > 0:
            idle.sort(key=_idle_since)
        else:
            idle = [segment for segment in idle if segment.idle_since <= expired]
        leaving: list[int] = []
        for segment in idle:
            if len(leaving) >= excess and segment.idle_since > expired:
                break
            if self._may_be_evicted(segment):
                leaving.append(segment.segment_id)
        return leaving

    async def evict(self, candidates: list[int]) -> None:
        """Evict those of the segments that may still be evicted when the operation is accepted.
        Raises ``ContainerOfflineError``."""
        name = records_name(self._metadata.container_id)
        for start in range(0, len(candidates), TOGETHER_MAX):
            together = candidates[start : start + TOGETHER_MAX]
            try:
                await self._wait(EvictOperation(name, together, self._choose))
            except NothingIdleError:
                await trio.lowlevel.checkpoint()

    def _choose(self, segments: list[SegmentMetadata]) -> list[SegmentMetadata]:
        owed = self._writer.unflushed_segments()
        return [
            segment
            for segment in segments
            if segment.segment_id not in owed and self._may_be_evicted(segment)
        ]

    def _may_be_evicted(self, segment: SegmentMetadata) -> bool:
        return (
            not segment.was_used
            and segment.storage_length == segment.length
            and not segment.user_count
            and not segment.leaving
            and not segment.is_gone
            and segment is not self._metadata.records
            and segment.segment_id not in self._metadata.unpersisted
            and not segment.segment_type & _STAYING
            and len(segment.attribute_memory.core) <= CORE_COUNT_MAX
            and not self._prefetcher.is_waited_for(segment.name)
            and self._read_index.is_idle(segment)
        )

    async def _compact_when_due(self) -> None:
        """Compact records in steps until enough are compacted. A ``StorageError`` is logged."""
        try:
            while self.compaction.is_due:
                if not await self.compaction.step():
                    return
        except StorageError as error:
            logger.warning(
                "records are not taken together now",
                container=self._metadata.container_id,
                error=str(error),
            )

    async def _checkpoint_when_due(self, *, is_quiet: bool) -> None:
        """Write a checkpoint when a recovery would replay more operations than there are active
        segments. A quiet container writes one after fewer operations: without it, the next start
        would replay all operations that created and evicted segments."""
        active_count = len(self._metadata.by_name)
        changes_max = max(CHANGES_MAX, active_count)
        if is_quiet:
            changes_max = max(QUIET_CHANGES_MAX, active_count // QUIET_SHARE)
        now = trio.current_time()
        if self._metadata.change_count > changes_max and now >= self._checkpoint_at:
            if is_quiet:
                await trio.sleep(INDEX_SECONDS)
            self._checkpoint_at = now + CHECKPOINT_SECONDS_MIN
            await self._checkpoint()
            self._writer.request_flush()
