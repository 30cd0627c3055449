"""Bearer tokens, signed with real keys that a server on this machine publishes."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from pravega_security.identity_provider.bearer import (
    BearerAuthenticator,
    BearerPrincipal,
    BearerSettingsError,
)
from pravega_security.identity_provider.bearer_settings import BearerSettings
from pravega_security.principals import (
    AuthenticationError,
    AuthenticationUnavailableError,
    Authenticator,
)
from pravega_security.resources import ROOT, Level
from support.key_sets import Clock, jwk, key_set, served

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = rsa.generate_private_key(65537, 2048)
NOW = 1_800_000_000
CLAIMS = {
    "iss": "https://issuer.example",
    "aud": "pravega",
    "sub": "alice",
    "exp": NOW + 600,
    "pravega_acl": "prn::/,READ",
}
PEER = "10.0.0.1"


@pytest.fixture(scope="module")
def keys_url() -> Iterator[str]:
    keys = key_set(
        jwk(RSA.public_key(), kid="r"), jwk(EC.public_key(), kid="e"), jwk(ED.public_key(), kid="d")
    )
    with served({"/keys": (200, keys)}) as url:
        yield f"{url}/keys"


def settings(keys: str, **fields: Any) -> BearerSettings:
    return BearerSettings(keys=keys, issuer=CLAIMS["iss"], audience="pravega", **fields)


def make(keys: str, clock: Clock | None = None, **fields: Any) -> BearerAuthenticator:
    return BearerAuthenticator(settings(keys, **fields), now=clock or Clock(NOW))


def sign(
    claims: dict[str, Any], *, key: Any = RSA, algorithm: str = "RS256", key_id: str | None = "r"
) -> str:
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims, key, algorithm, headers)


def refusal(authenticator: Authenticator, token: str) -> str:
    with pytest.raises(AuthenticationError) as refused:
        authenticator.authenticate(token, PEER)
    assert not isinstance(refused.value, AuthenticationUnavailableError)
    return str(refused.value)


def test_a_token_of_the_issuer_is_known(keys_url: str) -> None:
    bearer: Authenticator = make(keys_url)
    assert bearer.method == "Bearer"
    principal = bearer.authenticate(sign(CLAIMS), PEER)
    assert principal.name == "alice"
    assert principal.authorize(ROOT) is Level.READ
    assert principal.authorize("prn::/scope:s") is Level.NONE


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(RSA, "RS512", "r"), (RSA, "PS256", "r"), (EC, "ES256", "e"), (ED, "EdDSA", "d")],
)
def test_each_allowed_algorithm_counts(
    keys_url: str, key: Any, algorithm: str, key_id: str
) -> None:
    token = sign(CLAIMS, key=key, algorithm=algorithm, key_id=key_id)
    allowed = ("RS512", "PS256", "ES256", "EdDSA")
    assert make(keys_url, algorithms=allowed).authenticate(token, PEER).name == "alice"
    others = tuple(each for each in allowed if each != algorithm)
    refusal(make(keys_url, algorithms=others), token)


def test_a_refused_token_has_the_name_that_it_claims(keys_url: str) -> None:
    ended = sign({**CLAIMS, "exp": NOW - 600})
    for token, name in (
        (ended, "alice"),
        (sign(CLAIMS, key=STRANGER), "alice"),
        (sign({**CLAIMS, "sub": "a\nb"}, key=STRANGER), None),
        ("no token", None),
        ("x" * 100_000, None),
    ):
        with pytest.raises(AuthenticationError) as refused:
            make(keys_url).authenticate(token, PEER)
        assert refused.value.claimed == name


def encode(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def test_a_token_without_a_private_keys_signature_is_refused(keys_url: str) -> None:
    bearer = make(keys_url)
    refusal(bearer, jwt.encode(CLAIMS, None, "none", {"kid": "r"}))
    refusal(bearer, f"{encode({'alg': 'None', 'kid': 'r'})}.{encode(CLAIMS)}.")
    # The public key as the shared secret: the oldest trick.
    pem = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = f"{encode({'alg': 'HS256', 'kid': 'r'})}.{encode(CLAIMS)}"
    mac = hmac.digest(pem, head.encode(), "sha256")
    refusal(bearer, f"{head}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}")
    # Another's key under the name of ours, a key of another kind, and a key in the header.
    refusal(bearer, sign(CLAIMS, key=STRANGER))
    refusal(bearer, sign(CLAIMS, key=EC, algorithm="ES256", key_id="r"))
    refusal(bearer, sign(CLAIMS, key=STRANGER, key_id="x"))
    own = {"alg": "RS256", "jwk": jwk(STRANGER.public_key())}
    refusal(bearer, jwt.encode(CLAIMS, STRANGER, "RS256", own))
    good = sign(CLAIMS)
    head, body, signature = good.split(".")
    refusal(bearer, f"{head}.{encode({**CLAIMS, 'sub': 'root'})}.{signature}")
    refusal(bearer, f"{head}.{body}.")
    assert bearer.authenticate(good, PEER).name == "alice"


@pytest.mark.parametrize("secret", ["HS256", "HS512", "none", "RS255", "ES256K"])
def test_algorithms_with_shared_secrets_cannot_be_allowed(tmp_path: Path, secret: str) -> None:
    with pytest.raises(BearerSettingsError, match="algorithms"):
        make(str(tmp_path), algorithms=("RS256", secret))
    with pytest.raises(BearerSettingsError, match="algorithms"):
        make(str(tmp_path), algorithms=())


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "other"},
        {"aud": []},
        {"aud": None},
        {"exp": NOW - 31},
        {"exp": None},
        {"exp": "later"},
        {"exp": float("inf")},
        {"exp": True},
        {"nbf": NOW + 31},
        {"nbf": "now"},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": "x" * 256},
    ],
)
def test_a_token_that_is_not_for_this_server_is_refused(
    keys_url: str, changed: dict[str, Any]
) -> None:
    claims = {key: value for key, value in {**CLAIMS, **changed}.items() if value is not None}
    sentence = refusal(make(keys_url), sign(claims))
    ended = changed == {"exp": NOW - 31}
    expected = "has ended" if ended else "is not valid here"
    assert sentence == f"the bearer token {expected}"


def test_clocks_may_differ_by_the_leeway(keys_url: str) -> None:
    token = sign({**CLAIMS, "exp": NOW - 29, "nbf": NOW - 60})
    assert make(keys_url).authenticate(token, PEER)
    refusal(make(keys_url, leeway_seconds=10), token)
    assert make(keys_url).authenticate(sign({**CLAIMS, "nbf": NOW + 29}), PEER)


def test_rights_end_with_the_token(keys_url: str) -> None:
    clock = Clock(NOW)
    principal = make(keys_url, clock).authenticate(sign(CLAIMS), PEER)
    clock.now = NOW + 629
    assert principal.authorize(ROOT) is Level.READ
    clock.now = NOW + 630
    assert principal.authorize(ROOT) is Level.NONE


@pytest.mark.parametrize(
    ("claims", "level"),
    [
        ({"pravega_acl": "prn::/,NONE;prn::*,READ"}, Level.NONE),
        ({"pravega_acl": ["prn::/scope:s,READ", "prn::/,READ_UPDATE"]}, Level.READ_UPDATE),
        ({"pravega_acl": ["broken", 7, None, "prn::/,READ"]}, Level.READ),
        ({"pravega_acl": 7}, Level.NONE),
        ({}, Level.NONE),
        ({"realm": {"roles": ["writer", "other"]}}, Level.READ_UPDATE),
        ({"realm": {"roles": "reader"}}, Level.READ),
        ({"realm": {"roles": ["writer", "reader"]}}, Level.READ),
        ({"realm": ["reader"]}, Level.NONE),
        ({"realm.roles": ["reader"]}, Level.READ),
        ({"pravega_acl": "prn::/,NONE", "realm": {"roles": ["reader"]}}, Level.NONE),
    ],
)
def test_claims_and_roles_give_rights(keys_url: str, claims: dict[str, Any], level: Level) -> None:
    bearer = make(
        keys_url,
        roles_claim="realm.roles",
        role_rights={"reader": "prn::*,READ", "writer": "prn::*,READ_UPDATE"},
    )
    base = {key: value for key, value in CLAIMS.items() if key != "pravega_acl"}
    assert bearer.authenticate(sign(base | claims), PEER).authorize(ROOT) is level


def test_the_name_and_the_rights_may_be_in_other_claims(keys_url: str) -> None:
    bearer = make(keys_url, name_claim="preferred_username", rights_claim="")
    principal = bearer.authenticate(sign({**CLAIMS, "preferred_username": "bob"}), PEER)
    assert principal.name == "bob"
    assert principal.authorize(ROOT) is Level.NONE


def test_rights_of_roles_that_are_ignored_are_told(tmp_path: Path) -> None:
    bearer = make(str(tmp_path), role_rights={"r": "prn::*,ALL"})
    assert len(bearer.problems) == 1


@pytest.mark.parametrize("missing", ["issuer", "audience"])
def test_settings_need_issuer_and_audience(missing: str) -> None:
    fields = {"issuer": "i", "audience": "a", missing: ""}
    with pytest.raises(BearerSettingsError, match="issuer"):
        BearerAuthenticator(BearerSettings(keys="keys", **fields))


def test_keys_over_plain_http_are_refused() -> None:
    with pytest.raises(BearerSettingsError, match="https"):
        make("http://keys.example/")


def test_without_keys_the_answer_is_that_it_cannot_be_checked_now(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    bearer = make(str(path))
    with pytest.raises(AuthenticationUnavailableError):
        bearer.authenticate(sign(CLAIMS), PEER)


def test_a_new_key_in_the_file_is_found(tmp_path: Path) -> None:
    path, monotonic = tmp_path / "keys.json", Clock()
    path.write_bytes(key_set(jwk(EC.public_key(), kid="e")))
    bearer = BearerAuthenticator(settings(str(path)), now=lambda: NOW, monotonic=monotonic)
    refusal(bearer, sign(CLAIMS))
    path.write_bytes(key_set(jwk(EC.public_key(), kid="e"), jwk(RSA.public_key(), kid="r")))
    refusal(bearer, sign(CLAIMS))
    monotonic.now += 60
    assert bearer.authenticate(sign(CLAIMS), PEER).name == "alice"


def test_nothing_shows_a_token(keys_url: str) -> None:
    bearer, token = make(keys_url), sign(CLAIMS)
    principal = bearer.authenticate(token, PEER)
    assert isinstance(principal, BearerPrincipal)
    assert token[-20:] not in repr([bearer, principal, vars(principal)])


@pytest.fixture(scope="module")
def any_bearer(keys_url: str) -> BearerAuthenticator:
    return make(keys_url)


HEADERS = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64", "x"]),
    st.sampled_from(["RS256", "r", ["b64"], False, None, 5, {}]),
)


@given(
    st.text()
    | st.builds(
        lambda head, body, rest: f"{encode(head)}.{encode(body)}.{rest}",
        HEADERS,
        st.dictionaries(st.text(max_size=3), st.integers()) | st.integers(),
        st.text("ab.-_=", max_size=8),
    )
    | st.just("." * 16_000)
    | st.just("x" * 20_000)
)
def test_any_text_is_a_refusal(any_bearer: BearerAuthenticator, token: str) -> None:
    refusal(any_bearer, token)
