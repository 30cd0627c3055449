"""Plots as SVG: curves over two logarithmic axes, readable on white and on black.

1. A plot is text that depends on its points alone, so that it can be compared and committed.
2. Every curve has its name at its last point and in the legend; colours tell eight apart.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
COLOURS = ("#d1495b", "#2e86ab", "#8d6a9f", "#3c9d6e", "#e29930", "#6b7280", "#8c5a3c", "#4f5bd5")
INK = "#6b7280"


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one server, by ascending x. All numbers are positive."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves with their axes' names."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis from one power of ten to another, or to the ends of its numbers."""

    low: float
    high: float
    start: float
    end: float

    def position(self, value: float) -> float:
        share = math.log10(value / self.low) / math.log10(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        for exponent in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))):
            for digit in (1, 2, 5):
                if self.low <= digit * 10.0**exponent <= self.high:
                    yield digit * 10.0**exponent


def svg(plot: Plot) -> str:
    """Return the plot as an SVG document. It has at least one curve with a point."""
    xs = [x for curve in plot.curves for x, _ in curve.points]
    ys = [y for curve in plot.curves for _, y in curve.points]
    x_axis = _axis(xs, LEFT, WIDTH - RIGHT)
    y_axis = _axis(ys, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(plot.title)}</title>",
        f'<text x="{LEFT}" y="22" font-size="15">{escape(plot.title)}</text>',
        *_frame(plot, x_axis, y_axis),
    ]
    for index, curve in enumerate(plot.curves):
        colour = COLOURS[index % len(COLOURS)]
        parts += _curve(curve, colour, x_axis, y_axis)
        y = TOP + 10 + 20 * index
        x = WIDTH - RIGHT + 16
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 10}" y="{y + 4}">{escape(curve.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axis(values: list[float], start: float, end: float) -> _Axis:
    low, high = min(values) / 1.3, max(values) * 1.3
    return _Axis(low, high, start, end)


def _frame(plot: Plot, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in x_axis.ticks():
        x = x_axis.position(tick)
        yield _line(x, TOP, x, bottom, opacity=0.2)
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_words(tick)}</text>'
    for tick in y_axis.ticks():
        y = y_axis.position(tick)
        yield _line(LEFT, y, right, y, opacity=0.2)
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_words(tick)}</text>'
    yield _line(LEFT, bottom, right, bottom, opacity=1)
    yield _line(LEFT, TOP, LEFT, bottom, opacity=1)
    middle = (LEFT + right) / 2
    yield f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{plot.x_label}</text>'
    middle = (TOP + bottom) / 2
    yield (
        f'<text transform="translate(16 {middle:.1f}) rotate(-90)"'
        f' text-anchor="middle">{escape(plot.y_label)}</text>'
    )


def _curve(curve: Curve, colour: str, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    places = [(x_axis.position(x), y_axis.position(y)) for x, y in curve.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, *, opacity: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        f' stroke="{INK}" stroke-opacity="{opacity}"/>'
    )


def _words(tick: float) -> str:
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if tick >= factor:
            return f"{tick / factor:g}{unit}"
    return f"{tick:g}"


PANEL_HEIGHT = 150


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one linear axis from 0 on; ``steps`` draws them as levels, not as slopes."""

    y_label: str
    curves: tuple[Curve, ...]
    steps: bool = False


def timeline_svg(title: str, x_label: str, panels: tuple[Panel, ...]) -> str:
    """Draw panels below each other over one linear axis of time. Each has a curve with a point."""
    height = TOP + len(panels) * PANEL_HEIGHT + BOTTOM
    end = max(x for panel in panels for curve in panel.curves for x, _ in curve.points)
    right = WIDTH - RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for index, panel in enumerate(panels):
        parts += _panel(panel, TOP + index * PANEL_HEIGHT, end)
    bottom = TOP + len(panels) * PANEL_HEIGHT - 30
    for tick in _linear_ticks(end):
        x = LEFT + (right - LEFT) * tick / end
        parts.append(_line(x, TOP, x, bottom, opacity=0.2))
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    middle = (LEFT + right) / 2
    label = escape(x_label)
    parts.append(f'<text x="{middle:.1f}" y="{bottom + 40}" text-anchor="middle">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top: int, end: float) -> Iterator[str]:
    bottom, right = top + PANEL_HEIGHT - 30, WIDTH - RIGHT
    highest = max(1e-9, *(y for curve in panel.curves for _, y in curve.points)) * 1.1
    for tick in _linear_ticks(highest):
        y = bottom - (bottom - top) * tick / highest
        yield _line(LEFT, y, right, y, opacity=0.2)
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_words(tick)}</text>'
    yield _line(LEFT, bottom, right, bottom, opacity=1)
    yield _line(LEFT, top, LEFT, bottom, opacity=1)
    yield (
        f'<text transform="translate(16 {(top + bottom) / 2:.1f}) rotate(-90)"'
        f' text-anchor="middle">{escape(panel.y_label)}</text>'
    )
    for index, curve in enumerate(panel.curves):
        colour = COLOURS[index % len(COLOURS)]
        places = [
            (LEFT + (right - LEFT) * x / end, bottom - (bottom - top) * y / highest)
            for x, y in curve.points
        ]
        if panel.steps:
            pairs = itertools.pairwise(places)
            places = [places[0], *(p for (_, y), (x, z) in pairs for p in ((x, y), (x, z)))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        y = top + 12 + 20 * index
        yield f'<circle cx="{right + 16}" cy="{y}" r="4" fill="{colour}"/>'
        yield f'<text x="{right + 26}" y="{y + 4}">{escape(curve.name)}</text>'


def _linear_ticks(highest: float) -> list[float]:
    """Return four to eight round numbers from 0 up to the highest."""
    step = 10.0 ** math.floor(math.log10(highest))
    while highest / step < 4:
        step /= 2
    return [step * n for n in range(int(highest / step) + 1)]
