"""The manifest of an export: which segments of a stream a file has, in which order, and how far.

Owns: the manifest's form, what of it makes sense, and the order in which runs of events may come.

An export is made of steps. The segments of the first step are those at the beginning of the
exported part; together they have all of the key space. Those of a further step replace segments of
earlier steps, as a scale did, and begin after these have ended. So the events of a routing key have
their order if each step is written after the step before it, and each segment in its own order.

Invariants:
1. When a file lacks bytes of a segment, has some twice, or has them before those of a segment that
   was replaced, it is refused. Held by ``test_only_whole_segments_in_their_order_are_taken``.
2. When segments do not replace each other exactly, the manifest is refused. Held by
   ``test_steps_that_do_not_replace_each_other_exactly_are_refused``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from pravega_wire.codec import HEADER_BYTES
from segstore_client.controller.stream_settings import StreamSettings
from segstore_client.errors import DamagedExportError

FORMAT = 1
"""The version of the form."""


class SegmentPart(msgspec.Struct, frozen=True):
    """A segment, its part [low, high) of the key space, and the exported bytes [start, end)."""

    id: int
    low: float
    high: float
    start: int
    end: int

    @property
    def length(self) -> int:
        """Return the number of exported bytes."""
        return self.end - self.start


class Manifest(msgspec.Struct, frozen=True):
    """The facts about an export that come before its events."""

    format: int
    id: str
    """32 hexadecimal digits, random: no other export has them."""
    stream: str
    """The stream's name, with its scope."""
    exported: str
    """The time at which the export began, in ISO 8601."""
    places: tuple[str, str]
    """From where to where the export is, in the words of its user."""
    is_sealed: bool
    """True if the stream was sealed, and the export has its end."""
    settings: Mapping[str, Any]
    steps: tuple[tuple[SegmentPart, ...], ...]

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all segments, with the header of each event."""
        return sum(segment.length for step in self.steps for segment in step)

    def stream_settings(self) -> StreamSettings:
        """Return the settings that the stream had; ``DamagedExportError`` for no settings."""
        try:
            return msgspec.convert(dict(self.settings), StreamSettings)
        except msgspec.ValidationError as error:
            raise DamagedExportError(
                f"the manifest has no settings of a stream: {error}"
            ) from error


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest that JSON has. Raises ``DamagedExportError`` if it makes no sense."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DamagedExportError(f"the manifest cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise DamagedExportError(
            f"it has the form {manifest.format}, and this version knows the form {FORMAT}"
        )
    plan_layouts(manifest.steps)
    return manifest


def encode_settings(settings: StreamSettings) -> dict[str, Any]:
    """Return the settings of a stream for a manifest."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    return fields


# ---- Layouts -------------------------------------------------------------------------------------

Layout: TypeAlias = tuple[SegmentPart, ...]
"""Segments that have all of the key space together, in its order."""


def plan_layouts(steps: Sequence[Sequence[SegmentPart]]) -> list[Layout]:
    """Return the layout after each step, without those that no event needs.

    The first and the last ones stay. Raises ``DamagedExportError`` if the steps do not replace each
    other exactly.
    """
    layouts: list[Layout] = []
    seen: set[int] = set()
    front: list[SegmentPart] = []
    for step in steps:
        if not step:
            raise DamagedExportError("the manifest has a step without segments")
        for part in step:
            if part.id in seen or not 0 <= part.start <= part.end or not part.low < part.high:
                raise DamagedExportError(f"the manifest says nonsense of segment {part.id}")
            seen.add(part.id)
        left = [old for old in front if not any(_overlap(old, new) for new in step)]
        front = sorted([*left, *step], key=lambda part: part.low)
        bounds = [0.0, *(bound for part in front for bound in (part.low, part.high)), 1.0]
        # Of bounds in pairs, one range ends where the next begins.
        if not front or any(bounds[at] != bounds[at + 1] for at in range(0, len(bounds), 2)):
            raise DamagedExportError("the segments of the manifest do not replace each other")
        layouts.append(tuple(front))
    if not layouts:
        raise DamagedExportError("the manifest has no segments")
    needed = [bool(sum(part.length for part in step)) for step in steps]
    needed[0] = needed[-1] = True
    return [layout for layout, is_needed in zip(layouts, needed, strict=True) if is_needed]


def _overlap(one: SegmentPart, other: SegmentPart) -> bool:
    return one.low < other.high and other.low < one.high


# ---- The order of events -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Events of one segment that follow each other, the first one at an offset."""

    segment: int
    offset: int
    events: Sequence[bytes]

    @property
    def length(self) -> int:
        """Return the number of the segment's bytes that these events are."""
        return sum(map(len, self.events)) + HEADER_BYTES * len(self.events)


class Positions:
    """The position in each segment up to which the events of an export have come."""

    def __init__(self, steps: Sequence[Sequence[SegmentPart]]) -> None:
        self.taken_bytes = 0
        self.taken_events = 0
        self._parts = {part.id: part for step in steps for part in step}
        self._step_of = {part.id: at for at, step in enumerate(steps) for part in step}
        self._offsets = {part.id: part.start for part in self._parts.values()}
        self._left = [sum(part.length for part in step) for step in steps]
        self._step = 0

    def take(self, run: Run) -> None:
        """Count the events of a run. Raises ``DamagedExportError`` if others should come first."""
        length = run.length
        part = self._parts.get(run.segment)
        if part is None:
            raise DamagedExportError(f"segment {run.segment} is not in the manifest")
        expected = self._offsets[run.segment]
        if run.offset != expected:
            raise DamagedExportError(
                f"segment {run.segment} goes on at {run.offset} in place of {expected}"
            )
        if run.offset + length > part.end:
            raise DamagedExportError(f"segment {run.segment} has more than the manifest says")
        while self._step < self._step_of[run.segment] and not self._left[self._step]:
            self._step += 1
        if self._step != self._step_of[run.segment]:
            raise DamagedExportError(f"segment {run.segment} comes before those that it replaces")
        self._offsets[run.segment] += length
        self._left[self._step] -= length
        self.taken_bytes += length
        self.taken_events += len(run.events)

    def rest(self) -> list[dict[int, tuple[int, int]]]:
        """Return for each step what is missing: the offsets from which to which, by segment."""
        rest: list[dict[int, tuple[int, int]]] = [{} for _ in self._left]
        for segment, at in self._step_of.items():
            offset, end = self._offsets[segment], self._parts[segment].end
            if offset < end:
                rest[at][segment] = (offset, end)
        return rest

    def check_complete(self) -> None:
        """Raise ``DamagedExportError`` if bytes are missing."""
        if missing := sum(self._left):
            total = self.taken_bytes + missing
            raise DamagedExportError(f"{missing} of {total} bytes of events are missing at its end")


def ranges_of(layout: Layout) -> tuple[tuple[float, float], ...]:
    """Return the ranges of a layout."""
    return tuple((part.low, part.high) for part in layout)
