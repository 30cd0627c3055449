"""Logins by user and password, against real accounts files."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pravega_security import accounts as accounts_module
from pravega_security.access_rules import parse_access_rules
from pravega_security.accounts import WRONG_LOGIN, Accounts, BasicAuthenticator
from pravega_security.accounts_file import (
    Account,
    AccountsFile,
    AccountsFileError,
    change_accounts_file,
)
from pravega_security.login_delays import FREE_FAILURES, LoginDelays
from pravega_security.passwords import PasswordHash, hash_password
from pravega_security.principals import AuthenticationError, Authenticator, Principal
from pravega_security.resources import ROOT, Level
from support.key_sets import Clock

PEER = "ipv4:10.0.0.1:1234"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    put(path, "alice", "open:sesame", "prn::*,READ")
    return path


@pytest.fixture(autouse=True)
def logs_of_other_tests() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def put(path: Path, user: str, password: str, rules: str = "", *, rounds: int = 3) -> None:
    account = Account(user, hash_password(password, rounds=rounds), parse_access_rules(rules))
    change_accounts_file(path, lambda file: file.put(account))


def token(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def refusal(authenticator: Authenticator, text: str, peer: str = PEER) -> str:
    with pytest.raises(AuthenticationError) as refused:
        authenticator.authenticate(text, peer)
    return str(refused.value)


def make(path: Path, clock: Clock) -> BasicAuthenticator:
    return BasicAuthenticator(Accounts(path), LoginDelays(clock))


def test_a_user_with_its_password_is_known(path: Path, clock: Clock) -> None:
    basic: Authenticator = make(path, clock)
    assert basic.method == "Basic"
    principal: Principal = basic.authenticate(token("alice", "open:sesame"), PEER)
    assert principal.name == "alice"
    assert principal.authorize(ROOT) is Level.READ
    assert principal.authorize("other") is Level.NONE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "Og==",
        token("", "open:sesame"),
        base64.b64encode(b"alice").decode(),
        base64.b64encode(b"alice:\xff").decode(),
        token("alice", "open"),
        token("alice", ""),
        token("bob", "open:sesame"),
        token("alice", "x" * 2000),
        token("alice", "open:sesame").rstrip("="),
        "*" + token("alice", "open:sesame"),
        "YWxpY2U6b3Blbjpz ZXNhbWU=",
        "é",
        "\ud800",
        "A" * 100_000,
    ],
)
def test_each_wrong_login_gets_the_same_sentence(path: Path, clock: Clock, text: str) -> None:
    assert refusal(make(path, clock), text) == WRONG_LOGIN


@given(st.text())
def test_any_text_is_a_refusal(text: str) -> None:
    accounts = object.__new__(Accounts)
    accounts._path = Path("is not there")
    accounts._loaded = accounts_module._LoadedAccounts(AccountsFile([], {}, []), None)
    accounts._loaded.rounds_max = 1
    accounts._key = b"k"
    for each in (text, base64.b64encode(text.encode("utf-8", "replace")).decode()):
        refusal(BasicAuthenticator(accounts, LoginDelays(lambda: 0.0)), each)


def test_guesses_are_slowed_down_and_cost_no_derivation(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    basic = make(path, clock)
    for number in range(FREE_FAILURES):
        assert refusal(basic, token("alice", f"guess {number}")) == WRONG_LOGIN
    monkeypatch.setattr(PasswordHash, "verify", None)
    right = token("alice", "open:sesame")
    assert refusal(basic, right) == "too many logins failed: try again in 1 s"
    monkeypatch.undo()
    assert basic.authenticate(right, "ipv4:10.0.0.2:1").name == "alice"
    clock.now += 1
    assert basic.authenticate(right, PEER).name == "alice"
    assert refusal(basic, token("alice", "guess")) == WRONG_LOGIN
    assert basic.authenticate(right, PEER).name == "alice"
    assert basic.delays.failure_count == FREE_FAILURES + 1


def test_each_refused_login_takes_the_same_rounds(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, "bob", "pw", rounds=10)
    basic = make(path, clock)
    spent: list[int] = []
    monkeypatch.setattr(accounts_module, "spend_rounds", lambda _, rounds: spent.append(rounds))
    verify = PasswordHash.verify

    def count(derived: PasswordHash, password: bytes) -> bool:
        spent.append(derived.rounds)
        return verify(derived, password)

    monkeypatch.setattr(PasswordHash, "verify", count)
    for user in ("alice", "bob", "nobody"):
        spent.clear()
        refusal(basic, token(user, "wrong"))
        assert sum(spent) == 10, user


def test_a_verified_login_is_remembered(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    basic = make(path, clock)
    right = token("alice", "open:sesame")
    basic.authenticate(right, PEER)
    monkeypatch.setattr(PasswordHash, "verify", None)
    assert basic.authenticate(right, PEER).name == "alice"
    # A wrong password is derived each time, and not remembered.
    with pytest.raises(TypeError):
        basic.authenticate(token("alice", "wrong"), PEER)


def test_only_a_login_that_was_verified_is_known(path: Path, clock: Clock) -> None:
    basic = make(path, clock)
    right = token("alice", "open:sesame")
    assert basic.find_known(right, PEER) is None
    basic.authenticate(right, PEER)
    known = basic.find_known(right, PEER)
    assert known is not None
    assert known.name == "alice"
    assert known.authorize(ROOT) is Level.READ
    assert basic.find_known(token("alice", "wrong"), PEER) is None
    assert basic.find_known("no login", PEER) is None


def test_remembered_logins_are_bounded_and_have_no_password(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts_module, "REMEMBERED_LOGINS_MAX", 3)
    for number in range(8):
        put(path, f"u{number}", "pw", rounds=1)
    accounts = Accounts(path)
    assert all(accounts.verify(f"u{number}", b"pw") for number in range(8))
    remembered = list(accounts._loaded._verified)
    assert len(remembered) == 3
    assert all(len(key) == 32 for key in remembered)
    assert accounts._loaded._running == {}
    assert Accounts(path)._key != accounts._key


def test_a_changed_file_holds_at_once(path: Path, clock: Clock) -> None:
    basic = make(path, clock)
    alice = basic.authenticate(token("alice", "open:sesame"), PEER)
    put(path, "alice", "new", "prn::/,NONE;prn::*,READ_UPDATE")
    assert alice.authorize(ROOT) is Level.NONE
    assert alice.authorize("prn::/scope:s") is Level.READ_UPDATE
    assert refusal(basic, token("alice", "open:sesame")) == WRONG_LOGIN
    assert basic.authenticate(token("alice", "new"), PEER).name == "alice"
    change_accounts_file(path, lambda file: file.remove("alice"))
    assert alice.authorize("prn::/scope:s") is Level.NONE
    assert refusal(basic, token("alice", "new")) == WRONG_LOGIN
    put(path, "bob", "first")
    assert basic.authenticate(token("bob", "first"), PEER).name == "bob"


def test_a_broken_file_keeps_the_old_accounts_and_logs_once(path: Path) -> None:
    accounts = Accounts(path)

    def look() -> list[Any]:
        with capture_logs() as logs:
            for _ in range(3):
                assert accounts.authorize("alice", ROOT) is Level.READ
        return logs

    content = path.read_text()
    path.write_text(f"{content}broken\n")
    (logged,) = look()
    assert logged["log_level"] == "error"
    assert logged["why"] == f"{path}, line 2: it has to be user, colon, derived password"
    assert look() == []
    path.unlink()
    (logged,) = look()
    assert logged["why"] == f"{path} cannot be read: No such file or directory"
    assert look() == []
    path.write_text(content)
    (logged,) = look()
    assert (logged["log_level"], logged["users"]) == ("info", 1)


def test_a_broken_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AccountsFileError, match="cannot be read"):
        Accounts(tmp_path / "passwd")


def test_doubtful_lines_are_logged(path: Path) -> None:
    path.write_text(path.read_text().replace("prn::*,READ", "prn::*,ALL"))
    with capture_logs() as logs:
        assert Accounts(path).authorize("alice", ROOT) is Level.NONE
    assert [each["log_level"] for each in logs] == ["warning"]
    assert "open:" not in str(logs)


def test_a_login_of_the_old_file_is_not_remembered(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = Accounts(path)
    verify = PasswordHash.verify

    def change_meanwhile(derived: PasswordHash, password: bytes) -> bool:
        monkeypatch.undo()
        put(path, "alice", "new")
        assert accounts.verify("alice", b"new")
        return verify(derived, password)

    monkeypatch.setattr(PasswordHash, "verify", change_meanwhile)
    assert accounts.verify("alice", b"open:sesame")
    assert not accounts.verify("alice", b"open:sesame")


def test_one_login_on_many_threads_is_derived_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = Accounts(path)
    begun, may_end = threading.Semaphore(0), threading.Event()
    verify = PasswordHash.verify
    derived_count = 0

    def wait(derived: PasswordHash, password: bytes) -> bool:
        nonlocal derived_count
        derived_count += 1
        begun.release()
        assert may_end.wait(30)
        return verify(derived, password)

    monkeypatch.setattr(PasswordHash, "verify", wait)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(accounts.verify("alice", b"open:sesame")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=30)
    may_end.set()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
    assert derived_count == 1


def test_nothing_shows_a_secret(path: Path, clock: Clock) -> None:
    basic = make(path, clock)
    principal = basic.authenticate(token("alice", "open:sesame"), PEER)
    accounts = Accounts(path)
    shown = repr([basic, principal, accounts, accounts._loaded.accounts])
    assert "sesame" not in shown
    assert str(accounts._loaded.accounts["alice"].password) not in shown
