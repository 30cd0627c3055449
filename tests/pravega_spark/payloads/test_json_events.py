"""One event becomes the columns that ``from_json`` of Spark makes of it."""

from __future__ import annotations

import math
from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.payloads.json_events import JsonEventReader, Verdict, format_double, has_column


def read(text: str, **columns: pa.DataType) -> tuple[dict[str, Any], Verdict]:
    row, verdict = JsonEventReader(pa.schema(list(columns.items())), UTC).read(text.encode())
    return dict(row), verdict


def value(text: str, kind: pa.DataType) -> Any:
    """Return the value of a column; an error if it does not fit."""
    row, verdict = read(f'{{"a":{text}}}', a=kind)
    if verdict is Verdict.MALFORMED:
        return ValueError
    return row["a"]


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("true", pa.bool_(), True),
        ("1", pa.bool_(), ValueError),
        ("-0", pa.int32(), 0),
        ("1.0", pa.int32(), ValueError),
        ("1e2", pa.int64(), ValueError),
        ('"1"', pa.int64(), ValueError),
        ("2147483648", pa.int32(), ValueError),
        ("32768", pa.int16(), ValueError),
        ("200", pa.int8(), -56),
        ("256", pa.int8(), ValueError),
        ("1", pa.float64(), 1.0),
        ("1e400", pa.float64(), math.inf),
        ('"-INF"', pa.float32(), -math.inf),
        ("+INF", pa.float64(), math.inf),
        ('"1.5"', pa.float64(), ValueError),
        ("1.00000017881393432617187499", pa.float32(), 1.0000001192092896),
        ("1.005", pa.decimal128(10, 2), Decimal("1.01")),
        ('"1,000.5"', pa.decimal128(10, 2), Decimal("1000.50")),
        ("1e400", pa.decimal128(10, 2), ValueError),
        ("1e-400", pa.decimal128(10, 2), Decimal("0.00")),
        ("123456789", pa.decimal128(10, 2), ValueError),
        ("NaN", pa.decimal128(10, 2), ValueError),
        ('"ä"', pa.string(), "ä"),
        ("1E2", pa.string(), "100.0"),
        ("-0", pa.string(), "0"),
        ('"\\ud800"', pa.string(), "?"),
        ('["\\ud800"]', pa.string(), '["\\uD800"]'),
        ('{"\\ud800": 1}', pa.map_(pa.string(), pa.int8()), [("?", 1)]),
        ('{"x" : [1, "\\u00e4\\n😀", NaN, null, true]}', pa.string(), None),
        ('"QUI="', pa.binary(), b"AB"),
        ('"QUI"', pa.binary(), ValueError),
        ('""', pa.binary(), b""),
        ('""', pa.date32(), ValueError),
        ('"1970-01-03"', pa.date32(), 2),
        ("1", pa.date32(), ValueError),
        ("2", pa.timestamp("us", "UTC"), 2_000_000),
        ("9223372036854775807", pa.timestamp("us", "UTC"), -1_000_000),
        ("2", pa.timestamp("us"), ValueError),
        ('"1970-01-01T00:00:02"', pa.timestamp("us"), 2_000_000),
        ('"1970-01-01T00:00:02Z"', pa.timestamp("us"), ValueError),
        ('"00:00:01"', pa.time64("ns"), 10**9),
        ("[1, null]", pa.list_(pa.int8()), [1, None]),
        ("[1, []]", pa.list_(pa.int8()), ValueError),
        ('{"x": 1, "x": 2}', pa.map_(pa.string(), pa.int8()), [("x", 1), ("x", 2)]),
        ('{"x": 1, "y": ""}', pa.map_(pa.string(), pa.int8()), ValueError),
        ('{"y": 1}', pa.struct([("x", pa.int8())]), {"x": None}),
        ("[]", pa.struct([("x", pa.int8())]), ValueError),
        ("null", pa.struct([("x", pa.int8())]), None),
    ],
)
def test_values_of_each_type(text: str, kind: pa.DataType, wanted: Any) -> None:
    if text.startswith('{"x" :'):
        wanted = '{"x":[1,"ä\\n\\uD83D\\uDE00","NaN",null,true]}'
    assert value(text, kind) == wanted


def test_a_value_that_does_not_fit_leaves_the_other_columns() -> None:
    inner = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.int8()))])
    row, verdict = read('{"a":"x","b":1,"c":{"x":{},"y":[2]}}', a=pa.int8(), b=pa.int8(), c=inner)
    assert (row, verdict) == ({"a": None, "b": 1, "c": {"x": None, "y": [2]}}, Verdict.MALFORMED)


def test_of_fields_that_come_twice_the_last_that_fits_counts() -> None:
    assert read('{"a":1,"a":2}', a=pa.int8()) == ({"a": 2}, Verdict.GOOD)
    assert read('{"a":1,"a":"x"}', a=pa.int8()) == ({"a": 1}, Verdict.MALFORMED)


@pytest.mark.parametrize("text", ["[]", "1", "null", '{"a":1', '{"a":1,"b":x}', "x", "\ufeff{}"])
def test_what_is_no_object_is_malformed(text: str) -> None:
    assert read(text, a=pa.int8()) == ({}, Verdict.MALFORMED)


def test_deep_nesting_is_read_where_it_is_no_column() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    assert read(f'{{"b":{deep},"a":1}}', a=pa.int8()) == ({"a": 1}, Verdict.GOOD)
    assert read(f'{{"a":{deep}}}', a=pa.string()) == ({}, Verdict.MALFORMED)


def test_blank_events_have_no_columns_and_no_fault() -> None:
    assert read(" \n", a=pa.int8()) == ({}, Verdict.BLANK)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((1e39, "1.0E39"), (1e7, "1.0E7"), (1234567.5, "1234567.5"), (0.001, "0.001")),
        *((9.9e-4, "9.9E-4"), (5e-324, "4.9E-324"), (-0.0, "-0.0"), (100.0, "100.0")),
        (-math.inf, '"-Infinity"'),
    ],
)
def test_numbers_are_written_as_java_writes_them(number: float, text: str) -> None:
    assert format_double(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_written_numbers_are_the_numbers(number: float) -> None:
    assert float(format_double(number)) == number


def test_types_without_columns() -> None:
    assert has_column(pa.time64("ns"))
    assert not has_column(pa.duration("us"))
    assert not has_column(pa.null())
