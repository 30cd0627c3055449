"""Delegation tokens: their bytes, what refuses them, and which segments they are for."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_security import delegation_tokens
from pravega_security.delegation_tokens import (
    CLOCKS_APART_SECONDS,
    SECONDS_DEFAULT,
    SEGMENTS_REMEMBERED_MAX,
    TOKEN_CHARACTERS_MAX,
    TOKENS_REMEMBERED_MAX,
    TokenEarlyError,
    TokenError,
    TokenExpiredError,
    TokenMinter,
    TokenRefusedError,
    TokenVerifier,
    encode_token,
)
from pravega_security.resources import Level, key_value_table_resource, stream_resource

NOW = 1_700_000_000
KEY, FORMER, FOREIGN = (bytes([letter]) * 86 for letter in b"kfx")
STREAM = stream_resource("s", "t")
SEGMENT = "s/t/0.#epoch.0"


class FixedKeys:
    """Keys that the test sets; ``arriving`` are noticed by a look."""

    def __init__(self, *keys: bytes) -> None:
        self.all_valid = keys
        self.arriving: tuple[bytes, ...] | None = None
        self.look_count = 0

    @property
    def current(self) -> bytes:
        return self.all_valid[0]

    def look(self) -> None:
        self.look_count += 1
        if self.arriving is not None:
            self.all_valid, self.arriving = self.arriving, None


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = NOW

    def __call__(self) -> int:
        return self.seconds


def claims_with(**changes: Any) -> dict[str, Any]:
    claims = {
        "sub": "segmentstoreresource",
        "aud": "segmentstore",
        "iat": NOW,
        STREAM: "READ_UPDATE",
        "exp": NOW + 600,
        **changes,
    }
    return {name: value for name, value in claims.items() if value is not None}


def verify(token: str, *keys: bytes, now: int = NOW) -> delegation_tokens.TokenClaims:
    return TokenVerifier(FixedKeys(*(keys or (KEY,))), lambda: now).verify(token)


def mint(resource: str = STREAM, level: Level = Level.READ_UPDATE, key: bytes = KEY) -> str:
    return TokenMinter(FixedKeys(key), 600, lambda: NOW).mint(resource, level)


# ---- Bytes ---------------------------------------------------------------------------------------


def test_a_token_has_the_bytes_of_the_original() -> None:
    token = mint(key=b"secret")
    header, body, signature = token.split(".")
    assert base64.urlsafe_b64decode(header + "==") == b'{"alg":"HS512"}'
    assert base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) == (
        b'{"sub":"segmentstoreresource","aud":"segmentstore","iat":1700000000,'
        b'"prn::/scope:s/stream:t":"READ_UPDATE","exp":1700000600}'
    )
    assert signature.startswith("Wl-WTJ4GvSwCMsr-XKayo-jBnyCn")
    assert "=" not in token


def test_another_library_reads_a_token() -> None:
    found = jwt.decode(
        mint(),
        KEY,
        algorithms=["HS512"],
        audience="segmentstore",
        options={"verify_exp": False, "verify_iat": False},
    )
    assert found == claims_with()


def test_a_token_of_another_library_counts() -> None:
    token = jwt.encode(claims_with(), KEY, algorithm="HS512")
    claims = verify(token)
    assert claims.expires == NOW + 600
    assert claims.level_for_segment(SEGMENT) is Level.READ_UPDATE
    assert not claims.is_master


resources = st.text(max_size=60).map(lambda text: f"prn::/scope:s/stream:{text}")


@given(resources, st.sampled_from(Level), st.integers(1, 2**33), st.integers(10, 604_800))
def test_official_clients_find_when_a_token_expires(
    resource: str, level: Level, now: int, seconds: int
) -> None:
    keys = FixedKeys(KEY)
    token = TokenMinter(keys, seconds, lambda: now).mint(resource, level)
    body = token.split(".")[1]
    assert not set(body) & set("-_+/")
    decoded = base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    assert decoded.isascii()
    found = re.search(r'"exp":\s?(\d+)', decoded.decode("ascii"))
    assert found is not None
    assert int(found[1]) == now + seconds
    assert json.loads(decoded)[resource] == level.name
    assert TokenVerifier(keys, lambda: now).verify(token).expires == now + seconds


@pytest.mark.parametrize("character", '>?~\x7f\xff\\"\u2028\U0001f600')
def test_no_character_of_a_name_needs_the_letters_that_alphabets_have_apart(character: str) -> None:
    for count in range(4):
        token = mint(STREAM + "a" * count + 3 * character)
        assert not set(token.split(".")[1]) & set("-_")
        assert verify(token).expires == NOW + 600


# ---- Minting -------------------------------------------------------------------------------------


def test_a_token_lives_for_the_default_time_unless_told_otherwise() -> None:
    minter = TokenMinter(FixedKeys(KEY), None, lambda: NOW)
    assert verify(minter.mint(STREAM, Level.READ)).expires == NOW + SECONDS_DEFAULT


def test_the_master_token_is_minted_anew_before_it_expires() -> None:
    keys, clock = FixedKeys(KEY), Clock()
    minter = TokenMinter(keys, 600, clock)
    first = minter.mint_master()
    for seconds in (0, 1, 299):
        clock.seconds = NOW + seconds
        assert minter.mint_master() is first
    clock.seconds = NOW + 300
    assert verify(minter.mint_master()).expires == NOW + 900
    clock.seconds = NOW - 50  # somebody has set the clock
    assert verify(minter.mint_master()).expires == NOW + 550
    keys.all_valid = (FORMER, KEY)
    claims = verify(minter.mint_master(), FORMER)
    assert claims.is_master
    for segment in (SEGMENT, "_system/_tables/controller/streams", ""):
        assert claims.level_for_segment(segment) is Level.READ_UPDATE


# ---- Refusals ------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=300)
def test_a_token_that_was_altered_anywhere_is_refused(data: st.DataObject) -> None:
    token = bytearray(mint(), "ascii")
    position = data.draw(st.integers(0, len(token) - 1))
    token[position] ^= 1 << data.draw(st.integers(0, 7))
    altered = token.decode("latin-1")
    with pytest.raises(TokenError):
        verify(altered)


def test_no_bit_of_a_token_is_without_effect() -> None:
    token = mint()
    verifier = TokenVerifier(FixedKeys(KEY), lambda: NOW)
    for position in range(len(token)):
        for bit in range(8):
            changed = chr(ord(token[position]) ^ (1 << bit))
            with pytest.raises(TokenError):
                verifier.verify(token[:position] + changed + token[position + 1 :])


@given(st.text(max_size=100) | st.lists(st.text(max_size=30), max_size=5).map(".".join))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(TokenRefusedError):
        verify(text)


def signed(header: bytes, claims: Any = None, key: bytes = KEY) -> str:
    return encode_token(claims_with() if claims is None else claims, key, header=header)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        mint() + ".",
        mint() + "=",
        mint()[:-1],
        mint() + "A",
        mint().replace(".", "\n."),
        " " + mint(),
        mint(key=FOREIGN),
        mint(key=b""),
        signed(b'{"alg":"none"}'),
        signed(b'{"alg":"none"}').rpartition(".")[0] + ".",
        signed(b'{"alg":"HS256"}'),
        signed(b'{"alg":"hs512"}'),
        signed(b'{"alg":["HS512"]}'),
        signed(b'{"alg":"HS512","crit":["exp"]}'),
        signed(b'{"alg":"HS512","zip":"DEF"}'),
        signed(b"{}"),
        signed(b"[]"),
        signed(b"null"),
        signed(b"not JSON"),
        signed(b"[" * 180),
        jwt.encode(claims_with(), KEY, algorithm="HS256"),
        jwt.encode(claims_with(), KEY, algorithm="HS384"),
        jwt.encode(claims_with(), None, algorithm="none"),
        encode_token(claims_with(aud="others"), KEY),
        encode_token(claims_with(aud=["segmentstore"]), KEY),
        encode_token(claims_with(aud=None), KEY),
        encode_token(claims_with(sub="others"), KEY),
        encode_token(claims_with(sub=None), KEY),
        encode_token(claims_with(exp=None), KEY),
        encode_token(claims_with(exp=True), KEY),
        encode_token(claims_with(exp=NOW + 0.5), KEY),
        encode_token(claims_with(exp=str(NOW + 600)), KEY),
        encode_token(claims_with(exp=None, **{"*": "EVERYTHING"}), KEY),
        encode_token(claims_with(nbf=True), KEY),
        encode_token(claims_with(nbf=NOW - 0.5), KEY),
        encode_token(claims_with(nbf=str(NOW)), KEY),
        encode_token({**claims_with(), "nbf": None}, KEY),
        mint(STREAM + "a" * TOKEN_CHARACTERS_MAX),
    ],
)
def test_what_is_no_token_of_ours_is_refused(token: str) -> None:
    with pytest.raises(TokenRefusedError) as refused:
        verify(token)
    assert not token or token not in str(refused.value)


@given(
    algorithm=st.sampled_from(["HS512", "HS512", "HS256", "HS384", "none", "RS256", ""]),
    key=st.sampled_from([KEY, KEY, FOREIGN, KEY[:-1], b""]),
    expires=st.sampled_from([NOW + 1, NOW + 600, NOW, NOW - 1, 0, -1, 2**70])
    | st.sampled_from([NOW + 600.0, str(NOW + 600), True, [NOW + 600], float("inf"), None]),
    missing=st.sampled_from([(), (), ("sub",), ("aud",), ("iat",)]),
    made=st.sampled_from([None, NOW - 1, NOW + 300, str(NOW)]),
    begins=st.sampled_from([None, None, NOW - 1, NOW + 30, NOW + 31, 2**70, str(NOW), float(NOW)]),
    claim=st.sampled_from(["s/stream:t", "ss/stream:t", "s/stream:tt", "s", "ss", "/", ""]),
)
@settings(max_examples=400)
def test_a_token_counts_only_if_each_of_its_parts_does(
    algorithm: str,
    key: bytes,
    expires: Any,
    missing: tuple[str, ...],
    made: Any,
    begins: Any,
    claim: str,
) -> None:
    """The table of refusals in all combinations. When a token was made is not looked at."""
    claims = claims_with(
        **{
            STREAM: None,
            f"prn::/scope:{claim}": "READ",
            "exp": expires,
            "iat": made,
            "nbf": begins,
            **dict.fromkeys(missing),
        }
    )
    header = json.dumps({"alg": algorithm}).encode()
    token = encode_token(claims, key, header=header)
    is_ours = algorithm == "HS512" and key == KEY and not {"sub", "aud"} & set(missing)
    is_ours = is_ours and (begins is None or type(begins) is int)
    has_begun = begins is None or (is_ours and begins <= NOW + CLOCKS_APART_SECONDS)
    if is_ours and type(expires) is int and expires > NOW and has_begun:
        level = verify(token).level_for_segment(SEGMENT)
        assert level is (Level.READ if claim in ("s", "s/stream:t") else Level.NONE)
        return
    with pytest.raises(TokenError) as refused:
        verify(token)
    if isinstance(refused.value, TokenExpiredError):
        assert algorithm == "HS512"
        assert int(expires) <= NOW
    if isinstance(refused.value, TokenEarlyError):
        assert is_ours
        assert not has_begun


def test_a_body_that_is_no_object_is_refused_though_it_is_signed() -> None:
    claims: Any
    for claims in ([], "text", None, 7):
        with pytest.raises(TokenRefusedError):
            verify(encode_token(claims, KEY))


def test_what_has_expired_is_told_from_what_is_forged() -> None:
    token = mint()
    assert verify(token, now=NOW + 599).expires == NOW + 600
    for now in (NOW + 600, NOW + 601, NOW + 10**9):
        with pytest.raises(TokenExpiredError):
            verify(token, now=now)
    # Its key has gone meanwhile: the client that comes back with it needs another one.
    with pytest.raises(TokenExpiredError):
        verify(token, FOREIGN, now=NOW + 600)
    with pytest.raises(TokenRefusedError):
        verify(token, FOREIGN, now=NOW + 599)


def test_a_token_counts_from_its_beginning_on() -> None:
    clock = Clock()
    verifier = TokenVerifier(FixedKeys(KEY), clock)
    token = encode_token(claims_with(nbf=NOW + 100), KEY)
    for _ in range(2):  # the second time from memory
        for clock.seconds in (NOW, NOW + 99 - CLOCKS_APART_SECONDS):
            with pytest.raises(TokenEarlyError):
                verifier.verify(token)
        for clock.seconds in (NOW + 100 - CLOCKS_APART_SECONDS, NOW + 100, NOW + 599):
            assert verifier.verify(token).level_for_segment(SEGMENT) is Level.READ_UPDATE
    master = {STREAM: None, "*": "READ_UPDATE", "exp": None, "nbf": NOW + 100}
    with pytest.raises(TokenEarlyError):
        verify(encode_token(claims_with(**master), KEY))
    # What has both ended and not begun does not come back.
    with pytest.raises(TokenExpiredError):
        verify(encode_token(claims_with(exp=NOW, nbf=NOW + 100), KEY))


def test_the_originals_master_token_counts_without_an_end() -> None:
    token = encode_token(claims_with(exp=None, **{STREAM: None, "*": "READ_UPDATE"}), KEY)
    claims = verify(token)
    assert claims.expires is None
    assert claims.is_master


# ---- Keys ----------------------------------------------------------------------------------------


def test_each_valid_key_may_have_signed() -> None:
    for key in (KEY, FORMER):
        assert verify(mint(key=key), KEY, FORMER).expires == NOW + 600
    with pytest.raises(TokenRefusedError):
        verify(mint(key=FOREIGN), KEY, FORMER)


def test_a_key_that_just_came_is_looked_for() -> None:
    """A controller may sign with a new key before the store's next look at the file."""
    keys = FixedKeys(FORMER)
    keys.arriving = (KEY, FORMER)
    assert TokenVerifier(keys, lambda: NOW).verify(mint()).expires == NOW + 600
    assert keys.look_count == 1


def test_a_token_that_comes_again_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, clock = FixedKeys(KEY, FORMER), Clock()
    verifier = TokenVerifier(keys, clock)
    token, older = mint(), mint(key=FORMER)
    first = verifier.verify(token)
    verifier.verify(older)
    with monkeypatch.context() as patch:
        patch.setattr(delegation_tokens, "_signature", None)
        assert verifier.verify(token) is first
        clock.seconds = NOW + 600
        with pytest.raises(TokenExpiredError):
            verifier.verify(token)
    clock.seconds = NOW
    keys.all_valid = (KEY,)
    assert verifier.verify(token) is not first
    with pytest.raises(TokenRefusedError):
        verifier.verify(older)


def test_what_is_remembered_is_bounded() -> None:
    verifier = TokenVerifier(FixedKeys(KEY), lambda: NOW)
    minter = TokenMinter(FixedKeys(KEY), 600, lambda: NOW)
    tokens = [
        minter.mint(stream_resource("s", str(number)), Level.READ)
        for number in range(TOKENS_REMEMBERED_MAX + 2)
    ]
    first = [verifier.verify(token) for token in tokens]
    assert verifier.verify(tokens[-1]) is first[-1]
    assert verifier.verify(tokens[2]) is first[2]
    assert verifier.verify(tokens[0]) is not first[0]
    claims = first[0]
    for number in range(3 * SEGMENTS_REMEMBERED_MAX):
        assert claims.level_for_segment(f"s/0/{number}.#epoch.0") is Level.READ


# ---- Segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "segments", "others"),
    [
        (
            "prn::/scope:s/stream:t",
            [
                "s/t/0.#epoch.0",
                f"s/t/0.#epoch.0#transaction.{'0' * 32}",
                f"s/t/0.#epoch.0#transient.{'0' * 32}.{'1' * 32}",
            ],
            ["s/tt/0.#epoch.0", "s", "s/t_kvtable/0", "st/t/0", "s/_RGt/0", "t/0", "", "/s/t/0"],
        ),
        ("prn::/scope:ab/stream:c", ["ab/c/0"], ["abc/c/0", "a/b/c/0", "ab/cd/0"]),
        (
            "prn::/scope:s/key-value-table:k",
            ["s/k_kvtable/0.#epoch.0"],
            ["s/k/0.#epoch.0", "s/kk_kvtable/0", "s/key-value-table:k/0"],
        ),
        ("prn::/scope:s/stream:k_kvtable", ["s/k_kvtable/0.#epoch.0"], ["s/k/0"]),
        ("prn::/scope:s/stream:_RGg", ["s/_RGg/0.#epoch.0"], ["s/g/0", "s/_RGgg/0"]),
        ("prn::/scope:s/stream:_MARKt", ["s/_MARKt/0.#epoch.0"], ["s/t/0.#epoch.0"]),
        ("prn::/scope:s", ["s/t/0", "s/_RGg/0"], ["ss/t/0", "s", "", "_system/s/0"]),
        ("prn::/scope:s/", ["s/t/0", "s/_RGg/0"], ["ss/t/0", ""]),
        ("prn::/scope:s/stream:t/", ["s/t/0.#epoch.0"], ["s/tt/0"]),
        ("s/t", ["s/t/0.#epoch.0"], ["s/tt/0"]),
        ("prn::/scope:s/stream:t/1.#epoch.0", ["s/t/1.#epoch.0"], ["s/t/1.#epoch.01"]),
        (
            "prn::/scope:_system/stream:_requeststream",
            ["_system/_requeststream/0.#epoch.0"],
            ["_system/_tables/controller/streams", "_system/containers/metadata_0"],
        ),
        ("prn::/", [], ["s/t/0", "", "/s/t", "prn::/"]),
        ("prn::", [], ["s/t/0", ""]),
        ("", [], ["s/t/0", ""]),
        ("prn::/scope:", [], ["s/t/0", "", "/t/0"]),
        ("prn::/scope:/stream:t", [], ["s/t/0", "/t/0"]),
        ("prn::/scope:s/stream:", [], ["s/t/0", "s/_kvtable/0", "st/0"]),
        ("**", [], ["s/t/0", ""]),
        ("*", ["s/t/0", "_system/_tables/a", ""], []),
    ],
)
def test_a_claim_is_about_its_own_segments_alone(
    claim: str, segments: list[str], others: list[str]
) -> None:
    claims = verify(encode_token(claims_with(**{STREAM: None, claim: "READ"}), KEY))
    for _ in range(2):  # the second time from memory
        assert [name for name in segments if claims.level_for_segment(name) < Level.READ] == []
        assert [name for name in others if claims.level_for_segment(name) > Level.NONE] == []


def test_of_several_claims_the_greatest_level_counts() -> None:
    levels = {"prn::/scope:s": "READ", "prn::/scope:s/stream:n": "NONE", "x": "ALL", "y": 7}
    claims = verify(encode_token(claims_with(**levels), KEY))
    assert claims.level_for_segment(SEGMENT) is Level.READ_UPDATE
    assert claims.level_for_segment("s/n/0") is Level.READ
    assert claims.level_for_segment("x/n/0") is Level.NONE
    assert claims.level_for_segment("y/n/0") is Level.NONE


names = st.text("abAB019.-", min_size=1, max_size=4)


@given(names, names, names, names)
def test_a_token_for_a_stream_is_for_no_other(
    scope: str, stream: str, other_scope: str, other_stream: str
) -> None:
    claims = verify(mint(stream_resource(scope, stream), Level.READ))
    table = verify(mint(key_value_table_resource(scope, stream), Level.READ))
    is_same = (scope, stream) == (other_scope, other_stream)
    for suffix, found in (("", claims), ("_kvtable", table)):
        level = found.level_for_segment(f"{other_scope}/{other_stream}{suffix}/0.#epoch.0")
        assert (level is Level.READ) == is_same
    assert claims.level_for_segment(f"{scope}/{stream}_kvtable/0.#epoch.0") is Level.NONE
    assert table.level_for_segment(f"{scope}/{stream}/0.#epoch.0") is Level.NONE
