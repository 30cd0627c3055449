"""Bytes of events, and of values of tables, as people read them.

Owns: ``decode``, the names of the forms, and what a query says of them.

Invariants:
1. When bytes are not of the form that is asked for, they are shown in hexadecimal, and it is said.
   Held by ``test_what_is_not_of_the_form_is_shown_in_hexadecimal``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from pravega_controller.console.events.avro_records import (
    SCHEMA_LENGTH_MAX,
    AvroError,
    AvroSchema,
    parse_avro_schema,
    read_value,
)
from pravega_controller.errors import InvalidRequestError

FORMS: Final = ("auto", "text", "json", "avro", "hex")
HEX_BYTES_MAX: Final = 512
"""Maximum number of bytes that are shown in hexadecimal."""
LINE_BYTES: Final = 16
LINE_LENGTH_MAX: Final = 160
"""Maximum length of a document that is shown on one line, unless its form is asked for."""
PLAIN_CONTROLS: Final = "\t\n\r"


@dataclass(frozen=True, slots=True)
class Shown:
    """The text of an event, its form, and what is to be said about it."""

    text: str
    form: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The form that somebody asks for, and the text of the schema that comes with it."""

    form: str = FORMS[0]
    schema_text: str = ""
    schema: AvroSchema | None = None

    @property
    def query(self) -> str:
        """Return the part of an address that asks for the same again."""
        fields = {"as": self.form}
        if self.schema_text:
            fields["schema"] = self.schema_text
        return urlencode(fields)


def read_view(query: Mapping[str, str]) -> View:
    """Return what a query asks for. Raises ``InvalidRequestError``."""
    form, text = query.get("as", FORMS[0]), query.get("schema", "").strip()
    if form not in FORMS:
        raise InvalidRequestError(f"as has to be one of {', '.join(FORMS)}")
    if form != "avro":
        # What somebody has written stays in its field.
        return View(form, text[:SCHEMA_LENGTH_MAX])
    if not text:
        raise InvalidRequestError("Avro is shown by its schema: write the schema into its field.")
    return View(form, text, parse_avro_schema(text))


def decode(data: bytes, view: View, *, is_whole: bool) -> Shown:
    """Return bytes in a form; ``is_whole`` is False if an event has more of them."""
    form = view.form
    if form == "hex":
        return _hex(data)
    if view.schema is not None:
        return _avro(data, view.schema, is_whole=is_whole)
    text = _text(data, is_whole=is_whole)
    if text is None:
        return _hex(data, "" if form == "auto" else f"This is no {form}.")
    if form in ("auto", "json") and is_whole:
        try:
            document = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            document = None
        # A number or a word alone is better shown as it is.
        if isinstance(document, dict | list) or (form == "json" and document is not None):
            return Shown(_document(document, is_short_best=form == "auto"), "json")
    return Shown(text, "text", "This is no JSON." if form == "json" else "")


def _avro(data: bytes, schema: AvroSchema, *, is_whole: bool) -> Shown:
    if not is_whole:
        return _hex(data, "It is too long to be shown as Avro.")
    try:
        value, note = read_value(schema, data)
    except AvroError as error:
        return _hex(data, f"This is no Avro of the schema: {error}.")
    return Shown(_document(value, is_short_best=True), "avro", note)


def _document(document: Any, *, is_short_best: bool) -> str:
    """Return a document as JSON, on one line if that is short and best."""
    line = json.dumps(document, ensure_ascii=False)
    indent = None if is_short_best and len(line) <= LINE_LENGTH_MAX else 2
    # Marks that turn the direction of a text round are shown as digits.
    return json.dumps(document, indent=indent, ensure_ascii=not line.isprintable())


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _text(data: bytes, *, is_whole: bool) -> str | None:
    """Return bytes as text, None if they are none."""
    for cut in range(1 if is_whole else 4):
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        is_plain = all(each.isprintable() or each in PLAIN_CONTROLS for each in text)
        return text if is_plain else None
    return None


def _hex(data: bytes, note: str = "") -> Shown:
    lines = []
    for start in range(0, min(len(data), HEX_BYTES_MAX), LINE_BYTES):
        line = data[start : start + LINE_BYTES]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in line)
        lines.append(f"{start:06x}  {line.hex(' '):<{3 * LINE_BYTES}} {letters}")
    if len(data) > HEX_BYTES_MAX:
        lines.append("…")
    return Shown("\n".join(lines), "hex", note)
