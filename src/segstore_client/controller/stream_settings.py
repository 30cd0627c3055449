"""A stream's settings: scaling, retention and tags, and the units in which users write them.

Owns: ``StreamSettings``, its form in the controller's messages, and the text of durations and
sizes.

Invariants:
1. When the settings of a stream are read and sent back unchanged, the message is the same.
   Held by ``test_settings_read_from_a_stream_and_sent_back_change_nothing``.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

from pravega_wire import controller_pb2 as pb
from segstore_client.errors import UsageError

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_INT64_MAX = 2**63 - 1


class ScalingKind(enum.Enum):
    """The conditions on which a stream changes its number of segments."""

    FIXED = "fixed"
    EVENT_RATE = "events"
    KBYTE_RATE = "kbytes"


class RetentionKind(enum.Enum):
    """The conditions on which a stream drops its oldest data."""

    NONE = "none"
    TIME = "time"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Scaling:
    """``target_rate`` is per segment and second; FIXED uses neither it nor ``scale_factor``."""

    type: ScalingKind = ScalingKind.FIXED
    segment_count_min: int = 1
    target_rate: int = 0
    scale_factor: int = 0


@dataclass(frozen=True, slots=True)
class Retention:
    """The part of a stream to keep, in milliseconds (TIME) or bytes (SIZE).

    ``minimum`` is always kept. Data that reader groups still need are kept up to ``maximum``.
    """

    type: RetentionKind = RetentionKind.NONE
    minimum: int = 0
    maximum: int = 0


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """All settings of a stream that its owner chooses."""

    scaling: Scaling = field(default_factory=Scaling)
    retention: Retention = field(default_factory=Retention)
    tags: tuple[str, ...] = ()
    rollover_size_bytes: int = 0
    timestamp_aggregation_timeout_ms: int = 0


_SCALE_TYPES = {
    ScalingKind.FIXED: pb.ScalingPolicy.FIXED_NUM_SEGMENTS,
    ScalingKind.EVENT_RATE: pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC,
    ScalingKind.KBYTE_RATE: pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC,
}
_RETENTION_TYPES = {
    RetentionKind.NONE: pb.RetentionPolicy.UNKNOWN,
    RetentionKind.TIME: pb.RetentionPolicy.TIME,
    RetentionKind.SIZE: pb.RetentionPolicy.SIZE,
}
_SCALE_TYPE_OF = {number: kind for kind, number in _SCALE_TYPES.items()}
_RETENTION_TYPE_OF = {number: kind for kind, number in _RETENTION_TYPES.items()}


def settings_to_message(scope: str, stream: str, settings: StreamSettings) -> pb.StreamConfig:
    """Return the message that creates or updates a stream with these settings."""
    scaling, retention = settings.scaling, settings.retention
    message = pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=_SCALE_TYPES[scaling.type],
            targetRate=scaling.target_rate,
            scaleFactor=scaling.scale_factor,
            minNumSegments=scaling.segment_count_min,
        ),
        tags=pb.Tags(tag=settings.tags),
        timestampAggregationTimeout=settings.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=settings.rollover_size_bytes,
    )
    if retention.type is not RetentionKind.NONE:
        message.retentionPolicy.CopyFrom(
            pb.RetentionPolicy(
                retentionType=_RETENTION_TYPES[retention.type],
                retentionParam=retention.minimum,
                retentionMax=retention.maximum,
            )
        )
    return message


def settings_of_message(message: pb.StreamConfig) -> StreamSettings:
    """Return the settings in the message of a stream's configuration."""
    scaling, retention = message.scalingPolicy, message.retentionPolicy
    return StreamSettings(
        scaling=Scaling(
            type=_SCALE_TYPE_OF[scaling.scaleType],
            segment_count_min=scaling.minNumSegments,
            target_rate=scaling.targetRate,
            scale_factor=scaling.scaleFactor,
        ),
        retention=Retention(
            type=_RETENTION_TYPE_OF[retention.retentionType],
            minimum=retention.retentionParam,
            maximum=retention.retentionMax,
        ),
        tags=tuple(message.tags.tag),
        rollover_size_bytes=message.rolloverSizeBytes,
        timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
    )


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a text such as ``90s``, ``12h`` or ``7d``."""
    return _parse(text, _MILLISECONDS, "a duration such as 90s, 12h or 7d")


def parse_size_bytes(text: str) -> int:
    """Return the bytes of a text such as ``500MB`` (powers of ten) or ``10GiB`` (powers of two)."""
    return _parse(text, _BYTES, "a size such as 500MB or 10GiB")


def format_size(size: int) -> str:
    """Return a size with three digits and a decimal unit, such as ``1.25 MB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}" if unit != "B" else f"{size} B"
        value /= 1000
    return f"{value:.3g} TB"


def _parse(text: str, units: dict[str, int], wanted: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{text!r} is not {wanted}")
    value = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if not 0 < value <= _INT64_MAX:
        raise UsageError(f"{text!r} is out of range")
    return value
