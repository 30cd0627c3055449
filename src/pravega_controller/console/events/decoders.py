"""Bytes of events, and of values of tables, as people read them.

Owns: ``decode`` and the names of the forms.

Invariants:
1. When bytes are not of the form that is asked for, they are shown in hexadecimal, and it is said.
   Held by ``test_what_is_not_of_the_form_is_shown_in_hexadecimal``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pravega_controller.errors import InvalidRequestError

FORMS: Final = ("auto", "text", "json", "hex")
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


def read_form(query: Mapping[str, str]) -> str:
    """Return the form that a query asks for. Raises ``InvalidRequestError``."""
    form = query.get("as", FORMS[0])
    if form not in FORMS:
        raise InvalidRequestError(f"as has to be one of {', '.join(FORMS)}")
    return form


def decode(data: bytes, form: str, *, is_whole: bool) -> Shown:
    """Return bytes in a form; ``is_whole`` is False if an event has more of them."""
    if form == "hex":
        return _hex(data)
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
            short = json.dumps(document, ensure_ascii=False)
            if form == "auto" and len(short) <= LINE_LENGTH_MAX:
                return Shown(short, "json")
            return Shown(json.dumps(document, indent=2, ensure_ascii=False), "json")
    return Shown(text, "text", "This is no JSON." if form == "json" else "")


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
