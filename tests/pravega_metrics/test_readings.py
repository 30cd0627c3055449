"""Readings as bytes, between processes that may have different versions."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_metrics import store_metrics
from pravega_metrics.metrics import METRICS, Distribution, Family, Kind, Reading
from pravega_metrics.readings import InvalidReadingsError, decode_readings, encode_readings

COUNTS = st.dictionaries(st.integers(0, 2**48), st.integers(1, 2**40), max_size=5)
DISTRIBUTIONS = st.builds(
    lambda total, counts: Distribution(total, tuple(sorted(counts.items()))),
    st.integers(0, 2**62),
    COUNTS,
)
NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)


@st.composite
def families(draw: st.DrawFn) -> list[Family]:
    found = []
    for name in draw(st.sets(st.sampled_from(sorted(METRICS)), max_size=5)):
        metric = METRICS[name]
        readings: st.SearchStrategy[Reading] = (
            DISTRIBUTIONS if metric.kind is Kind.HISTOGRAM else NUMBERS
        )
        labels = st.tuples(*[st.text(max_size=5) for _ in metric.labels])
        found.append(metric.family(draw(st.dictionaries(labels, readings, max_size=3))))
    return found


@given(told=families())
def test_readings_come_back_as_they_were(told: list[Family]) -> None:
    assert decode_readings(encode_readings(told)) == told


def test_an_infinite_delay_comes_back() -> None:
    told = store_metrics.THROTTLE_SECONDS.family({("0", "space"): math.inf})
    assert decode_readings(encode_readings([told])) == [told]


def test_an_unknown_metric_is_ignored() -> None:
    known = store_metrics.CONNECTIONS.family({(): 3})
    document = json.loads(encode_readings([known]))
    document["segstore_of_later"] = [["a", {"buckets": []}]]
    document[store_metrics.ACTIVE_SEGMENTS.name] = [["0", "another label", 3]]
    assert decode_readings(json.dumps(document).encode()) == [known]


@pytest.mark.parametrize(
    "document",
    [
        [],
        3,
        {store_metrics.CONNECTIONS.name: 3},
        {store_metrics.CONNECTIONS.name: [3]},
        {store_metrics.CONNECTIONS.name: [["many"]]},
        {store_metrics.CONNECTIONS.name: [[None]]},
        {store_metrics.APPEND_SECONDS.name: [[3]]},
        {store_metrics.APPEND_SECONDS.name: [[{"sum": 3}]]},
        {store_metrics.APPEND_SECONDS.name: [[{"sum": 3, "counts": [[1]]}]]},
        {store_metrics.APPEND_SECONDS.name: [[{"sum": math.inf, "counts": []}]]},
    ],
)
def test_what_is_no_reading_is_refused(document: Any) -> None:
    with pytest.raises(InvalidReadingsError):
        decode_readings(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[" * 100_000])
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidReadingsError):
        decode_readings(data)
