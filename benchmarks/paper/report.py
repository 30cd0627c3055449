"""The page of the figures: what the paper saw, pictures, targets, numbers, and what differs.

1. The page follows from the record of all works, so that a run of one figure leaves the others as
   they are. A figure that was never run says so.
2. A number is the median of its rounds, with their range where there are several.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    limited,
    number,
    table_cells,
)
from benchmarks.measured import list_remarks
from benchmarks.paper.figures import FIGURES, Curves, Figure, Target, Timeline
from benchmarks.paper.series import BY_KEY, Series
from benchmarks.paper.works import Point
from benchmarks.plots import Curve, Panel, Plot, svg, timeline_svg
from benchmarks.record import RecordedRow, outcomes_of
from benchmarks.streams.rows import OURS

PAGE, RECORD = "paper.md", "paper.json"
LINE_CHARACTERS = 120
"""Maximum length of a line of prose in the documentation."""
VERDICTS = {"yes": "met", "NO": "missed", "": "not measured"}
INTRODUCTION = """\
Section 5 of "Pravega: A Tiered Storage System for Data Streams" (R. Gracia-Tinedo, F. Junqueira,
T. Kaitchuck, S. Joshi; Middleware '23,
[10.1145/3590140.3629113](https://doi.org/10.1145/3590140.3629113)) compares Pravega 0.9, Kafka 2.6
and Pulsar 2.6 on machines of a cloud. These are its figures 5 to 13 with the same questions, works
and axes, of this store beside the original (0.13) and the others, on one machine.
`make bench-paper` measures them in three hours, with further rounds as they fit;
`make bench-paper ARGS="--figure 8"` measures one of them. What is measured is not measured again
without `--again`.

- All servers of a work were measured in one run, one at a time, each freshly started and rehearsed
  with 45 s of the same load at least; each point has a client of its own, warmed up for 10 s at
  least, and 10 s that count.
- Events have routing keys (10,000, in turn) unless a figure says otherwise. In figures 5, 6, 8
  and 9 one writer writes while one reader for each segment reads; nobody reads in figures 7, 10
  and 11.
- A number is the median of the rounds, with their range. A ratio is ours divided by the other. The
  paper's figures are in the sentences below "There"; they were measured on other machines, and no
  target compares with them.
"""


def page(record: Mapping[str, RecordedRow], *, where: str = "") -> str:
    """Return the page of all that is recorded; ``where`` says on what machine and how."""
    lines = ["| figure | question | measured | commit |", "| --- | --- | --- | --- |"]
    for figure in FIGURES:
        found = [record[point.name] for point in figure.points if point.name in record]
        days = ", ".join(sorted({row.day for row in found})) or "not yet"
        commits = ", ".join(sorted({row.commit for row in found})) or "-"
        lines.append(f"| {_link(figure)} | {figure.question} | {days} | {commits} |")
    parts = ["# The paper's figures", INTRODUCTION.rstrip(), "\n".join(lines)]
    parts += [part for figure in FIGURES for part in _section(figure, record)]
    if where:
        parts.append(f"## Where\n\n{where.rstrip()}")
    return "\n\n".join(parts) + "\n"


def _heading(figure: Figure) -> str:
    return f"Figure {figure.number}: {figure.question}"


def _link(figure: Figure) -> str:
    anchor = "".join(c for c in _heading(figure).lower() if c.isalnum() or c in " -_")
    return f"[{figure.number}](#{anchor.replace(' ', '-')})"


def _section(figure: Figure, record: Mapping[str, RecordedRow]) -> Iterator[str]:
    """Yield the paragraphs about one figure."""
    yield f"## {_heading(figure)}"
    yield _wrap(f"**There:** {figure.paper}")
    yield _wrap(f"**Scale:** {figure.scale}.")
    outcomes = _outcomes(figure, record)
    if not outcomes:
        yield (f'Not run here yet: `make bench-paper ARGS="--figure {figure.number}"` measures it.')
        yield _wrap(f"**Differs:** {figure.differs}")
        return
    yield "\n".join(f"![Figure {figure.number}]({name})" for name in pictures_of(figure, record))
    yield verdict_table(list(verdicts(figure, outcomes)))
    yield number_table(figure, outcomes)
    if absent := [series.name for series in _absent(figure, outcomes)]:
        yield f"Left out, as it was not there to be measured: {', '.join(absent)}."
    yield _wrap(f"**Differs:** {figure.differs}")
    if remarks := list_remarks(outcomes):
        yield "\n".join(f"- {remark}" for remark in remarks)


def _wrap(paragraph: str) -> str:
    return textwrap.fill(paragraph, LINE_CHARACTERS, break_long_words=False, break_on_hyphens=False)


def _outcomes(
    figure: Figure, record: Mapping[str, RecordedRow]
) -> dict[tuple[str, str], Sequence[Outcome]]:
    """Return what is recorded of a figure's points and series."""
    names = {point.name for point in figure.points}
    return {
        (name, key): found
        for (name, key), found in outcomes_of(record).items()
        if name in names and key in figure.series
    }


def _series(figure: Figure) -> list[Series]:
    return [BY_KEY[key] for key in figure.series]


def _absent(figure: Figure, outcomes: Mapping[tuple[str, str], Sequence[Outcome]]) -> list[Series]:
    measured = {key for _, key in outcomes}
    return [series for series in _series(figure) if series.key not in measured]


# ---- Numbers -------------------------------------------------------------------------------------


def rounds_of(outcomes: Sequence[Outcome], metric: Metric) -> list[float]:
    """Return the numbers of all rounds that did not fail."""
    found = (each.numbers.get(metric) for each in outcomes if each.failure is None)
    return [value for value in found if value is not None]


def _cell(outcomes: Sequence[Outcome], metric: Metric) -> str:
    rounds = rounds_of(outcomes, metric)
    if not rounds:
        return "failed" if any(each.failure for each in outcomes) else "-"
    middle, low, high = (number(each) for each in (median(rounds), min(rounds), max(rounds)))
    return middle if low == high else f"{middle} ({low}..{high})"


def number_table(figure: Figure, outcomes: Mapping[tuple[str, str], Sequence[Outcome]]) -> str:
    """Return the numbers of a figure, a column for each series."""
    series = [each for each in _series(figure) if each not in _absent(figure, outcomes)]
    head = ["point", "metric", *(each.name for each in series)]
    lines = [head, ["---"] * len(head)]
    for point in figure.shown_points or figure.points:
        for metric in figure.shown:
            cells = [_cell(outcomes.get((point.name, each.key), ()), metric) for each in series]
            if set(cells) != {"-"}:
                unit = f" ({metric.unit})" if metric.unit else ""
                lines.append([point.name, f"{metric.name}{unit}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdicts(
    figure: Figure, outcomes: Mapping[tuple[str, str], Sequence[Outcome]]
) -> Iterator[ComparedRow]:
    """Yield a row for each point of each target."""
    for target in figure.targets:
        for point in target.at:
            yield from _compared(target, point, outcomes)


def _compared(
    target: Target, point: Point, outcomes: Mapping[tuple[str, str], Sequence[Outcome]]
) -> list[ComparedRow]:
    ours = outcomes.get((point.name, OURS), ())
    name = target.metric.name
    if target.limit is not None:
        found = limited(point.name, ours=ours, limits={name: target.limit})
        return [replace(row, reach=target.reach) for row in found]
    if target.beside is not None:
        other = target.beside[point]
        peer, peer_name = outcomes.get((other.name, OURS), ()), other.name
    else:
        measured = {
            key: median(rounds)
            for key in target.lowest_of
            if (rounds := rounds_of(outcomes.get((point.name, key), ()), target.metric))
        }
        key = min(measured, key=measured.__getitem__) if measured else target.lowest_of[0]
        peer, peer_name = outcomes.get((point.name, key), ()), BY_KEY[key].name
    found = compare(
        point.name, ours=ours, peer=peer, reaches={name: target.reach}, peer_name=peer_name
    )
    # Without a peer there is nothing that holds, but the reach is told nevertheless.
    return [replace(row, reach=target.reach) for row in found if row.metric == target.metric]


def verdict_table(rows: Sequence[ComparedRow]) -> str:
    """Return the targets, each met, missed or not measured."""
    head = ("point", "target", "ours", "other", "ratio", "reach", "", "rounds (ours / other)")
    lines: list[Sequence[str]] = [head, ["---"] * len(head)]
    for row in rows:
        cells = list(table_cells(row))
        cells[6] = VERDICTS[cells[6]]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---- Pictures ------------------------------------------------------------------------------------


def pictures_of(figure: Figure, record: Mapping[str, RecordedRow]) -> dict[str, str]:
    """Draw the pictures of a figure that there are points for; return SVG by the file's name."""
    outcomes = _outcomes(figure, record)
    found = {}
    for index, picture in enumerate(figure.pictures):
        letter = chr(ord("a") + index) if len(figure.pictures) > 1 else ""
        drawn = (
            _draw_curves(figure, picture, outcomes)
            if isinstance(picture, Curves)
            else _draw_timeline(figure, picture, outcomes)
        )
        if drawn is not None:
            found[f"paper-{figure.number}{letter}.svg"] = drawn
    return found


def _draw_curves(
    figure: Figure, picture: Curves, outcomes: Mapping[tuple[str, str], Sequence[Outcome]]
) -> str | None:
    curves = []
    for panel, suffix in picture.panels.items():
        for series in _series(figure):
            points = []
            for point in figure.points:
                found = outcomes.get((point.name, series.key), ())
                ys = rounds_of(found, picture.y)
                xs = [point.x] if picture.x is None else rounds_of(found, picture.x)
                if point.panel == panel and xs and ys and min(*xs, *ys) > 0:
                    points.append((median(xs), median(ys)))
            if points:
                curves.append(Curve(f"{series.name}{suffix}", tuple(sorted(points))))
    if not curves:
        return None
    y_label = f"{picture.y.name}, {picture.y.unit}"
    return svg(Plot(picture.title, picture.x_label, y_label, tuple(curves)))


def _draw_timeline(
    figure: Figure, picture: Timeline, outcomes: Mapping[tuple[str, str], Sequence[Outcome]]
) -> str | None:
    panels = []
    for strip in picture.strips:
        curves = []
        for series in _series(figure):
            for metric in strip.metrics:
                points = [
                    (point.x, median(rounds))
                    for point in figure.points
                    if (rounds := rounds_of(outcomes.get((point.name, series.key), ()), metric))
                ]
                name = series.name if len(strip.metrics) == 1 else _short(series, metric)
                if points:
                    curves.append(Curve(name, tuple(points)))
        if curves:
            panels.append(Panel(strip.y_label, tuple(curves), strip.has_steps))
    return timeline_svg(picture.title, "seconds", tuple(panels)) if panels else None


def _short(series: Series, metric: Metric) -> str:
    return f"{series.name}, {metric.name.rpartition(' of ')[2]}"
