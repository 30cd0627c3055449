"""Decides when segments whose flush failed are tried again.

Owns: the failures of one container's segments. A failure is recorded until the segment is flushed
or has nothing to flush.

Invariants:
1. When tier 2 refuses some segments, the others are flushed as usual. Held by
   ``test_a_segment_that_tier_2_refuses_keeps_no_other_from_it``.
2. A segment that fails while others succeed pauses before its next attempt, and each pause is twice
   as long as the last one, up to ``pause_seconds_max``. Held by
   ``test_pauses_double_up_to_the_maximum_while_others_succeed``.
3. When no segment succeeds, none pauses: then tier 2 itself may fail, and any segment can find out
   that it works again. Held by ``test_no_segment_pauses_when_none_succeeds``.
4. While some segments fail, truncations and deletions are tried first: tier 2 may be full, and they
   free space. Held by ``test_what_frees_space_is_tried_first_while_segments_fail``.
5. When a segment has failed for ``error_seconds``, each further failure is logged as an error with
   the number of bytes that it keeps in the journal. Held by
   ``test_a_segment_that_tier_2_takes_again_lets_the_log_go``.

Names of values are those of ``FlushPolicy``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from segstore.errors import (
    ChunkNotFoundError,
    InvalidChunkOffsetError,
    StorageError,
    StorageFullError,
)
from segstore.writer.flush_policy import FlushPolicy
from segstore.writer.segment_aggregator import SegmentAggregator

logger = structlog.get_logger(__name__)


def is_strange(error: StorageError) -> bool:
    """Return whether the error shows that a chunk is missing, or has another length than the writer
    left."""
    return isinstance(error, ChunkNotFoundError | InvalidChunkOffsetError)


@dataclass(slots=True)
class Failure:
    """The failures of one segment since its last successful flush."""

    error: StorageError
    success_count: int
    """Count of successful flushes of all segments when this one's last pause began."""
    attempt_count: int = 0
    strange_count: int = 0
    pause_seconds: float = 0.0
    retry_at: float = 0.0
    paused_since: float = 0.0


class FailingSegments:
    """The failing segments of one container.

    ``name_of`` returns a segment's name for log lines. ``held_bytes`` returns the number of bytes
    of tier 1 that cannot be freed because of the container.
    """

    def __init__(
        self,
        container_id: int,
        name_of: Callable[[int], str],
        held_bytes: Callable[[], int],
        policy: FlushPolicy,
    ) -> None:
        self._policy = policy
        self._held_bytes = held_bytes
        self._container_id = container_id
        self._name_of = name_of
        self._failures: dict[int, Failure] = {}
        self._success_count = 0
        self._success_count_before = 0

    @property
    def failures(self) -> Mapping[int, Failure]:
        """Return the failures by segment id, in the order of their last attempts."""
        return self._failures

    @property
    def hopeless(self) -> StorageError | None:
        """Return the error of a segment that only a recovery of the container can repair, or
        None."""
        for failure in self._failures.values():
            if failure.strange_count >= self._policy.strange_attempts_max:
                return failure.error
        return None

    def order(
        self, aggregators: Iterable[SegmentAggregator], now: float | None
    ) -> list[SegmentAggregator]:
        """Return the aggregators to try now: sound ones, then failing ones in the order of their
        last attempts. If any segment fails, those that free space come before all others.

        Segments that pause are left out, unless ``now`` is None or they free space.
        """
        self._success_count_before = self._success_count
        sound: list[SegmentAggregator] = []
        failing: dict[int, SegmentAggregator] = {}
        for aggregator in aggregators:
            failure = self._failures.get(aggregator.segment_id)
            if failure is None:
                sound.append(aggregator)
            elif now is None or failure.retry_at <= now or aggregator.frees_space:
                failing[aggregator.segment_id] = aggregator
        ordered = sound + [failing[number] for number in self._failures if number in failing]
        if self._failures:
            ordered.sort(key=lambda each: not each.frees_space)
        return ordered

    def record_failure(self, segment_id: int, error: StorageError) -> None:
        """Record that an attempt to flush the segment failed."""
        failure = self._failures.pop(segment_id, None)
        if failure is None:
            failure = Failure(error, self._success_count_before)
        self._failures[segment_id] = failure
        failure.error = error
        failure.attempt_count += 1
        failure.strange_count = failure.strange_count + 1 if is_strange(error) else 0

    def record_success(self, segment_id: int) -> None:
        """Record that the segment is flushed, and forget its failure."""
        self._success_count += 1
        failure = self._failures.pop(segment_id, None)
        if failure is not None and failure.pause_seconds:
            logger.info(
                "segment reaches tier 2 again",
                container=self._container_id,
                segment=self._name_of(segment_id),
                attempts=failure.attempt_count,
            )

    def pause(self, segment_ids: Iterable[int], now: float) -> None:
        """Pause those of the segments that failed while others succeeded, in this round or an
        earlier one.

        The pause doubles if other segments have succeeded since the last one began.
        """
        policy = self._policy
        for segment_id in segment_ids:
            failure = self._failures[segment_id]
            seconds = failure.pause_seconds
            if self._success_count > failure.success_count:
                failure.success_count = self._success_count
                seconds = min(policy.pause_seconds_max, max(policy.pause_seconds_min, 2 * seconds))
            if not seconds:
                continue
            if failure.strange_count or isinstance(failure.error, StorageFullError):
                seconds = policy.pause_seconds_min
            if not failure.pause_seconds:
                failure.paused_since = now
            failure.pause_seconds = seconds
            failure.retry_at = now + seconds
            facts = {
                "container": self._container_id,
                "segment": self._name_of(segment_id),
                "error": str(failure.error),
                "attempts": failure.attempt_count,
                "retry_seconds": seconds,
            }
            if now - failure.paused_since < policy.error_seconds:
                logger.warning("segment does not reach tier 2", **facts)
            else:
                logger.error(
                    "segment keeps the journal from being freed; writers stop when it is full",
                    seconds=round(now - failure.paused_since),
                    journal_bytes=self._held_bytes(),
                    **facts,
                )

    def forget_others(self, segment_ids: Collection[int]) -> None:
        """Forget the failures of all segments but these, which are still unflushed."""
        for segment_id in self._failures.keys() - segment_ids:
            del self._failures[segment_id]
