"""The numbers of a stream as the console shows them: its segments' bounds and rates.

Owns: ``StreamSeen``, what one look at a stream has found, and what is computed from looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from pravega_controller.console.looks import Look, Looks, Summary, Track, rate
from pravega_controller.controller import Controller
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.rules.streams import Segment
from pravega_controller.store_client.segment_client import SegmentBounds
from pravega_wire import names

SORTS: Final = ("rate", "key", "size", "number")
"""The orders of a stream's segments; the first is the usual one."""
BOUNDS_SECONDS_MAX: Final = 2.0
"""Maximum time, in seconds, for segment stores to tell the bounds of a stream's segments."""


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """The last segments of a stream, in order of key range, with their bounds by id."""

    segments: tuple[Segment, ...]
    bounds: Mapping[int, SegmentBounds]
    is_sealed: bool
    are_bounds_known: bool = True
    """False if the segments' stores did not tell the bounds in time."""

    def length(self, segment_id: int) -> int | None:
        """Return the end of a segment; None if it is not there."""
        found = self.bounds.get(segment_id)
        return None if found is None else found.length


async def see_stream(controller: Controller, scope: str, stream: str) -> StreamSeen:
    """Return the stream's last segments now. Raises ``NotFoundError``."""
    segments, is_sealed = await _last_segments(controller, scope, stream)
    infos = await controller.segments.segment_infos(
        [names.segment_name(scope, stream, each.segment_id) for each in segments]
    )
    bounds = {
        segment.segment_id: info
        for segment, info in zip(segments, infos, strict=True)
        if info is not None
    }
    return StreamSeen(segments, bounds, is_sealed)


async def _last_segments(
    controller: Controller, scope: str, stream: str
) -> tuple[tuple[Segment, ...], bool]:
    """Return the stream's last segments by the metadata, and whether it is sealed."""
    segments = await controller.streams.active_segments(scope, stream)
    if segments:
        return segments, False
    [(_, segments)] = await controller.streams.last_epochs(scope, stream, 1)
    return segments, True


def track_stream(
    looks: Looks, controller: Controller, scope: str, stream: str
) -> Track[StreamSeen]:
    """Return the track of a stream."""

    async def take() -> StreamSeen:
        # The page of a stream whose container is offline has to say so, and not to wait for it.
        try:
            with trio.fail_after(BOUNDS_SECONDS_MAX):
                return await see_stream(controller, scope, stream)
        except (trio.TooSlowError, StoreUnavailableError):
            segments, is_sealed = await _last_segments(controller, scope, stream)
            return StreamSeen(segments, {}, is_sealed, are_bounds_known=False)

    return looks.track(stream_subject(scope, stream), take, summarize)


def stream_subject(scope: str, stream: str) -> tuple[str, str, str]:
    """Return the subject of looks at a stream."""
    return ("stream", scope, stream)


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment with its bounds and what is appended to it, in bytes each second."""

    segment: Segment
    bounds: SegmentBounds | None
    rate: float | None

    @property
    def name(self) -> str:
        """Return the number and the epoch of the segment, as tools print them."""
        return f"{self.segment.number}.#epoch.{self.segment.epoch}"

    @property
    def kept(self) -> int:
        """Return how many of its bytes are not truncated."""
        return 0 if self.bounds is None else self.bounds.length - self.bounds.start_offset


def segment_rows(looks: Sequence[Look[StreamSeen]]) -> list[SegmentRow]:
    """Return the segments of the last look, in order of key range."""
    last = looks[-1].seen
    rows = []
    for segment in last.segments:
        identifier = segment.segment_id
        having = [look for look in looks if identifier in look.seen.bounds]
        grown = rate(having, lambda seen, i=identifier: seen.length(i)) if having else None  # type: ignore[misc]
        rows.append(SegmentRow(segment, last.bounds.get(identifier), grown))
    return rows


def sort_rows(rows: list[SegmentRow], order: str) -> list[SegmentRow]:
    """Return the rows in one of the orders ``SORTS``; the greatest rate or size is first."""
    if order == "rate":
        return sorted(rows, key=lambda row: -(row.rate or 0.0))
    if order == "size":
        return sorted(rows, key=lambda row: -row.kept)
    if order == "number":
        return sorted(rows, key=lambda row: row.segment.segment_id)
    return rows


def summarize(looks: list[Look[StreamSeen]]) -> Summary:
    """Return the point of a stream's chart: the rate of all its segments."""
    rates = [row.rate for row in segment_rows(looks)]
    known = [each for each in rates if each is not None]
    return (sum(known) if known else None,)
