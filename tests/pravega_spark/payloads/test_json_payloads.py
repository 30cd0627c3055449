"""Events that are JSON become columns, beside Python's own parser."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pravega_blocking.errors import PravegaError
from pravega_spark.errors import OptionError
from pravega_spark.payloads.json_payloads import JsonPayloads, payload_schema

PLACE = [("scope", "string"), ("stream", "string"), ("segment_id", "long"), ("offset", "long")]


def schema_of(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    for name, text in PLACE:
        schema = schema.add(name, text)
    return schema


def batch_of(events: list[bytes]) -> pa.RecordBatch:
    count = len(events)
    columns = {
        "event": pa.array(events, pa.binary()),
        "scope": pa.array(["s"] * count),
        "stream": pa.array(["t"] * count),
        "segment_id": pa.array([0] * count, pa.int64()),
        "offset": pa.array(range(0, 10 * count, 10), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def parse(
    events: list[bytes], mode: str = "permissive", **columns: DataType
) -> list[dict[str, Any]]:
    payloads = JsonPayloads(schema_of(**columns), mode)
    (batch,) = payloads.parse([batch_of(events)])
    assert batch.column("offset").to_pylist() == list(range(0, 10 * len(events), 10))
    return [{name: row[name] for name in columns} for row in batch.to_pylist()]


def test_values_of_every_type() -> None:
    event = {
        "text": "a\nb",
        "whole": 7,
        "real": 1.5,
        "yes": True,
        "price": 1.25,
        "at": "2026-03-01T12:00:00Z",
        "on": "2026-03-01",
        "tags": ["x", "y"],
        "inner": {"n": 1},
        "ignored": [1, {"a": 2}],
    }
    row, nothing = parse(
        [json.dumps(event, indent=2).encode(), b" {} "],
        text=StringType(),
        whole=IntegerType(),
        real=DoubleType(),
        yes=BooleanType(),
        price=DecimalType(10, 2),
        at=TimestampType(),
        on=DateType(),
        tags=ArrayType(StringType()),
        inner=StructType().add("n", LongType()),
    )
    del event["ignored"]
    event["price"] = Decimal("1.25")
    event["on"] = date(2026, 3, 1)
    event["at"] = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert row == event
    assert set(nothing.values()) == {None}


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
EVENTS = st.one_of(
    st.fixed_dictionaries({}, optional={"n": st.integers(-(2**40), 2**40), "t": st.text()}).map(
        lambda value: json.dumps(value).encode()
    ),
    JSONS.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=8),
    st.sampled_from([b"", b" ", b"\n", b'{"n":1}{"n":2}', b'{"n":1}\n{"n":2}', b'{"n":1', b"{},"]),
)


def wanted(event: bytes) -> dict[str, Any] | None:
    """Return what Python makes of an event; None if it is malformed."""
    try:
        value = json.loads(event.decode())
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    number, text = value.get("n"), value.get("t")
    if not (number is None or (isinstance(number, int) and not isinstance(number, bool))):
        return None
    return {"n": number, "t": text} if text is None or isinstance(text, str) else None


@given(st.lists(EVENTS, min_size=1, max_size=12))
@example([b"", b'{"n":1}{"n":2}'])
def test_good_events_have_their_values_and_malformed_ones_their_text(events: list[bytes]) -> None:
    rows = parse(events, n=LongType(), t=StringType(), _corrupt_record=StringType())
    for event, row in zip(events, rows, strict=True):
        corrupt = row.pop("_corrupt_record")
        value = wanted(event)
        if value is None:
            assert row == {"n": None, "t": None}
            assert corrupt == event.decode(errors="replace")
        else:
            assert row == value
            assert corrupt is None


def test_failfast_names_the_first_malformed_event() -> None:
    events = [b'{"n": 1}', b'{"n": 2}', b'{"n": "three"}', b"four"]
    with pytest.raises(PravegaError, match="event at offset 20 of segment 0 of s/t is not JSON"):
        parse(events, "failfast", n=LongType())
    assert parse(events[:2], "failfast", n=LongType()) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"offset": LongType()}, "give the columns"),
        ({"m": MapType(StringType(), StringType())}, "column m .* not read from JSON"),
        ({"b": BinaryType()}, "column b .* not read from JSON"),
        ({"d": ArrayType(DateType())}, "column d .* not read from JSON"),
        ({"_corrupt_record": LongType()}, "must be a string"),
        ({"_corrupt_record": StringType()}, "names no column"),
    ],
)
def test_schemas_that_cannot_be_read_are_refused(columns: dict[str, DataType], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        JsonPayloads(schema_of(**columns), "permissive")


def test_a_schema_is_a_ddl_or_json() -> None:
    wanted = schema_of(n=LongType())
    place = "scope string, stream string, segment_id bigint, offset bigint"
    assert payload_schema("n bigint") == f"n bigint, {place}"
    assert payload_schema(StructType().add("n", LongType()).json()) == wanted
    with pytest.raises(OptionError, match="neither a DDL nor JSON"):
        payload_schema('{"a": 1}')
