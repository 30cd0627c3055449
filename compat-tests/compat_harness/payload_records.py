"""Draws Avro schemas, and records of them: whole ones, and bytes that are changed.

Owns: the types, values and faults that are drawn. One seed gives one sequence.
"""

from __future__ import annotations

import io
import random
from typing import Any

from fastavro import parse_schema, schemaless_writer

INTS = (0, 1, -1, 127, 2**31 - 1, -(2**31))
LONGS = (*INTS, 2**31, 2**63 - 1, -(2**63), 1_772_366_400_123_456, 1_772_366_400_123)
REALS = (0.0, -0.0, 1.5, 0.1, float("inf"), float("nan"), 1e-45)
TEXTS = ("", "plain", "ä€😀", "\0", "line\nbreak")
LOGICAL = {
    "int": ("date", "time-millis", "strange"),
    "long": (
        *("timestamp-millis", "timestamp-micros", "time-micros", "strange"),
        *("local-timestamp-millis", "local-timestamp-micros"),
    ),
    "string": ("uuid",),
}


class Records:
    """Draws schemas of records with fields of every type, and events that mostly are such."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0

    def schema(self) -> dict[str, Any]:
        """Return the schema of a record of one to six fields."""
        return self._record(2, self._random.randint(1, 6))

    def event(self, schema: dict[str, Any]) -> bytes:
        """Return a record, or bytes that may be none."""
        draw = self._random
        stream = io.BytesIO()
        # Values are drawn by the types that are written: fastavro would convert logical ones.
        bare = without_logical_types(schema)
        schemaless_writer(stream, parse_schema(bare), self._value(schema))
        data = stream.getvalue()
        chance = draw.random()
        place = draw.randint(0, len(data))
        if chance < 0.1:
            return data[:place]
        if chance < 0.15:
            return data + draw.randbytes(draw.randint(1, 3))
        if _has_counts(schema):
            # Java makes room for as many elements as the bytes say, and dies of a large number.
            return data
        if chance < 0.3:
            return data[:place] + draw.randbytes(1) + data[place + 1 :]
        return draw.randbytes(draw.randint(0, 12)) if chance < 0.33 else data

    def _record(self, depth: int, count: int) -> dict[str, Any]:
        fields = [{"name": f"c{number}", "type": self._kind(depth)} for number in range(count)]
        return {"type": "record", "name": self._name(), "fields": fields}

    def _kind(self, depth: int) -> Any:
        draw = self._random
        chance = draw.random()
        if chance < 0.25:
            # A union in a union is no schema.
            inner = self._branch(depth)
            return draw.choice((["null", inner], [inner, "null"], [inner]))
        return self._branch(depth)

    def _branch(self, depth: int) -> Any:
        draw = self._random
        chance = draw.random() if depth else 1.0
        if chance < 0.1:
            return {"type": "array", "items": self._kind(depth - 1)}
        if chance < 0.2:
            return {"type": "map", "values": self._kind(depth - 1)}
        if chance < 0.3:
            return self._record(depth - 1, draw.randint(1, 3))
        name = draw.choice(
            (
                *("boolean", "int", "int", "long", "long", "long", "float", "double", "bytes"),
                *("string", "enum", "fixed", "decimal"),
            )
        )
        if name == "enum":
            return {"type": "enum", "name": self._name(), "symbols": ["A", "B"]}
        if name == "fixed":
            return {"type": "fixed", "name": self._name(), "size": draw.randint(1, 4)}
        if name == "decimal":
            precision = draw.choice((1, 3, 18, 20, 38))
            kind: dict[str, Any] = {"type": "bytes", "logicalType": "decimal"}
            return {**kind, "precision": precision, "scale": draw.randint(0, precision)}
        if name in LOGICAL and draw.random() < 0.6:
            return {"type": name, "logicalType": draw.choice(LOGICAL[name])}
        return name

    def _name(self) -> str:
        self._names += 1
        return f"R{self._names}"

    def _value(self, schema: Any) -> Any:
        draw = self._random
        if isinstance(schema, list):
            return self._value(draw.choice(schema))
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return {each["name"]: self._value(each["type"]) for each in schema["fields"]}
        if kind == "array":
            return [self._value(schema["items"]) for _ in range(draw.randint(0, 3))]
        if kind == "map":
            return {name: self._value(schema["values"]) for name in "ab" if draw.random() < 0.6}
        if kind == "enum":
            return draw.choice("AB")
        if kind == "fixed":
            return draw.randbytes(schema["size"])
        values: dict[str, Any] = {
            "null": (None,),
            "boolean": (True, False),
            "int": INTS,
            "long": LONGS,
            "float": REALS,
            "double": (*REALS, 1e308),
            "string": TEXTS,
            "bytes": [draw.randbytes(draw.choice((0, 1, 1, 2, 7, 8, 9, 15, 16)))],
        }
        return draw.choice(values[kind])


def _has_counts(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_counts, schema))
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "record":
        return any(_has_counts(field["type"]) for field in schema["fields"])
    return schema["type"] in ("array", "map")


def without_logical_types(schema: Any) -> Any:
    """Return a schema with the types that are written."""
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        kept = {key: value for key, value in schema.items() if key != "logicalType"}
        return {key: without_logical_types(value) for key, value in kept.items()}
    return schema
