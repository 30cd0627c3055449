"""Segments that tier 2 refuses while it accepts others, and when each is tried again.

Owns: the failures of one container's segments. A failure is kept until the segment is flushed or
has nothing to flush.

Invariants (values are those of ``FlushPolicy``):
1. A failing segment does not block others: it is tried after the sound ones, and less often the
   longer it fails, with pauses up to ``pause_seconds_max``.
2. Only a segment that failed while others succeeded pauses. When nothing succeeds, tier 2 itself
   may fail, and any segment can find out when it is back.
3. Each failure of a single segment is logged, and so is its end; after ``error_seconds`` as an
   error that tells how much of the journal it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.writer.flush_policy import FlushPolicy
from segstore.writer.segment_aggregator import SegmentAggregator

logger = structlog.get_logger(__name__)


def is_strange(error: StorageError) -> bool:
    """Return whether the error shows that tier 2 is not as its writer left it."""
    return isinstance(error, ChunkNotFoundError | InvalidChunkOffsetError)


@dataclass(slots=True)
class Failure:
    """One segment's failures since its last success."""

    error: StorageError
    success_count: int
    """Count of other segments' successes when this one began its last pause."""
    attempt_count: int = 0
    strange_count: int = 0
    pause_seconds: float = 0.0
    retry_at: float = 0.0
    paused_since: float = 0.0


class FailingSegments:
    """The failing segments of one container.

    ``name_of`` returns a segment's name for log lines, ``held_bytes`` how much the container holds
    of tier 1.
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
        """Return the failures by segment id, ordered by the last attempt, the earliest first."""
        return self._failures

    @property
    def hopeless(self) -> StorageError | None:
        """Return the error of a segment that only a recovery can repair, if there is one."""
        for failure in self._failures.values():
            if failure.strange_count >= self._policy.strange_attempts_max:
                return failure.error
        return None

    def order(
        self, aggregators: Iterable[SegmentAggregator], now: float | None
    ) -> list[SegmentAggregator]:
        """Return the aggregators to try now: sound ones first, then failing ones by last attempt.

        Segments that pause are left out, unless ``now`` is None.
        """
        self._success_count_before = self._success_count
        sound: list[SegmentAggregator] = []
        failing: dict[int, SegmentAggregator] = {}
        for aggregator in aggregators:
            failure = self._failures.get(aggregator.segment_id)
            if failure is None:
                sound.append(aggregator)
            elif now is None or failure.retry_at <= now:
                failing[aggregator.segment_id] = aggregator
        return sound + [failing[number] for number in self._failures if number in failing]

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
        """Record that the segment is flushed, and end its failures."""
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
        """Pause the segments that failed while others succeeded, now or before.

        The pause doubles if others have succeeded since the last one.
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
            if failure.strange_count:
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
