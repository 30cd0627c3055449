"""Reads bytes in Avro's binary encoding, by a schema that somebody wrote into a form.

Owns: the schemas of the console, and the reading of values by them, with bounds.

The bytes are one value, or a single object: two bytes of a mark, the fingerprint of the writer's
schema, and a value. A library for Avro has no bounds: twenty bytes can be an array of a billion
nulls, or records within records until the process has no stack left, and the schema comes from
whoever has made a link. So the values of one event are counted, and so is how deep they are.

Invariants:
1. When bytes are a value of a schema, they are read as a library for Avro reads them. Held by
   ``test_values_are_those_of_a_library_for_avro``.
2. When a value has more than ``VALUES_MAX`` parts, or parts within parts deeper than ``DEPTH_MAX``,
   reading ends with a sentence. Held by ``test_what_never_ends_is_refused`` and
   ``test_types_that_multiply_are_bounded``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import cache
from typing import Any, Final

from pravega_controller.errors import InvalidRequestError
from pravega_wire.key_text import encode_key_text

SCHEMA_LENGTH_MAX: Final = 6000
"""Maximum length of a schema's text. It is a part of addresses, which servers bound."""
VALUES_MAX: Final = 5000
"""Maximum number of values within one event."""
DEPTH_MAX: Final = 60
"""Maximum depth of types within types, and of values within values."""
MARK: Final = b"\xc3\x01"
"""The first bytes of a single object."""
FINGERPRINT_BYTES: Final = 8
DIGITS_MAX: Final = 1000
"""Maximum scale of a decimal, and its maximum length in bytes, that is shown as a number."""

_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_EMPTY: Final = 0xC15D213AA4D7A795


class AvroError(ValueError):
    """Raised when bytes are no value of a schema; the text says why."""


@dataclass(slots=True)
class _Type:
    """A type of a schema; what it consists of is filled in when that is known."""

    kind: str
    logical: str = ""
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    parts: list[tuple[str, _Type]] = field(default_factory=list)
    """Fields with their names, branches of a union, or the items of an array or a map."""


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema; ``canonical`` is its parsing canonical form."""

    root: _Type
    canonical: str

    @property
    def fingerprint(self) -> bytes:
        """Return the fingerprint by which single objects name it: CRC-64-AVRO."""
        found = _EMPTY
        for byte in self.canonical.encode():
            found = (found >> 8) ^ _crc_table()[(found ^ byte) & 0xFF]
        return found.to_bytes(FINGERPRINT_BYTES, "little")


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (_EMPTY if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


# ---- Schemas -------------------------------------------------------------------------------------


def parse_avro_schema(text: str) -> AvroSchema:
    """Return the schema of a text. Raises ``InvalidRequestError`` with a sentence."""
    if len(text) > SCHEMA_LENGTH_MAX:
        raise InvalidRequestError(f"an Avro schema has at most {SCHEMA_LENGTH_MAX} characters here")
    try:
        return AvroSchema(*_Parser().parse(json.loads(text), "", 0))
    except RecursionError:
        raise InvalidRequestError(f"the Avro schema is deeper than {DEPTH_MAX} types") from None
    except ValueError:
        raise InvalidRequestError("an Avro schema is JSON, and this is none") from None


class _Parser:
    """Parses one schema: each method returns a type and its canonical form."""

    def __init__(self) -> None:
        self._named: dict[str, _Type] = {}

    def parse(self, schema: Any, space: str, depth: int) -> tuple[_Type, str]:
        if depth > DEPTH_MAX:
            raise InvalidRequestError(f"the Avro schema is deeper than {DEPTH_MAX} types")
        if isinstance(schema, str):
            return self._refer(schema, space)
        if isinstance(schema, list):
            branches = [self.parse(each, space, depth + 1) for each in schema]
            union = _Type("union", parts=[("", each) for each, _ in branches])
            return union, f"[{','.join(text for _, text in branches)}]"
        kind = _member(schema, "type", (str, list, dict)) if isinstance(schema, dict) else None
        if kind is None:
            raise InvalidRequestError(f"{_short(schema)} is no Avro schema")
        if kind in ("array", "map"):
            name = "items" if kind == "array" else "values"
            items, text = self.parse(_member(schema, name), space, depth + 1)
            return _Type(kind, parts=[("", items)]), f'{{"type":"{kind}","{name}":{text}}}'
        if kind in ("record", "enum", "fixed"):
            return self._name(kind, schema, space, depth)
        found, text = self.parse(kind, space, depth + 1)
        logical = schema.get("logicalType")
        if found.kind in _PRIMITIVES and isinstance(logical, str):
            found = _Type(found.kind, logical, _scale_of(schema))
        return found, text

    def _refer(self, name: str, space: str) -> tuple[_Type, str]:
        if name in _PRIMITIVES:
            return _Type(name), f'"{name}"'
        whole = f"{space}.{name}" if space and "." not in name else name
        if whole not in self._named:
            raise InvalidRequestError(f"the Avro schema has no type {_short(whole)}")
        return self._named[whole], _quote(whole)

    def _name(
        self, kind: str, schema: Mapping[str, Any], space: str, depth: int
    ) -> tuple[_Type, str]:
        name = _member(schema, "name", str)
        if "." in name:
            space = name.rpartition(".")[0]
        else:
            given = schema.get("namespace", space)
            space = given if isinstance(given, str) else space
            name = f"{space}.{name}" if space else name
        if name in self._named:
            raise InvalidRequestError(f"the Avro schema has two types {_short(name)}")
        found = self._named[name] = _Type(kind)
        head = f'{{"name":{_quote(name)},"type":"{kind}"'
        if kind == "fixed":
            found.size = _member(schema, "size", int)
            if schema.get("logicalType") == "decimal":
                found.logical, found.scale = "decimal", _scale_of(schema)
            return found, f'{head},"size":{found.size}}}'
        if kind == "enum":
            found.symbols = tuple(map(str, _member(schema, "symbols", list)))
            return found, f'{head},"symbols":[{",".join(map(_quote, found.symbols))}]}}'
        texts = []
        for each in _member(schema, "fields", list):
            if not isinstance(each, dict):
                raise InvalidRequestError(f"{_short(each)} is no field of an Avro record")
            field_name = _member(each, "name", str)
            part, text = self.parse(_member(each, "type"), space, depth + 1)
            found.parts.append((field_name, part))
            texts.append(f'{{"name":{_quote(field_name)},"type":{text}}}')
        return found, f'{head},"fields":[{",".join(texts)}]}}'


def _member(schema: Mapping[str, Any], name: str, kind: Any = object) -> Any:
    """Return a member of a schema. Raises ``InvalidRequestError`` if it is missing or of another
    kind."""
    if name not in schema or not isinstance(schema[name], kind):
        raise InvalidRequestError(f"{_short(schema)} of the Avro schema has no {name}")
    return schema[name]


def _scale_of(schema: Mapping[str, Any]) -> int:
    scale = schema.get("scale", 0)
    return scale if isinstance(scale, int) and 0 <= scale <= DIGITS_MAX else 0


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _short(part: Any) -> str:
    """Return a part of a schema for a sentence."""
    text = part if isinstance(part, str) else json.dumps(part)
    return text if len(text) <= 80 else f"{text[:80]} …"


# ---- Values --------------------------------------------------------------------------------------


def read_value(schema: AvroSchema, data: bytes) -> tuple[Any, str]:
    """Return the value in an event, of JSON's kinds, and what is to be said about it.

    Raises ``AvroError``.
    """
    head = len(MARK) + FINGERPRINT_BYTES
    if not data.startswith(MARK) or len(data) < head:
        return _Reader(data).read_all(schema.root), ""
    if data[len(MARK) : head] == schema.fingerprint:
        return _Reader(data[head:]).read_all(schema.root), ""
    try:
        # A value without a header may begin like that by chance.
        return _Reader(data).read_all(schema.root), ""
    except AvroError:
        found = _Reader(data[head:]).read_all(schema.root)
        return found, "A schema with another fingerprint has written it."


class _Reader:
    """Reads values from bytes, one behind the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values = 0

    def read_all(self, kind: _Type) -> Any:
        """Return the value that takes all bytes."""
        found = self._read(kind, 0)
        if self._at < len(self._data):
            raise AvroError("there are bytes behind the value")
        return found

    def _read(self, kind: _Type, depth: int) -> Any:
        self._values += 1
        if self._values > VALUES_MAX:
            raise AvroError(f"it has more than {VALUES_MAX} values")
        if depth > DEPTH_MAX:
            raise AvroError(f"it is deeper than {DEPTH_MAX} values")
        return _READ[kind.kind](self, kind, depth + 1)

    def _take(self, count: int) -> bytes:
        if count < 0 or count > len(self._data) - self._at:
            raise AvroError("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def _null(self, kind: _Type, depth: int) -> None:
        return None

    def _boolean(self, kind: _Type, depth: int) -> bool:
        byte = self._take(1)
        if byte not in (b"\0", b"\1"):
            raise AvroError("a boolean is neither 0 nor 1")
        return byte == b"\1"

    def _long(self) -> int:
        number = shift = 0
        while True:
            [byte] = self._take(1)
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= 70:
                raise AvroError("a number is too long")
        if number >= 1 << 64:
            raise AvroError("a number is too long")
        return (number >> 1) ^ -(number & 1)

    def _number(self, kind: _Type, depth: int) -> Any:
        number = self._long()
        if kind.kind == "int" and not -(1 << 31) <= number < 1 << 31:
            raise AvroError("an int is too long")
        show = _MOMENTS.get(kind.logical)
        try:
            return number if show is None else show(number)
        except (OverflowError, ValueError):
            return number

    def _float(self, kind: _Type, depth: int) -> float:
        return float(struct.unpack("<f", self._take(4))[0])

    def _double(self, kind: _Type, depth: int) -> float:
        return float(struct.unpack("<d", self._take(8))[0])

    def _bytes(self, kind: _Type, depth: int) -> str:
        return _show_bytes(self._take(self._long()), kind)

    def _string(self, kind: _Type, depth: int) -> str:
        try:
            return self._take(self._long()).decode()
        except UnicodeDecodeError:
            raise AvroError("a string is no UTF-8") from None

    def _fixed(self, kind: _Type, depth: int) -> str:
        return _show_bytes(self._take(kind.size), kind)

    def _enum(self, kind: _Type, depth: int) -> str:
        return kind.symbols[self._index(len(kind.symbols))]

    def _union(self, kind: _Type, depth: int) -> Any:
        _, branch = kind.parts[self._index(len(kind.parts))]
        return self._read(branch, depth)

    def _index(self, count: int) -> int:
        index = self._long()
        if not 0 <= index < count:
            raise AvroError("it names a branch or a symbol that there is not")
        return index

    def _array(self, kind: _Type, depth: int) -> list[Any]:
        found: list[Any] = []
        [(_, items)] = kind.parts
        while count := self._block():
            for _ in range(count):
                found.append(self._read(items, depth))
        return found

    def _map(self, kind: _Type, depth: int) -> dict[str, Any]:
        found = {}
        [(_, items)] = kind.parts
        while count := self._block():
            for _ in range(count):
                key = self._string(kind, depth)
                found[key] = self._read(items, depth)
        return found

    def _block(self) -> int:
        """Return the number of values in the next block, 0 at the end."""
        count = self._long()
        if count < 0:
            # The length of the block follows, for readers that skip it.
            self._long()
        return abs(count)

    def _record(self, kind: _Type, depth: int) -> dict[str, Any]:
        return {name: self._read(part, depth) for name, part in kind.parts}


_READ: Final[Mapping[str, Callable[[_Reader, _Type, int], Any]]] = {
    "null": _Reader._null,
    "boolean": _Reader._boolean,
    "int": _Reader._number,
    "long": _Reader._number,
    "float": _Reader._float,
    "double": _Reader._double,
    "bytes": _Reader._bytes,
    "string": _Reader._string,
    "fixed": _Reader._fixed,
    "enum": _Reader._enum,
    "union": _Reader._union,
    "array": _Reader._array,
    "map": _Reader._map,
    "record": _Reader._record,
}


def _show_bytes(data: bytes, kind: _Type) -> str:
    if kind.logical == "decimal" and 0 < len(data) <= DIGITS_MAX:
        unscaled = Decimal(int.from_bytes(data, "big", signed=True))
        return f"{unscaled.scaleb(-kind.scale, Context(prec=4 * DIGITS_MAX)):f}"
    return encode_key_text(data)


def _moment(microseconds: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).isoformat()


_MOMENTS: Final[Mapping[str, Callable[[int], str]]] = {
    "date": lambda days: (date(1970, 1, 1) + timedelta(days=days)).isoformat(),
    "timestamp-millis": lambda each: _moment(1000 * each),
    "timestamp-micros": _moment,
}
"""The numbers that are times of their own, as they are shown."""
