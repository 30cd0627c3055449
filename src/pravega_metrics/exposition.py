"""The text in which Prometheus reads readings.

Owns: ``render``, the bounds of the buckets that Prometheus gets, and the original's names.

Our histograms have eight buckets for each power of two. Prometheus gets one for each power of two,
of durations from 16 microseconds to 137 seconds and of sizes from 64 bytes to 64 MiB: a bucket is a
line of every scrape. Its bounds are those of ours, so no count is a guess.

Readings are also given under the original's names where they mean the same, so that its dashboards
show something. Their quantiles are over the life of the process.

Invariants:
1. When readings come from several processes, each metric appears once, with the lines of all. Held
   by ``test_a_metric_of_two_processes_is_one_family``.
2. When a value lies beyond the last bound, it is counted in ``+Inf`` alone, and ``_count`` is the
   number of all values. Held by ``test_buckets_are_cumulative_and_end_with_all``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Metric as TextMetric
from prometheus_client import generate_latest
from prometheus_client.core import CollectorRegistry
from prometheus_client.registry import Collector

from pravega_metrics.metrics import Distribution, Family, Kind, Metric, Reading, Unit
from pravega_metrics.original_names import ORIGINAL_NAMES, OriginalName

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NANOSECONDS: Final = 1_000_000_000
BOUNDS: Final = {
    Unit.SECONDS: tuple(2**power for power in range(14, 38)),
    Unit.BYTES: tuple(2**power for power in range(6, 27)),
    Unit.NONE: tuple(2**power for power in range(24)),
}
"""The bounds of the buckets by unit: all values that are counted as ``le`` a bound are below it."""
QUANTILES: Final = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
"""The quantiles that the original reports."""


@dataclass(frozen=True, slots=True)
class Source:
    """The readings of one process: a kind of process, its name, and the families."""

    component: str
    name: str
    families: Sequence[Family]


def render(sources: Iterable[Source]) -> bytes:
    """Return the readings of all sources as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Gathered(sources))
    return generate_latest(registry)


class _Gathered(Collector):
    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[TextMetric]:
        """Yield each metric with the samples of all sources."""
        told: dict[str, TextMetric] = {}
        originals: dict[str, TextMetric] = {}
        for source in self._sources:
            labels = {"component": source.component, "host": source.name}
            for family in source.families:
                metric = family.metric
                text = TextMetric(metric.name, metric.help, metric.kind.value)
                text = told.setdefault(metric.name, text)
                for values, reading in family.readings.items():
                    named = {**labels, **dict(zip(metric.labels, values, strict=True))}
                    _add(text, metric, named, reading)
                for original in ORIGINAL_NAMES.get(metric.name, ()):
                    _add_original(originals, original, family, source.name)
        yield from told.values()
        yield from originals.values()


def _add(text: TextMetric, metric: Metric[Any], labels: dict[str, str], reading: Reading) -> None:
    if isinstance(reading, Distribution):
        _add_buckets(text, metric, labels, reading)
    else:
        text.add_sample(f"{metric.name}{_suffix_of(metric)}", labels, reading)


def _suffix_of(metric: Metric[Any]) -> str:
    return "_total" if metric.kind is Kind.COUNTER else ""


def _add_buckets(
    text: TextMetric, metric: Metric[Any], labels: dict[str, str], reading: Distribution
) -> None:
    scale = NANOSECONDS if metric.unit is Unit.SECONDS else 1
    counts = list(reading.counts)
    position = total = 0
    for bound in BOUNDS[metric.unit]:
        while position < len(counts) and counts[position][0] < bound:
            total += counts[position][1]
            position += 1
        told = {**labels, "le": repr(bound / scale)}
        text.add_sample(f"{metric.name}_bucket", told, total)
    count = reading.count
    text.add_sample(f"{metric.name}_bucket", {**labels, "le": "+Inf"}, count)
    text.add_sample(f"{metric.name}_count", labels, count)
    text.add_sample(f"{metric.name}_sum", labels, reading.sum / scale)


def _add_original(
    told: dict[str, TextMetric], original: OriginalName, family: Family, host: str
) -> None:
    name = original.name
    metric = family.metric
    kind = "summary" if metric.kind is Kind.HISTOGRAM else metric.kind.value
    for values, reading in family.readings.items():
        given = dict(zip(metric.labels, values, strict=True))
        if any(given[label] != value for label, value in original.where.items()):
            continue
        labels = {"host": host.replace(":", "_").replace(".", "_")}
        labels |= {theirs: given[ours] for theirs, ours in original.labels.items()}
        text = told.setdefault(name, TextMetric(name, metric.help, kind))
        if isinstance(reading, Distribution):
            # The original reports all durations in seconds, and sizes divided by 1,000.
            scale = NANOSECONDS if metric.unit is Unit.SECONDS else 1_000
            for quantile in QUANTILES:
                value = quantile_of(reading, quantile) / scale
                text.add_sample(name, {**labels, "quantile": str(quantile)}, value)
            text.add_sample(f"{name}_count", labels, reading.count)
            text.add_sample(f"{name}_sum", labels, reading.sum / scale)
        else:
            text.add_sample(f"{name}{_suffix_of(metric)}", labels, reading)


def quantile_of(reading: Distribution, quantile: float) -> int:
    """Return the bound of the bucket that the quantile lies in; 0 without values."""
    left = quantile * reading.count
    for bound, count in reading.counts:
        left -= count
        if left <= 0:
            return bound
    return reading.counts[-1][0] if reading.counts else 0
