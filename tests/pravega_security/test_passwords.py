"""Derived passwords, in the original's form."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_security.passwords import (
    ROUNDS,
    ROUNDS_MAX,
    PasswordHash,
    PasswordHashError,
    hash_password,
    parse_password_hash,
    spend_rounds,
)

SALT = bytes(range(32))


def text_of(inner: str) -> str:
    return inner.encode().hex()


def test_the_derivation_is_the_originals() -> None:
    derived = hash_password("pw", rounds=5000, make_salt=lambda count: SALT[:count])
    assert derived.derived.hex().startswith("9adc6f7ca0a3e76f60cc4da2")
    text = str(derived)
    assert len(text) == 396
    assert bytes.fromhex(text) == f"5000:{SALT.hex()}:{derived.derived.hex()}".encode()
    assert parse_password_hash(text) == derived
    assert parse_password_hash(text.upper()) == derived


def test_the_derivation_is_that_of_the_standard() -> None:
    # The published vector of PBKDF2 with HMAC-SHA256: password, salt, 4096 rounds.
    expected = "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a"
    assert hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 4096).hex() == expected
    derived = hash_password("password", rounds=4096, make_salt=lambda count: b"salt")
    assert derived.derived[:32].hex() == expected


def test_a_password_is_verified() -> None:
    derived = hash_password("zürich:1", rounds=10)
    assert derived.verify("zürich:1".encode())
    assert not derived.verify(b"zurich:1")
    assert not derived.verify(b"")


def test_new_entries_have_salts_of_their_own_and_many_rounds() -> None:
    first, second = hash_password("pw"), hash_password("pw")
    assert first.rounds == ROUNDS == 100_000
    assert first.salt != second.salt
    assert first.derived != second.derived
    assert len(first.salt) == 32


def test_a_derived_password_does_not_show_itself() -> None:
    derived = hash_password("pw", rounds=7, make_salt=lambda count: SALT)
    assert repr(derived) == "PasswordHash(rounds=7)"
    assert derived.derived.hex()[:8] not in repr([derived])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "xy",
        " ",
        "35 30",
        text_of(""),
        text_of("5000"),
        text_of(f"5000:{SALT.hex()}"),
        text_of(f"5000:{SALT.hex()}:{'00' * 63}"),
        text_of(f"5000:{SALT.hex()}:{'00' * 65}"),
        text_of(f"5000::{'00' * 64}"),
        text_of(f"0:{SALT.hex()}:{'00' * 64}"),
        text_of(f"-1:{SALT.hex()}:{'00' * 64}"),
        text_of(f"{ROUNDS_MAX + 1}:{SALT.hex()}:{'00' * 64}"),
        text_of(f"{'9' * 500}:{SALT.hex()}:{'00' * 64}"),
        text_of(f"5000:{'00' * 513}:{'00' * 64}"),
        text_of(f"5000:{SALT.hex()}:{'0g' * 64}"),
        text_of(f"5000:{SALT.hex()}:{'00' * 64}\n"),
        text_of(f"٥:{SALT.hex()}:{'00' * 64}"),
        "00" * 100_000,
    ],
)
def test_what_is_no_derived_password_is_refused(text: str) -> None:
    with pytest.raises(PasswordHashError) as refused:
        parse_password_hash(text)
    assert SALT.hex() not in str(refused.value)


@given(
    st.integers(1, ROUNDS_MAX),
    st.binary(min_size=1, max_size=512),
    st.binary(min_size=64, max_size=64),
)
def test_the_text_form_loses_nothing(rounds: int, salt: bytes, derived: bytes) -> None:
    made = PasswordHash(rounds, salt, derived)
    assert parse_password_hash(str(made)) == made


@settings(max_examples=20)
@given(
    st.text(st.characters(exclude_categories=("Cs",))),
    st.text(st.characters(exclude_categories=("Cs",))),
)
def test_one_password_is_right(password: str, other: str) -> None:
    derived = hash_password(password, rounds=1)
    assert derived.verify(password.encode())
    # HMAC fills short keys with zeros: such a pair has one key.
    if password.rstrip("\0") != other.rstrip("\0"):
        assert not derived.verify(other.encode())


def test_spending_no_rounds_is_nothing() -> None:
    spend_rounds(b"pw", 0)
    spend_rounds(b"pw", -5)
