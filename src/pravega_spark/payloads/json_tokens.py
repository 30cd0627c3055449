"""Cuts a JSON text into tokens, with the leniency of Spark's parser.

Owns: the grammar of events that are JSON, and the walk over their tokens.

Besides JSON, Spark takes strings in single quotes, ``NaN``, ``Infinity``, ``+INF`` and the like,
and does not look at what follows the first value of a text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FIELD, STRING, INTEGER, REAL, WORD = "field", "string", "integer", "real", "word"
FAULT = "fault"
"""The kind of the token at which a text stops being JSON."""

_ESCAPES = r"""\\(?:["'\\/bfnrt]|u[0-9A-Fa-f]{4})"""
_DOUBLE = rf'"(?:[^"\\\x00-\x1f]|{_ESCAPES})*"'
_SINGLE = rf"'(?:[^'\\\x00-\x1f]|{_ESCAPES})*'"
_TOKEN = re.compile(
    rf"[ \t\r\n]*(?:([{{}}\[\]:,])|({_DOUBLE}|{_SINGLE})"
    r"|(-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?))"
    r"|((?:true|false|null|NaN|[+-]?Infinity|[+-]INF)(?![0-9A-Za-z_$])))"
)
_BLANK = re.compile(r"[ \t\r\n]*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLOSING = {"{": "}", "[": "]"}


class Token(NamedTuple):
    """A token: its kind, its place in the text, and the name of the field whose value it is.

    The kinds of brackets and words are their texts.
    """

    kind: str
    start: int
    end: int
    name: str | None


class Tokens:
    """The tokens of the first value in a text, and a place among them."""

    def __init__(self, event: bytes) -> None:
        self.text = event.decode("utf-8", "replace")
        self._tokens = _cut(self.text)
        self._place = -1
        self.kind: str | None = None
        """The kind of the present token; None behind the last one."""

    @property
    def name(self) -> str | None:
        """Return the name of the field whose value this is; None within an array."""
        return self._tokens[self._place].name

    @property
    def raw(self) -> str:
        """Return the text of the token."""
        token = self._tokens[self._place]
        return self.text[token.start : token.end]

    @property
    def string(self) -> str:
        """Return the text that a string token stands for."""
        token = self._tokens[self._place]
        return unescape(self.text[token.start + 1 : token.end - 1])

    def advance(self) -> str | None:
        """Move to the next token and return its kind.

        Raises ``ValueError`` at the fault of a text that is not JSON, however often it is called.
        """
        if self._place + 1 >= len(self._tokens):
            self.kind = None
            return None
        if self._tokens[self._place + 1].kind == FAULT:
            raise ValueError("this is not JSON")
        self._place += 1
        self.kind = self._tokens[self._place].kind
        return self.kind

    def skip_children(self) -> None:
        """Move to the bracket that closes the present one, if it opens something."""
        depth = 0
        while self.kind is not None:
            depth += (self.kind in _CLOSING) - (self.kind in _CLOSING.values())
            if depth <= 0:
                return
            self.advance()


def unescape(text: str) -> str:
    """Return the text between the quotes of a string, with halves of surrogate pairs."""
    if "\\" not in text:
        return text
    found = _ESCAPE.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2]),
        text,
    )
    if found.isascii():
        return found
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _cut(text: str) -> list[Token]:
    """Return the tokens of the first value, up to its end or to a fault."""
    tokens: list[Token] = []
    opened: list[tuple[str, str | None]] = []
    name: str | None = None
    place, wanted = 0, "value"
    while True:
        match = _TOKEN.match(text, place)
        if match is None:
            if opened or _BLANK.match(text, place).end() < len(text):  # type: ignore[union-attr]
                tokens.append(Token(FAULT, place, place, name))
            return tokens
        group = match.lastindex
        start, place = match.span(group)  # type: ignore[arg-type]
        kind = text[start:place] if group in (1, 5) else STRING if group == 2 else INTEGER
        if (group == 3 and match[4]) or kind in ("NaN", "Infinity") or kind[0] in "+-":
            kind = REAL
        if opened and kind == _CLOSING[opened[-1][0]] and wanted in ("more", "first"):
            name = opened.pop()[1]
            tokens.append(Token(kind, start, place, name))
        elif wanted == "more" and kind == ",":
            is_array = opened[-1][0] == "["
            wanted, name = ("value", None) if is_array else ("name", name)
            continue
        elif kind == STRING and (wanted == "name" or (wanted == "first" and opened[-1][0] == "{")):
            name = unescape(text[start + 1 : place - 1])
            tokens.append(Token(FIELD, start, place, name))
            wanted = "colon"
            continue
        elif wanted == "colon" and kind == ":":
            wanted = "value"
            continue
        elif kind not in (":", ",", "}", "]") and (
            wanted == "value" or (wanted == "first" and opened[-1][0] == "[")
        ):
            tokens.append(Token(kind, start, place, name))
            if kind in _CLOSING:
                opened.append((kind, name))
                wanted, name = "first", None
                continue
        else:
            tokens.append(Token(FAULT, start, start, name))
            return tokens
        if not opened:
            return tokens
        wanted = "more"
        name = name if opened[-1][0] == "{" else None
