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
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from pravega_spark.errors import OptionError
from pravega_spark.payloads.json_payloads import JsonPayloads, payload_schema
from segstore_client.errors import PravegaError

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
    events: list[bytes], mode: str = "permissive", /, *, zone: str = "UTC", **columns: DataType
) -> list[dict[str, Any]]:
    payloads = JsonPayloads(schema_of(**columns), mode, zone)
    (batch,) = payloads.parse([batch_of(events)])
    return [{name: row[name] for name in (*columns, "offset")} for row in batch.to_pylist()]


def columns_of(
    events: list[bytes], mode: str = "permissive", /, *, zone: str = "UTC", **columns: DataType
) -> list[dict[str, Any]]:
    rows = parse(events, mode, zone=zone, **columns)
    assert [row.pop("offset") for row in rows] == list(range(0, 10 * len(events), 10))
    return rows


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
    row, nothing = columns_of(
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
    if not event.strip(b" \t\r\n"):
        return {"n": None, "t": None}
    try:
        value, _ = json.JSONDecoder().raw_decode(event.decode(errors="replace").lstrip(" \t\r\n"))
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
    rows = columns_of(events, n=LongType(), t=StringType(), _corrupt_record=StringType())
    for event, row in zip(events, rows, strict=True):
        corrupt = row.pop("_corrupt_record")
        value = wanted(event)
        if value is None:
            assert corrupt == event.decode(errors="replace")
        else:
            assert row == value
            assert corrupt is None


VALUES = st.sampled_from(
    (
        *b"1 -1 200 2147483648 1.5 1e2 1e400 -0 -0.0 NaN Inf -Inf Infinity -NaN +INF 01".split(),
        *(b"true", b"null", b"{}", b"[]", b"[1, 2]", b'["2026-03-29"]', b'"\xff"', b'", Info"'),
        *(b'"2026-03-29T02:30:00"', b'"2026-03-29T02:30:00.1234567Z"', b'"2026-03-29"'),
        *(b'"2026-03-29T02:30:00+0100"', b'"2026-3-29"', b'"1.5"', b'"+1."', b'"1,0"', b"'a'"),
        *(b'"a\nb"', b'"a\\nb"', b'"\\ud83d\\ude00"', b'"\\ud83d"', b'{"a": 1}', b'{"a": "x"}'),
        *(b'{"a":\r\n1}', b'"2026-03-29"}{"a":1', b'{"a":', b"1}} {"),
    )
)
TYPES: dict[str, DataType] = {
    "b": BooleanType(),
    "y": ByteType(),
    "i": IntegerType(),
    "f": FloatType(),
    "d": DoubleType(),
    "c": DecimalType(10, 2),
    "t": StringType(),
    "at": TimestampType(),
    "l": TimestampNTZType(),
    "on": DateType(),
    "ds": ArrayType(DateType()),
    "s": StructType().add("a", LongType()),
}


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([*TYPES, "other"]), VALUES), max_size=3).map(
            lambda fields: b"{%b}" % b", ".join(b'"%b": %b' % (n.encode(), v) for n, v in fields)
        ),
        min_size=1,
        max_size=20,
    )
)
@example([b'{"other":', b'{"i":1}} {}'])
@example([b'{"t": "a\nb"}'])
@example([b'{"other": Inf}'])
@example([b'{"c": 2147483648}'])
def test_arrow_reads_as_single_events_are_read(events: list[bytes]) -> None:
    corrupt = StringType()
    together = parse(events, zone="Europe/Berlin", **TYPES, _corrupt_record=corrupt)
    # Maps are read in no other way than one event after the other.
    types = {**TYPES, "slow": MapType(StringType(), StringType())}
    alone = parse(events, zone="Europe/Berlin", **types, _corrupt_record=corrupt)
    assert repr(together) == repr([{k: v for k, v in row.items() if k != "slow"} for row in alone])


@pytest.mark.parametrize("text", [b"123456789", b"-123456789", b"123456789.00", b"9" * 70])
def test_a_number_that_is_too_long_is_malformed(text: bytes) -> None:
    kinds: dict[str, DataType] = {"c": DecimalType(10, 2), "n": LongType()}
    [row] = columns_of([b'{"c":%b,"n":1}' % text], **kinds)
    assert row == {"c": None, "n": 1}


@pytest.mark.parametrize("digits", [30, 38, 58, 59, 76, 77])
def test_a_long_whole_number_is_no_other_number(digits: int) -> None:
    events = [b'{"c":%b}' % (b"123456789" * 9)[:digits], b'{"c":1.5}']
    found = columns_of(events, c=DecimalType(38, 18))
    assert [row["c"] for row in found] == [None, Decimal("1.5")]


def test_minus_zero_is_zero_if_it_is_a_whole_number() -> None:
    found = columns_of([b'{"d":-0}', b'{"d":-0.0}', b'{"d":0}'], d=DoubleType())
    assert repr([row["d"] for row in found]) == "[0.0, -0.0, 0.0]"


def test_a_line_end_within_a_string_is_a_fault() -> None:
    [row] = columns_of([b'{"t":\n"a\nb"}'], t=StringType(), _corrupt_record=StringType())
    assert row == {"t": None, "_corrupt_record": '{"t":\n"a\nb"}'}


def test_an_event_goes_on_in_no_other() -> None:
    events = [b'{"other":', b'{"n":1}} {}', b'{"n":2}']
    rows = columns_of(events, n=LongType(), _corrupt_record=StringType())
    assert [row["n"] for row in rows] == [None, 1, 2]
    assert [row["_corrupt_record"] for row in rows] == ['{"other":', None, None]


def test_a_time_without_a_zone_is_of_the_given_zone() -> None:
    events = [b'{"at":"2026-03-01T12:00:00"}', b'{"at":"2026-07-01T12:00:00"}']
    rows = columns_of(events, zone="Europe/Berlin", at=TimestampType())
    assert [row["at"] for row in rows] == [
        datetime(2026, 3, 1, 11, tzinfo=UTC),
        datetime(2026, 7, 1, 10, tzinfo=UTC),
    ]


def test_a_time_with_a_zone_is_no_time_without_one() -> None:
    events = [b'{"at":"2026-03-01T12:00:00Z","n":1}', b'{"at":"2026-03-01T12:00:00","n":2}']
    rows = columns_of(events, at=TimestampNTZType(), n=LongType())
    assert rows == [{"at": None, "n": 1}, {"at": datetime(2026, 3, 1, 12), "n": 2}]


@pytest.mark.parametrize("digits", [7, 9])
def test_a_longer_fraction_of_a_second_is_cut(digits: int) -> None:
    text = "2026-03-01T12:00:00." + "123456789"[:digits]
    [row] = columns_of(
        [b'{"at":"%bZ","l":"%b","n":1}' % (text.encode(), text.encode())],
        "failfast",
        at=TimestampType(),
        l=TimestampNTZType(),
        n=LongType(),
    )
    moment = datetime(2026, 3, 1, 12, 0, 0, 123456)
    assert row == {"at": moment.replace(tzinfo=UTC), "l": moment, "n": 1}


def test_a_value_that_does_not_fit_leaves_the_other_columns() -> None:
    [row] = columns_of([b'{"n":"x","t":"y"}'], n=LongType(), t=StringType())
    assert row == {"n": None, "t": "y"}


def test_malformed_and_blank_events_are_dropped_if_that_is_the_mode() -> None:
    events = [b'{"n":1}', b'{"n":"x"}', b" ", b"x", b'{"n":2}']
    rows = parse(events, "dropmalformed", n=LongType())
    assert rows == [{"n": 1, "offset": 0}, {"n": 2, "offset": 40}]
    assert parse(events[1:2], "dropmalformed", n=LongType()) == []


def test_failfast_names_the_first_malformed_event() -> None:
    events = [b'{"n": 1}', b'{"n": 2}', b'{"n": "three"}', b"four"]
    with pytest.raises(PravegaError, match="event at offset 20 of segment 0 of s/t is not JSON"):
        columns_of(events, "failfast", n=LongType())
    assert columns_of(events[:2], "failfast", n=LongType()) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"offset": LongType()}, "give the columns"),
        ({"m": MapType(LongType(), StringType())}, "column m .* keys of the type int64"),
        ({"d": DayTimeIntervalType()}, "column d .* not read from JSON"),
        ({"d": ArrayType(NullType())}, "column d .* not read from JSON"),
        ({"v": VariantType()}, "column v .* not read from JSON"),
        ({"y": YearMonthIntervalType()}, "option schema: .*"),
        ({"n": ArrayType(LongType(), containsNull=False)}, "column n .* is NOT NULL"),
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
