"""The authenticators of a server: ours, and those that packages bring."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pravega_security.accounts import BasicAuthenticator
from pravega_security.accounts_file import AccountsFileError
from pravega_security.authenticators import (
    ENTRY_POINT_GROUP,
    find_entry_points,
    load_authenticators,
)
from pravega_security.identity_provider.bearer import BearerAuthenticator, BearerSettingsError
from pravega_security.identity_provider.bearer_settings import BearerSettings
from pravega_security.principals import Authenticator, Principal

BEARER = BearerSettings(keys="keys.json", issuer="i", audience="a")


class Ticket:
    """An authenticator of a package."""

    def __init__(self, method: str, settings: dict[str, object]) -> None:
        self.method = method
        self.settings = settings

    def authenticate(self, token: str, peer: str) -> Principal:
        raise NotImplementedError


def make_ticket(settings: dict[str, object]) -> Authenticator:
    return Ticket("Ticket", settings)


def make_basic(settings: dict[str, object]) -> Authenticator:
    return Ticket("Basic", settings)


def fail(settings: dict[str, object]) -> Authenticator:
    raise RuntimeError(f"cannot use {settings['password']}")


def entry(name: str, function: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{function}", ENTRY_POINT_GROUP)


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    path.touch()
    return path


def test_ours_are_there_when_they_are_configured(accounts: Path) -> None:
    assert load_authenticators(None, find_packages=list) == {}
    found = load_authenticators(accounts, bearer=BEARER, find_packages=list)
    assert list(found) == ["Basic", "Bearer"]
    assert isinstance(found["Basic"], BasicAuthenticator)
    assert isinstance(found["Bearer"], BearerAuthenticator)


def test_those_of_packages_get_their_settings() -> None:
    found = load_authenticators(
        None,
        package_settings={"tickets": {"realm": "R"}, "other": {}},
        find_packages=lambda: [entry("tickets", "make_ticket")],
    )
    ticket = found["Ticket"]
    assert isinstance(ticket, Ticket)
    assert ticket.settings == {"realm": "R"}


def test_the_first_of_a_method_counts(accounts: Path) -> None:
    packages = [entry("a", "make_basic"), entry("b", "make_ticket"), entry("c", "make_ticket")]
    with capture_logs() as logs:
        found = load_authenticators(
            accounts, package_settings={"b": {"first": True}}, find_packages=lambda: packages
        )
    assert isinstance(found["Basic"], BasicAuthenticator)
    assert found["Ticket"].settings == {"first": True}  # type: ignore[attr-defined]
    assert [(each["method"], each["name"]) for each in logs] == [("Basic", "a"), ("Ticket", "c")]


def test_one_that_cannot_be_loaded_is_skipped() -> None:
    packages = [
        entry("a", "fail"),
        entry("b", "no_such_function"),
        EntryPoint("c", "no_such_module:make", ENTRY_POINT_GROUP),
        entry("d", "make_ticket"),
    ]
    with capture_logs() as logs:
        found = load_authenticators(
            None,
            package_settings={"a": {"password": "sesame"}},
            find_packages=lambda: packages,
        )
    assert list(found) == ["Ticket"]
    assert [(each["name"], each["error"]) for each in logs] == [
        ("a", "RuntimeError"),
        ("b", "AttributeError"),
        ("c", "ModuleNotFoundError"),
    ]
    assert "sesame" not in str(logs)


def test_wrong_settings_of_our_own_are_errors(tmp_path: Path) -> None:
    with pytest.raises(AccountsFileError):
        load_authenticators(tmp_path / "none", find_packages=list)
    with pytest.raises(BearerSettingsError):
        load_authenticators(
            None,
            bearer=BearerSettings(keys="keys.json", issuer="", audience=""),
            find_packages=list,
        )


def test_packages_that_are_installed_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "tickets-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tickets\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\ntickets = segstore_test_tickets:make\n"
    )
    (tmp_path / "segstore_test_tickets.py").write_text(
        "class Ticket:\n    method = 'Ticket'\ndef make(settings):\n    return Ticket()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert "tickets" in [each.name for each in find_entry_points()]
        assert "Ticket" in load_authenticators(None)
    finally:
        sys.modules.pop("segstore_test_tickets", None)
