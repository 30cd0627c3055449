"""Declarations of metrics, and their recorders."""

from __future__ import annotations

import re

import pytest

from _fast.metrics.recorders import Counter
from pravega_metrics import controller_metrics, metrics, process_metrics, store_metrics
from pravega_metrics.metrics import (
    COMBINATIONS_MAX,
    METRICS,
    OTHER,
    CounterMetric,
    Distribution,
    HistogramMetric,
    Kind,
    Unit,
)

pytestmark = pytest.mark.usefixtures("declared")


def test_a_combination_of_labels_has_one_recorder() -> None:
    metric = CounterMetric("a_count", "A count.", labels=("x", "y"))
    assert metric.of("1", "2") is metric.of("1", "2")
    assert metric.of("1", "2") is not metric.of("2", "1")
    metric.of("1", "2").add(3)
    assert metric.read().readings == {("1", "2"): 3, ("2", "1"): 0}
    with pytest.raises(AssertionError, match="has the labels"):
        metric.of("1")


def test_too_many_combinations_share_one() -> None:
    metric = CounterMetric("a_count", "A count.", labels=("x",))
    for number in range(COMBINATIONS_MAX + 50):
        metric.of(str(number)).add(1)
    readings = metric.read().readings
    assert len(readings) == COMBINATIONS_MAX + 1
    assert readings[OTHER,] == 50
    metric.of("0").add(1)
    assert metric.read().readings["0",] == 2


def test_a_name_is_declared_once() -> None:
    CounterMetric("a_count", "A count.")
    with pytest.raises(AssertionError, match="declared twice"):
        HistogramMetric("a_count", "A count.")


def test_a_histogram_is_read_as_its_buckets() -> None:
    metric = HistogramMetric("a_size", "A size.", unit=Unit.BYTES)
    metric.of().record(3)
    metric.of().record(100)
    [reading] = metric.read().readings.values()
    assert reading == Distribution(103, ((3, 1), (103, 1)))
    assert reading.count == 2


def test_a_new_combination_during_a_reading_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = CounterMetric("a_count", "A count.", labels=("x",))
    metric.of("0").add(1)

    metric.of("1").add(1)

    def read(recorder: Counter) -> int:
        metric.of("new").add(1)  # as another thread may, between two steps
        return recorder.value

    monkeypatch.setattr(metrics, "_read", read)
    assert metric.read().readings == {("0",): 1, ("1",): 1}


def test_declarations_have_the_form_that_prometheus_expects() -> None:
    modules = (store_metrics, controller_metrics, process_metrics)
    ours = [one for module in modules for one in vars(module).values()]
    ours = [one for one in ours if isinstance(one, metrics.Metric)]
    assert len(ours) > 30
    for metric in ours:
        assert METRICS[metric.name] is metric
        assert re.fullmatch(r"segstore_[a-z0-9_]+", metric.name)
        assert not metric.name.endswith("_total")
        assert metric.help.endswith(".")
        assert not {"le", "quantile", "component", "host"} & {*metric.labels}
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith(f"_{metric.unit.value}")
