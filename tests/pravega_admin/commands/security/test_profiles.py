"""``segstore profile``: the file of profiles, and its use."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pravega_admin.logins import profiles_path, read_profile
from pravega_admin.verbs import app

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SEGSTORE_PROFILE", raising=False)

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, ["profile", *arguments])
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return profiles_path({"XDG_CONFIG_HOME": str(tmp_path)})


def test_profiles_are_made_shown_changed_and_deleted(invoke: Invoke, path: Path) -> None:
    assert json.loads(invoke("list", "-o", "json").stdout) == []
    invoke("set", "default", "controller=tls://a:1", 'user=Ann "the first" \u00e4')
    invoke("set", "test-2", "controller=b")
    rows = json.loads(invoke("list", "-o", "json").stdout)
    assert [(row["profile"], row["used"], row["controller"]) for row in rows] == [
        ("default", True, "tls://a:1"),
        ("test-2", False, "b"),
    ]
    assert read_profile(path, "").values["user"] == 'Ann "the first" \u00e4'
    invoke("set", "default", "user=", "ca=~/ca.pem")
    shown = json.loads(invoke("show", "-o", "json").stdout)
    assert shown == {"profile": "default", "controller": "tls://a:1", "ca": "~/ca.pem"}
    invoke("delete", "default")
    assert "no profile default" in invoke("show", code=3).stderr
    assert read_profile(path, "test-2").controller == "b"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["set", "a", "password=secret"], "has the key password"),
        (["set", "a", "user"], "is not KEY=VALUE"),
        (["set", "a b", "user=c"], "cannot be the name"),
    ],
    ids=str,
)
def test_what_a_profile_cannot_have_is_refused(
    invoke: Invoke, path: Path, arguments: list[str], sentence: str
) -> None:
    assert sentence in invoke(*arguments, code=2).stderr
    assert not path.exists()


def test_the_file_of_profiles_is_replaced_as_a_whole(
    invoke: Invoke, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("set", "a", "user=one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(os, "fsync", fail)
        assert "cannot be written" in invoke("set", "a", "user=two", code=1).stderr
    assert read_profile(path, "a").values == {"user": "one"}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_no_file_of_profiles_is_left_alone(invoke: Invoke, path: Path) -> None:
    path.parent.mkdir(parents=True)
    for text in ("profiles = 3", "[profiles", "[profiles]\na = 1"):
        path.write_text(text)
        path.chmod(0o600)
        invoke("set", "a", "user=one", code=2)
        assert path.read_text() == text
