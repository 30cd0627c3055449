"""A model of a stream's history, which answers each question by reading all epochs.

Owns: the correct answers, with which tests compare those of ``streams.history``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pravega_controller.errors import InvalidStreamCutError
from pravega_controller.rules import stream_cuts
from pravega_controller.rules.history import Epoch, Successor
from pravega_controller.rules.streams import Segment, StreamCut


@dataclass
class HistoryModel:
    """Every epoch of a stream so far."""

    epochs: list[Epoch] = field(default_factory=list)

    def append(self, epoch: Epoch) -> None:
        assert epoch.number == len(self.epochs)
        self.epochs.append(epoch)

    @property
    def segments(self) -> dict[int, Segment]:
        return {s.segment_id: s for epoch in self.epochs for s in epoch.created}

    @property
    def sealed_in(self) -> dict[int, int]:
        return {i: epoch.number for epoch in self.epochs for i in epoch.sealed_ids}

    @property
    def latest(self) -> tuple[Segment, ...]:
        return self.segments_in(len(self.epochs) - 1)

    def segments_in(self, number: int) -> tuple[Segment, ...]:
        sealed = self.sealed_in
        present = [
            segment
            for epoch in self.epochs[: number + 1]
            for segment in epoch.created
            if sealed.get(segment.segment_id, number + 1) > number
        ]
        return tuple(sorted(present, key=lambda segment: segment.low))

    def successors(self, segment_id: int) -> tuple[Successor, ...]:
        number = self.sealed_in.get(segment_id)
        if number is None:
            return ()
        segment = self.segments[segment_id]
        before = self.segments_in(number - 1)
        return tuple(
            Successor(one, tuple(sorted(old.segment_id for old in before if old.overlaps(one))))
            for one in self.segments_in(number)
            if one.overlaps(segment)
        )

    # ---- Cuts ------------------------------------------------------------------------------------

    def is_valid(self, cut: StreamCut) -> bool:
        try:
            stream_cuts.pieces(self.segments, cut)
        except InvalidStreamCutError:
            return False
        return True

    def is_at_or_after(self, later: StreamCut, earlier: StreamCut) -> bool:
        segments = self.segments
        return stream_cuts.is_at_or_after(
            stream_cuts.pieces(segments, later), stream_cuts.pieces(segments, earlier)
        )

    def segments_before(self, cut: StreamCut, since: StreamCut) -> list[Segment]:
        segments = self.segments
        new = stream_cuts.pieces(segments, cut)
        old = stream_cuts.pieces(segments, since) if since else ()
        return _by_id(
            segment
            for segment in segments.values()
            if stream_cuts.is_before(segment, new)
            and not (old and stream_cuts.is_before(segment, old))
        )

    def segments_between(self, start: StreamCut, end: StreamCut) -> list[Segment]:
        segments = self.segments
        if not self.is_at_or_after(end, start):
            raise InvalidStreamCutError("the end lies before the start")
        first, last = stream_cuts.pieces(segments, start), stream_cuts.pieces(segments, end)
        return _by_id(s for s in segments.values() if stream_cuts.is_between(s, first, last))


def _by_id(segments: Iterable[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: segment.segment_id)
