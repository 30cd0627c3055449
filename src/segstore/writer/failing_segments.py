"""Which segments tier 2 refuses while it takes others, and when each is tried again.

Owns: the failures of one container's segments, from the first until it succeeds or owes nothing.

Invariants:
1. A segment that fails keeps no other from tier 2: it is tried after those that do not fail, and
   the less often the longer it fails, up to ``PAUSE_SECONDS_MAX``.
2. A pause is only for segments that failed while others succeeded: when nothing succeeds it may be
   tier 2 that fails, and every segment may be the one that tells when it is back.
3. Every failure that is a segment's own is in the log, and so is its end; after
   ``ERROR_SECONDS`` as an error that says what it holds up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.writer.segment_aggregator import SegmentAggregator

PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 30.0
ERROR_SECONDS: Final = 60.0
"""From then on a failure is an error: the container's log is kept until it ends."""
STRANGE_ATTEMPTS_MAX: Final = 5
"""So many attempts in a row may find chunks missing, or of other lengths."""

logger = structlog.get_logger(__name__)


def is_strange(error: StorageError) -> bool:
    """Whether tier 2 is not what its writer left there."""
    return isinstance(error, ChunkNotFoundError | InvalidChunkOffsetError)


@dataclass(slots=True)
class Failure:
    """The failures in a row of one segment."""

    error: StorageError
    success_count: int
    """Successes of others when it was paused last."""
    attempt_count: int = 0
    strange_count: int = 0
    pause_seconds: float = 0.0
    retry_at: float = 0.0
    paused_since: float = 0.0


class FailingSegments:
    """Those of one container; ``name_of`` tells a segment's name for the log, ``held_bytes`` what
    the container holds of tier 1."""

    def __init__(
        self, container_id: int, name_of: Callable[[int], str], held_bytes: Callable[[], int]
    ) -> None:
        self._held_bytes = held_bytes
        self._container_id = container_id
        self._name_of = name_of
        self._failures: dict[int, Failure] = {}
        self._success_count = 0
        self._success_count_before = 0

    @property
    def failures(self) -> Mapping[int, Failure]:
        """By segment id; the one that failed the longest time ago comes first."""
        return self._failures

    @property
    def hopeless(self) -> StorageError | None:
        """The error of a segment that only a recovery can help, if there is one."""
        for failure in self._failures.values():
            if failure.strange_count >= STRANGE_ATTEMPTS_MAX:
                return failure.error
        return None

    def in_turn(
        self, aggregators: Iterable[SegmentAggregator], now: float | None
    ) -> list[SegmentAggregator]:
        """Those to try, in which order; all of them, whatever their pauses, when ``now`` is None.

        Of those that fail, the one whose attempt was first comes first.
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

    def note_failure(self, segment_id: int, error: StorageError) -> None:
        """It was tried and failed."""
        failure = self._failures.pop(segment_id, None)
        if failure is None:
            failure = Failure(error, self._success_count_before)
        self._failures[segment_id] = failure
        failure.error = error
        failure.attempt_count += 1
        failure.strange_count = failure.strange_count + 1 if is_strange(error) else 0

    def note_success(self, segment_id: int) -> None:
        """It owes nothing."""
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
        """Leave those in peace for a while that failed while others succeeded, now or before; for
        a longer while if others have succeeded since the last time."""
        for segment_id in segment_ids:
            failure = self._failures[segment_id]
            seconds = failure.pause_seconds
            if self._success_count > failure.success_count:
                failure.success_count = self._success_count
                seconds = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS_MIN, 2 * seconds))
            if not seconds:
                continue
            if failure.strange_count:
                seconds = PAUSE_SECONDS_MIN
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
            if now - failure.paused_since < ERROR_SECONDS:
                logger.warning("segment does not reach tier 2", **facts)
            else:
                logger.error(
                    "segment keeps the journal from being let go; writers stop when it is full",
                    seconds=round(now - failure.paused_since),
                    journal_bytes=self._held_bytes(),
                    **facts,
                )

    def keep(self, segment_ids: Collection[int]) -> None:
        """Forget those that owe nothing any more, whoever took it over."""
        for segment_id in self._failures.keys() - segment_ids:
            del self._failures[segment_id]
