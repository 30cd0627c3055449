"""The size of a stream: its segments, its bytes, and its events where they are counted.

Owns: ``StreamSize``, and the rates between two of them. Nothing is read: stores know the bounds of
segments, and count the events that they append.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import SegmentSize, segment_sizes


@dataclass(frozen=True, slots=True)
class StreamSize:
    """The segments of a stream from its head to its tail."""

    active: int
    """Number of segments that accept events."""
    segments: Mapping[int, SegmentSize]

    @property
    def stored_bytes(self) -> int:
        """Return the bytes from the head to the tail."""
        return sum(each.end - each.start for each in self.segments.values())

    @property
    def events(self) -> int | None:
        """Return the events from the head to the tail; None if a segment is truncated within, so
        that nobody knows how many of its events are left."""
        counts = [
            None if each.start and each.start < each.end else each.appended_events
            for each in self.segments.values()
            if each.start < each.end
        ]
        known = [each for each in counts if each is not None]
        return sum(known) if len(known) == len(counts) else None

    def growth_since(self, earlier: StreamSize) -> tuple[int, int | None]:
        """Return the bytes and events that were appended since an earlier size."""
        grown_bytes, grown_events = 0, 0
        known = True
        for segment, size in self.segments.items():
            before = earlier.segments.get(segment, SegmentSize(0, 0, 0))
            grown_bytes += size.end - before.end
            if size.appended_events is None:
                known = False
            else:
                grown_events += size.appended_events - (before.appended_events or 0)
        return grown_bytes, grown_events if known else None


def measure_stream(controller: ControllerClient, scope: str, stream: str) -> StreamSize:
    """Return the present size of a stream. Raises ``PravegaError`` as its calls do."""
    head = controller.head_segments(scope, stream).offsets
    segments = controller.segments_between(scope, stream, head, {})
    active = len(controller.current_segments(scope, stream).ranges)
    return StreamSize(active, segment_sizes(controller, scope, stream, {*head, *segments}))
