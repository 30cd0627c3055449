"""Converts between the controller's gRPC messages and its own values.

Owns: every conversion. No other module below the handlers sees a message.

Invariants:
1. A stream configuration in an answer always has its scaling policy and tags, because clients read
   both without a check. A retention policy is there only if the stream has one. Held by
   ``test_the_policy_and_tags_are_always_filled_in``.
2. A reader group's configuration is returned exactly as it was received. Held by
   ``test_a_reader_group_is_made_once_and_comes_back_as_it_was``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pravega_controller.errors import InvalidRequestError
from pravega_controller.metadata.group_records import ReaderGroup
from pravega_controller.metadata.records import NamedCut, ReaderGroupConfiguration
from pravega_controller.rules.streams import (
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    Segment,
    StreamConfiguration,
)
from pravega_wire import controller_pb2 as pb


def stream_info(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def segment_id(scope: str, stream: str, identifier: int) -> pb.SegmentId:
    return pb.SegmentId(streamInfo=stream_info(scope, stream), segmentId=identifier)


def segment_range(scope: str, stream: str, segment: Segment) -> pb.SegmentRange:
    return pb.SegmentRange(
        segmentId=segment_id(scope, stream, segment.segment_id),
        minKey=segment.low,
        maxKey=segment.high,
    )


def segment_ranges(scope: str, stream: str, segments: Iterable[Segment]) -> pb.SegmentRanges:
    return pb.SegmentRanges(
        segmentRanges=[segment_range(scope, stream, segment) for segment in segments]
    )


def stream_cut(scope: str, stream: str, cut: Mapping[int, int]) -> pb.StreamCut:
    return pb.StreamCut(streamInfo=stream_info(scope, stream), cut=cut)


def to_configuration(message: pb.StreamConfig) -> StreamConfiguration:
    """Return the configuration in a message. Raises ``InvalidRequestError`` for bad numbers."""
    policy = message.scalingPolicy
    try:
        scaling = ScalingPolicy(
            ScaleType(policy.scaleType),
            segment_count_min=policy.minNumSegments,
            target_rate=policy.targetRate,
            scale_factor=policy.scaleFactor,
        )
        retention = _to_retention(message.retentionPolicy)
    except ValueError as error:
        raise InvalidRequestError(f"the stream configuration is not valid: {error}") from error
    return StreamConfiguration(
        scaling,
        retention,
        tags=tuple(dict.fromkeys(message.tags.tag)),
        timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
        rollover_bytes=message.rolloverSizeBytes,
    )


def from_configuration(
    scope: str, stream: str, configuration: StreamConfiguration
) -> pb.StreamConfig:
    scaling = configuration.scaling
    message = pb.StreamConfig(
        streamInfo=stream_info(scope, stream),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.ScalingPolicyType.Name(scaling.scale_type),
            targetRate=scaling.target_rate,
            scaleFactor=scaling.scale_factor,
            minNumSegments=scaling.segment_count_min,
        ),
        tags=pb.Tags(tag=configuration.tags),
        timestampAggregationTimeout=configuration.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=configuration.rollover_bytes,
    )
    if (retention := configuration.retention) is not None:
        message.retentionPolicy.CopyFrom(
            pb.RetentionPolicy(
                retentionType=pb.RetentionPolicy.RetentionPolicyType.Name(retention.retention_type),
                retentionParam=retention.minimum,
                retentionMax=retention.maximum,
            )
        )
    return message


def to_group_configuration(message: pb.ReaderGroupConfiguration) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration(
        refresh_ms=message.groupRefreshTimeMillis,
        checkpoint_interval_ms=message.automaticCheckpointIntervalMillis,
        outstanding_checkpoints_max=message.maxOutstandingCheckpointRequest,
        retention_type=message.retentionType,
        starting_cuts=_to_cuts(message.startingStreamCuts),
        ending_cuts=_to_cuts(message.endingStreamCuts),
        rollover_bytes=message.rolloverSizeBytes,
    )


def from_group(group: ReaderGroup) -> pb.ReaderGroupConfiguration:
    record = group.record
    configuration = record.configuration
    return pb.ReaderGroupConfiguration(
        scope=group.scope.name,
        readerGroupName=group.name,
        groupRefreshTimeMillis=configuration.refresh_ms,
        automaticCheckpointIntervalMillis=configuration.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=configuration.outstanding_checkpoints_max,
        retentionType=configuration.retention_type,
        generation=record.generation,
        readerGroupId=record.group_id,
        startingStreamCuts=[
            stream_cut(c.scope, c.stream, c.cut) for c in configuration.starting_cuts
        ],
        endingStreamCuts=[stream_cut(c.scope, c.stream, c.cut) for c in configuration.ending_cuts],
        rolloverSizeBytes=configuration.rollover_bytes,
    )


def _to_retention(message: pb.RetentionPolicy) -> RetentionPolicy | None:
    if message.retentionType == pb.RetentionPolicy.UNKNOWN:
        return None
    return RetentionPolicy(
        RetentionType(message.retentionType), message.retentionParam, message.retentionMax
    )


def _to_cuts(messages: Iterable[pb.StreamCut]) -> tuple[NamedCut, ...]:
    return tuple(
        NamedCut(message.streamInfo.scope, message.streamInfo.stream, dict(message.cut))
        for message in messages
    )
