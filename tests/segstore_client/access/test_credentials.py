"""Credentials go to the controller, and nowhere else."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_client.access.credentials import Credentials, read_secret_file
from segstore_client.errors import UsageError


@given(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1), st.text(max_size=40)
)
def test_a_user_and_a_password_are_one_basic_token(user: str, password: str) -> None:
    method, _, token = Credentials.from_password(user, password).header.partition(" ")
    assert method == "Basic"
    assert base64.b64decode(token).decode() == f"{user}:{password}"


def test_credentials_do_not_show_their_secret(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abcdef\n")
    for each in (
        Credentials.from_password("alice", "abcdef"),
        Credentials.from_token("abcdef"),
        Credentials.from_token_file(path),
    ):
        secret = each.header.partition(" ")[2]
        for text in (repr(each), str(each), each.described):
            assert "abcdef" not in text
            assert secret not in text


def test_a_token_file_is_read_for_each_call(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    found = Credentials.from_token_file(path)
    assert found.header == "Bearer one"
    path.write_text("two")
    assert found.header == "Bearer two"
    sent = pickle.loads(pickle.dumps(found))
    path.unlink()
    assert sent.header == "Bearer two"
    with pytest.raises(UsageError, match=r"token file .* cannot be read"):
        _ = found.header


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ä", "\x00"])
def test_a_token_that_no_header_can_have_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(UsageError, match="the token for the controller") as caught:
        Credentials.from_token(token)
    assert token == "" or repr(token) not in str(caught.value)


@pytest.mark.parametrize("user", ["", "a:b", "a\nb"])
def test_names_that_no_user_can_have_are_refused(user: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a user"):
        Credentials.from_password(user, "x")


def test_a_file_with_a_secret_that_others_can_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("p w \n")
    told: list[str] = []
    path.chmod(0o600)
    assert read_secret_file(path, "password file", warn=told.append) == "p w "
    assert told == []
    path.chmod(0o644)
    read_secret_file(path, "password file", warn=told.append)
    assert told == [f"warning: others can read the password file {path}: chmod 600 {path}"]


def test_files_without_a_secret_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        read_secret_file(path, "password file")
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not text in UTF-8"):
        read_secret_file(path, "password file")
