"""The option ``schema`` beside Spark's own parsers: the same columns of the same events.

``from_json`` and ``from_avro`` tell what is right, for documents, records and schemas that are
drawn. What may differ stands in ``docs/guides/spark.md``; each of its sentences is a function here.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from compat_harness.payload_documents import ZONES, Documents
from compat_harness.payload_records import Records, without_logical_types
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.validation import validate
from pyspark.sql.types import StructType

from pravega_spark.options import DROPMALFORMED, FAILFAST, PERMISSIVE
from pravega_spark.payloads.avro_payloads import AvroPayloads
from pravega_spark.payloads.json_payloads import CORRUPT_RECORD, JsonPayloads
from pravega_spark.payloads.places import PLACE_COLUMNS
from segstore_client.errors import PravegaError

pytestmark = [
    pytest.mark.compat,
    # py4j leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCHEMAS_AT_ONCE = 5
"""Number of schemas in one job of Spark: more make plans that take long to compile."""
Row = tuple[str, ...]


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_events_have_the_columns_of_from_json(spark: Any) -> None:
    compare_json(spark, seed=1, schemas=5, each=60)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_records_have_the_columns_of_from_avro(spark: Any) -> None:
    compare_avro(spark, seed=1, schemas=5, each=60)


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_ten_thousand_documents_have_the_columns_of_from_json(spark: Any) -> None:
    compare_json(spark, seed=draw_seed(), schemas=50, each=200)


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_ten_thousand_records_have_the_columns_of_from_avro(spark: Any) -> None:
    compare_avro(spark, seed=draw_seed(), schemas=50, each=200)


def draw_seed() -> int:
    seed = int(os.environ.get("SEGSTORE_COMPAT_SEED", random.randrange(2**32)))
    print(f"SEGSTORE_COMPAT_SEED={seed}")
    return seed


def compare_json(spark: Any, *, seed: int, schemas: int, each: int) -> None:
    documents = Documents(seed)
    drawn = [documents.schema() for _ in range(schemas)]
    events = [[documents.document(schema) for _ in range(each)] for schema in drawn]
    for zone in ZONES:
        with settings(spark, **{"spark.sql.session.timeZone": zone}):
            for first in range(0, schemas, SCHEMAS_AT_ONCE):
                chosen = range(first, min(schemas, first + SCHEMAS_AT_ONCE))
                found = from_json(spark, {each: (drawn[each], events[each]) for each in chosen})
                for number in chosen:
                    compare_json_events(drawn[number], events[number], zone, *found[number])
                    compare_dropped(spark, drawn[number], events[number], zone)


def compare_json_events(
    schema: StructType, events: list[bytes], zone: str, theirs: pa.StructArray, faults: list[bool]
) -> None:
    """Compare the modes ``permissive`` and ``failfast`` of some events."""
    batch = read_json(schema, events, PERMISSIVE, zone)
    names = schema.names
    ours = rows_of([batch.column(name) for name in names])
    corrupt = batch.column(CORRUPT_RECORD).to_pylist()
    wanted = rows_of([pc.struct_field(theirs, name) for name in names])
    texts = pc.struct_field(theirs, CORRUPT_RECORD).cast(pa.binary()).to_pylist()
    for number, event in enumerate(events):
        told = f"{event!r} as {schema.simpleString()} in {zone}"
        text = texts[number]
        assert corrupt[number] == (None if text is None else text.decode(errors="replace")), told
        assert faults[number] == (text is not None), told
        if text is None or not may_differ(schema, event, ours[number]):
            assert ours[number] == wanted[number], told
        if text is not None:
            with pytest.raises(PravegaError, match="is not JSON"):
                read_json(schema, [event], FAILFAST, zone)
    good = [event for event, text in zip(events, texts, strict=True) if text is None]
    assert rows_of(columns_of(read_json(schema, good, FAILFAST, zone), names)) == [
        row for row, text in zip(wanted, texts, strict=True) if text is None
    ]


def compare_dropped(spark: Any, schema: StructType, events: list[bytes], zone: str) -> None:
    """Compare the mode ``dropmalformed``, which ``from_json`` lacks and Spark's reader has."""
    # Spark's reader makes rows of the elements of an array.
    single = [event for event in events if not event.lstrip().startswith(b"[")]
    texts = [event.decode(errors="replace") for event in single]
    lines = spark.sparkContext.parallelize(texts, 1)
    frame = spark.read.schema(schema).option("mode", "DROPMALFORMED").json(lines)
    table = frame.toArrow().combine_chunks()
    ours = columns_of(read_json(schema, single, DROPMALFORMED, zone), schema.names)
    assert rows_of(ours) == rows_of(columns_of(table, schema.names))


def may_differ(schema: StructType, event: bytes, ours: Row) -> bool:
    """Return whether the guide says that a malformed event's columns may differ."""
    if "binary" in schema.simpleString():
        # Spark goes on within a text that is not base64.
        return True
    # Spark may go on after a fault of the text; we leave no column.
    return set(ours) == {"None"} and not is_json(event)


def is_json(event: bytes) -> bool:
    try:
        json.JSONDecoder().raw_decode(event.decode(errors="replace").lstrip(" \t\r\n"))
    except ValueError:
        return False
    return True


def from_json(
    spark: Any, drawn: dict[int, tuple[StructType, list[bytes]]]
) -> dict[int, tuple[pa.StructArray, list[bool]]]:
    """Return what Spark makes of events, and which of them it refuses with ``FAILFAST``."""
    from pyspark.sql import functions

    columns = []
    for number, (schema, _) in drawn.items():
        text = functions.col(str(number)).cast("string")
        full = StructType(list(schema.fields)).add(CORRUPT_RECORD, "string")
        strict = functions.from_json(text, schema, {"mode": "FAILFAST"})
        columns.append(functions.from_json(text, full).alias(f"rows{number}"))
        columns.append(fails(spark, functions.struct(strict)).alias(f"fails{number}"))
    return run(spark, {number: events for number, (_, events) in drawn.items()}, columns)


def compare_avro(spark: Any, *, seed: int, schemas: int, each: int) -> None:
    records = Records(seed)
    drawn = [records.schema() for _ in range(schemas)]
    events = [[records.event(schema) for _ in range(each)] for schema in drawn]
    for first in range(0, schemas, SCHEMAS_AT_ONCE):
        chosen = range(first, min(schemas, first + SCHEMAS_AT_ONCE))
        found = from_avro(spark, {each: (drawn[each], events[each]) for each in chosen})
        for number in chosen:
            compare_records(drawn[number], events[number], *found[number])


def compare_records(
    schema: dict[str, Any], events: list[bytes], theirs: pa.StructArray, faults: list[bool]
) -> None:
    """Compare all modes of some events that are records, or are to be."""
    text = json.dumps(schema)
    names = [field["name"] for field in schema["fields"]]
    batch = read_avro(text, events, PERMISSIVE)
    ours = rows_of(columns_of(batch, names), sort_maps=True)
    wanted = rows_of([pc.struct_field(theirs, name) for name in names], sort_maps=True)
    good = []
    for number, event in enumerate(events):
        told = f"{event!r} as {text}"
        if not is_written(schema, event):
            # Bytes that no writer writes may be read in another way, or be taken for no record.
            faults[number] = set(ours[number]) == {"None"}
        elif not faults[number]:
            assert ours[number] == wanted[number], told
        if faults[number]:
            assert set(ours[number]) == {"None"}, told
            with pytest.raises(PravegaError, match="is not Avro"):
                read_avro(text, [event], FAILFAST)
        else:
            good.append(event)
    kept = [row for row, fault in zip(ours, faults, strict=True) if not fault]
    for mode, chosen in (FAILFAST, good), (DROPMALFORMED, events):
        assert rows_of(columns_of(read_avro(text, chosen, mode), names), sort_maps=True) == kept


def is_written(schema: dict[str, Any], event: bytes) -> bool:
    """Return whether a writer of this schema writes these bytes."""
    stream, again = io.BytesIO(event), io.BytesIO()
    parsed = parse_schema(without_logical_types(schema))
    try:
        found = schemaless_reader(stream, parsed, None, handle_unicode_errors="replace")
        schemaless_writer(again, parsed, found)
    except Exception:
        return False
    if again.getvalue() != event or not validate(found, parsed, raise_errors=False):
        return False
    return fits_precision(schema, found)


def fits_precision(schema: Any, value: Any) -> bool:
    """Return whether the numbers in a value have no more digits than the schema says."""
    if isinstance(schema, list):
        return value is None or all(fits_precision(each, value) for each in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("logicalType") == "decimal":
        unscaled = int.from_bytes(value, "big", signed=True)
        return value != b"" and abs(unscaled) < 10 ** schema["precision"]
    if schema["type"] == "record":
        return all(fits_precision(each["type"], value[each["name"]]) for each in schema["fields"])
    if schema["type"] == "array":
        return all(fits_precision(schema["items"], each) for each in value)
    if schema["type"] == "map":
        return all(fits_precision(schema["values"], each) for each in value.values())
    return True


def from_avro(
    spark: Any, drawn: dict[int, tuple[dict[str, Any], list[bytes]]]
) -> dict[int, tuple[pa.StructArray, list[bool]]]:
    """Return what Spark makes of events, and which of them it refuses with ``FAILFAST``."""
    from pyspark.sql import functions
    from pyspark.sql.avro import functions as avro

    columns = []
    for number, (schema, _) in drawn.items():
        text = json.dumps(schema)
        strict = avro.from_avro(str(number), text, {"mode": "FAILFAST"})
        columns.append(avro.from_avro(str(number), text, {"mode": "PERMISSIVE"}))
        columns[-1] = columns[-1].alias(f"rows{number}")
        columns.append(fails(spark, functions.struct(strict)).alias(f"fails{number}"))
    return run(spark, {number: events for number, (_, events) in drawn.items()}, columns)


def run(
    spark: Any, events: dict[int, list[bytes]], columns: Sequence[Any]
) -> dict[int, tuple[pa.StructArray, list[bool]]]:
    """Return for each number its columns ``rows`` and whether ``fails`` is null, of one job."""
    data = pa.table({str(number): pa.array(each, pa.binary()) for number, each in events.items()})
    # Compiling plans takes longer than running them.
    plainly = {"spark.sql.codegen.wholeStage": False, "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with settings(spark, **plainly):
        found = spark.createDataFrame(data).coalesce(1).select(*columns).toArrow()
    return {
        number: (
            pa.concat_arrays(found.column(f"rows{number}").chunks),
            found.column(f"fails{number}").to_pylist(),
        )
        for number in events
    }


def fails(spark: Any, column: Any) -> Any:
    """Return whether a column, which is never null, ends the job in a row."""
    from pyspark.sql.classic.column import Column

    catalyst = spark._jvm.org.apache.spark.sql
    expressions = catalyst.classic.ExpressionUtils
    tried = catalyst.catalyst.expressions.TryEval(expressions.expression(column._jc))
    return Column(expressions.column(tried)).isNull()


@contextmanager
def settings(spark: Any, **values: object) -> Iterator[None]:
    """Set these settings of the session meanwhile."""
    former = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        yield
    finally:
        for name, earlier in former.items():
            spark.conf.set(name, earlier) if earlier is not None else spark.conf.unset(name)


def read_json(schema: StructType, events: list[bytes], mode: str, zone: str) -> pa.RecordBatch:
    full = StructType(list(schema.fields)).add(CORRUPT_RECORD, "string")
    for name, kind in zip(PLACE_COLUMNS, ("string", "string", "long", "long"), strict=True):
        full = full.add(name, kind)
    return parse(JsonPayloads(full, mode, zone).parse, events)


def read_avro(text: str, events: list[bytes], mode: str) -> pa.RecordBatch:
    return parse(AvroPayloads(text, mode).parse, events)


def parse(parse: Callable[[list[pa.RecordBatch]], Iterator[Any]], events: list[bytes]) -> Any:
    count = len(events)
    columns = {
        "event": pa.array(events, pa.binary()),
        "scope": pa.array(["s"] * count, pa.string()),
        "stream": pa.array(["t"] * count, pa.string()),
        "segment_id": pa.array([0] * count, pa.int64()),
        "offset": pa.array(range(count), pa.int64()),
    }
    [batch] = parse([pa.RecordBatch.from_pydict(columns)])
    return batch


def columns_of(rows: Any, names: Sequence[str]) -> list[pa.Array]:
    columns = [rows.column(name) for name in names]
    return [
        pa.concat_arrays(each.chunks or [pa.array([], each.type)])
        if isinstance(each, pa.ChunkedArray)
        else each
        for each in columns
    ]


def rows_of(columns: Sequence[pa.Array], *, sort_maps: bool = False) -> list[Row]:
    """Return rows as texts, in which -0.0 is no 0.0, and NaN is NaN."""
    values = [bare(column).to_pylist() for column in columns]
    if sort_maps:
        values = [[sort_entries(value) for value in column] for column in values]
    return list(zip(*[list(map(repr, column)) for column in values], strict=True))


def sort_entries(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sort_entries(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    found = [sort_entries(each) for each in value]
    if found and all(isinstance(each, dict) and each.keys() == {"key", "value"} for each in found):
        found.sort(key=lambda entry: entry["key"])
    return found


def bare(column: pa.Array) -> pa.Array:
    """Return a column with numbers for times, bytes for texts, and lists of pairs for maps."""
    kind = column.type
    if pa.types.is_struct(kind):
        inner = [bare(column.field(number)) for number in range(kind.num_fields)]
        names = [field.name for field in kind.fields]
        return pa.StructArray.from_arrays(inner, names=names, mask=column.is_null())
    if pa.types.is_map(kind):
        inner = [bare(column.keys), bare(column.items)]
        pairs = pa.StructArray.from_arrays(inner, names=["key", "value"])
        return pa.ListArray.from_arrays(column.offsets, pairs, mask=column.is_null())
    if pa.types.is_list(kind):
        inner_values = bare(column.values)
        return pa.ListArray.from_arrays(column.offsets, inner_values, mask=column.is_null())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return column.cast(pa.int64())
    if pa.types.is_date(kind):
        return column.cast(pa.int32())
    return column.cast(pa.binary()) if pa.types.is_string(kind) else column
