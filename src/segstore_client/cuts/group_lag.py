"""Asks how far a reader group lags behind its streams.

Owns: the order of the questions: the segments of each stream from the group's positions on, their
bounds, and the stream's watermarks. What follows from the answers is in ``pravega_wire``.
"""

from __future__ import annotations

from pravega_wire.reader_groups.lags import SegmentLag, streams_of
from pravega_wire.reader_groups.states import GroupState
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import segment_infos
from segstore_client.cuts.watermarks import read_watermarks


def find_lags(controller: ControllerClient, state: GroupState) -> list[SegmentLag]:
    """Return the lag of each segment of a group, in the order of streams and segments."""
    lags: list[SegmentLag] = []
    for part in streams_of(state):
        scope, stream = part.scope, part.stream
        between = controller.segments_between(scope, stream, part.resumes_at, part.end_cut)
        segments = part.segments(between)
        bounds = {
            segment: (info.start_offset, info.write_offset)
            for segment, info in segment_infos(controller, scope, stream, segments).items()
        }
        lags += part.lags(segments, bounds, read_watermarks(controller, scope, stream))
    return lags
