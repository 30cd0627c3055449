"""Passwords as an accounts file has them: derived, so that the file does not have the password.

Owns: the text form of a derived password, and its verification.

    text = hex(rounds ":" hex(salt) ":" hex(derived))

``rounds`` is a decimal number, and the text in the middle is ASCII. The derivation is PBKDF2 with
HMAC-SHA256; 64 bytes are derived. The form is the original's, whose files have 5,000 rounds and 32
bytes of salt; it reads files with more rounds.

Invariants:
1. When a derived password is printed, as in a traceback, none of its bytes are shown. Held by
   ``test_a_derived_password_does_not_show_itself``.
2. When a file asks for more rounds than a login may take, it is refused before any work. Held by
   ``test_what_is_no_derived_password_is_refused``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ROUNDS: Final = 100_000
"""The rounds of new entries: about 0.1 s of a login that is not remembered."""
ROUNDS_MAX: Final = 10_000_000
SALT_BYTES: Final = 32
DERIVED_BYTES: Final = 64
TEXT_LENGTH_MAX: Final = 4096
PASSWORD_BYTES_MAX: Final = 1024
_TEXT = re.compile(r"([0-9]{1,8}):((?:[0-9a-fA-F]{2}){1,512}):([0-9a-fA-F]{128})")


class PasswordHashError(ValueError):
    """A text is no derived password. The sentence does not repeat it."""


@dataclass(frozen=True, slots=True, repr=False)
class PasswordHash:
    """A derived password."""

    rounds: int
    salt: bytes
    derived: bytes

    def __repr__(self) -> str:
        return f"PasswordHash(rounds={self.rounds})"

    def __str__(self) -> str:
        return f"{self.rounds}:{self.salt.hex()}:{self.derived.hex()}".encode().hex()

    def verify(self, password: bytes) -> bool:
        """Return whether it was derived from this password. Takes long, without the interpreter's
        lock."""
        return hmac.compare_digest(_derive(password, self.salt, self.rounds), self.derived)


def hash_password(
    password: str,
    *,
    rounds: int = ROUNDS,
    make_salt: Callable[[int], bytes] = secrets.token_bytes,
) -> PasswordHash:
    """Return a derivation of the password, with a salt of its own."""
    salt = make_salt(SALT_BYTES)
    return PasswordHash(rounds, salt, _derive(password.encode(), salt, rounds))


def parse_password_hash(text: str) -> PasswordHash:
    """Return the derived password in the text of an accounts file. Raises
    ``PasswordHashError``."""
    if len(text) > TEXT_LENGTH_MAX or not re.fullmatch("(?:[0-9a-fA-F]{2})+", text):
        raise PasswordHashError("the derived password is not in hexadecimal digits")
    inner = bytes.fromhex(text)
    parts = _TEXT.fullmatch(inner.decode("ascii", "replace"))
    if parts is None:
        raise PasswordHashError(
            f"the derived password is not rounds, salt and {DERIVED_BYTES} derived bytes"
        )
    rounds = int(parts[1])
    if not 1 <= rounds <= ROUNDS_MAX:
        raise PasswordHashError(f"the derived password does not have 1 to {ROUNDS_MAX:,} rounds")
    return PasswordHash(rounds, bytes.fromhex(parts[2]), bytes.fromhex(parts[3]))


def spend_rounds(password: bytes, rounds: int) -> None:
    """Take the time that deriving a password with this many rounds takes."""
    if rounds > 0:
        _derive(password, b"\0" * SALT_BYTES, rounds)


def _derive(password: bytes, salt: bytes, rounds: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password, salt, rounds, DERIVED_BYTES)
