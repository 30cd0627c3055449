"""Running works: series take turns in rounds, as many as there is time for.

1. One server runs at a time. Who begins alternates with the rounds.
2. The first round of every work is run. A further one is run if the first rounds of the works after
   it have their time nevertheless.
3. A work goes on behind the rounds that an interrupted run has finished.
"""

import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.comparison import Outcome
from benchmarks.finished_parts import FinishedParts
from benchmarks.paper.figures import Figure, series_of
from benchmarks.paper.series import DRIVE, Series
from benchmarks.paper.sizes import Size
from benchmarks.paper.works import Work, outcomes_of
from benchmarks.record import RecordedRow

Outcomes = Mapping[tuple[str, str], Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class Done:
    """A work with its outcomes, by point and series, one a round."""

    work: Work
    outcomes: Outcomes


def is_recorded(work: Work, record: Mapping[str, RecordedRow]) -> bool:
    """Return whether a work is recorded with every series that can be measured here."""
    recorded = {
        key for point in work.points if point.name in record for key in record[point.name].outcomes
    }
    here = {series.key for series in series_here(work)}
    return bool(recorded) and here <= recorded


def series_here(work: Work, *, only: Container[str] | None = None) -> list[Series]:
    """Return the series of a work that can be measured here, or those of them in ``only``."""
    return [
        series
        for series in series_of(work)
        if series.is_here and (only is None or series.key in only)
    ]


def expected_seconds(work: Work, series: Sequence[Series], size: Size) -> float:
    """Return the time that a round of a work will take, about; the drive takes next to none."""
    return work.expected_seconds(size) * sum(each.key != DRIVE for each in series)


def works_of(figures: Sequence[Figure]) -> list[Work]:
    """Return the works of figures, each once."""
    return list({work.key: work for figure in figures for work in figure.works}.values())


def run(
    works: Sequence[Work],
    size: Size,
    *,
    directory: Path,
    finished: Callable[[Work, Sequence[Series]], FinishedParts],
    only: Container[str] | None = None,
) -> Iterator[Done]:
    """Run works and yield each when it is done. ``finished`` keeps the rounds of a work; ``only``
    are the keys of the series that are run."""
    began = time.monotonic()
    end = began + 60 * size.minutes_max

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {what}", file=sys.stderr, flush=True)

    def measure(
        work: Work, series: Sequence[Series], index: int
    ) -> Iterator[tuple[str, str, Outcome]]:
        for each in series if index % 2 == 0 else reversed(series):
            tell(f"{work.key}, round {index + 1}: {each.name}")
            for point, outcome in outcomes_of(work, each, size, directory):
                if outcome.failure is not None:
                    tell(f"{point.name}, {each.name}: FAILED: {outcome.failure}")
                yield point.name, each.key, outcome

    for number, work in enumerate(works):
        series = series_here(work, only=only)
        own = expected_seconds(work, series, size)
        later = sum(
            expected_seconds(each, series_here(each, only=only), size)
            for each in works[number + 1 :]
        )
        outcomes: dict[tuple[str, str], list[Outcome]] = {}
        kept = finished(work, series)
        for index in range(size.rounds):
            if index and time.monotonic() + own + later > end:
                break
            part = partial(measure, work, series, index)
            for name, key, outcome in kept.outcomes(f"round {index + 1}", part):
                outcomes.setdefault((name, key), []).append(outcome)
        yield Done(work, outcomes)
        kept.end()
