"""Logins with tokens of an identity provider: OpenID Connect, or any that signs JWTs.

Owns: the checks of a token, and the rights that its claims give.

A token has to be signed by a key of the provider, with an algorithm of the settings, and to say
issuer, audience, end and name. Rights are in a claim, in the form of an accounts file (a text, or
a list of rules), or follow from roles by the settings. The claim's rules come first, then those of
the roles in the order of the settings; the first rule that matches decides.

Invariants:
1. When a token says that it is signed with a shared secret or not at all, it is refused. Held by
   ``test_a_token_without_a_private_keys_signature_is_refused``.
2. When the audience, the issuer or the time of a token is wrong or missing, it is refused. Held by
   ``test_a_token_that_is_not_for_this_server_is_refused``.
3. When a token expires, its caller has no rights any more, even if the caller was remembered. Held
   by ``test_rights_end_with_the_token``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import jwt

from pravega_security.access_rules import AccessRules, merge_access_rules, parse_access_rules
from pravega_security.identity_provider.bearer_settings import BearerSettings
from pravega_security.identity_provider.json_web_keys import (
    ALGORITHMS,
    KeySet,
    KeySetError,
    make_key_fetch,
)
from pravega_security.principals import (
    AuthenticationError,
    AuthenticationUnavailableError,
    Principal,
)
from pravega_security.resources import Level

TOKEN_LENGTH_MAX: Final = 16 * 1024
NAME_LENGTH_MAX: Final = 255
_INVALID = "the bearer token is not valid here"
_ENDED = "the bearer token has ended"
_NO_KEYS = "the bearer token cannot be checked now: the keys of its issuer cannot be fetched"


class BearerSettingsError(ValueError):
    """The settings of bearer tokens contradict themselves."""


class BearerPrincipal:
    """A caller with a token that was valid."""

    def __init__(
        self, name: str, rules: AccessRules, ends: float, now: Callable[[], float]
    ) -> None:
        self._name = name
        self._rules = rules
        self._ends = ends
        self._now = now

    @property
    def name(self) -> str:
        """Return what the token says."""
        return self._name

    def authorize(self, resource: str) -> Level:
        """Return what the caller may do with the resource: nothing once the token has ended."""
        if self._now() >= self._ends:
            return Level.NONE
        return self._rules.level_for(resource)


class BearerAuthenticator:
    """Authenticates by tokens of an issuer: ``Bearer`` and the token.

    ``now`` is the time of day in seconds, ``monotonic`` that between fetches of keys.
    """

    def __init__(
        self,
        settings: BearerSettings,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the settings; nothing is fetched yet. Raises ``BearerSettingsError``."""
        strangers = set(settings.algorithms) - ALGORITHMS
        if strangers or not settings.algorithms:
            raise BearerSettingsError(
                f"algorithms of bearer tokens have to be of {', '.join(sorted(ALGORITHMS))}"
            )
        if not (settings.issuer and settings.audience and settings.name_claim):
            raise BearerSettingsError("bearer tokens need an issuer, an audience and a name")
        try:
            fetch = make_key_fetch(settings.keys, settings.ca)
        except KeySetError as error:
            raise BearerSettingsError(str(error)) from error
        self._settings = settings
        self._now = now
        self._keys = KeySet(fetch, monotonic)
        self._role_rules = {
            role: parse_access_rules(text) for role, text in settings.role_rights.items()
        }
        self.problems = merge_access_rules(self._role_rules.values()).problems
        """Sentences about rights of roles that are ignored."""

    @property
    def method(self) -> str:
        """Return ``Bearer``."""
        return "Bearer"

    def authenticate(self, token: str, peer: str) -> Principal:
        """Return the caller whose token it is. May fetch keys. Raises ``AuthenticationError``."""
        try:
            claims = self._verify(token)
        except AuthenticationError as error:
            error.claimed = self._read_claimed(token)
            raise
        name = self._name_in(claims)
        ends = claims["exp"] + self._settings.leeway_seconds
        if name is None:
            raise AuthenticationError(_INVALID)
        return BearerPrincipal(name, self._rules_of(claims), ends, self._now)

    def _name_in(self, claims: Mapping[str, Any]) -> str | None:
        """Return the name of the caller; None if the claims have none that a log can show."""
        name = _claim(claims, self._settings.name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
            return None
        return name if name.isprintable() else None

    def _read_claimed(self, token: str) -> str | None:
        """Return the name that a refused token has, which nothing proves; None without one."""
        if len(token) > TOKEN_LENGTH_MAX:
            return None
        try:
            claims = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        return self._name_in(claims)

    def _verify(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that is valid now."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise AuthenticationError(_INVALID)
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise AuthenticationError(_INVALID) from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in settings.algorithms or not isinstance(key_id, str | None):
            raise AuthenticationError(_INVALID)
        try:
            keys = self._keys.keys_for(key_id)
        except KeySetError:
            raise AuthenticationUnavailableError(_NO_KEYS) from None
        for each in keys:
            if algorithm not in each.algorithms:
                continue
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    each.key,
                    algorithms=[algorithm],
                    audience=settings.audience,
                    issuer=settings.issuer,
                    options={
                        "require": ["exp", "iss", "aud"],
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                    },
                )
            except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
                continue
            self._check_times(claims)
            return claims
        raise AuthenticationError(_INVALID)

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        # The library would check the times by a clock of its own.
        now, leeway = self._now(), self._settings.leeway_seconds
        ends, begins = claims["exp"], claims.get("nbf", 0)
        if not (_is_time(ends) and _is_time(begins)) or now < begins - leeway:
            raise AuthenticationError(_INVALID)
        if now >= ends + leeway:
            raise AuthenticationError(_ENDED)

    def _rules_of(self, claims: Mapping[str, Any]) -> AccessRules:
        parts = [
            parse_access_rules(text) for text in _texts(_claim(claims, self._settings.rights_claim))
        ]
        roles = set(_texts(_claim(claims, self._settings.roles_claim)))
        parts += [rules for role, rules in self._role_rules.items() if role in roles]
        return merge_access_rules(parts)


def _claim(claims: Mapping[str, Any], path: str) -> object:
    """Return the claim of that name, or where the dots of ``path`` lead; None if there is none."""
    if not path:
        return None
    if path in claims:
        return claims[path]
    found: object = claims
    for word in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(word)
    return found


def _texts(claim: object) -> list[str]:
    """Return a claim that is one text or a list of them."""
    if isinstance(claim, str):
        return [claim]
    if isinstance(claim, list):
        return [each for each in claim if isinstance(each, str)]
    return []


def _is_time(claim: object) -> bool:
    """Return whether a claim is a finite number of seconds."""
    return isinstance(claim, int | float) and not isinstance(claim, bool) and -1e15 < claim < 1e15
