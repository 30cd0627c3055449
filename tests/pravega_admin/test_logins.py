"""Callers, as options, variables and profiles name them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from typer.testing import CliRunner

from pravega_admin.errors import EXIT_NO_PERMISSION
from pravega_admin.logins import Profile, profiles_path, read_profile
from pravega_admin.verbs import app
from segstore_client.errors import UsageError
from support.secure_servers import ALICE, Controller


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no variable or profile of this machine name a caller."""
    for name in ("USER", "PASSWORD", "PASSWORD_FILE", "TOKEN_FILE", "CA", "PROFILE", "CONTROLLER"):
        monkeypatch.delenv(f"SEGSTORE_{name}", raising=False)
    monkeypatch.delenv("pravega_client_auth_method", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def address(controller: Controller) -> Iterator[str]:
    with controller.running() as port:
        yield f"tcp://127.0.0.1:{port}"


@pytest.fixture
def password(tmp_path: Path) -> str:
    path = tmp_path / "alice.password"
    path.write_text("wonder land\n")
    path.chmod(0o600)
    return str(path)


def list_scopes(*arguments: str, input: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["scope", "list", *arguments], input=input)
    return result.exit_code, result.stderr


def test_a_user_is_named_by_options(controller: Controller, address: str, password: str) -> None:
    done = list_scopes("-c", address, "--user", "alice", "--password-file", password)
    assert done == (0, "")
    assert controller.calls == [("listScopes", ALICE)]


def test_a_password_comes_from_the_input(controller: Controller, address: str) -> None:
    given = ("-c", address, "--user", "alice", "--password-file", "-")
    assert list_scopes(*given, input="wonder land\n") == (0, "")
    assert controller.calls == [("listScopes", ALICE)]


def test_a_user_is_named_by_variables(
    controller: Controller, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGSTORE_USER", "alice")
    monkeypatch.setenv("SEGSTORE_PASSWORD", "wonder land")
    monkeypatch.setenv("pravega_client_auth_method", "Bearer")
    monkeypatch.setenv("pravega_client_auth_token", "other")
    assert list_scopes("-c", address) == (0, "")
    monkeypatch.delenv("SEGSTORE_USER")
    assert list_scopes("-c", address)[0] == EXIT_NO_PERMISSION
    assert [header for _, header in controller.calls] == [ALICE, "Bearer other"]


def test_a_token_is_named_by_its_file(address: str, tmp_path: Path, controller: Controller) -> None:
    path = tmp_path / "token"
    path.write_text("abc\n")
    path.chmod(0o600)
    controller.users = ("Bearer abc",)
    assert list_scopes("-c", address, "--token-file", str(path)) == (0, "")


def test_who_is_not_known_is_told_what_to_do(address: str, password: str) -> None:
    code, said = list_scopes("-c", address)
    assert code == EXIT_NO_PERMISSION
    assert "asks who calls: give a user and a password, such as by --user" in said
    code, said = list_scopes("-c", address, "--user", "bob", "--password-file", password)
    assert code == EXIT_NO_PERMISSION
    assert "does not accept user bob: user or password is wrong" in said
    assert "wonder" not in said
    assert base64.b64encode(b"bob:wonder land").decode() not in said


def test_who_has_no_permission_is_told_for_what(
    controller: Controller, address: str, password: str
) -> None:
    controller.permits = False
    code, said = list_scopes("-c", address, "--user", "alice", "--password-file", password)
    assert code == EXIT_NO_PERMISSION
    assert "user alice has no permission for listScopes of all scopes: ask an" in said
    assert "administrator to grant it (alice may not)" in said.replace("\n", " ")
    assert len(controller.calls) == 1


def write_profiles(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / ".config" / "segstore" / "profiles.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_profile_names_everything(
    controller: Controller, tmp_path: Path, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with controller.running(authority.issue_cert("127.0.0.1")) as port:
        text = f'controller = "tls://127.0.0.1:{port}"\nuser = "alice"\nca = "~/ca.pem"\n'
        text += 'password_file = "~/alice.password"\n'
        write_profiles(tmp_path, f"[profiles.default]\n{text}[profiles.x]\n{text}")
        assert list_scopes() == (0, "")
        assert list_scopes("--profile", "x") == (0, "")
        monkeypatch.setenv("SEGSTORE_PROFILE", "x")
        assert list_scopes() == (0, "")
        assert list_scopes("--user", "bob", "--password-file", password)[0] == EXIT_NO_PERMISSION
        other = list_scopes("-c", "tcp://127.0.0.1:9")
    assert other[0] == 5
    assert "no controller answers at 127.0.0.1:9" in other[1]
    assert len(controller.calls) == 4


def test_a_profile_that_does_not_exist_is_told(tmp_path: Path) -> None:
    code, said = list_scopes("--profile", "x")
    assert code == 2
    assert "there is no profile x: " in said
    path = write_profiles(tmp_path, "[profiles.y]\n")
    with pytest.raises(UsageError, match=r"there is no profile x in"):
        read_profile(path, "x")
    assert read_profile(path, "") == Profile({})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.default]\npassword = 's3cret'\n", "has the key password; there are ca,"),
        ("[profiles.default]\nuser = 1\n", "user of a profile in"),
        ("[profiles", "are not TOML"),
    ],
)
def test_a_wrong_profile_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_profile(write_profiles(tmp_path, text), "")
    assert "s3cret" not in str(caught.value)


def test_profiles_that_others_can_read_are_told(address: str, tmp_path: Path) -> None:
    path = write_profiles(tmp_path, "[profiles.default]\n", 0o644)
    assert f"warning: others can read the file of profiles {path}" in list_scopes("-c", address)[1]


def test_profiles_are_where_other_programs_have_theirs(tmp_path: Path) -> None:
    assert profiles_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/segstore/profiles.toml")
    assert profiles_path({"HOME": "/h"}) == Path("/h/.config/segstore/profiles.toml")


def test_only_commands_with_a_controller_have_the_options() -> None:
    runner = CliRunner()
    assert "--password-file" in runner.invoke(app, ["stream", "create", "--help"]).stdout
    assert "--password-file" not in runner.invoke(app, ["scrub", "--help"]).stdout
    assert "--password " not in runner.invoke(app, ["write", "--help"]).stdout
