"""Reads one event that is JSON, as ``from_json`` of Spark reads it.

Owns: what becomes of each kind of JSON value in a column of each type, the types that have columns,
and what makes an event malformed.

This is the slow way, for events that Arrow does not read as Spark does; its steps are those of
Spark's parser, since its oddities follow from them. A value that does not fit its column makes the
event malformed and leaves null there; the other columns keep their values.

Invariants:
1. Columns are those of ``from_json``, but for what the guide names. Held by
   ``test_events_have_the_columns_of_from_json``.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from datetime import tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from enum import Enum
from typing import Any, TypeAlias

import pyarrow as pa

from pravega_spark.payloads.json_tokens import FIELD, INTEGER, REAL, STRING, Tokens
from pravega_spark.payloads.times_of_texts import (
    read_clock,
    read_date,
    read_timestamp,
    read_timestamp_ntz,
)

Reader: TypeAlias = Callable[[Tokens], Any]

_UNSIGNED_BYTE_MAX = 255
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_QUARTET = r"[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==)"
_BASE64 = re.compile(rf"(?:[\x00-\x20]*{_QUARTET})*[\x00-\x20]*")
_ESCAPED = re.compile(r'["\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
_SHORT_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_PLAIN_MIN, _PLAIN_MAX = -3, 7
"""Powers of ten between which Java writes a number without an exponent."""
_WIDE = Context(prec=100, rounding=ROUND_HALF_UP)
_NOT_FINITE = {
    "NaN": "nan",
    "+INF": "inf",
    "+Infinity": "inf",
    "Infinity": "inf",
    "-INF": "-inf",
    "-Infinity": "-inf",
}


class Verdict(Enum):
    """The three kinds of events: those with columns, those without anything, and faulty ones."""

    GOOD = "good"
    BLANK = "blank"
    """There is nothing but white space: ``from_json`` makes null of it, and reports no fault."""
    MALFORMED = "malformed"


def has_column(kind: pa.DataType) -> bool:
    """Return whether values of this type are read from JSON, if those within it are."""
    return (
        pa.types.is_struct(kind)
        or pa.types.is_list(kind)
        or pa.types.is_map(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_timestamp(kind)
        or kind in _SCALARS
    )


class JsonEventReader:
    """Reads events into the values of some columns, which Arrow can make arrays of."""

    def __init__(self, columns: pa.Schema, zone: tzinfo) -> None:
        self._zone = zone
        self._is_malformed = False
        self._readers = {field.name: self._reader(field.type) for field in columns}

    def read(self, event: bytes) -> tuple[Mapping[str, Any], Verdict]:
        """Return the values of an event by column, and what it is."""
        tokens = Tokens(event)
        self._is_malformed = False
        try:
            if tokens.advance() is None:
                return {}, Verdict.BLANK
            if tokens.kind != "{":
                return {}, Verdict.MALFORMED
            row = self._read_fields(tokens, self._readers)
        except (ValueError, RecursionError):
            # What is nested so deeply that Python gives up, Spark refuses, too.
            return {}, Verdict.MALFORMED
        return row, Verdict.MALFORMED if self._is_malformed else Verdict.GOOD

    def _reader(self, kind: pa.DataType) -> Reader:
        """Return what reads a value of this type, and raises ``ValueError`` if it is no such."""
        if pa.types.is_struct(kind):
            readers = {field.name: self._reader(field.type) for field in kind.fields}
            return _only("{", lambda tokens: self._read_fields(tokens, readers))
        if pa.types.is_map(kind):
            value = self._reader(kind.item_type)
            return _only("{", lambda tokens: self._read_entries(tokens, value))
        if pa.types.is_list(kind):
            element = self._reader(kind.value_type)
            return _only("[", lambda tokens: self._read_elements(tokens, element))
        return _or_null(self._scalar_reader(kind))

    def _scalar_reader(self, kind: pa.DataType) -> Reader:
        if pa.types.is_decimal(kind):
            return lambda tokens: _read_decimal(tokens, kind.precision, kind.scale)
        if pa.types.is_timestamp(kind):
            if kind.tz is None:
                return lambda tokens: _read_text(tokens, read_timestamp_ntz)
            return lambda tokens: _read_instant(tokens, self._zone)
        return _SCALARS[kind]

    def _read_fields(self, tokens: Tokens, readers: Mapping[str, Reader]) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(readers)
        while tokens.advance() not in ("}", None):
            name = tokens.name
            reader = None if name is None else readers.get(name)
            if reader is None:
                tokens.skip_children()
                continue
            try:
                row[str(name)] = reader(tokens)
            except ValueError:
                self._is_malformed = True
                tokens.skip_children()
        return row

    def _read_entries(self, tokens: Tokens, reader: Reader) -> list[tuple[str, Any]]:
        entries = []
        fault: ValueError | None = None
        while tokens.advance() not in ("}", None):
            name = tokens.name
            try:
                entries.append((_whole_text(name or ""), reader(tokens)))
            except ValueError as error:
                fault = error
                tokens.skip_children()
        if fault is not None:
            raise fault
        return entries

    def _read_elements(self, tokens: Tokens, reader: Reader) -> list[Any]:
        elements = []
        while tokens.advance() not in ("]", None):
            elements.append(reader(tokens))
        return elements


def _or_null(reader: Reader) -> Reader:
    """Return a reader that goes from the name of a field to its value, and knows null."""

    def read(tokens: Tokens) -> Any:
        while tokens.kind == FIELD:
            tokens.advance()
        return None if tokens.kind in (None, "null") else reader(tokens)

    return read


def _only(kind: str, reader: Reader) -> Reader:
    def read(tokens: Tokens) -> Any:
        if tokens.kind != kind:
            raise ValueError(f"this is no {kind}")
        return reader(tokens)

    return _or_null(read)


def _read_bool(tokens: Tokens) -> bool:
    if tokens.kind not in ("true", "false"):
        raise ValueError("this is no truth value")
    return tokens.kind == "true"


def _read_whole(tokens: Tokens, bits: int) -> int:
    if tokens.kind != INTEGER:
        raise ValueError("this is no whole number")
    value = int(tokens.raw)
    limit = 2 ** (bits - 1)
    if -limit <= value < limit:
        return value
    if bits == 8 and 0 < value <= _UNSIGNED_BYTE_MAX:
        # Spark's parser takes bytes without a sign, too.
        return value - 256
    raise ValueError("this number is too large")


def _read_real(tokens: Tokens, kind: pa.DataType) -> float:
    text = tokens.raw
    if tokens.kind == STRING:
        text = tokens.string
        if text not in _NOT_FINITE:
            raise ValueError("this is no number")
    elif tokens.kind not in (INTEGER, REAL):
        raise ValueError("this is no number")
    if text in _NOT_FINITE:
        return float(_NOT_FINITE[text])
    if tokens.kind == INTEGER and not text.strip("-0"):
        return 0.0
    if kind == pa.float64():
        return float(text)
    # Arrow rounds a text to 32 bits once, not by way of 64.
    found: float = pa.scalar(text).cast(kind).as_py()
    return found


def _read_string(tokens: Tokens) -> str:
    return _whole_text(tokens.string if tokens.kind == STRING else _copy(tokens))


def _whole_text(text: str) -> str:
    """Return a text with a mark for each half of a surrogate pair, as Java writes UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _copy(tokens: Tokens) -> str:
    """Return a value as Spark writes JSON, and go to its end."""
    if tokens.kind == "{":
        members = []
        while tokens.advance() != "}":
            name = _quote(tokens.name or "")
            tokens.advance()
            members.append(f"{name}:{_copy(tokens)}")
        return f"{{{','.join(members)}}}"
    if tokens.kind == "[":
        elements = []
        while tokens.advance() != "]":
            elements.append(_copy(tokens))
        return f"[{','.join(elements)}]"
    if tokens.kind == STRING:
        return _quote(tokens.string)
    if tokens.kind == INTEGER:
        return str(int(tokens.raw))
    if tokens.kind == REAL:
        return format_double(float(_NOT_FINITE.get(tokens.raw, tokens.raw)))
    return tokens.raw


def _quote(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))


def format_double(value: float) -> str:
    """Return a number as Java writes it: with quotes if it is infinite or NaN."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    found = Decimal(repr(value)).normalize()
    if len(found.as_tuple().digits) == 1:
        # Java writes two digits at least, so it chooses the nearest number of two.
        found = Decimal(f"{value:.1e}").normalize()
    sign, digits, exponent = found.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    power = len(text) + exponent - 1
    if not _PLAIN_MIN <= power < _PLAIN_MAX:
        return f"{minus}{text[0]}.{text[1:] or '0'}E{power}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{text}"
    text = text.ljust(power + 1, "0")
    return f"{minus}{text[: power + 1]}.{text[power + 1 :] or '0'}"


def _read_binary(tokens: Tokens) -> bytes:
    if tokens.kind != STRING or not _BASE64.fullmatch(tokens.string):
        raise ValueError("this is no base64")
    return b"".join(map(base64.b64decode, re.findall(_QUARTET, tokens.string)))


def _read_decimal(tokens: Tokens, precision: int, scale: int) -> Decimal:
    text = tokens.raw
    if tokens.kind == STRING:
        text = tokens.string.replace(",", "")
    elif tokens.kind not in (INTEGER, REAL):
        raise ValueError("this is no number")
    if not _NUMBER.fullmatch(text):
        raise ValueError("this is no number")
    try:
        value = Decimal(text)
        if value.adjusted() < -scale - 1:
            value = Decimal(0)
        value = value.quantize(Decimal(1).scaleb(-scale), context=_WIDE)
    except InvalidOperation:
        raise ValueError("this number is too long") from None
    if len(value.as_tuple().digits) > precision:
        raise ValueError("this number is too long")
    return value


def _read_text(tokens: Tokens, read: Callable[[str], int | None]) -> int:
    found = read(tokens.string) if tokens.kind == STRING else None
    if found is None:
        raise ValueError("this is no time")
    return found


def _read_instant(tokens: Tokens, zone: tzinfo) -> int:
    if tokens.kind == INTEGER:
        # Seconds since 1970. As in Spark, too large a number comes out as another time.
        seconds = _read_whole(tokens, 64)
        return (seconds * 1_000_000 + 2**63) % 2**64 - 2**63
    return _read_text(tokens, lambda text: read_timestamp(text, zone))


_SCALARS: dict[pa.DataType, Reader] = {
    pa.bool_(): _read_bool,
    pa.int8(): lambda tokens: _read_whole(tokens, 8),
    pa.int16(): lambda tokens: _read_whole(tokens, 16),
    pa.int32(): lambda tokens: _read_whole(tokens, 32),
    pa.int64(): lambda tokens: _read_whole(tokens, 64),
    pa.float32(): lambda tokens: _read_real(tokens, pa.float32()),
    pa.float64(): lambda tokens: _read_real(tokens, pa.float64()),
    pa.string(): _read_string,
    pa.binary(): _read_binary,
    pa.date32(): lambda tokens: _read_text(tokens, read_date),
    pa.time64("ns"): lambda tokens: _read_text(tokens, read_clock),
}
