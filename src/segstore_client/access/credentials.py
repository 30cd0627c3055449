"""Credentials: what a client shows to a controller to prove who calls.

Owns: ``Credentials``, and reading secrets from files. The value of the header ``authorization`` is
``Basic`` and the base64 form of ``user:password``, or ``Bearer`` and a token; it is the same with
and without TLS, as official clients send it.

Invariants:
1. When credentials are printed or logged, the text has no password and no token. Held by
   ``test_credentials_do_not_show_their_secret``.
2. When a token file changes, later calls have the new token. Held by
   ``test_a_token_file_is_read_for_each_call``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from segstore_client.errors import UsageError

HEADER = "authorization"
OTHERS_MODE = 0o077
"""The permission bits of a file that give it to others than its owner."""

Warn = Callable[[str], None]
"""A function that shows a sentence to the user."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A caller, and its proof: a token, or the file that has it now. It can be pickled."""

    method: str
    user: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None

    @classmethod
    def from_password(cls, user: str, password: str) -> Credentials:
        """Return the credentials of a user with a password; ``UsageError`` for an invalid name."""
        if not user or ":" in user or not user.isprintable():
            raise UsageError(f"{user!r} cannot be the name of a user")
        joined = f"{user}:{password}".encode()
        return cls("Basic", user, base64.b64encode(joined).decode("ascii"))

    @classmethod
    def from_token(cls, token: str, *, method: str = "Bearer") -> Credentials:
        """Return the credentials of the bearer of a token; ``UsageError`` for an invalid one."""
        return cls(_check_word(method, "the method"), token=_check_word(token, "the token"))

    @classmethod
    def from_token_file(cls, path: Path) -> Credentials:
        """Return the credentials of the bearer of the token that a file has at each call."""
        found = cls("Bearer", token_file=path)
        _ = found.header
        return found

    @property
    def header(self) -> str:
        """Return the value of the header. Raises ``UsageError`` when the token file is unreadable.

        It is a secret: neither log nor print it.
        """
        token = self.token
        if self.token_file is not None:
            token = _check_word(read_secret_file(self.token_file, "token file"), "the token")
        return f"{self.method} {token}"

    @property
    def described(self) -> str:
        """Return who calls, for sentences."""
        return f"user {self.user}" if self.user else "the bearer of this token"

    def __reduce__(self) -> tuple[type[Credentials], tuple[str, str, str]]:
        """Return the parts to pickle: with the token itself, since the file may be here only."""
        return Credentials, (self.method, self.user, self.header.partition(" ")[2])


def read_secret_file(path: Path, what: str, *, warn: Warn | None = None) -> str:
    """Return the text of a file without its last line break; ``what`` is the file's kind.

    Calls ``warn`` when others than its owner may read it. Raises ``UsageError`` when it cannot be
    read or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        warn_if_open(path, what, warn)
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"the {what} {path} is not text in UTF-8") from None
    if not text:
        raise UsageError(f"the {what} {path} is empty")
    return text


def warn_if_open(path: Path, what: str, warn: Warn | None) -> None:
    """Call ``warn`` when others than its owner may use a file. Raises ``OSError``."""
    if warn is not None and path.stat().st_mode & OTHERS_MODE:
        warn(f"warning: others can read the {what} {path}: chmod 600 {path}")


def _check_word(text: str, what: str) -> str:
    # gRPC would put an invalid value, which may be a secret, into the text of its error.
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{what} for the controller is empty or has invalid characters")
    return text
