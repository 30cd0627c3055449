"""The public keys of those who sign bearer tokens: a JSON Web Key Set at a URL or in a file.

Owns: fetching and reading the set, which keys of it can be used, and when it is fetched again.

A URL is fetched over HTTPS, or over HTTP from this machine alone: on the way someone could put own
keys in. Redirects are not followed.

Invariants:
1. When tokens name keys that are unknown, the set is fetched at most once a minute. Held by
   ``test_unknown_keys_are_fetched_at_most_once_a_minute``.
2. When the set cannot be fetched, the former keys stay. Held by
   ``test_the_former_keys_stay_while_the_set_cannot_be_fetched``.
3. When the set has symmetric, private, short or malformed keys, they are not used. Held by
   ``test_keys_that_are_no_public_keys_for_signatures_are_left_out``.
4. When a key is taken out of the set, its tokens are refused after ``KEYS_SECONDS``. Held by
   ``test_a_key_that_is_taken_out_is_forgotten``.
"""

from __future__ import annotations

import ipaddress
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Final, TypeAlias
from urllib.parse import urlsplit

import structlog
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

ALGORITHMS: Final = frozenset(
    {"EdDSA", *(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))}
)
"""All algorithms that a token may ever be signed with: none with a shared secret."""
RETRY_SECONDS: Final = 60.0
FIRST_RETRY_SECONDS: Final = 5.0
"""The time between attempts while there are no keys yet."""
KEYS_SECONDS: Final = 3600.0
"""The time after which the set is fetched again, even if no token names an unknown key."""
SET_BYTES_MAX: Final = 1024 * 1024
RSA_BITS_MIN: Final = 2048
FETCH_SECONDS_MAX: Final = 5.0
_CURVES = {SECP256R1.name: "ES256", SECP384R1.name: "ES384", SECP521R1.name: "ES512"}

logger = structlog.get_logger(__name__)


class KeySetError(Exception):
    """The set of keys cannot be fetched, or is not valid."""


@dataclass(frozen=True, slots=True)
class ProviderKey:
    """A public key, and the algorithms with which it may verify."""

    key_id: str | None
    key: PublicKey
    algorithms: frozenset[str]


class KeySet:
    """The keys at a place, fetched when they are needed. Any thread may call it.

    ``fetch`` returns the bytes of the set; it blocks, and raises ``KeySetError``.
    """

    def __init__(self, fetch: Callable[[], bytes], now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._keys: dict[str | None, list[ProviderKey]] = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._has_failed = False

    def keys_for(self, key_id: str | None) -> list[ProviderKey]:
        """Return the keys that a token may be signed with; ``key_id`` is what it says, if it does.
        May block while the set is fetched. Raises ``KeySetError`` while there are no keys at
        all."""
        is_old = self._fetched is not None and self._now() - self._fetched >= KEYS_SECONDS
        # One caller fetches them; the others continue with the former ones.
        if is_old and self._lock.acquire(blocking=False):
            try:
                self._renew()
            finally:
                self._lock.release()
        found = self._find(key_id)
        if not found:
            with self._lock:
                found = self._find(key_id)
                if not found:
                    self._renew()
                    found = self._find(key_id)
        if not found and self._fetched is None:
            raise KeySetError("there are no keys yet")
        return found

    def _find(self, key_id: str | None) -> list[ProviderKey]:
        if key_id is not None:
            return self._keys.get(key_id, [])
        # A token that names no key is checked with the only key, if there is just one.
        keys = [key for each in self._keys.values() for key in each]
        return keys if len(keys) == 1 else []

    def _renew(self) -> None:
        now = self._now()
        wait = FIRST_RETRY_SECONDS if self._fetched is None else RETRY_SECONDS
        if self._tried is not None and now - self._tried < wait:
            return
        self._tried = now
        try:
            keys = parse_key_set(self._fetch())
        except KeySetError as error:
            if not self._has_failed:
                logger.error("the keys of bearer tokens cannot be fetched", why=str(error))
            self._has_failed = True
            return
        by_id: dict[str | None, list[ProviderKey]] = {}
        for key in keys:
            by_id.setdefault(key.key_id, []).append(key)
        self._keys = by_id
        self._fetched = now
        self._has_failed = False


def parse_key_set(content: bytes) -> list[ProviderKey]:
    """Return the keys of a set that can verify signatures. Raises ``KeySetError``."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise KeySetError("the set of keys is not JSON") from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise KeySetError('the set of keys has no list "keys"')
    return [key for each in keys if (key := _parse_key(each)) is not None]


def make_key_fetch(place: str, ca: Path | None) -> Callable[[], bytes]:
    """Return a function that fetches what is at ``place``, a URL or a path.

    ``ca`` has the certificates that the server of an HTTPS URL is trusted by, in place of the
    system's. Raises ``KeySetError`` for a URL that must not be used.
    """
    url = urlsplit(place)
    if url.scheme in ("", "file"):
        path = Path(url.path if url.scheme == "file" else place)
        return lambda: _read_file(path)
    if url.scheme not in ("https", "http") or not url.hostname:
        raise KeySetError("the place of the keys is neither a path nor a URL with https")
    if url.scheme == "http" and not _is_this_machine(url.hostname):
        raise KeySetError("keys from another machine have to come over https")
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if url.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except (OSError, ssl.SSLError) as error:
            raise KeySetError(f"{ca} cannot be used as certificates") from error
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    return lambda: _fetch_url(opener, place)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could lead to HTTP."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> None:
        return None


def _parse_key(jwk: object) -> ProviderKey | None:
    """Return the key; None for what cannot verify a signature."""
    if not isinstance(jwk, dict) or "d" in jwk or jwk.get("use", "sig") != "sig":
        return None
    operations = jwk.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return None
    try:
        key = _load_key(jwk)
    except (PyJWTError, ValueError, TypeError, AttributeError, KeyError):
        return None
    algorithms = _algorithms_of(key)
    if isinstance(jwk.get("alg"), str):
        algorithms &= {jwk["alg"]}
    key_id = jwk.get("kid")
    if key is None or not algorithms or not isinstance(key_id, str | None):
        return None
    return ProviderKey(key_id, key, algorithms)


def _load_key(jwk: Mapping[str, Any]) -> PublicKey | None:
    kind = jwk.get("kty")
    key: object = None
    if kind == "RSA":
        key = RSAAlgorithm.from_jwk(dict(jwk))
    elif kind == "EC":
        key = ECAlgorithm.from_jwk(dict(jwk))
    elif kind == "OKP":
        key = OKPAlgorithm.from_jwk(dict(jwk))
    return key if isinstance(key, PublicKey) else None


def _algorithms_of(key: PublicKey | None) -> frozenset[str]:
    names: Iterable[str] = ()
    if isinstance(key, RSAPublicKey):
        names = ALGORITHMS if key.key_size >= RSA_BITS_MIN else ()
        return frozenset(name for name in names if name[:2] in ("RS", "PS"))
    if isinstance(key, EllipticCurvePublicKey):
        names = [_CURVES[key.curve.name]] if key.curve.name in _CURVES else ()
    elif key is not None:
        names = ["EdDSA"]
    return frozenset(names)


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(SET_BYTES_MAX)
    except OSError as error:
        raise KeySetError(f"{path} cannot be read: {error.strerror}") from error


def _fetch_url(opener: urllib.request.OpenerDirector, url: str) -> bytes:
    try:
        with opener.open(url, timeout=FETCH_SECONDS_MAX) as answer:
            content: bytes = answer.read(SET_BYTES_MAX)
            return content
    except urllib.error.HTTPError as error:
        error.close()
        raise KeySetError(f"the server of the keys answers {error.code}") from None
    except (OSError, HTTPException) as error:
        # Do not repeat the error's text, which may contain the URL with a password.
        raise KeySetError(
            f"the server of the keys cannot be reached: {type(error).__name__}"
        ) from None
