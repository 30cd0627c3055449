"""``segstore token``: what it does with a file of keys, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pravega_admin.verbs import app
from pravega_security.signing_keys import SigningKeys, read_key_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "token-keys"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["token", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_keys_are_created_prepared_rotated_and_shown(path: Path) -> None:
    file = str(path)
    created = run("create", file)
    first = read_key_file(path).current
    assert created == f"{path} has the new key {first.id}\n"
    prepared = run("rotate", file, "--prepare")
    second = read_key_file(path).next
    assert second is not None
    assert prepared == f"{path} has the next key {second.id}; copy it to all servers\n"
    assert SigningKeys(path).current == first.secret
    told = json.loads(run("rotate", file, "-o", "json"))
    assert told == {"file": file, "current": second.id, "previous": first.id}
    assert SigningKeys(path).all_valid == (second.secret, first.secret)
    shown = json.loads(run("show", file, "-o", "json"))
    assert [(each["role"], each["id"]) for each in shown] == [
        ("current", second.id),
        ("previous", first.id),
    ]
    assert all(0 <= each["seconds"] < 120 for each in shown)
    run("rotate", file, "--revoke")
    assert read_key_file(path).previous is None


def test_what_is_not_possible_is_one_sentence(path: Path) -> None:
    file = str(path)
    for verb in ("rotate", "show"):
        assert run(verb, file, code=1) == (
            f"segstore: {path} cannot be read: No such file or directory\n"
        )
    run("create", file)
    assert "exists: segstore token rotate" in run("create", file, code=1)
    assert "goes with neither" in run("rotate", file, "--prepare", "--force", code=2)
    run("rotate", file)
    assert "or use --force" in run("rotate", file, code=1)
    run("rotate", file, "--force")
    path.chmod(0o644)
    assert "may be used by others" in run("show", file, code=1)


def test_verbs_print_no_key(path: Path) -> None:
    file = str(path)
    printed = [
        run("create", file),
        run("rotate", file, "--prepare", "-o", "json"),
        run("show", file),
        run("rotate", file),
        run("show", file, "-o", "json"),
        run("rotate", file, code=1),
        run("create", file, code=1),
    ]
    secrets = [key.secret.decode() for key in read_key_file(path).roles.values()]
    assert len(secrets) == 2
    assert not [each for each in secrets if each[:12] in "".join(printed)]
