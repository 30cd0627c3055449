"""Finds how far a reader group lags behind its streams, in bytes and in time.

Owns: ``SegmentLag``, one for each segment that has unread bytes or a reader.

The lag in bytes is from the position that a reader told last, some seconds ago, to the end of the
segment, or to the group's end if it has one; bytes that a truncation deleted are not to be read any
more. The lag in time is by the times of the stream's writers: from the last watermark before the
position to the newest one. It is unknown for a stream whose writers record no times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pravega_blocking.controller_client import ControllerClient
from pravega_blocking.cuts.watermarks import read_watermarks
from pravega_blocking.segment_info import segment_infos
from pravega_wire.names import parse_segment_name, scoped_name, segment_name
from pravega_wire.reader_group_states import GroupState
from pravega_wire.watermarks import Watermark

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """The position of a group in a segment.

    ``reader`` is None for one that no reader has, such as a successor of an unread segment.
    ``resumes_at`` is where another reader continues if this one vanishes.
    """

    stream: str
    segment_id: int
    reader: str | None
    position: int
    resumes_at: int
    end: int
    unread: int
    lag_ms: int | None


_Cuts = dict[tuple[str, str], dict[int, int]]
"""Offsets by scope and stream, then by segment id."""


def find_lags(controller: ControllerClient, state: GroupState) -> list[SegmentLag]:
    """Return the lag of each segment of a group, in the order of streams and segments."""
    ends, told = _by_stream(state.ends), _by_stream(state.read_to)
    readers = {
        segment: reader for reader, segments in state.assigned.items() for segment in segments
    }
    lags: list[SegmentLag] = []
    for key, cut in sorted(_by_stream(state.positions()).items()):
        scope, stream = key
        end = ends.get(key, {})
        # An end of -1 is that of the segment, and has become the greatest int64 in the state.
        bound = {segment: -1 if at == INT64_MAX else at for segment, at in end.items()}
        segments = sorted({*cut, *controller.segments_between(scope, stream, cut, bound)})
        infos = segment_infos(controller, scope, stream, segments)
        marks = read_watermarks(controller, scope, stream)
        for segment in segments:
            resumes_at, info = cut.get(segment, 0), infos.get(segment)
            if info is None:
                # A truncation has deleted it.
                begin = last = max(resumes_at, 0)
            else:
                begin, last = info.start_offset, info.write_offset
                last = min(last, end.get(segment, last))
            # A negative offset is the end of a segment that was read.
            position = told.get(key, {}).get(segment, resumes_at) if resumes_at >= 0 else last
            unread = max(0, last - max(position, begin))
            lags.append(
                SegmentLag(
                    stream=scoped_name(scope, stream),
                    segment_id=segment,
                    reader=readers.get(segment_name(scope, stream, segment)),
                    position=position,
                    resumes_at=resumes_at,
                    end=last,
                    unread=unread,
                    lag_ms=find_lag_ms(marks, segment, position) if unread else 0,
                )
            )
    return lags


def _by_stream(offsets: Mapping[str, int]) -> _Cuts:
    found: _Cuts = {}
    for segment, offset in offsets.items():
        name = parse_segment_name(segment)
        found.setdefault((name.scope, name.stream), {})[name.segment_id] = offset
    return found


def find_lag_ms(marks: Sequence[Watermark], segment: int, position: int) -> int | None:
    """Return the time, in milliseconds, between a position in a segment and the newest watermark.

    None if there is no watermark. If the position is before all of them, it is the time between the
    oldest and the newest: the lag is at least that.
    """
    if not marks:
        return None
    read = marks[0].lower
    for mark in marks:
        offsets: Mapping[int, int] = {key.segment_id: at for key, at in mark.cut.items()}
        if offsets.get(segment, 0) > position:
            break
        read = mark.lower
    return marks[-1].lower - read
