"""The readings of a process as bytes, for the process that tells them to Prometheus.

Owns: ``encode_readings`` and ``decode_readings``.

Readings are JSON: names of metrics, and for each the values of its labels with its reading. A
reader takes the declaration from its own table, so processes of different versions understand each
other as far as both know a metric.

Invariants:
1. When readings are encoded and decoded, they are the same. Held by
   ``test_readings_come_back_as_they_were``.
2. When the writer knows a metric that the reader does not, or with other labels, the reader ignores
   it. Held by ``test_an_unknown_metric_is_ignored``.
3. When the bytes are no readings, ``InvalidReadingsError`` is raised. Held by
   ``test_what_is_no_reading_is_refused``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from pravega_metrics.metrics import METRICS, Distribution, Family, Kind, Reading

_NO_READINGS: Final = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
)
"""The errors that decoding raises for other documents."""


class InvalidReadingsError(ValueError):
    """Bytes that another process sent are no readings."""


def encode_readings(families: Iterable[Family]) -> bytes:
    """Return the families as bytes."""
    document = {
        family.metric.name: [
            [*labels, _encode_reading(reading)] for labels, reading in family.readings.items()
        ]
        for family in families
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_readings(data: bytes) -> list[Family]:
    """Return the families in ``data`` whose metrics are known. Raises ``InvalidReadingsError``."""
    try:
        document: dict[str, list[list[Any]]] = json.loads(data)
        return [
            _decode_family(name, rows)
            for name, rows in document.items()
            if name in METRICS and all(len(row) == len(METRICS[name].labels) + 1 for row in rows)
        ]
    except _NO_READINGS as error:
        raise InvalidReadingsError(f"these are no readings of metrics: {error}") from error


def _encode_reading(reading: Reading) -> object:
    if isinstance(reading, Distribution):
        return {"sum": reading.sum, "counts": reading.counts}
    return reading


def _decode_family(name: str, rows: list[list[Any]]) -> Family:
    metric = METRICS[name]
    readings: dict[tuple[str, ...], Reading] = {}
    for *labels, value in rows:
        reading: Reading
        if metric.kind is Kind.HISTOGRAM:
            counts = tuple((int(bound), int(count)) for bound, count in value["counts"])
            reading = Distribution(int(value["sum"]), counts)
        else:
            reading = value if isinstance(value, int) else float(value)
        readings[tuple(map(str, labels))] = reading
    return Family(metric, readings)
