"""The picture of a stream's key ranges over its epochs.

Owns: the rectangles, in units of the picture. A template draws them.

Time goes from left to right, an epoch to a column of its own width, so that short epochs are seen,
too. Keys go from top to bottom. A segment is one rectangle, from the epoch that created it to the
one that sealed it.

Invariants:
1. When a picture has an epoch, its segments cover the height of its column once. Held by
   ``test_segments_cover_each_column_once``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pravega_controller.rules.history import Epoch
from pravega_controller.rules.streams import Segment

EPOCHS_MAX: Final = 24
"""Maximum number of epochs in a picture: the last ones."""
SEGMENTS_MAX: Final = 1000
"""Maximum number of rectangles in a picture; the earliest epochs are left out for it."""
COLUMN: Final = 60
HEIGHT: Final = 240
GAP: Final = 1.5
LABEL_HEIGHT_MIN: Final = 13
HEATS: Final = 5
"""Number of shades for rates."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A segment in the picture."""

    segment: Segment
    x: float
    y: float
    width: float
    height: float
    is_active: bool
    heat: int
    """The shade of its rate, from 0; 0 without a rate."""
    rate: float | None

    @property
    def has_label(self) -> bool:
        """Return whether there is room for its number."""
        return self.height >= LABEL_HEIGHT_MIN


@dataclass(frozen=True, slots=True)
class Column:
    """An epoch in the picture."""

    epoch: Epoch
    x: float
    segment_count: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture: its columns, and the rectangles on them."""

    columns: tuple[Column, ...]
    rectangles: tuple[Rectangle, ...]

    @property
    def width(self) -> int:
        """Return its width in units; the height is ``HEIGHT``."""
        return COLUMN * len(self.columns)


def draw(
    epochs: Sequence[tuple[Epoch, tuple[Segment, ...]]],
    rates: Mapping[int, float | None],
    *,
    is_sealed: bool,
) -> Picture:
    """Return the picture of epochs in order, each with its segments; ``rates`` are by segment."""
    shown = list(epochs)
    while len(shown) > 1 and len({s for _, group in shown for s in group}) > SEGMENTS_MAX:
        shown.pop(0)
    begun: dict[Segment, int] = {}
    ended: dict[Segment, int] = {}
    for index, (_, segments) in enumerate(shown):
        for segment in segments:
            begun.setdefault(segment, index)
            ended[segment] = index + 1
    greatest = max((each for each in rates.values() if each), default=0.0)
    rectangles = []
    for segment, first in begun.items():
        is_active = ended[segment] == len(shown) and not is_sealed
        rate = rates.get(segment.segment_id) if is_active else None
        rectangles.append(
            Rectangle(
                segment,
                x=first * COLUMN + GAP / 2,
                y=segment.low * HEIGHT + GAP / 2,
                width=(ended[segment] - first) * COLUMN - GAP,
                height=max((segment.high - segment.low) * HEIGHT - GAP, 0.5),
                is_active=is_active,
                heat=shade(rate, greatest),
                rate=rate,
            )
        )
    columns = tuple(
        Column(epoch, index * COLUMN, len(group)) for index, (epoch, group) in enumerate(shown)
    )
    return Picture(columns, tuple(rectangles))


def shade(rate: float | None, greatest: float) -> int:
    """Return the shade of a rate beside the greatest one."""
    if not rate or not greatest:
        return 0
    return max(1, min(HEATS, round(rate / greatest * HEATS)))
