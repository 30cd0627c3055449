"""Finds how far a reader group lags behind its streams, in bytes and in time.

Owns: ``SegmentLag``, one for each segment that has unread bytes or a reader, and what is asked of
a stream to find it. The functions are pure; the command line and the console do the asking.

The lag in bytes counts from the position that a reader reported last, some seconds ago, to the end
of the segment, or to the group's end if it has one, without bytes that a truncation deleted. The
lag in time is computed from the times that the stream's writers record: from the last watermark
before the position to the newest one. It is unknown for a stream whose writers record no times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pravega_wire.names import parse_segment_name, scoped_name, segment_epoch
from pravega_wire.reader_groups.states import GroupState
from pravega_wire.watermarks import Watermark

INT64_MAX = 2**63 - 1

Bounds = Mapping[int, tuple[int, int]]
"""The begin and the end of segments, by id; none for one that a truncation has deleted."""


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


@dataclass(slots=True)
class StreamOfGroup:
    """A stream that a group reads, with what the group's state has of it, by segment id."""

    scope: str
    stream: str
    resumes_at: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    readers: dict[int, str] = field(default_factory=dict)

    @property
    def end_cut(self) -> dict[int, int]:
        """Return the group's end as a stream cut; empty if it has none."""
        # An end of -1 is that of the segment, and has become the greatest int64 in the state.
        return {segment: -1 if at == INT64_MAX else at for segment, at in self.ends.items()}

    def segments(self, between: Iterable[int]) -> list[int]:
        """Return the segments with a lag; ``between`` are those from ``resumes_at`` to the end."""
        return sorted({*self.resumes_at, *between})

    def lags(
        self, segments: Iterable[int], bounds: Bounds, marks: Sequence[Watermark]
    ) -> list[SegmentLag]:
        """Return the lags of segments."""
        return [self._lag(segment, bounds.get(segment), marks) for segment in segments]

    def _lag(
        self, segment: int, bounds: tuple[int, int] | None, marks: Sequence[Watermark]
    ) -> SegmentLag:
        resumes_at = self.resumes_at.get(segment, 0)
        if bounds is None:
            begin = last = max(resumes_at, 0)
        else:
            begin, last = bounds[0], min(bounds[1], self.ends.get(segment, bounds[1]))
        # A negative offset is the end of a segment that was read.
        position = self.told.get(segment, resumes_at) if resumes_at >= 0 else last
        unread = max(0, last - max(position, begin))
        return SegmentLag(
            stream=scoped_name(self.scope, self.stream),
            segment_id=segment,
            reader=self.readers.get(segment),
            position=position,
            resumes_at=resumes_at,
            end=last,
            unread=unread,
            lag_ms=find_lag_ms(marks, segment, position) if unread else 0,
        )


def streams_of(state: GroupState) -> list[StreamOfGroup]:
    """Return the streams in which a group has positions, in order."""
    found: dict[tuple[str, str], StreamOfGroup] = {}

    def place(segment: str) -> tuple[StreamOfGroup, int]:
        name = parse_segment_name(segment)
        key = name.scope, name.stream
        return found.setdefault(key, StreamOfGroup(*key)), name.segment_id

    for segment, offset in state.positions().items():
        stream, identifier = place(segment)
        stream.resumes_at[identifier] = offset
    for segment, offset in state.read_to.items():
        stream, identifier = place(segment)
        stream.told[identifier] = offset
    for segment, offset in state.ends.items():
        stream, identifier = place(segment)
        stream.ends[identifier] = offset
    for reader, segments in state.assigned.items():
        for segment in segments:
            stream, identifier = place(segment)
            stream.readers[identifier] = reader
    return [each for _, each in sorted(found.items()) if each.resumes_at]


def find_lag_ms(marks: Sequence[Watermark], segment: int, position: int) -> int | None:
    """Return the time, in milliseconds, between a position in a segment and the newest watermark.

    None if there is no watermark. If the position is before all of them, it is the time between the
    oldest and the newest: the lag is at least that.
    """
    if not marks:
        return None
    # Most readers are near the end.
    read = next((mark for mark in reversed(marks) if _is_behind(mark, segment, position)), marks[0])
    return marks[-1].lower - read.lower


def _is_behind(mark: Watermark, segment: int, position: int) -> bool:
    """Return whether all of a watermark was read by one who is at a position in a segment."""
    for each, offset in mark.cut.items():
        if each.segment_id == segment:
            return offset <= position
    # A mark without the segment is from before its epoch, or from after its end.
    return all(segment_epoch(each.segment_id) < segment_epoch(segment) for each in mark.cut)
