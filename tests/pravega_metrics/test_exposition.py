"""The text for Prometheus, read back by its own parser."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from _fast.metrics.recorders import Histogram
from pravega_metrics import controller_metrics, store_metrics
from pravega_metrics.exposition import BOUNDS, QUANTILES, Source, quantile_of, render
from pravega_metrics.metrics import METRICS, Distribution, Family, Kind, Reading, Unit

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: bytes) -> Samples:
    """Return the value of each line by its name and labels; no line comes twice."""
    found: Samples = {}
    names = set()
    for family in text_string_to_metric_families(text.decode()):
        assert family.name not in names
        names.add(family.name)
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def find(samples: Samples, name: str, **labels: str) -> float:
    """Return the value of the only line with a name and some of its labels."""
    [value] = [
        value
        for (each, values), value in samples.items()
        if each == name and labels.items() <= dict(values).items()
    ]
    return value


def recorded(values: list[int]) -> Distribution:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return Distribution(histogram.sum, tuple(histogram.counts()))


def of_store(*families: Family, name: str = "h:1") -> Source:
    return Source("segmentstore", name, families)


def test_a_metric_of_two_processes_is_one_family() -> None:
    sources = [
        of_store(store_metrics.CONNECTIONS.family({(): count}), name=f"store.{count}:12345")
        for count in (1, 2)
    ]
    text = render(sources)
    assert text.count(b"# TYPE segstore_connections gauge") == 1
    samples = parse(text)
    for count in (1, 2):
        told = find(samples, "segstore_connections", host=f"store.{count}:12345")
        assert told == count


@given(values=st.lists(st.integers(0, 2**48 - 1), max_size=30), unit=st.sampled_from(Unit))
def test_buckets_are_cumulative_and_end_with_all(values: list[int], unit: Unit) -> None:
    metric = {
        Unit.SECONDS: store_metrics.APPEND_SECONDS,
        Unit.BYTES: store_metrics.JOURNAL_BATCH_BYTES,
        Unit.NONE: store_metrics.JOURNAL_BATCH_BYTES,
    }[unit]
    scale = 1_000_000_000 if metric.unit is Unit.SECONDS else 1
    samples = parse(render([of_store(metric.family({(): recorded(values)}))]))
    told = sorted(
        (float(dict(labels)["le"]), count)
        for (name, labels), count in samples.items()
        if name == f"{metric.name}_bucket"
    )
    bounds = [bound / scale for bound in BOUNDS[metric.unit]]
    assert [bound for bound, _ in told] == [*bounds, math.inf]
    for (_, count), bound in zip(told, [*BOUNDS[metric.unit], math.inf], strict=True):
        assert count == sum(value < bound for value in values)
    assert find(samples, f"{metric.name}_count") == len(values)
    assert find(samples, f"{metric.name}_sum") == sum(values) / scale


def test_all_metrics_and_the_originals_are_valid_text() -> None:
    def read(kind: Kind) -> Reading:
        return recorded([1, 10**6]) if kind is Kind.HISTOGRAM else 3

    odd = 'a\\b"c\nd é'
    families = [
        metric.family({tuple(odd + label for label in metric.labels): read(metric.kind)})
        for metric in METRICS.values()
    ]
    samples = parse(render([of_store(*families), Source("controller", odd, families)]))
    assert {dict(labels)["host"] for _, labels in samples} >= {"h:1", odd}
    for metric in METRICS.values():
        suffix = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_count", Kind.GAUGE: ""}[metric.kind]
        values = {f"{label}": odd + label for label in metric.labels}
        assert find(samples, metric.name + suffix, component="controller", **values)


def test_the_originals_names_have_its_units_and_labels() -> None:
    families = [
        store_metrics.APPEND_SECONDS.family({(): recorded([2_000_000] * 10)}),
        store_metrics.STREAM_BYTES.family({("s", "t"): 7, ("s", "u"): 8}),
        store_metrics.READ_SECONDS.family(
            {("no",): recorded([1_000_000]), ("yes",): recorded([1] * 5)}
        ),
        controller_metrics.RPC_SECONDS.family(
            {("createStream", "OK"): recorded([5]), ("createStream", "INTERNAL"): recorded([5, 5])}
        ),
    ]
    samples = parse(render([of_store(*families, name="10.0.0.1:12345")]))
    latency = "pravega_segmentstore_segment_write_latency_ms_seconds"
    for quantile in QUANTILES:
        told = find(samples, latency, quantile=str(quantile), host="10_0_0_1_12345")
        assert 0.002 <= told <= 0.002 * 1.125
    assert find(samples, f"{latency}_count") == 10
    name = "pravega_segmentstore_segment_write_bytes_total"
    assert find(samples, name, scope="s", stream="u") == 8
    assert find(samples, "pravega_segmentstore_segment_read_latency_ms_seconds_count") == 1
    assert find(samples, "pravega_controller_stream_created_latency_ms_seconds_count") == 1


@given(values=st.lists(st.integers(0, 2**40), min_size=1), quantile=st.floats(0.01, 1))
def test_a_quantile_is_the_bound_of_its_bucket(values: list[int], quantile: float) -> None:
    ordered = sorted(values)
    exact = ordered[max(0, math.ceil(quantile * len(values)) - 1)]
    assert exact <= quantile_of(recorded(values), quantile) * (1 + 1e-9) + 1
    assert quantile_of(recorded(values), quantile) <= exact * 1.125


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile_of(recorded([]), 0.5) == 0
