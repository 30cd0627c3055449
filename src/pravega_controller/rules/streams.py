"""Streams as plain values: segments, key ranges and configuration.

Owns: the values that all other modules of the controller use. No I/O, no clock.

A key range is half open, [low, high), with 0 <= low < high <= 1. A segment's id contains its number
and the epoch that created it.

Invariants:
1. When the key space is divided into even ranges, neighbours have a common end, bit for bit.
   Held by ``test_even_ranges_tile_the_key_space_exactly``.
2. When a stream is deleted and created again, no segment id is used twice.
   Held by ``test_no_segment_name_is_used_twice_by_a_creation_that_a_deletion_passes``.
3. When a configuration is impossible, such as one without segments or a rate, it is refused.
   Held by ``test_a_configuration_that_no_stream_can_have_changes_nothing``.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from pravega_controller.errors import InvalidRequestError
from pravega_wire import names

SEGMENTS_PER_STREAM_MAX = 5_000
"""Maximum number of segments that a stream has at one time: an epoch must fit one table value."""

TAGS_MAX = 127
TAG_LENGTH_MAX = 255
"""Maximum length of a tag in UTF-16 units, as Java counts: its client fails on longer ones."""

StreamCut: TypeAlias = Mapping[int, int]
"""Segment id -> offset in bytes."""


class Segment(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A stream segment and the part of the key space it serves."""

    segment_id: int
    low: float
    high: float

    @property
    def number(self) -> int:
        return names.segment_number(self.segment_id)

    @property
    def epoch(self) -> int:
        """Return the epoch in which the segment was created."""
        return names.segment_epoch(self.segment_id)

    @property
    def key_range(self) -> tuple[float, float]:
        return self.low, self.high

    def overlaps(self, other: Segment) -> bool:
        return self.low < other.high and other.low < self.high


class ScaleType(enum.IntEnum):
    """Rules by which a stream scales. The numbers are stored in segment attributes."""

    FIXED = 0
    KILOBYTES_PER_SECOND = 1
    EVENTS_PER_SECOND = 2


class ScalingPolicy(msgspec.Struct, frozen=True):
    """The number of segments of a stream, and the rate per second at which one is split."""

    scale_type: ScaleType
    segment_count_min: int
    target_rate: int = 0
    scale_factor: int = 0


class RetentionType(enum.IntEnum):
    """Quantities that a stream's retention limits."""

    TIME = 1
    SIZE = 2


class RetentionPolicy(msgspec.Struct, frozen=True):
    """The part of a stream that is kept, in milliseconds or bytes, by its type."""

    retention_type: RetentionType
    minimum: int
    maximum: int


class StreamConfiguration(msgspec.Struct, frozen=True):
    """A user's settings of a stream."""

    scaling: ScalingPolicy
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_bytes: int = 0


def fixed_configuration(segment_count: int, *, rollover_bytes: int = 0) -> StreamConfiguration:
    """Return the configuration of a stream that never scales by itself."""
    return StreamConfiguration(
        ScalingPolicy(ScaleType.FIXED, segment_count), rollover_bytes=rollover_bytes
    )


def validate_configuration(configuration: StreamConfiguration) -> None:
    """Raise ``InvalidRequestError`` if no stream can have this configuration."""
    _validate_scaling(configuration.scaling)
    if configuration.retention is not None:
        _validate_retention(configuration.retention)
    _validate_tags(configuration.tags)
    timeout = configuration.timestamp_aggregation_timeout_ms
    if timeout < 0:
        raise InvalidRequestError(f"the timestamp aggregation time-out cannot be {timeout} ms")
    if configuration.rollover_bytes < 0:
        raise InvalidRequestError(
            f"the rollover size cannot be {configuration.rollover_bytes} bytes"
        )


def _validate_scaling(policy: ScalingPolicy) -> None:
    count = policy.segment_count_min
    if count < 1:
        raise InvalidRequestError(f"a stream has at least one segment, not {count}")
    if count > SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(
            f"a stream has at most {SEGMENTS_PER_STREAM_MAX} segments, not {count}"
        )
    if policy.scale_type is ScaleType.FIXED:
        return
    if policy.target_rate < 1:
        raise InvalidRequestError(
            f"a policy that scales by rate has a target of at least 1, not {policy.target_rate}"
        )
    if policy.scale_factor < 1:
        raise InvalidRequestError(
            f"a policy that scales by rate has a factor of at least 1, not {policy.scale_factor}"
        )


def _validate_retention(policy: RetentionPolicy) -> None:
    if policy.minimum < 0 or policy.maximum < 0:
        raise InvalidRequestError(
            f"retention cannot be negative: {policy.minimum} to {policy.maximum}"
        )
    # Older clients, which have no maximum, send 0.
    if 0 < policy.maximum < policy.minimum:
        raise InvalidRequestError(
            f"the maximum of a retention policy, {policy.maximum}, is below its minimum, "
            f"{policy.minimum}"
        )


def _validate_tags(tags: Sequence[str]) -> None:
    if len(tags) > TAGS_MAX:
        raise InvalidRequestError(f"a stream has at most {TAGS_MAX} tags, not {len(tags)}")
    for tag in tags:
        length = len(tag.encode("utf-16-le")) // 2
        if length > TAG_LENGTH_MAX:
            raise InvalidRequestError(
                f"a tag has at most {TAG_LENGTH_MAX} characters, not {length}"
            )


def even_ranges(count: int) -> list[tuple[float, float]]:
    """Return the key space split into ``count`` ranges of equal width; the last one ends at 1.

    Each inner boundary is computed once, so neighbours have it bit for bit.
    """
    width = 1.0 / count
    ends = [index * width for index in range(count)] + [1.0]
    return list(itertools.pairwise(ends))


def segments_in_ranges(
    ranges: Iterable[tuple[float, float]], *, epoch: int, first_number: int
) -> tuple[Segment, ...]:
    """Return new segments of an epoch, numbered from ``first_number`` in the ranges' order."""
    return tuple(
        Segment(names.segment_id(first_number + index, epoch), low, high)
        for index, (low, high) in enumerate(ranges)
    )


def merge_adjacent(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]] | None:
    """Return the ranges sorted, with those that meet exactly joined; None if any two overlap."""
    merged: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if merged and low < merged[-1][1]:
            return None
        if merged and low == merged[-1][1]:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged


def tiles_key_space(segments: Sequence[Segment]) -> bool:
    """Return whether the segments' ranges cover [0, 1) exactly once."""
    return merge_adjacent(segment.key_range for segment in segments) == [(0.0, 1.0)]
