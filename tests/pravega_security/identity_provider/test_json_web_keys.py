"""Sets of public keys: which keys are used, and when they are fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pravega_security.identity_provider.json_web_keys import (
    KEYS_SECONDS,
    KeySet,
    KeySetError,
    make_key_fetch,
    parse_key_set,
)
from support.key_sets import Clock, jwk, key_set, served

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


class Place:
    """A set of keys that a test changes, and how often it was fetched."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        if self.content is None:
            raise KeySetError("gone")
        return self.content


def test_each_key_has_the_algorithms_of_its_kind() -> None:
    keys = parse_key_set(
        key_set(
            jwk(RSA.public_key(), kid="r"),
            jwk(RSA.public_key(), kid="p", alg="PS256", use="sig", key_ops=["verify"]),
            jwk(EC.public_key(), kid="e"),
            jwk(ED.public_key()),
        )
    )
    assert [(key.key_id, sorted(key.algorithms)) for key in keys] == [
        ("r", ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"]),
        ("p", ["PS256"]),
        ("e", ["ES256"]),
        (None, ["EdDSA"]),
    ]


def test_keys_that_are_no_public_keys_for_signatures_are_left_out() -> None:
    left_out = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        jwk(RSA, kid="private"),
        jwk(rsa.generate_private_key(65537, 1024).public_key(), kid="short"),
        jwk(RSA.public_key(), kid="encryption", use="enc"),
        jwk(RSA.public_key(), kid="wrapping", key_ops=["wrapKey"]),
        jwk(RSA.public_key(), kid="of another algorithm", alg="ES256"),
        jwk(RSA.public_key(), kid="of a secret's algorithm", alg="HS256"),
        jwk(RSA.public_key(), kid=7),
        jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), kid="of a strange curve"),
        {"kty": "RSA", "n": "?", "e": "AQAB"},
        {"kty": "RSA", "n": 5},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "Ed25519"},
        {"kty": "new"},
        {},
        "text",
        None,
    ]
    content = json.dumps({"keys": [*left_out, jwk(EC.public_key(), kid="good")]}).encode()
    assert [key.key_id for key in parse_key_set(content)] == ["good"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"keys": 5}', b"null", b"[" * 100_000]
)
def test_what_is_no_set_is_an_error(content: bytes) -> None:
    with pytest.raises(KeySetError):
        parse_key_set(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kty", "kid", "n", "e", "crv", "x", "y", "use", "key_ops", "alg"]),
            inner,
        )
    ),
)


@given(st.lists(JSON, max_size=4))
def test_any_json_is_a_set_of_the_keys_in_it(keys: list[Any]) -> None:
    parse_key_set(json.dumps({"keys": keys}).encode())


def test_a_token_without_a_key_id_needs_a_set_with_one_key() -> None:
    place, clock = Place(key_set(jwk(EC.public_key(), kid="a"))), Clock()
    keys = KeySet(place, clock)
    assert [key.key_id for key in keys.keys_for(None)] == ["a"]
    place.content = key_set(jwk(EC.public_key(), kid="a"), jwk(RSA.public_key(), kid="b"))
    clock.now += KEYS_SECONDS
    assert keys.keys_for(None) == []
    assert [key.key_id for key in keys.keys_for("b")] == ["b"]


def test_unknown_keys_are_fetched_at_most_once_a_minute() -> None:
    place, clock = Place(key_set(jwk(EC.public_key(), kid="a"))), Clock()
    keys = KeySet(place, clock)
    assert keys.keys_for("a")
    place.content = key_set(jwk(EC.public_key(), kid="a"), jwk(EC.public_key(), kid="b"))
    for _ in range(6):
        clock.now += 9.9
        assert keys.keys_for("b") == []
    assert place.count == 1
    clock.now += 1
    assert keys.keys_for("b")
    assert all(keys.keys_for("c") == [] for _ in range(100))
    assert place.count == 2


def test_the_former_keys_stay_while_the_set_cannot_be_fetched() -> None:
    place, clock = Place(key_set(jwk(EC.public_key(), kid="a"))), Clock()
    keys = KeySet(place, clock)
    assert keys.keys_for("a")
    place.content = None
    with capture_logs() as logs:
        for _ in range(3):
            clock.now += KEYS_SECONDS
            assert keys.keys_for("a")
            assert keys.keys_for("b") == []
    assert place.count == 4
    assert [each["log_level"] for each in logs] == ["error"]


def test_a_first_fetch_that_fails_is_tried_again_soon() -> None:
    place, clock = Place(None), Clock()
    keys = KeySet(place, clock)
    for _ in range(3):
        with pytest.raises(KeySetError):
            keys.keys_for("a")
    assert place.count == 1
    place.content = key_set(jwk(EC.public_key(), kid="a"))
    clock.now += 5
    assert keys.keys_for("a")
    assert place.count == 2


def test_a_key_that_is_taken_out_is_forgotten() -> None:
    place, clock = Place(key_set(jwk(EC.public_key(), kid="a"))), Clock()
    keys = KeySet(place, clock)
    assert keys.keys_for("a")
    place.content = key_set()
    clock.now += KEYS_SECONDS - 1
    assert keys.keys_for("a")
    clock.now += 1
    assert keys.keys_for("a") == []


def test_a_set_is_fetched_from_a_server_or_a_file(tmp_path: Path) -> None:
    content = key_set(jwk(EC.public_key(), kid="a"))
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    assert make_key_fetch(str(path), None)() == content
    assert make_key_fetch(path.as_uri(), None)() == content
    with served({"/keys": (200, content)}) as url:
        assert make_key_fetch(f"{url}/keys", None)() == content


def test_the_servers_certificate_is_checked(tmp_path: Path) -> None:
    ca, content = trustme.CA(), key_set()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with served({"/keys": (200, content)}, ca) as url:
        assert make_key_fetch(f"{url}/keys", tmp_path / "ca.pem")() == content
        with pytest.raises(KeySetError, match="cannot be reached"):
            make_key_fetch(f"{url}/keys", None)()


def test_what_cannot_be_fetched_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeySetError, match="cannot be read"):
        make_key_fetch(str(tmp_path / "none"), None)()
    answers = {"/gone": (404, b""), "/away": (302, b"/keys"), "/keys": (200, b"")}
    with served(answers) as url:
        with pytest.raises(KeySetError, match="answers 404"):
            make_key_fetch(f"{url}/gone", None)()
        with pytest.raises(KeySetError, match="answers 302"):
            make_key_fetch(f"{url}/away", None)()
    with pytest.raises(KeySetError, match="cannot be reached"):
        make_key_fetch(f"{url}/keys", None)()


@pytest.mark.parametrize(
    "place", ["http://keys.example/", "ftp://127.0.0.1/", "https:///keys", "data:,{}"]
)
def test_places_that_could_be_forged_are_refused(place: str) -> None:
    with pytest.raises(KeySetError):
        make_key_fetch(place, None)


def test_a_ca_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeySetError, match="cannot be used as certificates"):
        make_key_fetch("https://keys.example/", tmp_path / "none.pem")
