"""Callers whose identity is known, and the interface of the ways to establish it.

Owns: ``Principal``, ``Authenticator`` and their errors. Implementations are in other modules, and
in packages that others install.
"""

from __future__ import annotations

from typing import Protocol

from pravega_security.resources import Level


class AuthenticationError(Exception):
    """The caller is not who it says it is, or this cannot be established. The text is for the
    caller: it has no secret, and does not tell whether the user exists."""

    def __init__(self, sentence: str, *, claimed: str | None = None) -> None:
        super().__init__(sentence)
        self.claimed = claimed
        """The user that the caller says it is, for the audit log; None if it names none."""


class AuthenticationUnavailableError(AuthenticationError):
    """The caller cannot be identified now; the same attempt may succeed later."""


class Principal(Protocol):
    """A caller whose identity is known."""

    @property
    def name(self) -> str:
        """Return the name for logs."""
        ...

    def authorize(self, resource: str) -> Level:
        """Return what the caller may do with a resource now."""
        ...


class Authenticator(Protocol):
    """A way to establish who calls, for one method of the ``authorization`` header."""

    @property
    def method(self) -> str:
        """Return the first word of the header, such as ``Basic``; case matters."""
        ...

    def authenticate(self, token: str, peer: str) -> Principal:
        """Return the caller that ``token``, the rest of the header, proves.

        ``peer`` is the address of the caller, for logs and for slowing down guesses. May take long:
        callers run it in a thread. Raises ``AuthenticationError``.
        """
        ...
