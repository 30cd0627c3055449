"""The words by which a program's user says who calls, and whom to trust.

Owns: ``AccessWords``, which advice in errors is made of. The same error reaches a user of the
command line, who has options, a program, which has arguments, and a job of Spark: each names its
own words where it opens a client, and without them the advice is that of the environment.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class AccessWords(NamedTuple):
    """The words for a user with a password, for a password alone, and for certificates to trust."""

    login: str
    password: str
    ca: str

    @property
    def login_advice(self) -> str:
        """Return what to do where a server asks who calls."""
        return f"give a user and a password, such as by {self.login}"

    @property
    def password_advice(self) -> str:
        """Return what to do where a user has no password."""
        return f"name it, such as by {self.password}"

    @property
    def ca_advice(self) -> str:
        """Return what to do where the authority of a certificate is not trusted."""
        return f"give the authority's certificate, such as by {self.ca}"


ENVIRONMENT: Final = AccessWords(
    "SEGSTORE_USER and SEGSTORE_PASSWORD",
    "SEGSTORE_PASSWORD or SEGSTORE_PASSWORD_FILE",
    "SEGSTORE_CA",
)
"""The words of every program."""
