"""The accounts file: its lines, its changes, its rewriting."""

from __future__ import annotations

import os
import re
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_security.access_rules import AccessRules, parse_access_rules
from pravega_security.accounts_file import (
    USER_LENGTH_MAX,
    Account,
    AccountsFile,
    AccountsFileError,
    change_accounts_file,
    is_user_name,
    read_accounts_file,
)
from pravega_security.passwords import PasswordHash, hash_password
from pravega_security.resources import ROOT, Level

HASH = hash_password("pw", rounds=1, make_salt=lambda count: b"salt")


def account(user: str, rules: str = "") -> Account:
    return Account(user, HASH, parse_access_rules(rules))


def test_lines_are_users_with_rights() -> None:
    text = f"# ours\nalice:{HASH}:prn::*,READ_UPDATE;\nbob:{HASH}:\ncarol:{HASH}\n"
    file = AccountsFile.parse(text, "passwd")
    assert list(file.accounts) == ["alice", "bob", "carol"]
    assert file.accounts["alice"].rules.level_for(ROOT) is Level.READ_UPDATE
    assert file.accounts["bob"].rules == file.accounts["carol"].rules == AccessRules()
    assert file.accounts["bob"].password == HASH
    assert file.warnings == []
    assert str(file) == text


def test_rules_may_have_colons_and_lines_end_as_in_other_systems() -> None:
    file = AccountsFile.parse(f"\ufeffa:{HASH}:prn::/scope:s/stream:t,READ\r\nb:{HASH}", "passwd")
    assert file.accounts["a"].rules.level_for("prn::/scope:s/stream:t") is Level.READ
    assert list(file.accounts) == ["a", "b"]


def test_the_last_line_of_a_user_counts_and_is_told() -> None:
    file = AccountsFile.parse(f"a:{HASH}:prn::*,READ\nb:{HASH}\na:{HASH}:prn::*,NONE\n", "passwd")
    assert file.accounts["a"].rules.level_for(ROOT) is Level.NONE
    assert file.warnings == ["passwd, line 3: user a has an earlier line, which does not count"]
    file.put(account("a", "prn::/,READ"))
    assert AccountsFile.parse(str(file), "passwd").accounts["a"] == account("a", "prn::/,READ")
    file.remove("a")
    assert str(file) == f"b:{HASH}\n"


def test_lines_behind_an_empty_one_count_and_are_told() -> None:
    file = AccountsFile.parse(f"a:{HASH}\n\nb:{HASH}\n\nc:{HASH}\n", "passwd")
    assert list(file.accounts) == ["a", "b", "c"]
    assert file.warnings == ["passwd, line 3: the original does not read it, since line 2 is empty"]
    assert AccountsFile.parse(f"a:{HASH}\n\n\n", "passwd").warnings == []


def test_ignored_rules_are_told() -> None:
    file = AccountsFile.parse(f"a:{HASH}:prn::*,ALL;prn::/,READ\n", "passwd")
    assert file.accounts["a"].rules.level_for(ROOT) is Level.READ
    assert file.warnings == [
        "passwd, line 1: user a: rule 1 is ignored: its level has to be NONE, READ or READ_UPDATE"
    ]


@pytest.mark.parametrize(
    "line",
    ["secret", ":secret:", "u:secret:prn::*,READ", f"u :{HASH}:", f"u\x01:{HASH}:", "u:", "u::"],
)
def test_a_wrong_line_is_named_and_not_repeated(line: str) -> None:
    with pytest.raises(AccountsFileError, match=r"^passwd, line 2: ") as refused:
        AccountsFile.parse(f"# first\n{line}\n", "passwd")
    assert "secret" not in str(refused.value)
    assert str(HASH) not in str(refused.value)
    assert refused.value.__cause__ is None


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(b"# a\n# b\nu\xff:secret\n")
    with pytest.raises(AccountsFileError, match=r"passwd, line 3: it is not UTF-8") as refused:
        read_accounts_file(path)
    assert refused.value.__suppress_context__


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccountsFileError, match=r"passwd cannot be read: No such file"):
        read_accounts_file(tmp_path / "passwd")
    with pytest.raises(AccountsFileError, match="cannot be read: Is a directory"):
        read_accounts_file(tmp_path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    with path.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with pytest.raises(AccountsFileError, match="more than"):
        read_accounts_file(path)


def test_changes_keep_comments_and_order(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"# head\na:{HASH}:prn::*,READ\n\n# b is a robot\nb:{HASH}\n# tail\n")

    def change(file: AccountsFile) -> None:
        file.put(account("a", "prn::/,NONE"))
        file.put(account("c"))
        file.remove("b")

    changed = change_accounts_file(path, change)
    assert (
        path.read_text() == f"# head\na:{HASH}:prn::/,NONE\n\n# b is a robot\n# tail\nc:{HASH}:\n"
    )
    assert list(changed.accounts) == ["a", "c"]
    assert len(changed.warnings) == 1


def test_others_may_not_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data" / "security" / "passwd"
    change_accounts_file(path, lambda file: file.put(account("a")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    change_accounts_file(path, lambda file: file.put(account("b")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(path.parent) == ["passwd"]
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
        change_accounts_file(path, lambda file: file.put(account("c")))
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_rewritten_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path, link = tmp_path / "passwd", tmp_path / "link"
    change_accounts_file(path, lambda file: file.put(account("a")))
    link.symlink_to(path)
    with path.open() as former:
        change_accounts_file(link, lambda file: file.put(account("b")))
        assert former.read() == f"a:{HASH}:\n"
    assert link.is_symlink()
    assert list(read_accounts_file(path)[0].accounts) == ["a", "b"]

    def fail(file: AccountsFile) -> None:
        file.remove("a")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        change_accounts_file(path, fail)
    assert list(read_accounts_file(path)[0].accounts) == ["a", "b"]
    assert sorted(os.listdir(tmp_path)) == ["link", "passwd"]


def test_a_broken_file_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("broken\n")
    with pytest.raises(AccountsFileError, match="line 1"):
        change_accounts_file(path, lambda file: file.put(account("a")))
    assert path.read_text() == "broken\n"


def test_a_file_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AccountsFileError, match="cannot be changed: "):
        change_accounts_file(tmp_path / "file" / "passwd", lambda file: None)


def test_two_changes_at_once_are_both_there(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    users = [f"u{number}" for number in range(40)]

    def add(user: str) -> None:
        change_accounts_file(path, lambda file: file.put(account(user)))

    threads = [threading.Thread(target=add, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_accounts_file(path)[0].accounts) == set(users)


def test_names_of_users() -> None:
    assert all(map(is_user_name, ["a", "a b", "ä@example.org", "a#", "x" * USER_LENGTH_MAX]))
    assert not any(
        map(is_user_name, ["", " a", "a ", "a:b", "#a", "a\nb", "a\0", "x" * (USER_LENGTH_MAX + 1)])
    )


USERS = st.text(max_size=8).filter(is_user_name)
HASHES = st.builds(
    PasswordHash,
    st.integers(1, 10_000_000),
    st.binary(min_size=1, max_size=8),
    st.binary(min_size=64, max_size=64),
)


@given(st.dictionaries(USERS, HASHES, max_size=5))
def test_files_survive_their_text_form(users: dict[str, PasswordHash]) -> None:
    file = AccountsFile([], {}, [])
    for user, password in users.items():
        file.put(Account(user, password, parse_access_rules("prn::/,READ")))
    again = AccountsFile.parse(str(file), "passwd")
    assert again.accounts == file.accounts
    for user in users:
        again.remove(user)
    assert str(again) == ""


@given(st.text())
def test_any_text_is_accounts_or_an_error(text: str) -> None:
    with suppress(AccountsFileError):
        AccountsFile.parse(text, "passwd")


def test_the_example_on_the_formats_page_is_an_account() -> None:
    page = Path(__file__).parents[2] / "docs" / "formats" / "accounts.md"
    (example,) = re.findall(r"^```\n(alice:.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (user,) = AccountsFile.parse(example.replace("\n", ""), "page").accounts.values()
    assert (user.user, user.password.rounds) == ("alice", 5000)
    assert user.password.salt == bytes(range(32))
    assert user.password.verify(b"pw")
    assert user.rules.level_for(ROOT) is Level.READ_UPDATE
