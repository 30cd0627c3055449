"""Keys and values of key-value tables as texts that people write and read.

Owns: that form, which the command line and the console share: a text that can be printed is as it
is, and other bytes are ``hex:`` and digits.

A table's keys have one length, and a shorter key that somebody writes is filled up with zero bytes.

Invariants:
1. When bytes are written as a text, that text is read as the same bytes. Held by
   ``test_all_bytes_have_a_text_that_is_read_again``.
"""

from __future__ import annotations

from typing import Final

HEX: Final = "hex:"


def encode_key_text(data: bytes) -> str:
    """Return the text of a key or a value."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return HEX + data.hex()
    return text if text.isprintable() and not text.startswith(HEX) else HEX + data.hex()


def decode_key_text(text: str) -> bytes:
    """Return the bytes of a text. Raises ``ValueError`` if its digits are not hexadecimal."""
    if not text.startswith(HEX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(HEX))
    except ValueError:
        raise ValueError(f"{text!r} is not hexadecimal") from None


def key_after(key: bytes) -> bytes:
    """Return the next key of the same length; nothing behind the last one."""
    number = int.from_bytes(key, "big") + 1
    return b"" if number >> (8 * len(key)) else number.to_bytes(len(key), "big")
