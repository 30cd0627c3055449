"""The types of the fields of wire commands.

Owns: the types that ``commands`` uses, and the modified UTF-8 of its strings.

An alias such as ``I64`` is a plain Python type, ``int``, with an annotation. Only the codec reads
the annotation, which selects the encoding. Every integer is big endian.

Invariants:
1. When a peer sends a string with an unpaired surrogate, it is refused, so every received string
   can be encoded as UTF-8. Held by ``test_unpaired_surrogates_and_overlong_forms_are_refused``.
2. When a caller sends such a string, encoding it raises ``LocalProtocolError``.
   Held by ``test_an_unpaired_surrogate_cannot_be_sent``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pravega_wire.errors import LocalProtocolError, RemoteProtocolError

TEXT_BYTES_MAX = 0xFFFF


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value of a constant size: its ``struct`` format, without the byte order."""

    format: str


@dataclass(frozen=True, slots=True)
class Prefixed:
    """A number of bytes after their length. ``format`` is the ``struct`` format of the length.

    If ``text`` is set, the bytes are a string in modified UTF-8.
    """

    format: str
    text: bool


@dataclass(frozen=True, slots=True)
class Rest:
    """All bytes up to the end of the frame."""


@dataclass(frozen=True, slots=True)
class Framed:
    """Bytes wrapped as an Event command: the int32 type 0, the int32 length, the bytes."""


I8: TypeAlias = Annotated[int, Fixed("b")]
I32: TypeAlias = Annotated[int, Fixed("i")]
I64: TypeAlias = Annotated[int, Fixed("q")]
Bool: TypeAlias = Annotated[bool, Fixed("?")]
Uuid: TypeAlias = Annotated[bytes, Fixed("16s")]
"""16 bytes, the most significant half first."""
Text: TypeAlias = Annotated[str, Prefixed("H", text=True)]
"""uint16 byte length and modified UTF-8, at most 65535 bytes."""
Bytes: TypeAlias = Annotated[bytes, Prefixed("i", text=False)]
"""int32 length and bytes."""
Raw: TypeAlias = Annotated[bytes, Rest()]
FramedEvent: TypeAlias = Annotated[bytes, Framed()]

# Modified UTF-8 differs from UTF-8 for these characters only: U+0000, and those above U+FFFF.
_DIFFERS = re.compile("[\0\U00010000-\U0010ffff]")


def encode_text(text: str) -> bytes:
    """Return the modified UTF-8 of ``text``, without its length.

    Raises ``LocalProtocolError`` for more than 65535 bytes or an unpaired surrogate.
    """
    if text.isascii() and "\0" not in text:
        encoded = text.encode("ascii")
    else:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"text cannot be sent: {error}") from error
        encoded = _DIFFERS.sub(_to_surrogates, text).encode("utf-8", "surrogatepass")
        encoded = encoded.replace(b"\0", b"\xc0\x80")
    if len(encoded) > TEXT_BYTES_MAX:
        raise LocalProtocolError(f"text of {len(encoded)} bytes, at most {TEXT_BYTES_MAX} fit")
    return encoded


def decode_text(encoded: bytes | memoryview) -> str:
    """Return the text of modified UTF-8, or of plain UTF-8, which some clients send.

    Raises ``RemoteProtocolError`` for anything else.
    """
    try:
        return str(encoded, "utf-8")
    except UnicodeDecodeError:
        return _decode_modified(bytes(encoded))


def _to_surrogates(match: re.Match[str]) -> str:
    character = match[0]
    if character == "\0":
        return character
    units = character.encode("utf-16-be")
    return chr(int.from_bytes(units[:2], "big")) + chr(int.from_bytes(units[2:], "big"))


def _decode_modified(encoded: bytes) -> str:
    """Decode text in which U+0000 has two bytes, and a character above U+FFFF has twice three."""
    try:
        units = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError as error:
        raise RemoteProtocolError(f"malformed text: {error}") from error
