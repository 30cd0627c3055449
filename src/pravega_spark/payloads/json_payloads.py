"""Turns events that are JSON into Arrow columns, without a Python object for any plain event.

Owns: the types of columns, the events that Arrow may read, and what each mode makes of malformed
events.

Columns are those that ``from_json`` of Spark makes. How it works: the events of a batch are joined
by newlines and parsed by Arrow at once. If Arrow fails, or does not read as Spark does, each half
is parsed on its own, and so on down to a few events, which ``json_events`` reads.

Invariants:
1. It makes no difference which events come in one batch. Held by
   ``test_arrow_reads_as_single_events_are_read``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pravega_spark.errors import OptionError
from pravega_spark.options import DROPMALFORMED, FAILFAST
from pravega_spark.payloads.avro_payloads import avro_columns, is_avro
from pravega_spark.payloads.json_events import JsonEventReader, Verdict, has_column
from pravega_spark.payloads.places import PLACE_COLUMNS, PLACE_DDL, name_malformed
from pravega_spark.payloads.times_of_texts import machine_zone, task_zone, times_of

CORRUPT_RECORD = "_corrupt_record"
"""Name of the column that gets the text of malformed events, if the schema has it, as in Spark."""
FEW_EVENTS = 64
"""Number of events that are read one by one rather than parsed by Arrow in two halves: about as
many as take as long as one attempt of Arrow."""
_OTHER_INFINITY = re.compile(rb"[-+:,\[\s](?:Inf|-NaN)")
"""Spellings of numbers that Arrow knows and Spark does not, or the other way round."""

_OWN_TYPES = frozenset((b"variant", b"geometry", b"geography"))
"""Marks of Spark's types that are structs in Arrow."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The columns of some events, and what each event is; no verdicts if all are good."""

    columns: Sequence[pa.Array]
    count: int
    verdicts: Sequence[Verdict] = ()


class JsonPayloads:
    """Parses events into the columns of ``schema``; segment and offset columns stay as they are.

    ``mode`` is ``permissive`` (a malformed event has nulls), ``dropmalformed`` (it is left out) or
    ``failfast`` (it ends the job). ``zone`` is that of times without one, if the session sets none.
    """

    def __init__(self, schema: StructType, mode: str, zone: str = "") -> None:
        self._mode = mode
        self._zone = zone or machine_zone()
        try:
            self._schema = to_arrow_schema(schema, timezone="UTC")
        except PySparkException as error:
            raise OptionError(f"the option schema: {error}") from None
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
        parsed = [_parsed_type(field.type) for field in self._columns]
        # Arrow reads no maps, for instance. Then all events are read one by one.
        self._parsed: pa.Schema | None = None
        if not any(kind is None for kind in parsed):
            self._parsed = pa.schema(list(zip(self._columns.names, parsed, strict=True)))

    def parse(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column ``event`` replaced by the columns in it.

        Raises ``PravegaError`` for a malformed event when ``mode`` is ``failfast``.
        """
        zone = task_zone(self._zone)
        reader = JsonEventReader(self._columns, zone)
        for batch in batches:
            pieces = list(self._parse(batch.column("event"), reader, zone))
            verdicts = [
                verdict
                for piece in pieces
                for verdict in piece.verdicts or [Verdict.GOOD] * piece.count
            ]
            if self._mode == FAILFAST and Verdict.MALFORMED in verdicts:
                raise name_malformed(batch, verdicts.index(Verdict.MALFORMED), "JSON")
            rows = self._assemble(batch, pieces, verdicts)
            if self._mode == DROPMALFORMED:
                # Blank events are left out too, as Spark leaves out blank lines.
                rows = rows.filter(pa.array([each is Verdict.GOOD for each in verdicts]))
            yield rows

    def _parse(self, events: pa.Array, reader: JsonEventReader, zone: tzinfo) -> Iterator[_Piece]:
        """Yield the pieces of a batch in order."""
        columns = None
        if self._parsed is not None:
            columns = self._try(events, self._parsed, zone)
        if columns is not None:
            yield _Piece(columns, len(events))
        elif len(events) <= FEW_EVENTS or self._parsed is None:
            yield self._read(events, reader)
        else:
            half = len(events) // 2
            yield from self._parse(events[:half], reader, zone)
            yield from self._parse(events[half:], reader, zone)

    def _read(self, events: pa.Array, reader: JsonEventReader) -> _Piece:
        """Return the columns of events that are read one by one."""
        values: list[list[object]] = [[] for _ in self._columns]
        verdicts = []
        for event in events:
            row, verdict = reader.read(event.as_py())
            verdicts.append(verdict)
            for name, column in zip(self._columns.names, values, strict=True):
                column.append(row.get(name))
        columns = [
            pa.array(column, field.type)
            for column, field in zip(values, self._columns, strict=True)
        ]
        return _Piece(columns, len(events), verdicts)

    def _try(self, events: pa.Array, parsed: pa.Schema, zone: tzinfo) -> list[pa.Array] | None:
        """Return the columns of events; None if Arrow does not read one of them as Spark does."""
        try:
            texts = pc.ascii_trim_whitespace(events.cast(pa.string()))
            # A text that begins with a brace gives at least one row or an error, and one that ends
            # with a brace goes on in no other text. So the count of rows shows whether a text has
            # several objects.
            if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
                return None
            for line_end in ("\n", "\r"):
                # Between tokens a tab is as good; within a string both are faults.
                texts = pc.replace_substring(texts, line_end, "\t")
            lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
            data = pc.binary_join(lines, "\n")[0].as_buffer()
            if _has_other_numbers(data):
                return None
            rows = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=parsed, unexpected_field_behavior="ignore"
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if rows.num_rows != len(events):
            return None
        columns = []
        for field in self._columns:
            column = _settle(pa.concat_arrays(rows.column(field.name).chunks), field.type, zone)
            if column is None:
                return None
            columns.append(column)
        return columns

    def _assemble(
        self, batch: pa.RecordBatch, pieces: Sequence[_Piece], verdicts: Sequence[Verdict]
    ) -> pa.RecordBatch:
        """Return one batch with the columns of all pieces, in their order."""
        columns = zip(
            self._columns.names, zip(*(piece.columns for piece in pieces), strict=True), strict=True
        )
        arrays = {name: pa.concat_arrays(parts) for name, parts in columns}
        arrays |= {name: batch.column(name) for name in PLACE_COLUMNS}
        if CORRUPT_RECORD in self._schema.names:
            events = batch.column("event")
            arrays[CORRUPT_RECORD] = pa.array(
                [
                    events[row].as_py().decode(errors="replace")
                    if verdict is Verdict.MALFORMED
                    else None
                    for row, verdict in enumerate(verdicts)
                ],
                pa.string(),
            )
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._schema.names], schema=self._schema
        )


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
    if field.name == CORRUPT_RECORD and not pa.types.is_string(field.type):
        raise OptionError(f"{CORRUPT_RECORD} must be a string")
    for inner in _fields_within(field):
        kind = inner.type
        if not has_column(kind) or _OWN_TYPES.intersection(inner.metadata or ()):
            raise OptionError(
                f"column {field.name} of the option schema has a type ({kind}) that is not read"
                " from JSON: read it as a string, and convert that"
            )
        if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
            raise OptionError(
                f"column {field.name} of the option schema has a map with keys of the type"
                f" {kind.key_type}: names of JSON are strings"
            )
    for inner in _fields_within(field):
        if not inner.nullable:
            raise OptionError(
                f"column {field.name} of the option schema is NOT NULL, or a part of it is:"
                " malformed events need nulls"
            )


def _fields_within(field: pa.Field) -> Iterator[pa.Field]:
    """Yield a field and those within it, but for the keys of maps."""
    yield field
    kind = field.type
    inner = [kind.item_field] if pa.types.is_map(kind) else []
    if not inner:
        inner = [kind.field(number) for number in range(kind.num_fields)]
    for each in inner:
        yield from _fields_within(each)


def _parsed_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which Arrow's reader is to read a column; None if it cannot."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        # Arrow's reader scales whole numbers without a look at their size. With so few digits none
        # of them overflows.
        return pa.decimal256(76 - kind.scale, kind.scale)
    if pa.types.is_map(kind) or pa.types.is_binary(kind) or pa.types.is_time(kind):
        return None
    if not pa.types.is_nested(kind):
        return kind
    inner = [_parsed_type(kind.field(number).type) for number in range(kind.num_fields)]
    if any(each is None for each in inner):
        return None
    if pa.types.is_list(kind):
        return pa.list_(inner[0])
    return pa.struct(list(zip([field.name for field in kind.fields], inner, strict=True)))


def _settle(column: pa.Array, kind: pa.DataType, zone: tzinfo) -> pa.Array | None:
    """Return what Arrow parsed as this type; None if Spark reads one of the values otherwise."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return times_of(column, kind, zone)
    if pa.types.is_list(kind):
        elements = _settle(column.values, kind.value_type, zone)
        if elements is None:
            return None
        return pa.ListArray.from_arrays(column.offsets, elements, type=kind, mask=column.is_null())
    if pa.types.is_struct(kind):
        found = [
            _settle(column.field(number), kind[number].type, zone) for number in range(len(kind))
        ]
        if any(each is None for each in found):
            return None
        return pa.StructArray.from_arrays(found, fields=list(kind.fields), mask=column.is_null())
    if pa.types.is_decimal(kind) and not _has_precision(column, kind):
        return None
    if pa.types.is_floating(kind) and _has_negative_zero(column):
        return None
    return column.cast(kind)


def _has_precision(column: pa.Array, kind: pa.Decimal128Type) -> bool:
    """Return whether no number is too long for its type."""
    ends = pc.min_max(column).as_py().values()
    return all(
        end is None or abs(end) < Decimal(10) ** (kind.precision - kind.scale) for end in ends
    )


def _has_negative_zero(column: pa.Array) -> bool:
    """Return whether a number is -0.0, which Spark takes ``-0`` not for, but ``-0.0``."""
    found: bool = pc.any(
        pc.equal(pc.divide(pa.scalar(1.0), column), -math.inf), min_count=0
    ).as_py()
    return found


def _has_other_numbers(data: pa.Buffer) -> bool:
    view = data.to_pybytes()
    return (b"Inf" in view or b"-NaN" in view) and _OTHER_INFINITY.search(view) is not None
