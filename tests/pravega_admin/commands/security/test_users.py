"""``segstore user``: what it writes into the accounts file, and what it prints."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pravega_admin.verbs import app
from pravega_security.accounts_file import Account, read_accounts_file
from pravega_security.resources import (
    ROOT,
    Level,
    reader_group_resource,
    scope_resource,
    stream_resource,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "passwd"


def run(path: Path, *arguments: str, input: str | None = None) -> Result:
    environment = {"SEGSTORE_ACCOUNTS": str(path)}
    return CliRunner().invoke(app, ["user", *arguments], input=input, env=environment)


def add(path: Path, user: str, *options: str, password: str = "pw") -> Result:
    done = run(path, "add", user, *options, "--password-stdin", input=f"{password}\n")
    assert done.exit_code == 0, done.output
    return done


def account(path: Path, user: str) -> Account:
    return read_accounts_file(path)[0].accounts[user]


def rights(path: Path, user: str) -> str:
    return str(account(path, user).rules)


def test_a_user_is_added_listed_and_removed(path: Path) -> None:
    done = add(path, "alice", "--acl", "prn::*,READ", password="open:sesame")
    assert done.stderr == f"user alice added to {path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert account(path, "alice").password.verify(b"open:sesame")
    assert "sesame" not in path.read_text()
    assert add(path, "bob").stderr.startswith("user bob has no rights yet")
    listed = run(path, "list")
    assert listed.stdout == "USER   RULES\nalice  prn::*,READ\nbob\n"
    as_json = run(path, "list", "-o", "json")
    assert json.loads(as_json.stdout) == [
        {"user": "alice", "rules": [{"resource": "prn::*", "level": "READ"}]},
        {"user": "bob", "rules": []},
    ]
    assert str(account(path, "alice").password) not in as_json.output + listed.output
    assert run(path, "remove", "alice").exit_code == 0
    assert run(path, "list").stdout == "USER  RULES\nbob\n"


def test_the_file_is_in_the_data_directory_by_default(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        ["user", "add", "a", "--data-dir", str(tmp_path / "data"), "--password-stdin", "--admin"],
        input="pw",
        env={"SEGSTORE_ACCOUNTS": ""},
    )
    assert done.exit_code == 0, done.output
    assert rights(tmp_path / "data" / "security" / "passwd", "a") == "prn::*,READ_UPDATE"


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        (
            ["--read", "s/t"],
            {
                stream_resource("s", "t"): Level.READ,
                stream_resource("s", "u"): Level.NONE,
                scope_resource("s"): Level.READ,
                reader_group_resource("s", "g"): Level.READ,
                ROOT: Level.NONE,
            },
        ),
        (
            ["--read", "s", "--write", "s/t"],
            {
                stream_resource("s", "t"): Level.READ_UPDATE,
                stream_resource("s", "u"): Level.READ,
                scope_resource("s"): Level.READ,
            },
        ),
        (
            ["--write", "s", "--read", "s/t", "--read", "r/t"],
            {
                stream_resource("s", "t"): Level.READ_UPDATE,
                scope_resource("s"): Level.READ_UPDATE,
                reader_group_resource("s", "g"): Level.READ_UPDATE,
                stream_resource("r", "t"): Level.READ,
                scope_resource("r"): Level.READ,
                scope_resource("ss"): Level.NONE,
            },
        ),
        (["--admin", "--read", "s"], {ROOT: Level.READ_UPDATE, "prn::/x": Level.READ_UPDATE}),
        (["--acl", "prn::/,NONE", "--admin"], {ROOT: Level.NONE, "prn::/x": Level.READ_UPDATE}),
    ],
)
def test_options_stand_for_rules(path: Path, options: list[str], levels: dict[str, Level]) -> None:
    add(path, "u", *options)
    rules = account(path, "u").rules
    assert {resource: rules.level_for(resource) for resource in levels} == levels
    assert all(rules.rule_before(rule) is None for rule in rules.rules)


def test_rights_are_granted_and_revoked(path: Path) -> None:
    add(path, "u")
    before = account(path, "u").password
    assert run(path, "grant", "u", "prn::/scope:s/*", "READ").exit_code == 0
    done = run(path, "grant", "u", "s/t", "READ_UPDATE")
    assert "has no effect: prn::/scope:s/*,READ decides before it" in done.stderr
    done = run(path, "grant", "u", "s/t", "READ_UPDATE", "--first", "-o", "json")
    assert json.loads(done.stdout)["rules"][0] == {
        "resource": "prn::/scope:s/stream:t",
        "level": "READ_UPDATE",
    }
    assert done.stderr == ""
    assert rights(path, "u") == "prn::/scope:s/stream:t,READ_UPDATE;prn::/scope:s/*,READ"
    assert run(path, "grant", "u", "s/t", "NONE").exit_code == 0
    assert rights(path, "u") == "prn::/scope:s/stream:t,NONE;prn::/scope:s/*,READ"
    done = run(path, "revoke", "u", "s/t")
    assert "another rule still gives READ" in done.stderr
    assert rights(path, "u") == "prn::/scope:s/*,READ"
    assert run(path, "revoke", "u", "s/t").exit_code == 3
    assert account(path, "u").password == before


def test_a_password_is_changed_and_rights_stay(path: Path, tmp_path: Path) -> None:
    add(path, "u", "--admin")
    (tmp_path / "new").write_text("newer\r\nnot this\n")
    assert run(path, "passwd", "u", "--password-file", str(tmp_path / "new")).exit_code == 0
    assert account(path, "u").password.verify(b"newer")
    assert rights(path, "u") == "prn::*,READ_UPDATE"
    done = run(path, "passwd", "u", "--password-stdin", input="newest")
    assert done.exit_code == 0
    assert account(path, "u").password.verify(b"newest")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["add", "u", "--password-stdin"], 4, "user u is in"),
        (["add", "a:b", "--password-stdin"], 2, "cannot be a user"),
        (["add", "v", "--password-stdin", "--acl", "prn::*"], 2, "--acl: rule 1 is ignored"),
        (["add", "v", "--password-stdin", "--read", "a/b/c"], 2, "is not the name of a stream"),
        (["add", "v", "--password-stdin", "--read", "a;b"], 2, "cannot be the resource"),
        (["add", "v"], 2, "no terminal"),
        (["add", "v", "--password-file", "no/file"], 1, "no/file cannot be read"),
        (["add", "v", "--password-file", "x", "--password-stdin"], 2, "exclude each other"),
        (["passwd", "v", "--password-stdin"], 3, "there is no user v"),
        (["remove", "v"], 3, "there is no user v"),
        (["grant", "v", "s/t", "READ"], 3, "there is no user v"),
        (["grant", "u", "s", "READ"], 2, "is not the name of a stream"),
        (["grant", "u", "prn::/a,b", "READ"], 2, "cannot be the resource"),
        (["grant", "u", "s/t", "WRITE"], 2, "WRITE"),
        (["revoke", "v", "s/t"], 3, "there is no user v"),
    ],
)
def test_wrong_usage_is_one_sentence(
    path: Path, arguments: list[str], code: int, words: str
) -> None:
    add(path, "u")
    before = path.read_bytes()
    done = run(path, *arguments, input="pw\n")
    assert (done.exit_code, words in done.stderr) == (code, True), done.output
    assert path.read_bytes() == before


@pytest.mark.parametrize("input", ["", "\n", "x" * 1025 + "\n"])
def test_a_password_that_cannot_be_is_refused(path: Path, input: str) -> None:
    done = run(path, "add", "u", "--password-stdin", input=input)
    assert done.exit_code == 2
    assert "xx" not in done.output
    assert not path.exists()


@pytest.mark.parametrize("verb", ["list", "remove u", "passwd u --password-stdin"])
def test_a_missing_file_is_not_found(path: Path, verb: str) -> None:
    done = run(path, *verb.split(), input="pw\n")
    assert done.exit_code == 3
    assert f"there is no accounts file {path}" in done.stderr


def test_a_broken_file_is_named_and_left_alone(path: Path) -> None:
    path.write_text("u:secret:\n")
    for verb in (["list"], ["remove", "u"], ["add", "v", "--password-stdin"]):
        done = run(path, *verb, input="pw\n")
        assert done.exit_code == 1
        assert f"{path}, line 1: " in done.stderr
        assert "secret" not in done.stderr
    assert path.read_text() == "u:secret:\n"


def test_what_is_doubtful_in_the_file_is_told(path: Path) -> None:
    add(path, "u", "--admin")
    path.write_text("\n" + path.read_text())
    assert "warning: " in run(path, "list").stderr
    assert "warning: " in run(path, "grant", "u", "s/t", "NONE", "--first").stderr


def talk(
    arguments: list[str], environment: dict[str, str], answers: list[bytes]
) -> tuple[int, Any]:
    """Run ``segstore`` on a terminal of its own, and type an answer at each colon."""
    child, terminal = pty.fork()
    if child == 0:
        command = [sys.executable, "-m", "pravega_admin", *arguments]
        os.execve(sys.executable, command, {**os.environ, **environment})
    shown = b""
    try:
        for answer in answers:
            while not shown.endswith(b": "):
                shown += os.read(terminal, 1)
            os.write(terminal, answer + b"\n")
            shown += os.read(terminal, 1)
        while more := os.read(terminal, 4096):
            shown += more
    except OSError:
        # The process has closed the terminal.
        pass
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode()


@pytest.mark.processes
def test_a_terminal_is_asked_twice_and_shows_no_password(path: Path) -> None:
    source = Path(__file__).resolve().parents[3] / "src"
    environment = {"SEGSTORE_ACCOUNTS": str(path), "PYTHONPATH": str(source)}
    arguments = ["user", "add", "u", "--admin"]
    code, shown = talk(arguments, environment, [b"sesame", b"sesam"])
    assert (code, "the two passwords are different" in shown) == (2, True), shown
    assert not path.exists()
    code, shown = talk(arguments, environment, [b"sesame", b"sesame"])
    assert code == 0, shown
    assert account(path, "u").password.verify(b"sesame")
    assert "sesam" not in shown


def test_an_option_counts_more_than_the_variable(path: Path, tmp_path: Path) -> None:
    add(path, "alice")
    data_dir = tmp_path / "data"
    add(path, "bob", "--data-dir", str(data_dir))
    assert list(read_accounts_file(data_dir / "security" / "passwd")[0].accounts) == ["bob"]
    assert list(read_accounts_file(path)[0].accounts) == ["alice"]
    listed = run(tmp_path / "elsewhere", "list", "--file", str(path), "--data-dir", str(data_dir))
    assert "alice" in listed.stdout
