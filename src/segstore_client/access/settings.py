"""Reads where a client's user, password, token and trusted authorities are named.

Owns: ``AccessSettings``, what one place names; the variables of the environment, ours and the
official clients'; and ``build_access``, which reads the files.

Several places may name different things: the first that names a user or a token decides who calls,
and the first that names a file of authorities decides whom to trust. A password counts only in a
place that names no user, or the same one.

Invariants:
1. When the place that decides the user has no password, and a place of lower rank has one for
   another user, that password is not used. Held by ``test_a_password_of_another_user_is_not_used``.
2. A password or token in these settings is not shown by ``repr``. Held by
   ``test_settings_do_not_show_secrets``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segstore_client.access.credentials import Credentials, Warn, read_secret_file
from segstore_client.access.tls import ClientTls, read_ca
from segstore_client.access.words import ENVIRONMENT, AccessWords
from segstore_client.errors import UsageError

OFFICIAL_PREFIX = "pravega_client_"


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """A caller, and whom it trusts. It can be pickled; ``repr`` shows no secret."""

    credentials: Credentials | None = None
    tls: ClientTls = field(default_factory=ClientTls)
    words: AccessWords = ENVIRONMENT
    """The words of the program's user, for advice in errors."""


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The names that one place has, such as the command line. Empty texts name nothing."""

    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    method: str = "Bearer"
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def names_caller(self) -> bool:
        """Return whether this place says who calls."""
        return bool(self.user or self.token or self.token_file)


def read_environment(environment: Mapping[str, str]) -> AccessSettings:
    """Return what our own variables name."""
    return AccessSettings(
        user=environment.get("SEGSTORE_USER", ""),
        password=environment.get("SEGSTORE_PASSWORD", ""),
        password_file=environment.get("SEGSTORE_PASSWORD_FILE", ""),
        token_file=environment.get("SEGSTORE_TOKEN_FILE", ""),
        ca=environment.get("SEGSTORE_CA", ""),
        certificate=environment.get("SEGSTORE_CLIENT_CERTIFICATE", ""),
        key=environment.get("SEGSTORE_CLIENT_KEY", ""),
    )


def read_official_environment(environment: Mapping[str, str]) -> AccessSettings:
    """Return what the official clients' variables name; their names are in lower case."""
    found = {
        name: environment.get(f"{OFFICIAL_PREFIX}{name}", "")
        for name in ("auth_method", "auth_token", "auth_username", "auth_password")
    }
    ca = environment.get(f"{OFFICIAL_PREFIX}tls_cert_path", "")
    method, token = found["auth_method"], found["auth_token"]
    if not method:
        return AccessSettings(ca=ca)
    if method == "Basic" and found["auth_username"]:
        return AccessSettings(user=found["auth_username"], password=found["auth_password"], ca=ca)
    return AccessSettings(method=method, token=token, ca=ca)


def build_access(
    places: Sequence[AccessSettings],
    *,
    words: AccessWords = ENVIRONMENT,
    warn: Warn | None = None,
    ask_password: Callable[[str], str] | None = None,
) -> ClientAccess:
    """Return what the places name, the first of which counts most.

    ``words`` are those by which errors advise. ``ask_password`` asks the user of a terminal. Raises
    ``UsageError`` when a file cannot be read, or a user has no password.
    """
    tls = build_tls(places) or ClientTls()
    for place in places:
        if place.token_file:
            path = Path(place.token_file)
            read_secret_file(path, "token file", warn=warn)
            return ClientAccess(Credentials.from_token_file(path), tls, words)
        if place.token:
            return ClientAccess(_of_token(place.method, place.token), tls, words)
        if place.user:
            password = _find_password(place.user, places, warn)
            if password is None and ask_password is not None:
                password = ask_password(place.user)
            if password is None:
                raise UsageError(f"user {place.user} has no password: {words.password_advice}")
            return ClientAccess(Credentials.from_password(place.user, password), tls, words)
    return ClientAccess(None, tls, words)


def find_tls_files(places: Sequence[AccessSettings]) -> tuple[Path | None, ...]:
    """Return the files with the authorities, the client's own certificate, and its key."""
    ca = next((place.ca for place in places if place.ca), "")
    own = next((place for place in places if place.certificate), AccessSettings())
    return tuple(Path(each) if each else None for each in (ca, own.certificate, own.key))


def build_tls(places: Sequence[AccessSettings]) -> ClientTls | None:
    """Return whom to trust; None if no place names a file. Raises ``UsageError``."""
    ca, certificate, key = find_tls_files(places)
    if ca is None and certificate is None:
        return None
    return ClientTls(None if ca is None else read_ca(ca), certificate, key)


def _find_password(user: str, places: Sequence[AccessSettings], warn: Warn | None) -> str | None:
    for place in places:
        if place.user not in ("", user):
            continue
        if place.password_file:
            return read_secret_file(Path(place.password_file), "password file", warn=warn)
        if place.password:
            return place.password
    return None


def _of_token(method: str, token: str) -> Credentials:
    """Return the credentials of a token; of a Basic one, the user is in it."""
    if method != "Basic":
        return Credentials.from_token(token, method=method)
    try:
        user, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise UsageError("the token of the method Basic is not the base64 form of user:password")
    return Credentials.from_password(user, password)
