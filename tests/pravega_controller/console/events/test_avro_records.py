"""Tests of the reading of Avro, beside a library for it."""

from __future__ import annotations

import io
import json
import time
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_controller.console.events.avro_records import (
    DEPTH_MAX,
    MARK,
    SCHEMA_LENGTH_MAX,
    VALUES_MAX,
    AvroError,
    parse_avro_schema,
    read_value,
)
from pravega_controller.errors import InvalidRequestError

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "doc": "é",
    "fields": [
        {"name": "id", "type": "long", "doc": "x"},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": ["Kind", {"type": "fixed", "name": "raw.Two", "size": 2}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "prices", "type": {"type": "map", "values": {"type": "double"}}},
        {"name": "paid", "type": "boolean"},
        {"name": "share", "type": "float"},
        {"name": "count", "type": "int"},
        {"name": "data", "type": "bytes"},
        {"name": "before", "type": ["null", "Order"], "default": None},
    ],
}
SCHEMA = parse_avro_schema(json.dumps(ORDER))
PLAIN = st.characters(exclude_categories=["Cs"])


def orders(before: Any) -> Any:
    return st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "item": st.none() | st.text(PLAIN, max_size=5),
            "kind": st.sampled_from("AB"),
            "other": st.just("B") | st.just(b"ab"),
            "tags": st.lists(st.text(PLAIN, max_size=3), max_size=3),
            "prices": st.dictionaries(st.text(PLAIN, max_size=3), st.floats(allow_nan=False)),
            "paid": st.booleans(),
            "share": st.floats(width=32, allow_nan=False),
            "count": st.integers(-(2**31), 2**31 - 1),
            "data": st.just(b"abc"),
            "before": before,
        }
    )


def write(value: Any, schema: Any = ORDER) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return stream.getvalue()


@settings(max_examples=100)
@given(st.recursive(st.none(), orders, max_leaves=3).filter(bool))
def test_values_are_those_of_a_library_for_avro(order: Any) -> None:
    data = write(order)
    expected = schemaless_reader(io.BytesIO(data), parse_schema(ORDER), None)
    found, note = read_value(SCHEMA, data)
    assert note == ""
    # Bytes are shown as texts.
    assert json.dumps(found) == json.dumps(expected, default=bytes.decode)
    for cut in range(len(data)):
        with pytest.raises(AvroError):
            read_value(SCHEMA, data[:cut])
    with pytest.raises(AvroError, match="behind"):
        read_value(SCHEMA, data + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    # Any other error fails.
    with suppress(AvroError):
        json.dumps(read_value(SCHEMA, data))


def test_a_single_object_names_its_schema() -> None:
    parsed = parse_schema(ORDER)
    assert SCHEMA.canonical == to_parsing_canonical_form(parsed)
    expected = bytes.fromhex(fingerprint(SCHEMA.canonical, "CRC-64-AVRO"))
    assert SCHEMA.fingerprint == expected
    schema = parse_avro_schema('{"type": "array", "items": ["null", {"type": "int"}]}')
    assert schema.canonical == '{"type":"array","items":["null","int"]}'
    value = b"\x02\x02\x0e\x00"
    assert read_value(schema, value) == ([7], "")
    assert read_value(schema, MARK + schema.fingerprint + value) == ([7], "")
    found, note = read_value(schema, MARK + SCHEMA.fingerprint + value)
    assert (found, "another fingerprint" in note) == ([7], True)
    # These bytes are a value themselves.
    number = parse_avro_schema('"long"')
    assert read_value(number, b"\xc3\x01") == (-98, "")


def test_times_and_decimals_are_shown_as_people_write_them() -> None:
    moment = parse_avro_schema('{"type": "long", "logicalType": "timestamp-millis"}')
    assert read_value(moment, write(86_400_000, "long"))[0] == "1970-01-02T00:00:00+00:00"
    assert read_value(moment, write(2**60, "long"))[0] == 2**60
    day = parse_avro_schema('{"type": "int", "logicalType": "date"}')
    assert read_value(day, write(1, "int"))[0] == "1970-01-02"
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    data = write(Decimal("-12.30"), amount)
    assert read_value(parse_avro_schema(json.dumps(amount)), data)[0] == "-12.30"
    assert read_value(parse_avro_schema(json.dumps(amount | {"scale": 10**9})), data)[0] == "-1230"


@pytest.mark.parametrize(
    ("schema", "data", "sentence"),
    [
        # 2 ** 60 nulls, or records without fields, in few bytes.
        ('{"type": "array", "items": "null"}', b"\x80" * 8 + b"\x20", f"than {VALUES_MAX} values"),
        (
            '{"type": "array", "items": {"type": "record", "name": "E", "fields": []}}',
            b"\x80" * 8 + b"\x20",
            f"than {VALUES_MAX} values",
        ),
        ('{"type": "array", "items": "int"}', b"\x01" + b"\x00" * 9999, "too early|behind"),
        (
            '{"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}',
            b"\x02" * 16_000,
            f"deeper than {DEPTH_MAX}",
        ),
        ('{"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}', b"", "deeper"),
        ('"bytes"', b"\x80" * 8 + b"\x20", "too early"),
        ('"string"', b"\x01", "too early"),
        ('"string"', b"\x02\xff", "no UTF-8"),
        ('"long"', b"\xff" * 12, "too long"),
        ('"int"', b"\xff" * 5 + b"\x01", "too long"),
        ('"boolean"', b"\x02", "neither"),
        ('["null"]', b"\x02", "there is not"),
        ('{"type": "fixed", "name": "F", "size": -1}', b"", "too early"),
    ],
)
def test_what_never_ends_is_refused(schema: str, data: bytes, sentence: str) -> None:
    began = time.process_time()
    with pytest.raises(AvroError, match=sentence):
        read_value(parse_avro_schema(schema), data)
    assert time.process_time() - began < 1


def test_types_that_multiply_are_bounded() -> None:
    inner = ["null", *(f"R{number}" for number in range(39))]
    fields = [
        {
            "type": "record",
            "name": f"R{number}",
            "fields": [{"name": name, "type": kind} for name in "ab"],
        }
        for number, kind in enumerate(inner)
    ]
    schema = {
        "type": "record",
        "name": "All",
        "fields": [{"name": each["name"], "type": each} for each in fields],
    }
    text = json.dumps(schema, separators=(",", ":"))
    assert len(text) <= SCHEMA_LENGTH_MAX
    with pytest.raises(AvroError, match=f"than {VALUES_MAX} values"):
        read_value(parse_avro_schema(text), b"")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is JSON"),
        ("{", "is JSON"),
        ("7", "7 is no Avro schema"),
        ("{}", "has no type"),
        ('"Order"', "has no type Order"),
        ('{"type": "array"}', "has no items"),
        ('{"type": "record", "name": "R"}', "has no fields"),
        ('{"type": "record", "name": "R", "fields": [7]}', "7 is no field"),
        ('{"type": "record", "fields": []}', "has no name"),
        ('{"type": "fixed", "name": "F", "size": "2"}', "has no size"),
        ('[{"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 2}]',
         "two types F"),
        ("[" * 100 + "]" * 100, f"deeper than {DEPTH_MAX}"),
        ('{"x": ' + "[" * 2900 + "]" * 2900 + "}", "Avro schema"),
        (" " * SCHEMA_LENGTH_MAX + "7", f"at most {SCHEMA_LENGTH_MAX}"),
    ],
)  # fmt: skip
def test_a_wrong_schema_is_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        parse_avro_schema(text)
