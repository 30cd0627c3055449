"""Events that are Avro records become columns, and nothing else does."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from pravega_spark.errors import OptionError
from pravega_spark.options import DROPMALFORMED, FAILFAST, PERMISSIVE
from pravega_spark.payloads.avro_payloads import AvroPayloads, avro_columns, is_avro
from pravega_spark.payloads.json_payloads import payload_schema
from pravega_spark.payloads.places import PLACE_COLUMNS
from segstore_client.errors import PravegaError

FIELDS: list[dict[str, Any]] = [
    {"name": "flag", "type": "boolean"},
    {"name": "small", "type": "int"},
    {"name": "number", "type": ["null", "long"]},
    {"name": "price", "type": "double"},
    {"name": "raw", "type": "bytes"},
    {"name": "text", "type": ["string", "null"]},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "again", "type": ["null", "Kind"]},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "long"}},
    {
        "name": "place",
        "type": {
            "type": "record",
            "name": "Place",
            "fields": [{"name": "x", "type": "float"}, {"name": "y", "type": ["null", "int"]}],
        },
    },
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {
        "name": "sum",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    },
]
SCHEMA = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS})
I64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": st.integers(-(2**31), 2**31 - 1),
        "number": st.none() | I64,
        "price": st.floats(allow_nan=False),
        "raw": st.binary(max_size=20),
        "text": st.none() | st.text(max_size=20),
        "kind": st.sampled_from("AB"),
        "again": st.none() | st.sampled_from("AB"),
        "tags": st.lists(st.text(max_size=5), max_size=4),
        "counts": st.dictionaries(st.text(max_size=5), I64, max_size=4),
        "place": st.fixed_dictionaries(
            {"x": st.floats(width=32, allow_nan=False), "y": st.none() | st.integers(-5, 5)}
        ),
        "at": st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
        "day": st.dates(date(1970, 1, 1), date(2200, 1, 1)),
        "sum": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda cents: Decimal(cents).scaleb(-2)),
    }
)


def encode(record: dict[str, Any], schema: str = SCHEMA) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(schema)), record)
    return stream.getvalue()


def batch_of(events: list[bytes]) -> pa.RecordBatch:
    count = len(events)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(events, pa.binary()),
            pa.array(["s"] * count),
            pa.array(["t"] * count),
            pa.array([7] * count, pa.int64()),
            pa.array(range(0, 10 * count, 10), pa.int64()),
        ],
        names=["event", *PLACE_COLUMNS],
    )


def parse(events: list[bytes], mode: str = PERMISSIVE, schema: str = SCHEMA) -> pa.RecordBatch:
    [found] = AvroPayloads(schema, mode).parse([batch_of(events)])
    return found


@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_columns_are_the_fields_of_the_records(records: list[dict[str, Any]]) -> None:
    found = parse([encode(record) for record in records], FAILFAST)
    assert found.schema.names == [*(field["name"] for field in FIELDS), *PLACE_COLUMNS]
    rows = [
        {name: value for name, value in row.items() if name not in PLACE_COLUMNS}
        for row in found.to_pylist(maps_as_pydicts="strict")
    ]
    assert rows == records
    assert found.column("offset").to_pylist() == list(range(0, 10 * len(records), 10))


SHORT = json.dumps(
    {
        "type": "record",
        "name": "Pair",
        "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}],
    }
)


def test_malformed_events_are_nulls_or_end_the_query() -> None:
    good = encode({"n": 5, "text": "five"}, SHORT)
    events = [good, b"", good[:-1], good + b"\0", good]
    found = parse(events, schema=SHORT)
    assert found.column("n").to_pylist() == [5, None, None, None, 5]
    assert found.column("text").to_pylist() == ["five", None, None, None, "five"]
    with pytest.raises(PravegaError, match="event at offset 10 of segment 7 of s/t is not Avro"):
        parse(events, FAILFAST, SHORT)


def only(kind: Any, event: bytes) -> Any:
    """Return the value of a column of this type, as a number if it is a time."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}
    column = parse([event], schema=json.dumps(schema)).column("n")
    is_time = pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
    width = pa.int32() if pa.types.is_date(column.type) else pa.int64()
    return (column.cast(width) if is_time else column).to_pylist()[0]


LONG_MAX = b"\xfe" + b"\xff" * 8 + b"\x01"


@pytest.mark.parametrize(
    ("kind", "event", "value"),
    [
        # Times that are no datetime of Python's.
        ({"type": "long", "logicalType": "timestamp-micros"}, LONG_MAX, 2**63 - 1),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, LONG_MAX, 2**63 - 1),
        ({"type": "long", "logicalType": "timestamp-millis"}, LONG_MAX, None),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", 2**31 - 1),
        # A number that is longer than its type.
        ("int", b"\xfe\xff\xff\xff\xff\x01", None),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
            b"\4\x7f\xff",
            None,
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, b"\0", None),
        # What Spark knows no type for is what it is based on.
        ({"type": "int", "logicalType": "time-millis"}, b"\2", 1),
        ({"type": "long", "logicalType": "time-micros"}, LONG_MAX, None),
        ({"type": "string", "logicalType": "uuid"}, b"\2x", "x"),
        ("string", b"\2\xff", "\ufffd"),
    ],
)
def test_values_are_those_of_from_avro(kind: Any, event: bytes, value: Any) -> None:
    assert only(kind, event) == value


def test_malformed_records_are_dropped_if_that_is_the_mode() -> None:
    good = encode({"n": 5, "text": "five"}, SHORT)
    found = parse([b"", good, good[:-1]], DROPMALFORMED, SHORT)
    assert found.column("n").to_pylist() == [5]
    assert found.column("offset").to_pylist() == [10]


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_no_bytes_make_it_crash(events: list[bytes]) -> None:
    assert parse(events).num_rows == len(events)


def test_the_schema_of_rows_has_the_places_too() -> None:
    found = payload_schema(SHORT)
    assert not isinstance(found, str)
    assert found.simpleString() == (
        "struct<n:bigint,text:string,scope:string,stream:string,segment_id:bigint,offset:bigint>"
    )


def test_batches_have_the_schema_that_spark_expects() -> None:
    record = encode({"n": 5, "text": "five"}, SHORT)
    for events, text in ([record], SHORT), ([b""], SCHEMA):
        rows = payload_schema(text)
        assert not isinstance(rows, str)
        assert parse(events, schema=text).schema.equals(to_arrow_schema(rows, timezone="UTC"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SHORT, True),
        ("n bigint", False),
        ("{", False),
        ('{"type": "struct", "fields": []}', False),
        ('["record"]', False),
    ],
)
def test_avro_is_told_from_other_schemas(text: str, found: bool) -> None:
    assert is_avro(text) == found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "names no column"),
        ([{"name": "n"}], "is no Avro schema"),
        ([{"name": "n", "type": "missing"}], "is no Avro schema"),
        ([{"name": "n", "type": ["int", "string"]}], "union of several types"),
        ([{"name": "n", "type": "null"}], "the type null, which is no column"),
        ([{"name": "scope", "type": "int"}], "scope of the option schema"),
        ([{"name": "n", "type": ["null", "R"]}], "record R of the option schema contains itself"),
        (
            [{"name": "n", "type": {"type": "long", "logicalType": "timestamp-nanos"}}],
            "has a timestamp-nanos, which is no column",
        ),
    ],
)
def test_what_is_no_column_is_told(fields: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        avro_columns(json.dumps({"type": "record", "name": "R", "fields": fields}))
