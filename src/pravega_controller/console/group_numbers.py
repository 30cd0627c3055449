"""The numbers of a reader group as the console shows them: its lag by segment, and the trend.

Owns: ``GroupSeen``, what one look at a group has found, and what is computed from looks.

A look reads what the readers have told since the last look, and asks for the ends of the segments
that are not read. What a lag is, ``pravega_wire.reader_groups.lags`` says, as for the command line.

Invariants:
1. When a group reads several streams, a user gets the lag of those that it may read. Held by
   ``test_a_lag_is_told_to_those_who_may_read_the_stream``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pravega_controller.console.events.times import Marks, read_marks
from pravega_controller.console.looks import Look, Looks, Summary, Track, trend
from pravega_controller.controller import Controller
from pravega_controller.errors import NotFoundError
from pravega_controller.groups.group_states import StateReader
from pravega_wire import names
from pravega_wire.reader_groups.lags import SegmentLag, StreamOfGroup, streams_of

SORTS: Final = ("unread", "time", "trend", "segment", "reader")
"""The orders of a group's segments; the first is the usual one."""

Key = tuple[str, int]
"""A stream, by its scoped name, and the id of one of its segments."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The readers of a group that are online, and its lags, by segment."""

    readers: Sequence[str]
    lags: dict[Key, SegmentLag]
    is_begun: bool
    """False until a client has written the group's state."""
    is_updating: bool


class GroupWatch:
    """Looks at one group."""

    def __init__(self, controller: Controller, scope: str, group: str) -> None:
        self._controller = controller
        self._scope = scope
        self._group = group
        self._state: StateReader | None = None
        self._marks: dict[str, Marks] = {}

    async def take(self) -> GroupSeen:
        """Return what there is now.

        Raises ``NotFoundError``, ``StoreUnavailableError``, and ``IllegalStateError`` for a state
        that cannot be read.
        """
        reader = self._state
        if reader is None:
            reader = await self._controller.groups.open_state(self._scope, self._group)
        # The group may be another one of its name when this fails.
        self._state = None
        state = await reader.read()
        self._state = reader
        lags: dict[Key, SegmentLag] = {}
        for stream in streams_of(state):
            for lag in await self._look(stream):
                lags[lag.stream, lag.segment_id] = lag
        return GroupSeen(state.readers, lags, state.is_begun, state.is_updating)

    async def _look(self, part: StreamOfGroup) -> list[SegmentLag]:
        """Return the lags of a stream; none if it, or all record of where the group is, is gone."""
        scope, stream, controller = part.scope, part.stream, self._controller
        try:
            between = await controller.streams.segments_between(
                scope, stream, part.resumes_at, part.end_cut
            )
        except NotFoundError:
            return []
        segments = part.segments(each.segment_id for each in between)
        infos = await controller.segments.segment_infos(
            [names.segment_name(scope, stream, each) for each in segments]
        )
        bounds = {
            segment: (info.start_offset, info.length)
            for segment, info in zip(segments, infos, strict=True)
            if info is not None
        }
        name = names.scoped_name(scope, stream)
        marks = await read_marks(controller, scope, stream, self._marks.get(name))
        self._marks[name] = marks
        return part.lags(segments, bounds, marks.marks)


def track_group(looks: Looks, controller: Controller, scope: str, group: str) -> Track[GroupSeen]:
    """Return the track of a group."""
    watch = GroupWatch(controller, scope, group)
    return looks.track(("group", scope, group), watch.take, summarize)


@dataclass(frozen=True, slots=True)
class LagRow:
    """A lag in a segment, and how the bytes change each second; None if that is not known yet."""

    lag: SegmentLag
    trend: float | None

    @property
    def segment(self) -> str:
        """Return the number and the epoch of the segment, as tools print them."""
        identifier = self.lag.segment_id
        return f"{names.segment_number(identifier)}.#epoch.{names.segment_epoch(identifier)}"

    @property
    def seconds(self) -> float | None:
        """Return the lag in time, in seconds; None if it is not known."""
        return None if self.lag.lag_ms is None else self.lag.lag_ms / 1000


@dataclass(frozen=True, slots=True)
class LagSum:
    """The lag of several segments: the bytes of all, and the longest time."""

    unread: int
    seconds: float | None
    trend: float | None
    segments_behind: int
    segment_count: int


def lag_rows(looks: Sequence[Look[GroupSeen]], streams: Iterable[str]) -> list[LagRow]:
    """Return the lags of the last look in some streams, in the order of streams and segments."""
    wanted = set(streams)
    return [
        LagRow(lag, _trend(looks, key))
        for key, lag in looks[-1].seen.lags.items()
        if lag.stream in wanted
    ]


def _trend(looks: Sequence[Look[GroupSeen]], key: Key) -> float | None:
    having = [look for look in looks if key in look.seen.lags]
    return trend(having, lambda seen: seen.lags[key].unread)


def sum_rows(rows: Sequence[LagRow]) -> LagSum:
    """Return the lag of several segments together."""
    behind = [row for row in rows if row.lag.unread]
    times = [row.seconds for row in behind if row.seconds is not None]
    trends = [row.trend for row in rows if row.trend is not None]
    return LagSum(
        unread=sum(row.lag.unread for row in behind),
        seconds=max(times) if times else None if behind else 0.0,
        trend=sum(trends) if trends else None,
        segments_behind=len(behind),
        segment_count=len(rows),
    )


def sort_rows(rows: list[LagRow], order: str) -> list[LagRow]:
    """Return the rows in one of the orders ``SORTS``; the greatest lag is first."""
    if order == "unread":
        return sorted(rows, key=lambda row: -row.lag.unread)
    if order == "time":
        return sorted(rows, key=lambda row: (-(row.seconds or 0.0), -row.lag.unread))
    if order == "trend":
        return sorted(rows, key=lambda row: -(row.trend or 0.0))
    if order == "reader":
        return sorted(rows, key=lambda row: (row.lag.reader is None, row.lag.reader or ""))
    return rows


def summarize(looks: list[Look[GroupSeen]]) -> Summary:
    """Return the point of a group's charts: the unread bytes, and the time in seconds."""
    seen = looks[-1].seen
    rows = [LagRow(lag, None) for lag in seen.lags.values()]
    found = sum_rows(rows)
    return (float(found.unread), found.seconds) if seen.is_begun else (None, None)
