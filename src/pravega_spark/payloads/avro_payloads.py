"""Turns events that are Avro records into columns.

Owns: the Avro schemas that have columns, their types, and the conversion of records to columns.

An event is one record in Avro's binary encoding, without a header. If the bytes are no such record,
or if bytes follow the record, the event is malformed. The option ``schema`` has the Avro schema: it
is one if it is JSON with the type ``record``. The package fastavro reads the records; it is not
installed together with the data source.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from pravega_spark.errors import OptionError
from pravega_spark.options import DROPMALFORMED, FAILFAST
from pravega_spark.payloads.places import PLACE_COLUMNS, name_malformed


@dataclass(frozen=True, slots=True)
class _Column:
    """The type of a column, and what makes its values of those that fastavro reads."""

    kind: DataType
    convert: Callable[[Any], Any]


def _as_is(value: Any) -> Any:
    return value


def _scaled(factor: int, bits: int) -> Callable[[int], int]:
    """Return a function that multiplies, and refuses products of more than ``bits`` bits."""
    limit = 2 ** (bits - 1)

    def convert(value: int) -> int:
        # fastavro reads an int as it reads a long, and a long of any length.
        if not -limit <= value * factor < limit:
            raise ValueError("this number is too long")
        return value * factor

    return convert


def _decimal(precision: int, scale: int) -> _Column:
    def convert(value: bytes) -> Decimal:
        unscaled = int.from_bytes(value, "big", signed=True)
        if not value or abs(unscaled) >= 10**precision:
            raise ValueError("this is no number of that precision")
        return Decimal(unscaled).scaleb(-scale, _WIDE)

    return _Column(DecimalType(precision, scale), convert)


_WIDE = Context(prec=100)
_PRIMITIVES: dict[str, _Column] = {
    "boolean": _Column(BooleanType(), _as_is),
    "int": _Column(IntegerType(), _scaled(1, 32)),
    "long": _Column(LongType(), _scaled(1, 64)),
    "float": _Column(FloatType(), _as_is),
    "double": _Column(DoubleType(), _as_is),
    "bytes": _Column(BinaryType(), _as_is),
    "string": _Column(StringType(), _as_is),
    "enum": _Column(StringType(), _as_is),
    "fixed": _Column(BinaryType(), _as_is),
}
_LOGICAL: dict[tuple[str, str], _Column] = {
    ("int", "date"): _Column(DateType(), _scaled(1, 32)),
    ("long", "time-micros"): _Column(TimeType(), _scaled(1_000, 64)),
    ("long", "timestamp-millis"): _Column(TimestampType(), _scaled(1_000, 64)),
    ("long", "timestamp-micros"): _Column(TimestampType(), _scaled(1, 64)),
    ("long", "local-timestamp-millis"): _Column(TimestampNTZType(), _scaled(1_000, 64)),
    ("long", "local-timestamp-micros"): _Column(TimestampNTZType(), _scaled(1, 64)),
}
"""The columns of logical types, by type. As in Spark, a value of any other logical type gets the
column of the plain type that carries it."""
_NO_COLUMN = ("timestamp-nanos", "local-timestamp-nanos")


def is_avro(text: str) -> bool:
    """Return whether the option ``schema`` is an Avro schema of a record."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("type") == "record"


def avro_columns(text: str) -> StructType:
    """Return the columns of an Avro schema.

    Raises ``OptionError`` for an invalid schema, and for one without fields.
    """
    named = _parse(text)
    columns = _column(named[""], named, ()).kind
    assert isinstance(columns, StructType)
    if not columns.fields:
        raise OptionError("the option schema names no column")
    if taken := [field.name for field in columns.fields if field.name in PLACE_COLUMNS]:
        raise OptionError(
            f"{', '.join(taken)} of the option schema: columns of these names say where an event"
            " was, so use from_avro of Spark for such records"
        )
    return columns


class AvroPayloads:
    """Parses events into the columns of an Avro schema; segment and offset columns stay as they
    are.

    ``mode`` is ``permissive`` (a malformed event becomes nulls), ``dropmalformed`` (it is left
    out) or ``failfast`` (it ends the job).
    """

    def __init__(self, text: str, mode: str) -> None:
        self._text = text
        self._mode = mode
        self._columns = to_arrow_schema(avro_columns(text), timezone="UTC")

    def parse(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column ``event`` replaced by the columns in it.

        Raises ``PravegaError`` for a malformed event when ``mode`` is ``failfast``.
        """
        from fastavro import parse_schema, schemaless_reader

        # Spark's columns have times that are no datetime of Python, so fastavro makes none.
        parsed = parse_schema(_without_logical_types(json.loads(self._text)))
        named = _parse(self._text)
        convert = _column(named[""], named, ()).convert
        for batch in batches:
            values: dict[str, list[Any]] = {name: [] for name in self._columns.names}
            good = []
            for row, event in enumerate(batch.column("event")):
                stream = io.BytesIO(event.as_buffer())
                record: dict[str, Any] = {}
                try:
                    found = schemaless_reader(stream, parsed, None, handle_unicode_errors="replace")
                    if stream.tell() != len(stream.getbuffer()):
                        raise ValueError("there are bytes behind the record")
                    record = convert(found)
                except Exception:
                    # fastavro does not document which errors it raises for invalid bytes.
                    if self._mode == FAILFAST:
                        raise name_malformed(batch, row, "Avro") from None
                good.append(bool(record))
                for name, column in values.items():
                    column.append(record.get(name))
            rows = self._assemble(batch, values)
            yield rows.filter(pa.array(good)) if self._mode == DROPMALFORMED else rows

    def _assemble(self, batch: pa.RecordBatch, values: Mapping[str, list[Any]]) -> pa.RecordBatch:
        arrays = [pa.array(values[field.name], field.type) for field in self._columns]
        fields = list(self._columns)
        for name in PLACE_COLUMNS:
            arrays.append(batch.column(name))
            fields.append(batch.schema.field(name))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _parse(text: str) -> dict[str, Any]:
    """Return the named schemas in a schema by full name, and the whole schema under ""."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException
    except ImportError:
        raise OptionError(
            "events that are Avro need fastavro, which is not installed: pip install"
            " 'segstore[avro]'"
        ) from None
    named: dict[str, Any] = {}
    try:
        named[""] = parse_schema(json.loads(text), named_schemas=named)
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise OptionError(f"the option schema is no Avro schema: {error}") from None
    return named


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_logical_types(value)
        if key in ("type", "items", "values", "fields")
        else value
        for key, value in schema.items()
        if key != "logicalType"
    }


def _column(schema: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> _Column:
    """Return the column of a part of a schema.

    ``within`` are the names of the records that contain it: a record may not contain itself.
    """
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise OptionError(
                "the option schema has a union of several types, which is no column: use from_avro"
                " of Spark"
            )
        return _or_null(_column(branches[0], named, within))
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in within:
            raise OptionError(f"record {schema} of the option schema contains itself")
        if schema not in named:
            raise OptionError(f"the option schema has the type {schema}, which is no column")
        return _column(named[schema], named, within)
    kind = schema["type"]
    logical = schema.get("logicalType", "")
    if logical in _NO_COLUMN:
        raise OptionError(f"the option schema has a {logical}, which is no column")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema["precision"], schema.get("scale", 0))
    if isinstance(kind, str) and (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    if kind == "array":
        items = _column(schema["items"], named, within)
        return _Column(ArrayType(items.kind), lambda value: [items.convert(each) for each in value])
    if kind == "map":
        entries = _column(schema["values"], named, within)
        return _Column(
            MapType(StringType(), entries.kind),
            lambda value: [(key, entries.convert(each)) for key, each in value.items()],
        )
    if kind in ("record", "error"):
        return _record_column(schema, named, (*within, schema["name"]))
    return _column(kind, named, within)


def _record_column(schema: Any, named: Mapping[str, Any], around: tuple[str, ...]) -> _Column:
    columns = {each["name"]: _column(each["type"], named, around) for each in schema["fields"]}
    return _Column(
        StructType([StructField(name, column.kind) for name, column in columns.items()]),
        lambda value: {name: column.convert(value[name]) for name, column in columns.items()},
    )


def _or_null(column: _Column) -> _Column:
    return _Column(column.kind, lambda value: None if value is None else column.convert(value))
