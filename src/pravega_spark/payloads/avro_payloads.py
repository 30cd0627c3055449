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
from collections.abc import Iterable, Iterator, Mapping
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
)

from pravega_spark.errors import OptionError
from pravega_spark.options import FAILFAST
from pravega_spark.payloads.places import PLACE_COLUMNS, name_malformed

_PRIMITIVES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
    "uuid": StringType(),
}


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
    columns = _column_type(named[""], named, ())
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

    ``mode`` is ``permissive`` (a malformed event becomes nulls) or ``failfast`` (it ends the job).
    """

    def __init__(self, text: str, mode: str) -> None:
        self._text = text
        self._is_strict = mode == FAILFAST
        columns = avro_columns(text)
        self._types = {field.name: field.dataType for field in columns.fields}
        self._columns = to_arrow_schema(columns, timezone="UTC")

    def parse(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column ``event`` replaced by the columns in it.

        Raises ``PravegaError`` for a malformed event when ``mode`` is ``failfast``.
        """
        from fastavro import parse_schema, schemaless_reader

        parsed = parse_schema(json.loads(self._text))
        for batch in batches:
            values: dict[str, list[Any]] = {name: [] for name in self._types}
            for row, event in enumerate(batch.column("event")):
                stream = io.BytesIO(event.as_buffer())
                record: dict[str, Any] = {}
                try:
                    found: Any = schemaless_reader(stream, parsed, None)
                    if stream.tell() != len(stream.getbuffer()):
                        raise ValueError("there are bytes behind the record")
                    record = {name: _convert(found[name], self._types[name]) for name in values}
                except Exception:
                    # fastavro does not document which errors it raises for invalid bytes.
                    if self._is_strict:
                        raise name_malformed(batch, row, "Avro") from None
                for name, column in values.items():
                    column.append(record.get(name))
            yield self._assemble(batch, values)

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


def _column_type(schema: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> DataType:
    """Return the column type of a part of a schema.

    ``within`` are the names of the records that contain it: a record may not contain itself.
    """
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise OptionError(
                "the option schema has a union of several types, which is no column: use from_avro"
                " of Spark"
            )
        return _column_type(branches[0], named, within)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in within:
            raise OptionError(f"record {schema} of the option schema contains itself")
        if schema not in named:
            raise OptionError(f"the option schema has the type {schema}, which is no column")
        return _column_type(named[schema], named, within)
    kind = schema["type"]
    logical = schema.get("logicalType", "")
    if logical == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical:
        raise OptionError(f"the option schema has a {logical}, which is no column")
    if kind == "array":
        return ArrayType(_column_type(schema["items"], named, within))
    if kind == "map":
        return MapType(StringType(), _column_type(schema["values"], named, within))
    if kind in ("record", "error"):
        around = (*within, schema["name"])
        return StructType(
            [
                StructField(field["name"], _column_type(field["type"], named, around))
                for field in schema["fields"]
            ]
        )
    return _column_type(kind, named, within)


def _convert(value: Any, kind: DataType) -> Any:
    """Return a value in the form from which Arrow can build an array of this type."""
    if value is None:
        return None
    if isinstance(kind, StringType):
        return str(value)
    if isinstance(kind, ArrayType):
        return [_convert(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return [(key, _convert(each, kind.valueType)) for key, each in value.items()]
    if isinstance(kind, StructType):
        return {field.name: _convert(value[field.name], field.dataType) for field in kind.fields}
    return value
