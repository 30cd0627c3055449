"""Of several places that name a caller, the first decides."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from segstore_client.access.credentials import Credentials
from segstore_client.access.settings import (
    AccessSettings,
    build_access,
    read_environment,
    read_official_environment,
)
from segstore_client.errors import UsageError

BOB = AccessSettings(user="bob", password="of bob")


def test_the_first_place_with_a_user_decides() -> None:
    alice = AccessSettings(user="alice", password="of alice")
    found = build_access([AccessSettings(), alice, BOB])
    assert found.credentials == Credentials.from_password("alice", "of alice")


def test_a_password_may_be_in_another_place(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    found = build_access([AccessSettings(user="bob"), AccessSettings(password_file=str(path))])
    assert found.credentials == Credentials.from_password("bob", "secret")


def test_a_password_without_a_user_counts_for_the_user_of_a_later_place(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    found = build_access([AccessSettings(password_file=str(path)), AccessSettings(user="bob")])
    assert found.credentials == Credentials.from_password("bob", "secret")


def test_a_password_of_another_user_is_not_used() -> None:
    with pytest.raises(UsageError, match="user alice has no password"):
        build_access([AccessSettings(user="alice"), BOB])


def test_a_user_of_a_terminal_is_asked_for_the_password() -> None:
    found = build_access([AccessSettings(user="alice")], ask_password=lambda user: f"p-{user}")
    assert found.credentials == Credentials.from_password("alice", "p-alice")


def test_nothing_named_is_nobody() -> None:
    assert build_access([AccessSettings(), AccessSettings()]).credentials is None


def test_our_own_variables_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    given = {"SEGSTORE_USER": "u", "SEGSTORE_PASSWORD": "p", "SEGSTORE_CA": str(path)}
    found = build_access([read_environment(given)])
    assert found.credentials == Credentials.from_password("u", "p")
    assert found.tls.ca == path.read_bytes()
    (tmp_path / "other.txt").write_text("no certificate")
    assert build_access([AccessSettings(ca=str(tmp_path))]).tls.ca == path.read_bytes()
    with pytest.raises(UsageError, match="no certificate in PEM form"):
        build_access([AccessSettings(ca=str(tmp_path / "other.txt"))])


@pytest.mark.parametrize(
    ("given", "header"),
    [
        ({"method": "Basic", "username": "u", "password": "p"}, "Basic dTpw"),
        ({"method": "Basic", "token": "dTpw"}, "Basic dTpw"),
        ({"method": "Bearer", "token": "abc"}, "Bearer abc"),
        ({"username": "u", "password": "p"}, None),
    ],
)
def test_the_variables_of_official_clients_are_read(
    given: dict[str, str], header: str | None
) -> None:
    variables = {f"pravega_client_auth_{name}": value for name, value in given.items()}
    found = build_access([read_official_environment(variables)]).credentials
    assert (None if found is None else found.header) == header


def test_a_basic_token_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="not the base64 form") as caught:
        build_access([AccessSettings(method="Basic", token="s3cret")])
    assert "s3cret" not in str(caught.value)


def test_settings_do_not_show_secrets() -> None:
    settings = AccessSettings(user="u", password="s3cret", token="t0ken")
    access = build_access([AccessSettings(user="u", password="s3cret")])
    for text in (repr(settings), repr(access)):
        assert "s3cret" not in text
        assert "t0ken" not in text
        assert "dTpzM2NyZXQ" not in text
