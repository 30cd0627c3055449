"""Metrics: what is declared of each, and the recorders of this process.

Owns: ``Metric`` with its kinds, ``METRICS``, and the families that readings consist of.

A metric is declared once, with its name, labels and a sentence about it. It has recorders, one for
each combination of labels, into which the process records at once. Most gauges have no recorder:
what they show is state that the process has anyway, and looks up when it is asked.

Recorders are the process's, as its log is: a process is one event loop, and serves one store or
one controller.

Invariants:
1. When a combination of labels is used again, its recorder is the same. Held by
   ``test_a_combination_of_labels_has_one_recorder``.
2. When clients could choose values of a label without end, later ones share a recorder named
   ``OTHER``. Held by ``test_too_many_combinations_share_one``.
3. When two metrics have the same name, the second declaration fails. Held by
   ``test_a_name_is_declared_once``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from _fast.metrics.recorders import Counter, Histogram

COMBINATIONS_MAX: Final = 500
"""Maximum number of combinations of labels that one metric has recorders for."""
OTHER: Final = "(others)"
"""The value of a label for all that have no line of their own; no stream has such a name."""

R = TypeVar("R", Counter, Histogram)


class Kind(Enum):
    """The kinds of metrics, by Prometheus's names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(Enum):
    """The unit of a metric's numbers. Durations are recorded in nanoseconds."""

    NONE = ""
    SECONDS = "seconds"
    BYTES = "bytes"


Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of their declaration."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values of a histogram: the greatest value and the count of each bucket, by value."""

    sum: int
    counts: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Return how many values were recorded."""
        return sum(count for _, count in self.counts)


Reading = float | Distribution


@dataclass(frozen=True, slots=True)
class Family:
    """The readings of one metric by the values of its labels."""

    metric: Metric[Any]
    readings: dict[Labels, Reading]


class Metric(Generic[R]):
    """The declaration of a metric, with its recorders; see the module.

    ``name`` is the one that Prometheus shows, without the ``_total`` of a counter. ``help`` is a
    sentence for the people who look at a dashboard.
    """

    kind: Kind
    make: type[R]

    def __init__(
        self, name: str, help: str, *, labels: Labels = (), unit: Unit = Unit.NONE
    ) -> None:
        assert name not in METRICS, f"{name} is declared twice"
        self.name = name
        self.help = help
        self.labels = labels
        self.unit = unit
        self._recorders: dict[Labels, R] = {}
        METRICS[name] = self

    def of(self, *values: str) -> R:
        """Return the recorder for these values of the labels."""
        found = self._recorders.get(values)
        if found is None:
            assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
            if values and len(self._recorders) >= COMBINATIONS_MAX:
                values = (OTHER,) * len(values)
            found = self._recorders.setdefault(values, self.make())
        return found

    def read(self) -> Family:
        """Return what was recorded since the process started."""
        # Another thread may use a new combination meanwhile.
        recorders = list(self._recorders.items())
        return Family(self, {labels: _read(each) for labels, each in recorders})

    def family(self, readings: Mapping[Labels, Reading]) -> Family:
        """Return a family with readings that were looked up."""
        return Family(self, dict(readings))


METRICS: Final[dict[str, Metric[Any]]] = {}
"""All metrics that were declared, by name."""


class CounterMetric(Metric[Counter]):
    """A metric that only grows."""

    kind = Kind.COUNTER
    make = Counter


class Gauge(Metric[Counter]):
    """A metric that goes up and down."""

    kind = Kind.GAUGE
    make = Counter


class HistogramMetric(Metric[Histogram]):
    """A metric of sizes or durations."""

    kind = Kind.HISTOGRAM
    make = Histogram


def _read(recorder: Counter | Histogram) -> Reading:
    if isinstance(recorder, Counter):
        return recorder.value
    return Distribution(recorder.sum, tuple(recorder.counts()))
