"""Finds the segments of a stream between two stream cuts, with their ranges of keys.

Owns: the steps of an export, and the ranges of segments whose epochs are not on record any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pravega_admin.exports.manifest import SegmentPart
from pravega_wire.names import scoped_name, segment_epoch, segment_number
from pravega_wire.sessions.routes import SegmentRange
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import segment_infos
from segstore_client.errors import ConflictError, NotFoundError


def plan_steps(
    controller: ControllerClient,
    scope: str,
    stream: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
) -> tuple[tuple[SegmentPart, ...], ...]:
    """Return the segments between two cuts by steps, as ``manifest`` describes them.

    An empty ``end`` is the end of a sealed stream. Offsets are not negative. Raises
    ``ConflictError`` when the stream is truncated meanwhile.
    """
    between = controller.segments_between(scope, stream, start, end)
    segments = sorted({*start, *between, *end})
    ranges = find_ranges(controller, scope, stream, segments)
    whole = [segment for segment in segments if segment not in end]
    infos = segment_infos(controller, scope, stream, whole)
    if missing := set(whole) - infos.keys():
        raise ConflictError(
            f"segment {min(missing)} of stream {scoped_name(scope, stream)} has been truncated"
            " meanwhile"
        )
    by_epoch: dict[int, list[SegmentPart]] = {}
    for segment in segments:
        # Those at the beginning may be of several epochs, and are one step before all others.
        epoch = -1 if segment in start else segment_epoch(segment)
        stop = end[segment] if segment in end else infos[segment].write_offset
        found = ranges[segment]
        begin = start.get(segment, 0)
        part = SegmentPart(segment, found.low, found.high, begin, max(begin, stop))
        by_epoch.setdefault(epoch, []).append(part)
    return tuple(
        tuple(sorted(by_epoch[epoch], key=lambda part: part.low)) for epoch in sorted(by_epoch)
    )


def find_ranges(
    controller: ControllerClient, scope: str, stream: str, segments: Iterable[int]
) -> dict[int, SegmentRange]:
    """Return the range of keys of each segment. Raises ``NotFoundError`` for unknown ones."""
    wanted = set(segments)
    found: dict[int, SegmentRange] = {}
    # The ids of an epoch carry it. So a segment that was made before is known by its number alone.
    by_number: dict[int, list[int]] = {}
    for segment in wanted:
        by_number.setdefault(segment_number(segment), []).append(segment)

    def look(epoch: int) -> bool:
        try:
            ranges = controller.epoch_segments(scope, stream, epoch)
        except NotFoundError:
            return False
        for each in ranges:
            for segment in by_number.get(segment_number(each.segment_id), ()):
                found[segment] = SegmentRange(segment, each.low, each.high)
        return True

    for epoch in sorted({segment_epoch(segment) for segment in wanted}, reverse=True):
        if any(segment_epoch(segment) == epoch for segment in wanted - found.keys()):
            look(epoch)
    if wanted - found.keys():
        # Their epochs have been dropped. What is left of them is in the first epoch on record.
        first, last = 0, max(map(segment_epoch, wanted))
        while first < last:
            middle = (first + last) // 2
            first, last = (first, middle) if look(middle) else (middle + 1, last)
        look(first)
    if missing := wanted - found.keys():
        raise NotFoundError(
            f"the controller has no record of segment {min(missing)} of stream"
            f" {scoped_name(scope, stream)}"
        )
    return found


def find_segments(controller: ControllerClient, scope: str, stream: str) -> dict[int, SegmentRange]:
    """Return all segments of a stream from its head to its tail."""
    head = controller.head_segments(scope, stream).offsets
    between = controller.segments_between(scope, stream, head, {})
    return find_ranges(controller, scope, stream, {*head, *between})
