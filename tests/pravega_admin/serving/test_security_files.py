"""The files of a secure store: made once, kept, and not forgotten."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pravega_admin.errors import ConfigurationError
from pravega_admin.serving.security_files import (
    ADMINISTRATOR,
    PASSWORD_VARIABLE,
    SecurityFiles,
    is_secure,
    open_security_files,
)
from pravega_admin.serving.standalone import (
    StandaloneSettings,
    check_exposure,
    describe_clients,
    run_standalone,
)
from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from pravega_controller.config import ControllerConfig
from pravega_security.accounts import Accounts, BasicAuthenticator
from pravega_security.principals import AuthenticationError
from pravega_security.resources import ROOT, Level, stream_resource
from segstore.process.config import SegmentStoreConfig


def open_files(data_dir: Path, password: str | None = "given") -> SecurityFiles:
    environment = {} if password is None else {PASSWORD_VARIABLE: password}
    return open_security_files(data_dir, environment=environment, make_password=lambda: "made")


def convert(settings: dict[str, Any], kind: type[Any]) -> Any:
    return msgspec.convert(settings, kind, dec_hook=lambda kind, value: kind(value))


def log_in(files: SecurityFiles, password: str) -> Level:
    token = base64.b64encode(f"{ADMINISTRATOR}:{password}".encode()).decode()
    principal = BasicAuthenticator(Accounts(files.accounts)).authenticate(token, "127.0.0.1:1")
    return min(principal.authorize(ROOT), principal.authorize(stream_resource("s", "t")))


def test_a_second_start_keeps_every_file(tmp_path: Path) -> None:
    first = open_files(tmp_path)
    contents = {path: path.read_bytes() for path in (tmp_path / "security").iterdir()}
    assert {path.name for path in contents} >= {"ca.pem", "server.pem", "server.key", "passwd"}
    second = open_files(tmp_path, "another")
    assert second == first
    assert {path: path.read_bytes() for path in (tmp_path / "security").iterdir()} == contents
    assert log_in(second, "given") is Level.READ_UPDATE


def test_the_first_password_is_told_once_and_stored_nowhere(tmp_path: Path) -> None:
    first = open_files(tmp_path, None)
    assert first.first_password == "made"
    assert log_in(first, "made") is Level.READ_UPDATE
    assert "made" not in repr(first)
    assert open_files(tmp_path, None).first_password is None
    for path in (tmp_path / "security").iterdir():
        assert b"made" not in path.read_bytes()


def test_a_given_password_is_not_told(tmp_path: Path) -> None:
    files = open_files(tmp_path, "given")
    assert files.first_password is None
    with pytest.raises(AuthenticationError):
        log_in(files, "made")


def test_a_damaged_file_is_a_sentence_with_its_name(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.token_keys.write_text("no key\n")
    with pytest.raises(ConfigurationError, match=r"token\.key"):
        open_files(tmp_path)


def test_the_first_secure_start_keeps_others_out_of_the_data(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o755)
    open_files(data_dir)
    assert data_dir.stat().st_mode & 0o777 == 0o700
    data_dir.chmod(0o750)
    open_files(data_dir)
    assert data_dir.stat().st_mode & 0o777 == 0o750, "what an administrator lets in stays"


def test_tls_of_one_kind_of_server_alone_is_refused(tmp_path: Path) -> None:
    tls = {"certificate": "server.pem", "key": "server.key"}
    for controller, store in (({"tls": tls}, {}), ({}, {"tls": tls}), ({"tls": tls}, {"tls": tls})):
        settings = StandaloneSettings(tmp_path / "data", controller=controller, segment_store=store)
        with pytest.raises(ConfigurationError, match="set tls and store_tls of controller and tls"):
            run_standalone(settings, began=0.0)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_store_that_everybody_may_use_says_so_if_others_reach_it(
    tmp_path: Path, host: str
) -> None:
    told = describe_clients(StandaloneSettings(tmp_path, host=host, allow_insecure=True), None)
    assert ("everybody who reaches this machine can read" in told) == (host == "0.0.0.0")
    assert "segstore_client.connect(" in told


def test_a_secure_store_is_not_opened_to_everybody_by_forgetting_an_option(tmp_path: Path) -> None:
    assert not is_secure(tmp_path)
    open_files(tmp_path)
    assert is_secure(tmp_path)
    with pytest.raises(ConfigurationError, match="--secure"):
        run_standalone(StandaloneSettings(tmp_path), began=0.0)


def test_servers_know_the_settings(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    given = {"data_dir": str(tmp_path), **files.store_settings}
    store = convert(given, SegmentStoreConfig)
    controller = convert(files.controller_settings, ControllerConfig)
    assert store.tls is not None
    assert store.token_keys == controller.token_keys == files.token_keys
    assert controller.accounts == files.accounts


@pytest.mark.parametrize(
    ("kind", "callers"), [(SEGMENT_STORE, "token_keys"), (CONTROLLER, "accounts")]
)
def test_a_server_with_tls_and_users_may_be_reached_by_others(
    tmp_path: Path, kind: str, callers: str
) -> None:
    files = open_files(tmp_path)
    given = files.store_settings if kind == SEGMENT_STORE else files.controller_settings
    check_exposure("0.0.0.0", allow_insecure=False, kind=kind, settings=given)
    for missing in ("tls", callers):
        settings = {**given, missing: None}
        with pytest.raises(
            ConfigurationError, match=f"name tls and {callers}.* in a settings file"
        ):
            check_exposure("0.0.0.0", allow_insecure=False, kind=kind, settings=settings)


def test_a_store_on_one_machine_is_told_of_its_own_option() -> None:
    with pytest.raises(ConfigurationError, match=r"say --secure .* or say --allow-insecure"):
        check_exposure("0.0.0.0", allow_insecure=False)
