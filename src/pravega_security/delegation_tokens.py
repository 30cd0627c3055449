"""Delegation tokens: what a client may do with segments, signed for segment stores.

Owns: their bytes, as docs/formats/token-keys.md describes them, and the rule which segments a claim
is about. A token is a JSON Web Token with the signature HS512, and the claim of a resource's name
is a level. docs/adr/0389 tells where the checks differ from the original's.

Invariants:
1. When a token was altered in any bit, has another signature than HS512, or is for others than
   segment stores, ``verify`` raises a ``TokenError``, and nothing else. Held by
   ``test_a_token_that_was_altered_anywhere_is_refused``.
2. When a token has expired, ``TokenExpiredError`` is raised: its client gets another one and
   continues. Held by ``test_what_has_expired_is_told_from_what_is_forged``. When it does not count
   yet, ``TokenEarlyError`` is raised. Held by ``test_a_token_counts_from_its_beginning_on``.
3. When official clients decode the body, they use the other alphabet of base64: no body has one of
   the two characters that differ. Held by ``test_official_clients_find_when_a_token_expires``.
4. When the name of a claim is only the beginning of another name, its token is not for the other.
   Held by ``test_a_claim_is_about_its_own_segments_alone``.
5. When a token comes again, it is looked up, and not verified again, until it expires or the keys
   change. Held by ``test_a_token_that_comes_again_is_looked_up``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from pravega_security.resources import Level
from pravega_wire.names import KEY_VALUE_TABLE_SUFFIX

AUDIENCE: Final = "segmentstore"
SUBJECT: Final = "segmentstoreresource"
MASTER_CLAIM: Final = "*"
"""The claim of our own processes, for all segments."""
SECONDS_DEFAULT: Final = 600
"""Time, in seconds, after which a token expires; the original's."""
CLOCKS_APART_SECONDS: Final = 30
"""Maximum time, in seconds, for which a token is accepted before its beginning (``nbf``): the clock
of the machine that made it may be ahead of ours."""
TOKEN_CHARACTERS_MAX: Final = 8 * 1024
TOKENS_REMEMBERED_MAX: Final = 4096
"""Maximum number of tokens that a verifier remembers, of about 500 bytes each."""
SEGMENTS_REMEMBERED_MAX: Final = 256
"""Maximum number of segments whose level is remembered for a token."""

_HEADER: Final = b'{"alg":"HS512"}'
_HEADER_CHARACTERS_MAX: Final = 256
_RESERVED: Final = frozenset(("sub", "aud", "iat", "nbf", "exp"))
_RESOURCE_PREFIX: Final = "prn::"
_SCOPE_TAG: Final = "/scope:"
_STREAM_TAG: Final = "stream:"
_TABLE_TAG: Final = "key-value-table:"
_EXPIRES: Final = re.compile(rb'"exp":\s?(\d{1,18})')
_ESCAPED: Final = str.maketrans({each: f"\\u{ord(each):04x}" for each in ">?~\x7f"})
"""The characters of ASCII of which base64 makes the two that differ between its alphabets."""


class TokenError(Exception):
    """A token does not count. The text has nothing of it."""


class TokenExpiredError(TokenError):
    """The token counted until it expired."""


class TokenEarlyError(TokenError):
    """The token will count, but does not yet."""


class TokenRefusedError(TokenError):
    """The token is missing, broken or forged."""


class Keys(Protocol):
    """The keys that sign; ``pravega_security.signing_keys.SigningKeys`` has them from a file."""

    @property
    def current(self) -> bytes:
        """Return the key that signs."""
        ...

    @property
    def all_valid(self) -> tuple[bytes, ...]:
        """Return the keys that may have signed; the same object as long as they are the same."""
        ...

    def look(self) -> None:
        """Look now whether there are other keys."""
        ...


class TokenMinter:
    """Makes tokens; for any thread. ``now`` returns seconds since 1970.

    ``seconds`` is the time until a token expires, ``SECONDS_DEFAULT`` if None.
    """

    def __init__(self, keys: Keys, seconds: int | None, now: Callable[[], int]) -> None:
        self._keys = keys
        self._seconds = SECONDS_DEFAULT if seconds is None else seconds
        self._now = now
        self._master: tuple[str, bytes, int] = ("", b"", 0)

    def mint(self, resource: str, level: Level) -> str:
        """Return a token that allows ``level`` for a resource."""
        return self._mint({resource: level}, self._keys.current)

    def mint_claims(self, levels: dict[str, Level]) -> str:
        """Return a token that allows a level for each of some resources."""
        return self._mint(levels, self._keys.current)

    def mint_master(self) -> str:
        """Return a token that allows everything, of which at least half of its time is left."""
        key, now = self._keys.current, self._now()
        token, signed_with, minted = self._master
        if signed_with is not key or not minted <= now < minted + max(1, self._seconds // 2):
            token = self._mint({MASTER_CLAIM: Level.READ_UPDATE}, key)
            self._master = (token, key, now)
        return token

    def _mint(self, levels: dict[str, Level], key: bytes) -> str:
        assert not levels.keys() & _RESERVED, "no resource has such a name"
        now = self._now()
        claims = {
            "sub": SUBJECT,
            "aud": AUDIENCE,
            "iat": now,
            **{resource: level.name for resource, level in levels.items()},
            "exp": now + self._seconds,
        }
        return encode_token(claims, key)


def encode_token(claims: dict[str, Any], key: bytes, *, header: bytes = _HEADER) -> str:
    """Return a token with these claims, in their order."""
    body = json.dumps(claims, separators=(",", ":"), ensure_ascii=True).translate(_ESCAPED)
    signed = _encode(header) + b"." + _encode(body.encode("ascii"))
    return (signed + b"." + _signature(signed, key)).decode("ascii")


class _Names(NamedTuple):
    """The name of a segment, and beginnings of names of segments."""

    whole: str | None
    beginnings: tuple[str, ...]


class TokenClaims:
    """The rights of a verified token, and from when on and until when it has them, in seconds since
    1970."""

    __slots__ = ("_levels", "_remembered", "begins", "expires", "is_master")

    def __init__(self, levels: dict[str, Level], begins: int, expires: int | None) -> None:
        self._levels = [(_names_of(claim), level) for claim, level in levels.items()]
        self._remembered: dict[str, Level] = {}
        self.begins = begins
        self.expires = expires
        self.is_master = levels.get(MASTER_CLAIM) is Level.READ_UPDATE

    def level_for_segment(self, name: str) -> Level:
        """Return what may be done with a segment; of "", which is no segment, with a store."""
        level = self._remembered.get(name)
        if level is None:
            if len(self._remembered) >= SEGMENTS_REMEMBERED_MAX:
                self._remembered.clear()
            level = self._remembered[name] = self._find_level(name)
        return level

    def _find_level(self, name: str) -> Level:
        found = Level.NONE
        for names, level in self._levels:
            if level > found and (name == names.whole or name.startswith(names.beginnings)):
                found = level
        return found


class TokenVerifier:
    """Verifies tokens; for any thread. ``now`` returns seconds since 1970."""

    def __init__(self, keys: Keys, now: Callable[[], int]) -> None:
        self._keys = keys
        self._changing = threading.Lock()
        self._now = now
        self._verified_with: tuple[bytes, ...] = ()
        self._verified: dict[str, TokenClaims] = {}

    @property
    def now(self) -> int:
        """Return the time by which tokens expire."""
        return self._now()

    def verify(self, token: str) -> TokenClaims:
        """Return what a token allows. Raises ``TokenError``: one of its three kinds."""
        keys = self._keys.all_valid
        claims = self._verified.get(token) if keys is self._verified_with else None
        if claims is None:
            claims = self._verify_anew(token)
            self._remember(token, claims, keys)
        now = self._now()
        if claims.expires is not None and now >= claims.expires:
            raise TokenExpiredError("the token has expired")
        if now < claims.begins - CLOCKS_APART_SECONDS:
            raise TokenEarlyError("the token does not count yet")
        return claims

    def _remember(self, token: str, claims: TokenClaims, keys: tuple[bytes, ...]) -> None:
        """Remember a token that was verified when these keys were valid."""
        with self._changing:
            if keys is not self._verified_with:
                self._verified, self._verified_with = {}, keys
            if len(self._verified) >= TOKENS_REMEMBERED_MAX:
                # The oldest: clients renew tokens, and do not come back to earlier ones.
                del self._verified[next(iter(self._verified))]
            self._verified[token] = claims

    def _verify_anew(self, token: str) -> TokenClaims:
        signed, body, signature = _split(token)
        if not self._is_signed(signed, signature):
            # The token may be signed with a key that is new here, or with one that is not valid any
            # more.
            self._keys.look()
            if not self._is_signed(signed, signature):
                self._refuse_forged(body)
        return _decode_claims(body)

    def _is_signed(self, signed: bytes, signature: bytes) -> bool:
        is_signed = False
        for key in self._keys.all_valid:
            is_signed |= hmac.compare_digest(_signature(signed, key), signature)
        return is_signed

    def _refuse_forged(self, body: bytes) -> None:
        """Raise: ``TokenExpiredError`` if the token would not count anyway, by its own words.

        Clients do not try again after the other error, and a client that kept a token for longer
        than two rotations of the keys has done nothing wrong.
        """
        expires = _EXPIRES.search(body)
        if expires is not None and self._now() >= int(expires[1]):
            raise TokenExpiredError("the token has expired")
        raise TokenRefusedError("the token is not signed with a key of this store")


def _split(token: str) -> tuple[bytes, bytes, bytes]:
    """Return the signed part of a token, its decoded body, and its signature as it is written."""
    if not token:
        raise TokenRefusedError("there is no token")
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise TokenRefusedError(f"the token has more than {TOKEN_CHARACTERS_MAX} characters")
    try:
        header, body, signature = token.encode("ascii").split(b".")
        algorithm = _decode_header(header)
        decoded = _decode(body)
    except (ValueError, RecursionError):
        raise TokenRefusedError("the token is malformed") from None
    if algorithm != "HS512":
        raise TokenRefusedError("the token is not signed by HS512")
    return header + b"." + body, decoded, signature


def _decode_header(header: bytes) -> object:
    """Return the algorithm that a header names. Raises ``ValueError``."""
    if len(header) > _HEADER_CHARACTERS_MAX:
        raise ValueError
    fields = json.loads(_decode(header))
    if not isinstance(fields, dict) or fields.keys() - {"alg", "typ", "kid"}:
        raise ValueError  # others, such as "crit", change the meaning of a token
    return fields.get("alg")


def _decode_claims(body: bytes) -> TokenClaims:
    """Return the claims of a token whose signature counts."""
    try:
        claims = json.loads(body)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise TokenRefusedError("the token is malformed")
    if claims.get("aud") != AUDIENCE or claims.get("sub") != SUBJECT:
        raise TokenRefusedError("the token is not for segment stores")
    begins, expires = claims.get("nbf", 0), claims.get("exp")
    levels = {
        claim: Level[level]
        for claim, level in claims.items()
        if claim not in _RESERVED and isinstance(level, str) and level in Level.__members__
    }
    if expires is None and MASTER_CLAIM not in levels:
        raise TokenRefusedError("the token does not say when it expires")
    if type(begins) is not int or (expires is not None and type(expires) is not int):
        raise TokenRefusedError("the token is malformed")
    return TokenClaims(levels, begins, expires)


def _names_of(claim: str) -> _Names:
    """Return the names of the segments that a claim is about.

    The claim of a stream is not about a key-value table of the same name, although clients of the
    table ask for a token by that name: the controller adds a claim for the table.
    """
    if claim == MASTER_CLAIM:
        return _Names("", ("",))
    name = claim.removeprefix(_RESOURCE_PREFIX).removeprefix(_SCOPE_TAG).removesuffix("/")
    scope, delimiter, inner = name.partition("/")
    if not scope:
        return _Names(None, ())
    if not delimiter:
        return _Names(None, (f"{scope}/",))
    if inner.startswith(_TABLE_TAG):
        table = inner.removeprefix(_TABLE_TAG)
        return _Names(None, (f"{scope}/{table}{KEY_VALUE_TABLE_SUFFIX}/",))
    inner = inner.removeprefix(_STREAM_TAG)
    name = f"{scope}/{inner}"
    if not inner or "/" in inner:
        return _Names(name, (f"{name}/",))
    return _Names(name, (f"{name}/",))


def _signature(signed: bytes, key: bytes) -> bytes:
    return _encode(hmac.digest(key, signed, hashlib.sha512))


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    """Decode base64 of the alphabet for URLs, without padding. Raises ``ValueError``."""
    if b"+" in text or b"/" in text or b"=" in text:
        raise binascii.Error
    padded = text.translate(_STANDARD) + b"=" * (-len(text) % 4)
    return base64.b64decode(padded, validate=True)


_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
