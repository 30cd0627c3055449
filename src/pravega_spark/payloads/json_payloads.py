"""Turns events that are JSON into Arrow columns, without a Python object for any event.

Owns: the types of columns, the definition of a malformed event, and the conversion to columns.

An event is one JSON object. It is malformed if its bytes are anything else, or if a value has
another type than its column. Fields without a column are ignored; columns without a field are null.

How it works: the events of a batch are joined by newlines and parsed at once. If that fails, each
half is parsed on its own, and so on down to the malformed events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pravega_spark.errors import OptionError
from pravega_spark.options import FAILFAST
from pravega_spark.payloads.avro_payloads import avro_columns, is_avro
from pravega_spark.payloads.places import PLACE_COLUMNS, PLACE_DDL, name_malformed

CORRUPT_RECORD = "_corrupt_record"
"""Name of the column that gets the text of malformed events, if the schema has it, as in Spark."""

_Piece: TypeAlias = tuple[int, pa.Table | None]


class JsonPayloads:
    """Parses events into the columns of ``schema``; segment and offset columns stay as they are.

    ``mode`` is ``permissive`` (a malformed event becomes nulls) or ``failfast`` (it ends the job).
    """

    def __init__(self, schema: StructType, mode: str) -> None:
        self._is_strict = mode == FAILFAST
        self._schema = to_arrow_schema(schema, timezone="UTC")
        columns = [field for field in self._schema if field.name not in PLACE_COLUMNS]
        if len(columns) + len(PLACE_COLUMNS) != len(self._schema):
            raise OptionError(
                f"the columns {', '.join(PLACE_COLUMNS)} say where an event was: give the columns"
                " of the option schema other names"
            )
        for field in columns:
            _check_field(field)
        self._columns = pa.schema([field for field in columns if field.name != CORRUPT_RECORD])
        if not len(self._columns):
            raise OptionError("the option schema names no column")
        # Arrow's JSON reader cannot read dates, but Arrow can convert strings to dates.
        self._parsed = pa.schema(
            [
                pa.field(field.name, pa.string() if pa.types.is_date(field.type) else field.type)
                for field in self._columns
            ]
        )

    def parse(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column ``event`` replaced by the columns in it.

        Raises ``PravegaError`` for a malformed event when ``mode`` is ``failfast``.
        """
        for batch in batches:
            pieces = list(self._parse(batch.column("event")))
            if len(pieces) > 1 or pieces[0][1] is None:
                if self._is_strict:
                    raise name_malformed(batch, _first_malformed(pieces), "JSON")
                yield self._join(batch, pieces)
            else:
                yield self._assemble(batch, pieces[0][1], pa.nulls(batch.num_rows, pa.string()))

    def _parse(self, events: pa.Array) -> Iterator[_Piece]:
        """Yield runs of events in order, each as its count and its columns.

        The columns of a malformed event, which is a run of its own, are None.
        """
        rows = self._try(events)
        if rows is not None or len(events) == 1:
            yield len(events), rows
            return
        half = len(events) // 2
        yield from self._parse(events[:half])
        yield from self._parse(events[half:])

    def _try(self, events: pa.Array) -> pa.Table | None:
        """Return the columns of events; None if one or more of them is malformed."""
        try:
            texts = pc.ascii_trim_whitespace(events.cast(pa.string()))
            # A text that begins with a brace gives at least one row or an error. So the count of
            # rows shows whether a text has several objects.
            if not pc.all(pc.starts_with(texts, "{")).as_py():
                return None
            for line_end in ("\n", "\r"):
                # JSON strings escape line breaks, so these stand between tokens.
                texts = pc.replace_substring(texts, line_end, " ")
            lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
            data = pc.binary_join(lines, "\n")[0].as_buffer()
            rows = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._parsed, unexpected_field_behavior="ignore"
                ),
            )
            if rows.num_rows != len(events):
                return None
            return rows.select(self._columns.names).cast(self._columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def _join(self, batch: pa.RecordBatch, pieces: Sequence[_Piece]) -> pa.RecordBatch:
        """Return one batch with the columns of all runs, in their order."""
        nothing = pa.Table.from_arrays(
            [pa.nulls(1, field.type) for field in self._columns], schema=self._columns
        )
        tables = [nothing if rows is None else rows for _, rows in pieces]
        texts: list[pa.Array] = []
        row = 0
        for count, rows in pieces:
            if rows is None:
                text = batch.column("event")[row].as_py().decode(errors="replace")
                texts.append(pa.array([text], pa.string()))
            else:
                texts.append(pa.nulls(count, pa.string()))
            row += count
        return self._assemble(batch, pa.concat_tables(tables), pa.concat_arrays(texts))

    def _assemble(self, batch: pa.RecordBatch, rows: pa.Table, corrupt: pa.Array) -> pa.RecordBatch:
        arrays = []
        for field in self._schema:
            if field.name in PLACE_COLUMNS:
                arrays.append(batch.column(field.name))
            elif field.name == CORRUPT_RECORD:
                arrays.append(corrupt)
            else:
                column = rows.column(field.name)
                arrays.append(pa.concat_arrays(column.chunks))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def payload_schema(text: str) -> str | StructType:
    """Return the schema of rows with the columns of the option ``schema``.

    It is a DDL, Spark's JSON of a schema, or an Avro schema.
    """
    if not text.lstrip().startswith("{"):
        return f"{text}, {PLACE_DDL}"
    try:
        schema = avro_columns(text) if is_avro(text) else StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"the option schema is neither a DDL nor JSON of a struct: {error}"
        ) from None
    return (
        schema.add("scope", "string")
        .add("stream", "string")
        .add("segment_id", "long")
        .add("offset", "long")
    )


def _check_field(field: pa.Field) -> None:
    if not field.nullable:
        raise OptionError(
            f"column {field.name} of the option schema is NOT NULL: malformed events need nulls"
        )
    if field.name == CORRUPT_RECORD and not pa.types.is_string(field.type):
        raise OptionError(f"{CORRUPT_RECORD} must be a string")
    if pa.types.is_date(field.type):
        return
    for inner in _types_within(field.type):
        if pa.types.is_map(inner) or pa.types.is_date(inner) or pa.types.is_binary(inner):
            raise OptionError(
                f"column {field.name} of the option schema has the type {inner}, which is not read"
                " from JSON: read it as a string, and convert that"
            )


def _types_within(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    if not pa.types.is_map(kind):
        for number in range(kind.num_fields):
            yield from _types_within(kind.field(number).type)


def _first_malformed(pieces: Sequence[_Piece]) -> int:
    row = 0
    for count, rows in pieces:
        if rows is None:
            break
        row += count
    return row
