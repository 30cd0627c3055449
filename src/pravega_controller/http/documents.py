"""The JSON documents of streams, as the original's REST interface has them, and their messages.

Owns: every conversion between a document and a message of the controller.

Invariants:
1. When a message becomes a document, and the document a message, they are equal except for what
   documents do not have: the maximum of a retention policy. Held by
   ``test_a_stream_and_its_document_are_one``.
2. When a document is not valid, ``InvalidRequestError`` names the field. Held by
   ``test_what_is_wrong_in_a_document_is_named``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pravega_controller.errors import InvalidRequestError
from pravega_controller.rules.history import Epoch
from pravega_controller.rules.streams import Segment
from pravega_wire import controller_pb2 as pb
from pravega_wire import names

MEBIBYTE: Final = 1 << 20
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DAYS_MAX: Final = LONG_MAX // DAY_MS // 2
"""Maximum number of days of a retention policy: with hours and minutes it is still a long."""

Scaling = pb.ScalingPolicy
Retention = pb.RetentionPolicy
SCALING_TYPES: Final = {
    "FIXED_NUM_SEGMENTS": Scaling.FIXED_NUM_SEGMENTS,
    "BY_RATE_IN_KBYTES_PER_SEC": Scaling.BY_RATE_IN_KBYTES_PER_SEC,
    "BY_RATE_IN_EVENTS_PER_SEC": Scaling.BY_RATE_IN_EVENTS_PER_SEC,
}
RETENTION_TYPES: Final = {"LIMITED_DAYS": Retention.TIME, "LIMITED_SIZE_MB": Retention.SIZE}

Document = dict[str, Any]


def stream_document(message: pb.StreamConfig) -> Document:
    """Return the document of a stream's configuration."""
    document: Document = {
        "scopeName": message.streamInfo.scope,
        "streamName": message.streamInfo.stream,
        "scalingPolicy": _scaling_document(message.scalingPolicy),
    }
    if message.HasField("retentionPolicy"):
        document["retentionPolicy"] = _retention_document(message.retentionPolicy)
    return document | {
        "tags": list(message.tags.tag),
        "timestampAggregationTimeout": message.timestampAggregationTimeout,
        "rolloverSizeBytes": message.rolloverSizeBytes,
    }


def stream_message(scope: str, stream: str, document: Document) -> pb.StreamConfig:
    """Return the configuration in a document. Raises ``InvalidRequestError``."""
    message = pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=_scaling_message(_object(document, "scalingPolicy")),
        tags=pb.Tags(tag=_strings(document, "streamTags")),
        timestampAggregationTimeout=_integer(document, "timestampAggregationTimeout", LONG_MAX),
        rolloverSizeBytes=_integer(document, "rolloverSizeBytes", LONG_MAX),
    )
    if document.get("retentionPolicy") is not None:
        message.retentionPolicy.CopyFrom(_retention_message(_object(document, "retentionPolicy")))
    return message


def scale_documents(
    epochs: Sequence[Epoch], segments: Sequence[Sequence[Segment]], since_ms: int, until_ms: int
) -> list[Document]:
    """Return the scales of a stream within a time, and the last one before it.

    ``epochs`` are in order, each with its segments.
    """
    times = [epoch.created_ms for epoch in epochs]
    created = {epoch.number: epoch.created_ms for epoch in epochs}
    last_before = max((index for index, time in enumerate(times) if time < since_ms), default=0)
    found = []
    for index, epoch in enumerate(epochs):
        is_within = since_ms <= times[index] <= until_ms
        if is_within or (index == last_before and times[index] <= until_ms):
            found.append(_scale_document(epoch, segments[index], created))
    return found


def _scale_document(
    epoch: Epoch, segments: Sequence[Segment], created: Mapping[int, int]
) -> Document:
    return {
        "timestamp": epoch.created_ms,
        "segments": [
            {
                "number": names.segment_number(segment.segment_id),
                "epoch": names.segment_epoch(segment.segment_id),
                # For a segment that was created before the recorded epochs, the first recorded
                # time.
                "start": created.get(
                    names.segment_epoch(segment.segment_id), min(created.values())
                ),
                "keyStart": segment.low,
                "keyEnd": segment.high,
            }
            for segment in segments
        ],
        "splits": _count_replaced_by_several(epoch.sealed, epoch.created),
        "merges": _count_replaced_by_several(epoch.created, epoch.sealed),
    }


def _count_replaced_by_several(segments: Sequence[Segment], others: Sequence[Segment]) -> int:
    """Return how many segments share their keys with more than one of the others."""
    return sum(sum(each.overlaps(other) for other in others) > 1 for each in segments)


def _scaling_document(policy: pb.ScalingPolicy) -> Document:
    name = next(name for name, value in SCALING_TYPES.items() if value == policy.scaleType)
    document: Document = {"type": name}
    if policy.scaleType != Scaling.FIXED_NUM_SEGMENTS:
        document |= {"targetRate": policy.targetRate, "scaleFactor": policy.scaleFactor}
    return document | {"minSegments": policy.minNumSegments}


def _scaling_message(document: Document) -> pb.ScalingPolicy:
    kind = _choice(document, "type", SCALING_TYPES)
    rate = _integer(document, "targetRate", INT_MAX)
    factor = _integer(document, "scaleFactor", INT_MAX)
    message = pb.ScalingPolicy(
        scaleType=kind, minNumSegments=_integer(document, "minSegments", INT_MAX, default=1)
    )
    if kind != Scaling.FIXED_NUM_SEGMENTS:
        message.targetRate, message.scaleFactor = rate, factor
    return message


def _retention_document(policy: pb.RetentionPolicy) -> Document:
    if policy.retentionType == Retention.SIZE:
        return {"type": "LIMITED_SIZE_MB", "value": policy.retentionParam // MEBIBYTE}
    days, rest = divmod(policy.retentionParam, DAY_MS)
    hours, rest = divmod(rest, HOUR_MS)
    return {
        "type": "LIMITED_DAYS",
        # A time that is no whole number of days is in the next field alone.
        "value": 0 if policy.retentionParam % DAY_MS else days,
        "timeBasedRetention": {"days": days, "hours": hours, "minutes": rest // MINUTE_MS},
    }


def _retention_message(document: Document) -> pb.RetentionPolicy:
    kind = _choice(document, "type", RETENTION_TYPES)
    value = _integer(document, "value", DAYS_MAX)
    parts: Document = {}
    if document.get("timeBasedRetention") is not None:
        parts = _object(document, "timeBasedRetention")
    time_ms = (
        _integer(parts, "days", DAYS_MAX) * DAY_MS
        + _integer(parts, "hours", INT_MAX) * HOUR_MS
        + _integer(parts, "minutes", INT_MAX) * MINUTE_MS
    )
    if kind == Retention.SIZE:
        return pb.RetentionPolicy(retentionType=kind, retentionParam=value * MEBIBYTE)
    return pb.RetentionPolicy(retentionType=kind, retentionParam=value * DAY_MS or time_ms)


def _object(document: Document, field: str) -> Document:
    value = document.get(field)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{field} has to be an object")
    return value


def _choice(document: Document, field: str, choices: dict[str, Any]) -> Any:
    value = document.get(field)
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequestError(f"{field} has to be one of {', '.join(choices)}")
    return choices[value]


def _integer(document: Document, field: str, largest: int, default: int = 0) -> int:
    value = document.get(field)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        # JSON has one kind of number: 1.0 is a whole one.
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise InvalidRequestError(f"{field} has to be a whole number from 0 to {largest}")
    return value


def _strings(document: Document, field: str) -> list[str]:
    value = document.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidRequestError(f"{field} has to be a list of strings")
    return value
